//! What recurs about meshes: whatever is over goes. Messages and the ids that they were sent under each have a time of their own.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::Value as Json;
use waybill_kernel::{Result, Tenant};
use waybill_mesh_protocol::{MemberId, MeshId};
use waybill_store::effects::{Plan, Runner, Sweep};
use waybill_store::{Ctx, Tx, Value};

use crate::check::NightlyCheck;
use crate::ending::{Ending, end};
use crate::ops::members::ConnectionId;
use crate::settings::before;
use crate::wakes::wake_member;
use crate::{Settings, connections, metrics};

/// Chunks of files that one transaction removes, each of a megabyte.
const CHUNKS_MAX: i64 = 16;
/// Members and connections that one transaction ends: each writes several rows.
const ENDED_MAX: i64 = 16;
/// What has only just ended is left alone: a call that has looked at it before may still be under way.
const GRACE_S: u64 = 60;

pub(crate) fn start(runner: Runner, settings: &waybill_store::Settings) -> Runner {
    metrics::describe();
    let settings: &Settings = settings.get();
    runner
        .with(OldMessages::new(settings))
        .with(OldIds::new(settings))
        .with(OldFiles::new(settings))
        .with(Over::new(settings))
        .with(NightlyCheck::new(settings))
}

/// Rows of the batch under way, counted once it is committed.
#[derive(Debug, Default)]
struct Removed(AtomicU64);

impl Removed {
    fn note(&self, rows: u64) -> u64 {
        self.0.store(rows, Ordering::Relaxed);
        rows
    }

    fn count(&self, kind: &'static str) {
        let removed = self.0.swap(0, Ordering::Relaxed);
        if removed > 0 {
            ::metrics::counter!(metrics::PRUNED, "kind" => kind).increment(removed);
        }
    }
}

/// Messages that are too old, with their history, mentions and what of them was never acknowledged. Their ids stay used.
#[derive(Debug)]
pub struct OldMessages {
    interval: Duration,
    retention_s: u64,
    removed: Removed,
}

impl OldMessages {
    pub fn new(settings: &Settings) -> Self {
        let (interval, retention_s) = (settings.sweep_interval(), settings.message_retention_s);
        Self { interval, retention_s, removed: Removed::default() }
    }
}

impl Sweep for OldMessages {
    const NAME: &'static str = "mesh.messages";

    fn plan(&self) -> Plan {
        Plan::every(self.interval)
    }

    async fn run_batch(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, limit: i64) -> Result<u64> {
        const DELIVERIES: &str = "DELETE FROM mesh_deliveries WHERE (tenant, mesh_id, member_id, seq) IN (SELECT tenant, mesh_id, \
            member_id, seq FROM mesh_deliveries WHERE created_at <= $1 ORDER BY created_at LIMIT $2)";
        const MENTIONS: &str = "DELETE FROM mesh_mentions WHERE (tenant, mesh_id, message_id) IN (SELECT tenant, mesh_id, \
            message_id FROM mesh_messages WHERE created_at <= $1 ORDER BY created_at, number LIMIT $2)";
        const HISTORY: &str = "DELETE FROM mesh_history WHERE (tenant, mesh_id, seq) IN (SELECT tenant, mesh_id, seq \
            FROM mesh_messages WHERE created_at <= $1 ORDER BY created_at, number LIMIT $2)";
        const IDS: &str = "UPDATE mesh_dedupe SET history_available = 0 WHERE (tenant, mesh_id, client_message_id, message_id) \
            IN (SELECT tenant, mesh_id, client_message_id, message_id FROM mesh_messages WHERE created_at <= $1 \
            ORDER BY created_at, number LIMIT $2)";
        const MESSAGES: &str = "DELETE FROM mesh_messages WHERE number IN (SELECT number FROM mesh_messages \
            WHERE created_at <= $1 ORDER BY created_at, number LIMIT $2)";
        let before = Value::from(before(ctx.now, self.retention_s));
        // First, and so many at a time: one post may have ten thousand.
        let deliveries = tx.execute(DELIVERIES, &[before, Value::from(limit)]).await?;
        let room = limit.saturating_sub(i64::try_from(deliveries).unwrap_or(i64::MAX));
        if room <= 0 {
            return Ok(self.removed.note(deliveries));
        }
        let params = vec![before, Value::from(room)];
        let statements = [MENTIONS, HISTORY, IDS, MESSAGES].map(|sql| (sql, params.clone()));
        let messages = tx.execute_all(&statements).await?.last().copied().unwrap_or(0);
        Ok(self.removed.note(deliveries + messages))
    }

    fn committed(&self) {
        self.removed.count("message");
    }
}

/// Ids whose time is over: a message that comes under one of them is a new one.
#[derive(Debug)]
pub struct OldIds {
    interval: Duration,
    removed: Removed,
}

impl OldIds {
    pub fn new(settings: &Settings) -> Self {
        Self { interval: settings.sweep_interval(), removed: Removed::default() }
    }
}

impl Sweep for OldIds {
    const NAME: &'static str = "mesh.dedupe";

    fn plan(&self) -> Plan {
        Plan::every(self.interval)
    }

    async fn run_batch(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, limit: i64) -> Result<u64> {
        const DELETE: &str = "DELETE FROM mesh_dedupe WHERE (tenant, mesh_id, client_message_id) IN (SELECT tenant, mesh_id, \
            client_message_id FROM mesh_dedupe WHERE expires_at <= $1 ORDER BY expires_at LIMIT $2)";
        let rows = tx.execute(DELETE, &[Value::from(ctx.now), Value::from(limit)]).await?;
        Ok(self.removed.note(rows))
    }

    fn committed(&self) {
        self.removed.count("dedupe");
    }
}

/// Files whose time is over, and those that never arrived as a whole.
#[derive(Debug)]
pub struct OldFiles {
    interval: Duration,
    removed: Removed,
}

impl OldFiles {
    pub fn new(settings: &Settings) -> Self {
        Self { interval: settings.sweep_interval(), removed: Removed::default() }
    }
}

impl Sweep for OldFiles {
    const NAME: &'static str = "mesh.files";

    fn plan(&self) -> Plan {
        Plan { batch: CHUNKS_MAX, ..Plan::every(self.interval) }
    }

    async fn run_batch(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, limit: i64) -> Result<u64> {
        const CHUNKS: &str = "DELETE FROM mesh_file_chunks WHERE number IN (SELECT c.number FROM mesh_file_chunks c \
            JOIN mesh_files f ON f.tenant = c.tenant AND f.mesh_id = c.mesh_id AND f.file_id = c.file_id \
            WHERE f.expires_at <= $1 LIMIT $2)";
        const FILES: &str = "DELETE FROM mesh_files WHERE (tenant, mesh_id, file_id) IN (SELECT tenant, mesh_id, file_id \
            FROM mesh_files WHERE expires_at <= $1 ORDER BY expires_at LIMIT $2)";
        let before = Value::from(before(ctx.now, GRACE_S));
        let chunks = tx.execute(CHUNKS, &[before, Value::from(limit)]).await?;
        let room = limit.saturating_sub(i64::try_from(chunks).unwrap_or(i64::MAX));
        // A file goes after the last of its chunks.
        let files = if room > 0 { tx.execute(FILES, &[before, Value::from(room)]).await? } else { 0 };
        Ok(self.removed.note(chunks + files))
    }

    fn committed(&self) {
        self.removed.count("file");
    }
}

/// Invites and events that are too old, members that joined for a time, connections of processes that are gone.
#[derive(Debug)]
pub struct Over {
    interval: Duration,
    events_retention_s: u64,
}

impl Over {
    pub fn new(settings: &Settings) -> Self {
        Self { interval: settings.sweep_interval(), events_retention_s: settings.events_retention_s }
    }
}

impl Sweep for Over {
    const NAME: &'static str = "mesh.over";

    fn plan(&self) -> Plan {
        Plan::every(self.interval)
    }

    async fn run_batch(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, limit: i64) -> Result<u64> {
        const INVITES: &str = "DELETE FROM mesh_invites WHERE (tenant, mesh_id, invite_id) IN (SELECT tenant, mesh_id, invite_id \
            FROM mesh_invites WHERE expires_at <= $1 ORDER BY expires_at LIMIT $2)";
        const EVENTS: &str = "DELETE FROM mesh_events WHERE (tenant, mesh_id, seq) IN (SELECT tenant, mesh_id, seq \
            FROM mesh_events WHERE at <= $1 ORDER BY at LIMIT $2)";
        const AUDIT: &str =
            "DELETE FROM mesh_audit WHERE seq IN (SELECT seq FROM mesh_audit WHERE at <= $1 ORDER BY at LIMIT $2)";
        let ended = ended_members(ctx, tx, limit.min(ENDED_MAX)).await?
            + ended_connections(ctx, tx, limit.min(ENDED_MAX)).await?;
        let old = Value::from(before(ctx.now, self.events_retention_s));
        let invites = tx.execute(INVITES, &[Value::from(before(ctx.now, GRACE_S)), Value::from(limit)]).await?;
        let events = tx.execute(EVENTS, &[old, Value::from(limit)]).await?;
        // One at most for each event, so that they are gone when the events are.
        tx.execute(AUDIT, &[old, Value::from(limit)]).await?;
        // A batch that has ended as many as it may is a full one: more may wait.
        Ok(if ended >= ENDED_MAX.unsigned_abs() { limit.unsigned_abs() } else { ended + invites.max(events) })
    }
}

async fn ended_members(ctx: &Ctx<'_>, tx: &mut Tx<'_>, limit: i64) -> Result<u64> {
    const FIND: &str = "SELECT tenant, mesh_id, member_id FROM mesh_members WHERE state = 'live' AND expires_at <= $1 \
                        ORDER BY expires_at LIMIT $2";
    let rows = tx.query(FIND, &[Value::from(ctx.now), Value::from(limit)]).await?;
    for row in &rows {
        let (mesh, member) = (MeshId::from_slice(row.bytes(1)?)?, MemberId::from_slice(row.bytes(2)?)?);
        end(ctx, &mut tx.as_tenant(Tenant(row.int(0)?)), mesh, member, Ending::Left, Json::Null).await?;
    }
    Ok(rows.len() as u64)
}

async fn ended_connections(ctx: &Ctx<'_>, tx: &mut Tx<'_>, limit: i64) -> Result<u64> {
    const FIND: &str = "SELECT tenant, mesh_id, member_id, connection_id FROM mesh_connections WHERE lease_until <= $1 \
                        ORDER BY lease_until LIMIT $2";
    let rows = tx.query(FIND, &[Value::from(before(ctx.now, GRACE_S)), Value::from(limit)]).await?;
    for row in &rows {
        let (mesh, member) = (MeshId::from_slice(row.bytes(1)?)?, MemberId::from_slice(row.bytes(2)?)?);
        let (tenant, connection) = (Tenant(row.int(0)?), ConnectionId::from_slice(row.bytes(3)?)?);
        connections::remove(ctx, &mut tx.as_tenant(tenant), mesh, member, connection).await?;
        // Its process may be there after all, and its socket learns by this that it is not the member's any more.
        wake_member(tx, tenant, mesh, member);
    }
    Ok(rows.len() as u64)
}
