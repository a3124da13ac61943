//! What the archive has to do, as rows of the transaction that gives it the work. The archive itself is another crate: it reads
//! these rows once they are committed, and nothing here waits for it.
//!
//! Two shapes. A *row* says that a project, an agent, a message or a reservation is to be written. A *change* says that state which is
//! derived from other rows has changed, however often: the archive writes such state once per look.

use waybill_kernel::{Result, Tenant, Time};
use waybill_store::{Statement, Topic, Tx, Value};

/// What a row of the archive is about; `ref` is its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArchiveKind {
    Project,
    Agent,
    Message,
    Reservation,
    BuildSlot,
    Product,
}

impl ArchiveKind {
    pub const fn as_str(self) -> &'static str {
        match self {
            ArchiveKind::Project => "project",
            ArchiveKind::Agent => "agent",
            ArchiveKind::Message => "message",
            ArchiveKind::Reservation => "reservation",
            ArchiveKind::BuildSlot => "build_slot",
            ArchiveKind::Product => "product",
        }
    }
}

/// In the place of a project's number: of what belongs to the tenant and no project.
pub const NO_PROJECT: i64 = 0;

/// Woken after every commit that has given the archive something to do.
pub fn topic() -> Topic {
    Topic::new("mail.archive", Tenant(0), b"due")
}

/// Held by servers that write the archive, and alone by whoever repairs it or the rows behind it.
pub fn owner() -> Topic {
    Topic::new("mail.archive", Tenant(0), b"owner")
}

const NOTE: &str = "INSERT INTO mail_archive_rows (tenant, project, kind, ref, at, state, next_at) \
                    VALUES ($1, $2, $3, $4, $5, 'waiting', $5)";
const CHANGED: &str = "INSERT INTO mail_changes (tenant, project, agent, changes, changed_at) VALUES ($1, $2, $3, 1, $4) \
    ON CONFLICT (tenant, project, agent) DO UPDATE SET changes = mail_changes.changes + 1, \
    changed_at = CASE WHEN mail_changes.changes > mail_changes.archived THEN mail_changes.changed_at ELSE excluded.changed_at END";
const CHANGED_LONG_AGO: &str = "INSERT INTO mail_changes (tenant, project, agent, changes, changed_at) \
    SELECT $1, project, agent, 1, $3 FROM mail_agents WHERE tenant = $1 AND agent = $2 \
    ON CONFLICT (tenant, project, agent) DO UPDATE SET changes = mail_changes.changes + 1, archived_until = 0, \
    changed_at = CASE WHEN mail_changes.changes > mail_changes.archived THEN mail_changes.changed_at ELSE excluded.changed_at END";

/// One row of the archive, in the caller's transaction.
pub async fn note(tx: &mut Tx<'_>, now: Time, project: i64, kind: ArchiveKind, id: i64) -> Result<()> {
    let (sql, params) = noting(tx, now, project, kind, id);
    tx.execute(sql, &params).await.map(drop)
}

/// As [`note`], as a statement to be run together with others.
pub fn noting<'a>(tx: &mut Tx<'_>, now: Time, project: i64, kind: ArchiveKind, id: i64) -> Statement<'a> {
    tx.wake(topic(), 1);
    (NOTE, vec![project.into(), kind.as_str().into(), id.into(), now.into()])
}

/// State of this agent that the archive derives has changed. No archive row: the tools that only touch the database write none.
pub async fn changed(tx: &mut Tx<'_>, now: Time, project: i64, agent: i64) -> Result<()> {
    let (sql, params) = changing(tx, now, project, agent);
    tx.execute(sql, &params).await.map(drop)
}

/// As [`changed`], as a statement to be run together with others.
pub fn changing<'a>(tx: &mut Tx<'_>, now: Time, project: i64, agent: i64) -> Statement<'a> {
    tx.wake(topic(), 1);
    (CHANGED, vec![Value::from(project), agent.into(), now.into()])
}

/// State of this agent was changed to what it was at an earlier time, which the archive has looked at before: it looks at all of it again.
pub async fn changed_long_ago(tx: &mut Tx<'_>, now: Time, agent: i64) -> Result<()> {
    tx.wake(topic(), 1);
    tx.execute(CHANGED_LONG_AGO, &[agent.into(), now.into()]).await.map(drop)
}
