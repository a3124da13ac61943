//! What recurs about mail: old deliveries, keys and reservations go, agents that do nothing are retired, acknowledgements that are overdue
//! are told, and the index of words is merged.

mod inactive;
mod overdue;

use std::collections::BTreeMap;
use std::time::Duration;

pub use inactive::InactiveAgents;
pub use overdue::OverdueAcks;
use waybill_kernel::{Result, Tenant, Time};
use waybill_store::effects::{Plan, Runner, Sweep};
use waybill_store::{Ctx, Tx, Value};

use crate::archive_rows::ArchiveKind;
use crate::search::merge::MergeSearch;
use crate::{Settings, archive_rows, keys, metrics};

pub(crate) fn start(runner: Runner, settings: &Settings) -> Runner {
    metrics::describe();
    let runner =
        runner.with(OldEvents::new(settings)).with(OldKeys::new(settings)).with(OldReservations::new(settings));
    let runner = started(runner, InactiveAgents::new(settings));
    started(runner, OverdueAcks::new(settings)).with(MergeSearch)
}

fn started(runner: Runner, sweep: Option<impl Sweep>) -> Runner {
    match sweep {
        Some(sweep) => runner.with(sweep),
        None => runner,
    }
}

fn before(now: Time, age: Duration) -> Time {
    Time::from_micros(now.micros().saturating_sub(i64::try_from(age.as_micros()).unwrap_or(i64::MAX)))
}

/// Deliveries that can no longer be followed. Where each agent's begin is written down, so that a cursor from before is refused
/// and does not silently skip what is gone.
#[derive(Clone, Debug)]
pub struct OldEvents {
    interval: Duration,
    retention: Duration,
}

impl OldEvents {
    pub fn new(settings: &Settings) -> Self {
        let seconds = Duration::from_secs;
        Self { interval: seconds(settings.sweep_interval_s.max(1)), retention: seconds(settings.events_retention_s) }
    }
}

impl Sweep for OldEvents {
    const NAME: &'static str = "mail.inbox_events";

    fn plan(&self) -> Plan {
        Plan::every(self.interval)
    }

    async fn run_batch(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, limit: i64) -> Result<u64> {
        // Their numbers follow their times closely enough: whatever is younger ends the batch.
        const DELETE: &str = "DELETE FROM mail_inbox_events WHERE seq IN \
            (SELECT seq FROM mail_inbox_events ORDER BY seq LIMIT $1) AND at < $2 \
            AND seq < (SELECT max(seq) FROM mail_inbox_events) RETURNING tenant, agent, xact, seq";
        const FORGET: &str = "INSERT INTO mail_forgotten_events (tenant, agent, xact, seq) VALUES ($1, $2, $3, $4) \
            ON CONFLICT (tenant, agent) DO UPDATE SET xact = excluded.xact, seq = excluded.seq \
            WHERE (mail_forgotten_events.xact, mail_forgotten_events.seq) < (excluded.xact, excluded.seq)";
        let rows = tx.query(DELETE, &[limit.into(), before(ctx.now, self.retention).into()]).await?;
        let mut ends: BTreeMap<(i64, i64), (i64, i64)> = BTreeMap::new();
        for row in &rows {
            let end = ends.entry((row.int(0)?, row.int(1)?)).or_default();
            *end = (*end).max((row.int(2)?, row.int(3)?));
        }
        for ((tenant, agent), (xact, seq)) in ends {
            tx.execute(FORGET, &[tenant.into(), agent.into(), xact.into(), seq.into()]).await?;
        }
        Ok(rows.len() as u64)
    }
}

/// Keys whose window has ended.
#[derive(Clone, Debug)]
pub struct OldKeys {
    interval: Duration,
}

impl OldKeys {
    pub fn new(settings: &Settings) -> Self {
        Self { interval: Duration::from_secs(settings.sweep_interval_s.max(1)) }
    }
}

impl Sweep for OldKeys {
    const NAME: &'static str = "mail.keys";

    fn plan(&self) -> Plan {
        Plan::every(self.interval)
    }

    async fn run_batch(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, limit: i64) -> Result<u64> {
        const DELETE: &str = "DELETE FROM mail_keys WHERE created_at <= $1 AND (tenant, project, agent, tool, key) IN \
            (SELECT tenant, project, agent, tool, key FROM mail_keys WHERE created_at <= $1 ORDER BY created_at LIMIT $2)";
        tx.execute(DELETE, &[Value::from(before(ctx.now, keys::WINDOW)), limit.into()]).await
    }
}

/// Reservations that ended long ago. Their files go from the archive's tree and stay in its history.
#[derive(Clone, Debug)]
pub struct OldReservations {
    interval: Duration,
    retention: Duration,
}

impl OldReservations {
    pub fn new(settings: &Settings) -> Self {
        let seconds = Duration::from_secs;
        Self {
            interval: seconds(settings.sweep_interval_s.max(1)),
            retention: seconds(settings.reservations_retention_s),
        }
    }
}

impl Sweep for OldReservations {
    const NAME: &'static str = "mail.reservations";

    fn plan(&self) -> Plan {
        Plan::every(self.interval)
    }

    async fn run_batch(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, limit: i64) -> Result<u64> {
        // The newest one stays: SQLite would give its number out again.
        const DELETE: &str = "DELETE FROM mail_reservations WHERE reservation IN \
            (SELECT reservation FROM mail_reservations WHERE expires_at < $1 ORDER BY expires_at LIMIT $2) \
            AND reservation < (SELECT max(reservation) FROM mail_reservations) RETURNING tenant, project, reservation";
        let over = before(ctx.now, self.retention);
        let rows = tx.query(DELETE, &[over.into(), limit.into()]).await?;
        for row in &rows {
            let (tenant, project, id) = (Tenant(row.int(0)?), row.int(1)?, row.int(2)?);
            let (sql, params) = archive_rows::noting(tx, ctx.now, project, ArchiveKind::Reservation, id);
            tx.as_tenant(tenant).execute(sql, &params).await?;
        }
        Ok(rows.len() as u64)
    }
}
