//! Everything that an archive has to hold, read from the database a piece at a time: for an archive that began again, for a check and
//! for a rebuild. A piece may be read twice, and rows that come meanwhile have rows of their own to archive them.

use waybill_kernel::{Mode, Result, Time};
use waybill_mail::archive_rows::NO_PROJECT;
use waybill_store::{Ctx, Tx, Work};

use crate::draft::Line;
use crate::read::{self, Messages};
use crate::rows::Whose;
use crate::{Draft, Item};

/// Agents, reservations or products of one piece.
const PIECE: i64 = 200;
/// Messages of one piece.
const MESSAGES: i64 = 500;
/// Files about what an agent has seen, of one piece.
const SEEN: usize = 16;
/// What a commit of a walk says: it is about whatever was missing.
const SUBJECT: &str = "archive: written again from the database";

/// Where a walk is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Project,
    /// After the agent with this key.
    Agents(String),
    /// Of this agent, after this message; then the agents after the one with this key.
    Seen {
        key: String,
        agent: i64,
        after: i64,
    },
    Reservations(i64),
    Messages(i64),
    /// Messages from other projects, to the agents after the one with this key.
    Foreign {
        key: String,
        agent: i64,
        at: i64,
        message: i64,
    },
    Products(i64),
    Done,
}

/// A walk over one archive.
#[derive(Clone, Debug)]
pub(crate) struct Walk {
    pub whose: Whose,
    pub step: Step,
    pub bytes_max: usize,
    /// Of which beginning the archive lacks what is walked over; empty for one that did not begin again.
    pub begun: String,
}

/// What one step has found, and where the next one begins.
pub(crate) struct Piece {
    pub draft: Option<Draft>,
    pub next: Step,
}

impl Walk {
    pub(crate) fn new(whose: Whose, bytes_max: usize) -> Self {
        let step = if whose.1 == NO_PROJECT { Step::Products(0) } else { Step::Project };
        Self { whose, step, bytes_max, begun: String::new() }
    }
}

impl Work for Walk {
    type Output = Piece;

    fn mode(&self) -> Mode {
        Mode::Read
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Piece> {
        let Some(owner) = read::owner(tx, self.whose.0, self.whose.1).await? else {
            return Ok(Piece { draft: None, next: Step::Done });
        };
        let mut draft = Draft::new(owner, ctx.now);
        let next = match &self.step {
            Step::Project => {
                draft.items.push(read::project(&draft.owner));
                Step::Agents(String::new())
            }
            Step::Agents(after) => agents(tx, &mut draft, after, self.bytes_max).await?,
            Step::Seen { key, agent, after } => seen(tx, &mut draft, key, *agent, *after).await?,
            Step::Reservations(after) => reservations(tx, &mut draft, *after).await?,
            Step::Messages(after) => self.messages(tx, &mut draft, *after).await?,
            Step::Foreign { key, agent, at, message } => {
                self.foreign(tx, &mut draft, key, *agent, (*at, *message)).await?
            }
            Step::Products(after) => products(tx, &mut draft, *after).await?,
            Step::Done => Step::Done,
        };
        draft.lines = vec![Line { kind: "files", text: SUBJECT.to_owned(), by: None }];
        Ok(Piece { draft: Some(draft), next })
    }
}

/// Agents with their profiles, policies, contacts and build slots.
async fn agents(tx: &mut Tx<'_>, draft: &mut Draft, after: &str, bytes_max: usize) -> Result<Step> {
    const NEXT: &str = "SELECT agent, name_key FROM mail_agents WHERE tenant = $1 AND project = $2 AND name_key > $3 \
                        ORDER BY name_key LIMIT $4";
    let owner = draft.owner.clone();
    let params = [owner.project.into(), after.into(), PIECE.into()];
    let mut last = None;
    let rows = tx.as_tenant(owner.tenant).query(NEXT, &params).await?;
    for row in &rows {
        let agent = row.int(0)?;
        if let Some(item) = read::agent(tx, &owner, agent).await? {
            if let Item::Agent { profile, .. } = &item {
                draft.items.extend(read::agent_slots(tx, &owner, agent, &profile.name).await?);
            }
            draft.items.push(item);
        }
        last = Some(row.text(1)?.to_owned());
        if draft.weight() > bytes_max {
            break;
        }
    }
    Ok(last.map_or(Step::Seen { key: String::new(), agent: 0, after: -1 }, Step::Agents))
}

/// What the agent has read and acknowledged, some thousands of messages at a time; then the next agent.
async fn seen(tx: &mut Tx<'_>, draft: &mut Draft, key: &str, agent: i64, after: i64) -> Result<Step> {
    const NAME: &str = "SELECT name FROM mail_agents WHERE tenant = $1 AND agent = $2";
    let owner = draft.owner.clone();
    let name = tx.as_tenant(owner.tenant).query_opt(NAME, &[agent.into()]).await?;
    if let Some(name) = name.as_ref().map(|row| row.text(0)).transpose()? {
        let all = read::seen_buckets(tx, &owner, agent, Time::from_micros(0)).await?;
        let some: Vec<i64> = all.into_iter().filter(|message| *message > after).take(SEEN).collect();
        for message in &some {
            draft.items.extend(read::seen(tx, &owner, agent, name, *message).await?);
        }
        if let Some(last) = some.last() {
            return Ok(Step::Seen { key: key.to_owned(), agent, after: *last });
        }
    }
    let next = next_agent(tx, draft, key).await?;
    Ok(next.map_or(Step::Reservations(0), |(agent, key)| Step::Seen { key, agent, after: -1 }))
}

/// The agent after the one with this key, and its own.
async fn next_agent(tx: &mut Tx<'_>, draft: &Draft, key: &str) -> Result<Option<(i64, String)>> {
    const NEXT: &str = "SELECT agent, name_key FROM mail_agents WHERE tenant = $1 AND project = $2 AND name_key > $3 \
                        ORDER BY name_key LIMIT 1";
    let params = [draft.owner.project.into(), key.into()];
    let row = tx.as_tenant(draft.owner.tenant).query_opt(NEXT, &params).await?;
    row.map(|row| Ok((row.int(0)?, row.text(1)?.to_owned()))).transpose()
}

async fn reservations(tx: &mut Tx<'_>, draft: &mut Draft, after: i64) -> Result<Step> {
    const NEXT: &str = "SELECT reservation FROM mail_reservations WHERE tenant = $1 AND project = $2 AND reservation > $3 \
                        ORDER BY reservation LIMIT $4";
    let owner = draft.owner.clone();
    let params = [owner.project.into(), after.into(), PIECE.into()];
    let rows = tx.as_tenant(owner.tenant).query(NEXT, &params).await?;
    let mut last = None;
    for row in &rows {
        last = Some(row.int(0)?);
        if let Some(held) = read::reservation(tx, &owner, row.int(0)?).await? {
            draft.items.push(Item::Reservation(held));
        }
    }
    Ok(last.map_or(Step::Messages(0), Step::Reservations))
}

async fn products(tx: &mut Tx<'_>, draft: &mut Draft, after: i64) -> Result<Step> {
    const NEXT: &str = "SELECT product FROM mail_products WHERE tenant = $1 AND product > $2 ORDER BY product LIMIT $3";
    let owner = draft.owner.clone();
    let rows = tx.as_tenant(owner.tenant).query(NEXT, &[after.into(), PIECE.into()]).await?;
    let mut last = None;
    for row in &rows {
        last = Some(row.int(0)?);
        if let Some(product) = read::product(tx, &owner, row.int(0)?).await? {
            draft.items.push(Item::Product(product));
        }
    }
    Ok(last.map_or(Step::Done, Step::Products))
}

impl Walk {
    /// Those of the project itself.
    async fn messages(&self, tx: &mut Tx<'_>, draft: &mut Draft, after: i64) -> Result<Step> {
        const NEXT: &str = "SELECT message, octet_length(body), attachments FROM mail_messages \
            WHERE tenant = $1 AND project = $2 AND message > $3 ORDER BY message LIMIT $4";
        let owner = draft.owner.clone();
        let params = [owner.project.into(), after.into(), MESSAGES.into()];
        let rows = tx.as_tenant(owner.tenant).query(NEXT, &params).await?;
        let ids = self.fitting(&rows)?;
        Messages { owner: &owner, ids: &ids }.file(tx, draft).await?;
        let beginning = Step::Foreign { key: String::new(), agent: 0, at: 0, message: 0 };
        Ok(ids.last().map_or(beginning, |last| Step::Messages(*last)))
    }

    /// As many of the ids as fit, one at least.
    fn fitting(&self, rows: &[waybill_store::Row]) -> Result<Vec<i64>> {
        let (mut ids, mut bytes) = (Vec::new(), 0_usize);
        for row in rows {
            bytes = bytes.saturating_add(read::size_of(row, 1)?);
            if bytes > self.bytes_max && !ids.is_empty() {
                break;
            }
            ids.push(row.int(0)?);
        }
        Ok(ids)
    }

    /// Those that agents of the project got from others. `after` is the place in the inbox of `agent`, 0 for none.
    async fn foreign(
        &self,
        tx: &mut Tx<'_>,
        draft: &mut Draft,
        key: &str,
        agent: i64,
        after: (i64, i64),
    ) -> Result<Step> {
        const NEXT: &str = "SELECT m.message, octet_length(m.body), m.attachments, r.created_at FROM mail_recipients r \
            JOIN mail_messages m ON m.tenant = $1 AND m.message = r.message WHERE r.tenant = $1 AND r.agent = $2 \
            AND (r.created_at, r.message) > ($3, $4) AND m.project <> $5 ORDER BY r.created_at, r.message LIMIT $6";
        let owner = draft.owner.clone();
        if agent != 0 {
            let params = [agent.into(), after.0.into(), after.1.into(), owner.project.into(), MESSAGES.into()];
            let rows = tx.as_tenant(owner.tenant).query(NEXT, &params).await?;
            let ids = self.fitting(&rows)?;
            if let Some(last) = ids.len().checked_sub(1) {
                Messages { owner: &owner, ids: &ids }.file(tx, draft).await?;
                return Ok(Step::Foreign { key: key.to_owned(), agent, at: rows[last].int(3)?, message: ids[last] });
            }
        }
        let next = next_agent(tx, draft, key).await?;
        Ok(next.map_or(Step::Done, |(agent, key)| Step::Foreign { key, agent, at: 0, message: 0 }))
    }
}
