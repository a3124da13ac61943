//! Health: a write that is kept and read back, and how far the archive is behind.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Error, Example, OperationSpec, Profile, Result, Role, Route, Scope, Time};
use waybill_store::{Answered, Ctx, Flow, Operation, PoolFigures, Procedure, Reply, Row, Tx};

use crate::Settings;
use crate::archive_health::{ArchiveHealth, ArchiveState, Pressure};

/// Unwritten rows are counted no further than this: an answer of bounded cost.
const COUNTED_MAX: i64 = 100_000;
/// Calls within a minute from which on their waits are judged.
const POOL_CALLS_MIN: usize = 20;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HealthCheck {
    /// How calls have waited for the database.
    #[serde(skip)]
    pub pool: PoolFigures,
}

// The operation with the figures that the process has beside its database. No doc comment: it would be what tools say of their input.
#[derive(Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(transparent)]
pub struct WithPool(HealthCheck);

impl Procedure for WithPool {
    const SPEC: OperationSpec = <HealthCheck as Operation>::SPEC;
    type Output = Health;

    async fn call(self, flow: &Flow<'_>) -> Answered<Health> {
        let mut check = self.0;
        check.pool = flow.home().pool();
        flow.home().run_in_turn(check, flow.caller.clone()).await
    }
}

/// How mail is.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Health {
    /// `ok`, or `degraded` while the archive has trouble or calls wait for long. Mail itself works: the answer comes after a write that was kept.
    pub status: &'static str,
    /// The worst of what follows. A server that cannot write answers with an error, never with a colour.
    pub health_level: Level,
    pub probed_at: Time,
    pub projects: i64,
    pub pool: PoolView,
    /// Absent where this server writes no archive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub archive: Option<ArchiveView>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Level {
    Green,
    Yellow,
    Red,
}

/// How long calls wait for the database.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct PoolView {
    pub health_level: Level,
    /// As long as 95 of 100 calls of the last minute have waited at most for a reader, the writer or a lane.
    pub pool_acquire_latency_us: u64,
    pub pool_acquires_total: u64,
    pub pool_acquire_errors_total: u64,
    pub pool_active_connections: u64,
}

impl PoolView {
    fn new(pool: &PoolFigures, settings: &Settings) -> Self {
        // A few slow calls of a server that has nothing to do are no trouble.
        let judged = if pool.recent >= POOL_CALLS_MIN { pool.wait_p95 } else { Duration::ZERO };
        Self {
            health_level: match judged {
                wait if wait > Duration::from_millis(settings.pool_red_ms) => Level::Red,
                wait if wait > Duration::from_millis(settings.pool_yellow_ms) => Level::Yellow,
                _ => Level::Green,
            },
            pool_acquire_latency_us: u64::try_from(pool.wait_p95.as_micros()).unwrap_or(u64::MAX),
            pool_acquires_total: pool.acquires,
            pool_acquire_errors_total: pool.errors,
            pool_active_connections: pool.active as u64,
        }
    }
}

/// How far the archive is behind the database. Nothing of it keeps a call from succeeding.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct ArchiveView {
    pub health_level: Level,
    /// Rows of the tenant that are not written yet.
    pub wbq_depth: i64,
    pub wbq_capacity: i64,
    /// Of the oldest of them, or of what agents have read, acknowledged or set since it was written.
    pub lag_seconds: i64,
    /// Those that were passed over because of a full disk or of failures, and what the probe has missed: they are written later.
    pub needs_reindex_total: i64,
    pub disk_pressure: Pressure,
    /// What the last failure was, while it lasts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
}

impl Operation for HealthCheck {
    const SPEC: OperationSpec = OperationSpec {
        name: "health_check",
        domain: crate::NAME,
        route: Route::post("/v1/mail/health"),
        profile: Profile::Core,
        repeatable: true,
        roles: &[Role::Agent, Role::Admin, Role::System],
        scopes: &[Scope::MailRead, Scope::MailWrite],
        title: "Check mail",
        description: "Writes something and reads it back: an answer means that mail works. Says how far the archive is behind.",
        example: Example {
            arguments: "{}",
            answer: r#"{"status": "ok", "health_level": "green", "probed_at": "2026-01-05T12:30:00.000000Z",
                "projects": 3, "pool": {"health_level": "green", "pool_acquire_latency_us": 40, "pool_acquires_total": 812,
                "pool_acquire_errors_total": 0, "pool_active_connections": 1}, "archive": {"health_level": "green", "wbq_depth": 0, "wbq_capacity": 8192, "lag_seconds": 0,
                "needs_reindex_total": 0, "disk_pressure": "none"}}"#,
        },
        ..OperationSpec::WRITE
    };
    type Output = Health;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Health>> {
        const PROBE: &str = "INSERT INTO mail_probes (tenant, probed_at) VALUES ($1, $2) \
                             ON CONFLICT (tenant) DO UPDATE SET probed_at = excluded.probed_at";
        const PROBED: &str = "SELECT probed_at FROM mail_probes WHERE tenant = $1";
        const PROJECTS: &str = "SELECT count(*) FROM mail_projects WHERE tenant = $1";
        tx.execute(PROBE, &[ctx.now.into()]).await?;
        let looks = [(PROBED, Vec::new()), (PROJECTS, Vec::new())];
        let rows = tx.query_all(&looks).await?;
        let number = |at: usize| first(&rows[at])?.int(0);
        if number(0)? != ctx.now.micros() {
            return Err(Error::internal("a probe read back another value than it wrote"));
        }
        let archive = match ctx.settings_if_given::<ArchiveHealth>() {
            Some(health) => Some(archive(ctx, tx, &health.state(ctx.caller.tenant)).await?),
            None => None,
        };
        let pool = PoolView::new(&self.pool, ctx.settings());
        let health_level = archive.as_ref().map_or(Level::Green, |archive| archive.health_level).max(pool.health_level);
        let status = if health_level == Level::Green { "ok" } else { "degraded" };
        Ok(Reply::Done(Health { status, health_level, probed_at: ctx.now, projects: number(1)?, pool, archive }))
    }
}

fn first(rows: &[Row]) -> Result<&Row> {
    rows.first().ok_or_else(|| Error::internal("a look has no row"))
}

async fn archive(ctx: &Ctx<'_>, tx: &mut Tx<'_>, state: &ArchiveState) -> Result<ArchiveView> {
    const COUNT: &str =
        "SELECT count(*) FROM (SELECT 1 FROM mail_archive_rows WHERE tenant = $1 AND state = $2 LIMIT $3) AS found";
    const OLDEST: &str = "SELECT min(at) FROM (SELECT at FROM mail_archive_rows WHERE tenant = $1 AND state <> 'failed' LIMIT $2) AS found";
    const CHANGED: &str = "SELECT min(changed_at) FROM \
        (SELECT changed_at FROM mail_changes WHERE tenant = $1 AND changes > archived LIMIT $2) AS found";
    let count = |state: &'static str| (COUNT, vec![state.into(), COUNTED_MAX.into()]);
    let oldest = |sql| (sql, vec![COUNTED_MAX.into()]);
    let looks = [count("waiting"), count("skipped"), count("failed"), oldest(OLDEST), oldest(CHANGED)];
    let rows = tx.query_all(&looks).await?;
    let number = |at: usize| first(&rows[at])?.int(0);
    let (waiting, passed_over) = (number(0)?, number(1)? + number(2)?);
    let oldest = [first(&rows[3])?.time_opt(0)?, first(&rows[4])?.time_opt(0)?].into_iter().flatten().min();
    let lag = oldest.map(|oldest| ctx.now.since(oldest)).unwrap_or_default();
    let depth = waiting + passed_over;
    let needs_reindex_total = passed_over.saturating_add(i64::try_from(state.missing).unwrap_or(i64::MAX));
    let bounds = state.bounds;
    let red = state.breakers_open > 0
        || state.disk == Pressure::Critical
        || depth * 10 >= bounds.capacity * 8
        || lag >= bounds.lag_red;
    let yellow = state.failing > 0
        || state.disk == Pressure::Warning
        || depth * 2 >= bounds.capacity
        || lag >= bounds.lag_yellow
        || needs_reindex_total > 0;
    Ok(ArchiveView {
        health_level: if red {
            Level::Red
        } else if yellow {
            Level::Yellow
        } else {
            Level::Green
        },
        wbq_depth: depth,
        wbq_capacity: bounds.capacity,
        lag_seconds: i64::try_from(lag.as_secs()).unwrap_or(i64::MAX),
        needs_reindex_total,
        disk_pressure: state.disk,
        last_error: state.error.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_48_waits_for_the_database_turn_yellow_above_10_ms_and_red_above_50() {
        let level = |ms: u64, recent: usize| {
            let pool = PoolFigures { recent, wait_p95: Duration::from_millis(ms), ..PoolFigures::default() };
            PoolView::new(&pool, &Settings::default()).health_level
        };
        for (ms, expected) in
            [(0, Level::Green), (10, Level::Green), (11, Level::Yellow), (50, Level::Yellow), (51, Level::Red)]
        {
            assert_eq!(level(ms, POOL_CALLS_MIN), expected, "{ms} ms");
            assert_eq!(level(ms, POOL_CALLS_MIN - 1), Level::Green, "{ms} ms of a server that rests");
        }
    }
}
