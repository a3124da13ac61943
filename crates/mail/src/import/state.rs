//! What agents did with what they have: read and acknowledged messages, contacts.

use std::collections::BTreeSet;

use waybill_kernel::{Mode, Result, Tenant, Time};
use waybill_store::{Ctx, STATEMENTS_MAX, Statement, Tx, Value, Work};

use super::{BATCH_MAX, Put, check_text};
use crate::archive_rows;
use crate::contacts::REASON_CHARS_MAX;

/// A character has up to four bytes.
const UTF8_MAX: usize = 4;

#[derive(Clone, Copy, Debug)]
pub struct SeenRecord {
    pub message: i64,
    pub agent: i64,
    pub read_at: Option<Time>,
    pub ack_at: Option<Time>,
}

/// Times that are there already stay: the first ones count. At most [`BATCH_MAX`] of them.
pub struct PutSeen {
    pub tenant: Tenant,
    pub records: Vec<SeenRecord>,
    pub archived: bool,
}

impl Work for PutSeen {
    /// How many were changed.
    type Output = u64;

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<u64> {
        const SEEN: &str = "UPDATE mail_recipients SET read_at = coalesce(read_at, $4), ack_at = coalesce(ack_at, $5) \
            WHERE tenant = $1 AND message = $2 AND agent = $3 \
            AND ((read_at IS NULL AND $4 IS NOT NULL) OR (ack_at IS NULL AND $5 IS NOT NULL))";
        assert!(self.records.len() <= BATCH_MAX, "more than {BATCH_MAX} deliveries at once");
        let tx = &mut *tx.as_tenant(self.tenant);
        let statement = |record: &SeenRecord| -> Statement<'_> {
            let times = [Value::from(record.read_at), Value::from(record.ack_at)];
            (SEEN, [record.message.into(), record.agent.into()].into_iter().chain(times).collect())
        };
        let (mut changed, mut agents) = (0, BTreeSet::new());
        for records in self.records.chunks(STATEMENTS_MAX) {
            let statements: Vec<Statement<'_>> = records.iter().map(statement).collect();
            for (record, count) in records.iter().zip(tx.execute_all(&statements).await?) {
                changed += count;
                agents.extend((count > 0).then_some(record.agent));
            }
        }
        if self.archived {
            tell_archive(tx, ctx.now, agents).await?;
        }
        Ok(changed)
    }
}

#[derive(Clone, Debug)]
pub struct ContactRecord {
    pub from: i64,
    pub to: i64,
    pub status: String,
    pub reason: String,
    pub created_at: Time,
    pub updated_at: Time,
    pub expires_at: Option<Time>,
}

/// Contacts that are there already stay. At most [`BATCH_MAX`] of them.
pub struct PutContacts {
    pub tenant: Tenant,
    pub records: Vec<ContactRecord>,
    pub archived: bool,
}

impl Work for PutContacts {
    /// In the order of the records.
    type Output = Vec<Put>;

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Vec<Put>> {
        const INSERT: &str = "INSERT INTO mail_contacts (tenant, from_agent, to_agent, status, reason, created_at, updated_at, \
            expires_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT DO NOTHING";
        assert!(self.records.len() <= BATCH_MAX, "more than {BATCH_MAX} contacts at once");
        let tx = &mut *tx.as_tenant(self.tenant);
        let (mut outcomes, mut agents) = (Vec::with_capacity(self.records.len()), BTreeSet::new());
        for record in &self.records {
            if let Err(why) = check(record) {
                outcomes.push(Put::Refused(why));
                continue;
            }
            let params = [
                record.from.into(),
                record.to.into(),
                Value::from(&record.status),
                Value::from(&record.reason),
                record.created_at.into(),
                record.updated_at.into(),
                record.expires_at.into(),
            ];
            let written = tx.execute(INSERT, &params).await? == 1;
            if written {
                agents.extend([record.from, record.to]);
            }
            outcomes.push(if written { Put::Written } else { Put::Known });
        }
        if self.archived {
            tell_archive(tx, ctx.now, agents).await?;
        }
        Ok(outcomes)
    }
}

/// Agents that were there already have their files, which lack what came in.
pub(super) async fn tell_archive(tx: &mut Tx<'_>, now: Time, agents: BTreeSet<i64>) -> Result<()> {
    for agent in agents {
        archive_rows::changed_long_ago(tx, now, agent).await?;
    }
    Ok(())
}

fn check(record: &ContactRecord) -> std::result::Result<(), String> {
    if !["pending", "approved", "blocked"].contains(&record.status.as_str()) {
        return Err("its status is none".to_owned());
    }
    check_text("its reason", &record.reason, REASON_CHARS_MAX * UTF8_MAX)
}
