//! Health: a write that is kept and read back, and how far the archive is behind.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Error, Example, OperationSpec, Profile, Result, Role, Route, Scope, Time};
use waybill_store::{Ctx, Operation, Reply, Row, Tx};

use crate::archive_health::{ArchiveHealth, ArchiveState, Pressure};

/// Unwritten rows are counted no further than this: an answer of bounded cost.
const COUNTED_MAX: i64 = 100_000;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HealthCheck {}

/// How mail is.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Health {
    /// `ok`, or `degraded` while the archive has trouble. Mail itself works: the answer comes after a write that was kept.
    pub status: &'static str,
    /// The worst of what follows. A server that cannot write answers with an error, never with a colour.
    pub health_level: Level,
    pub probed_at: Time,
    pub projects: i64,
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

/// How far the archive is behind the database. Nothing of it keeps a call from succeeding.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct ArchiveView {
    pub health_level: Level,
    /// Rows of the tenant that are not written yet.
    pub wbq_depth: i64,
    pub wbq_capacity: i64,
    /// Of the oldest of them.
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
                "projects": 3, "archive": {"health_level": "green", "wbq_depth": 0, "wbq_capacity": 8192, "lag_seconds": 0,
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
            Some(health) => Some(archive(ctx, tx, &health.state()).await?),
            None => None,
        };
        let health_level = archive.as_ref().map_or(Level::Green, |archive| archive.health_level);
        let status = if health_level == Level::Green { "ok" } else { "degraded" };
        Ok(Reply::Done(Health { status, health_level, probed_at: ctx.now, projects: number(1)?, archive }))
    }
}

fn first(rows: &[Row]) -> Result<&Row> {
    rows.first().ok_or_else(|| Error::internal("a look has no row"))
}

async fn archive(ctx: &Ctx<'_>, tx: &mut Tx<'_>, state: &ArchiveState) -> Result<ArchiveView> {
    const COUNT: &str =
        "SELECT count(*) FROM (SELECT 1 FROM mail_archive_rows WHERE tenant = $1 AND state = $2 LIMIT $3) AS found";
    const OLDEST: &str = "SELECT min(at) FROM (SELECT at FROM mail_archive_rows WHERE tenant = $1 AND state <> 'failed' LIMIT $2) AS found";
    let count = |state: &'static str| (COUNT, vec![state.into(), COUNTED_MAX.into()]);
    let looks = [count("waiting"), count("skipped"), count("failed"), (OLDEST, vec![COUNTED_MAX.into()])];
    let rows = tx.query_all(&looks).await?;
    let number = |at: usize| first(&rows[at])?.int(0);
    let (waiting, passed_over) = (number(0)?, number(1)? + number(2)?);
    let oldest = first(&rows[3])?.time_opt(0)?;
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
