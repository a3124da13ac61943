//! Agents: profile, policy, contacts, and what they have read and acknowledged.

use std::collections::BTreeMap;

use waybill_archive::layout::{Contact, Delivered, Profile, Seen, State, seen_range};
use waybill_kernel::{Result, Time, hex};
use waybill_store::{Row, Statement, Tx};

use crate::{Item, Owner};

/// Contacts of one agent in each direction. One beyond it still stands with the other agent.
const CONTACTS_MAX: i64 = 10_000;

/// Profile and state. None for an agent that is gone.
pub(crate) async fn agent(tx: &mut Tx<'_>, owner: &Owner, agent: i64) -> Result<Option<Item>> {
    const AGENT: &str = "SELECT name, program, model, task, policy, attachments_policy, reaper_exempt, principal, token, \
        created_at, active_at, retired_at FROM mail_agents WHERE tenant = $1 AND agent = $2";
    let mut tx = tx.as_tenant(owner.tenant);
    let Some(row) = tx.query_opt(AGENT, &[agent.into()]).await? else { return Ok(None) };
    let profile = Profile {
        id: agent,
        name: row.text(0)?.to_owned(),
        program: row.text(1)?.to_owned(),
        model: row.text(2)?.to_owned(),
        task_description: row.text(3)?.to_owned(),
        attachments_policy: row.text(5)?.to_owned(),
        reaper_exempt: row.bool(6)?,
        principal: Some(row.text(7)?.to_owned()),
        // The digest of a random token: nobody gets in with it.
        token_sha256: Some(hex::encode(row.bytes(8)?)),
        inception_ts: row.time(9)?,
        last_active_ts: row.time(10)?,
        retired_ts: row.time_opt(11)?,
        project_id: owner.project,
    };
    let contact_policy = row.text(4)?.to_owned();
    let contacts = contacts(&mut tx, owner, agent).await?;
    Ok(Some(Item::Agent { profile, state: State { contact_policy, contacts } }))
}

macro_rules! contacts {
    ($of:literal) => {
        concat!(
            "SELECT f.name, f.project, fp.human_key, t.name, t.project, tp.human_key, c.status, c.reason, \
             c.created_at, c.updated_at, c.expires_at FROM mail_contacts c \
             JOIN mail_agents f ON f.tenant = $1 AND f.agent = c.from_agent \
             JOIN mail_projects fp ON fp.tenant = $1 AND fp.project = f.project \
             JOIN mail_agents t ON t.tenant = $1 AND t.agent = c.to_agent \
             JOIN mail_projects tp ON tp.tenant = $1 AND tp.project = t.project WHERE c.tenant = $1 AND ",
            $of
        )
    };
}

/// Whom it asked, then who asked it, each in the order of numbers.
async fn contacts(tx: &mut Tx<'_>, owner: &Owner, agent: i64) -> Result<Vec<Contact>> {
    const OUTGOING: &str = contacts!("c.from_agent = $2 ORDER BY c.to_agent LIMIT $3");
    const INCOMING: &str = contacts!("c.to_agent = $2 ORDER BY c.from_agent LIMIT $3");
    let of = |sql| -> Statement<'_> { (sql, vec![agent.into(), CONTACTS_MAX.into()]) };
    let found = tx.query_all(&[of(OUTGOING), of(INCOMING)]).await?;
    let elsewhere = |row: &Row, at: usize| -> Result<Option<String>> {
        Ok(if row.int(at)? == owner.project { None } else { Some(row.text(at + 1)?.to_owned()) })
    };
    let read = |row: &Row| {
        Ok(Contact {
            from: row.text(0)?.to_owned(),
            from_project: elsewhere(row, 1)?,
            to: row.text(3)?.to_owned(),
            to_project: elsewhere(row, 4)?,
            status: row.text(6)?.to_owned(),
            reason: row.text(7)?.to_owned(),
            created_ts: row.time(8)?,
            updated_ts: row.time(9)?,
            expires_ts: row.time_opt(10)?,
        })
    };
    found.iter().flatten().map(read).collect()
}

/// A message of each thousand among which the agent has read or acknowledged something since then.
pub(crate) async fn seen_buckets(tx: &mut Tx<'_>, owner: &Owner, agent: i64, since: Time) -> Result<Vec<i64>> {
    const READ: &str = "SELECT DISTINCT message / 1000 FROM mail_recipients \
        WHERE tenant = $1 AND agent = $2 AND read_at IS NOT NULL AND read_at >= $3";
    const ACKED: &str = "SELECT DISTINCT message / 1000 FROM mail_recipients \
        WHERE tenant = $1 AND agent = $2 AND ack_at IS NOT NULL AND ack_at >= $3";
    let of = |sql| -> Statement<'_> { (sql, vec![agent.into(), since.into()]) };
    let found = tx.as_tenant(owner.tenant).query_all(&[of(READ), of(ACKED)]).await?;
    let mut buckets = found.iter().flatten().map(|row| row.int(0)).collect::<Result<Vec<i64>>>()?;
    buckets.sort_unstable();
    buckets.dedup();
    Ok(buckets.into_iter().map(|bucket| bucket * 1_000).collect())
}

/// What the agent has read and acknowledged in the thousand of this message. None if nothing.
pub(crate) async fn seen(tx: &mut Tx<'_>, owner: &Owner, agent: i64, name: &str, message: i64) -> Result<Option<Item>> {
    const SEEN: &str = "SELECT message, read_at, ack_at FROM mail_recipients WHERE tenant = $1 AND message >= $2 \
        AND message < $3 AND agent = $4 AND (read_at IS NOT NULL OR ack_at IS NOT NULL) ORDER BY message";
    let range = seen_range(message);
    let params = [range.start.into(), range.end.into(), agent.into()];
    let rows = tx.as_tenant(owner.tenant).query(SEEN, &params).await?;
    let read = |row: &Row| Ok((row.int(0)?, Delivered { read_ts: row.time_opt(1)?, ack_ts: row.time_opt(2)? }));
    let seen = Seen(rows.iter().map(read).collect::<Result<BTreeMap<i64, Delivered>>>()?);
    Ok((!seen.0.is_empty()).then(|| Item::Seen { agent: name.to_owned(), message: range.start, seen }))
}
