//! List sweeps, for those who run the server: all background work, with how far behind it is.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::id::Uuid;
use waybill_kernel::{Error, Example, OperationSpec, Result, Role, Route, Scope, Time};

use super::DeadJobs;
use crate::{Ctx, Operation, Reach, Reply, Row, Tx};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListSweeps {}

/// All sweeps that have run on this database, by name. There are as many as the program has, so there are no pages.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Sweeps {
    pub sweeps: Vec<SweepView>,
    /// The sweeps among them that follow a table, and how far they have come in it.
    pub feeds: Vec<FeedView>,
    /// Jobs that are not done, by kind.
    pub jobs: Vec<JobsView>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct FeedView {
    /// Its sweep's.
    pub name: String,
    /// The number of the row that was given out last.
    pub seq: i64,
    /// When that was.
    pub moved_at: Time,
    /// How long its runs have ended before its rows did; 0 when it keeps up.
    pub behind_ms: i64,
}

#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct JobsView {
    pub kind: String,
    /// Waiting for their time or for a runner.
    pub ready: i64,
    /// In a runner's hands.
    pub running: i64,
    /// Failed for the last time.
    pub dead: i64,
    /// How long the first of those that nobody has taken has been due.
    pub lag_ms: i64,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct SweepView {
    pub name: String,
    /// From the end of a run to the next, less up to a fifth by chance.
    pub interval_ms: i64,
    pub last_started_at: Time,
    /// Absent before the first run that ended well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_finished_at: Option<Time>,
    /// Rows of the latest run.
    pub last_rows: i64,
    /// Rows of all runs.
    pub total_rows: i64,
    /// Runs that failed, of all.
    pub failures: i64,
    /// Why the latest run failed; absent after one that did not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// When it is due.
    pub next_at: Time,
    /// How long it has been due: much more than nothing says that no node runs it.
    pub lag_ms: i64,
    /// How long its runs have ended before their work did; 0 when it keeps up.
    pub behind_ms: i64,
    /// The node that ran it last.
    pub holder: String,
}

fn milliseconds(since: Option<Time>, now: Time) -> i64 {
    since.map_or(0, |since| i64::try_from(now.since(since).as_millis()).unwrap_or(i64::MAX))
}

impl SweepView {
    fn read(row: &Row, now: Time) -> Result<Self> {
        let next_at = row.time(7)?;
        Ok(Self {
            name: row.text(0)?.to_owned(),
            interval_ms: row.int(1)? / 1000,
            last_started_at: row.time(2)?,
            last_finished_at: row.time_opt(3)?,
            last_rows: row.int(4)?,
            total_rows: row.int(5)?,
            failures: row.int(6)?,
            next_at,
            lag_ms: milliseconds(Some(next_at), now),
            behind_ms: milliseconds(row.time_opt(10)?, now),
            holder: Uuid::from_slice(row.bytes(8)?).map_err(Error::internal)?.to_string(),
            last_error: row.text_opt(9)?.map(str::to_owned),
        })
    }
}

impl Operation for ListSweeps {
    const SPEC: OperationSpec = OperationSpec {
        name: "list_sweeps",
        domain: "admin",
        route: Route::get("/admin/sweeps"),
        tool: false,
        roles: &[Role::Admin],
        scopes: &[Scope::AdminRead],
        title: "List sweeps",
        description: "Shows the server's background work: when each sweep last ran, what it did and how late it is, how far \
                      feeds have come, and which jobs wait. For admins of the default tenant.",
        example: Example {
            arguments: r#"{}"#,
            answer: r#"{"sweeps": [{"name": "tasks.leases", "interval_ms": 10000,
                "last_started_at": "2026-01-05T12:30:00.000000Z", "last_finished_at": "2026-01-05T12:30:00.000000Z",
                "last_rows": 0, "total_rows": 7, "failures": 0, "next_at": "2026-01-05T12:30:04.250000Z",
                "lag_ms": 0, "behind_ms": 0, "holder": "0198c0de-1a2b-7c3d-8e4f-5a6b7c8d9e10"}],
                "feeds": [{"name": "receipts.chain", "seq": 42, "moved_at": "2026-01-05T12:30:00.000000Z",
                "behind_ms": 0}], "jobs": [{"kind": "deliver", "ready": 1, "running": 0, "dead": 0, "lag_ms": 120}]}"#,
        },
        ..OperationSpec::READ
    };
    const REACH: Reach = Reach::System;
    type Output = Sweeps;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Sweeps>> {
        ctx.caller.require_operator("see sweeps")?;
        Ok(Reply::Done(Sweeps {
            sweeps: sweeps(tx, ctx.now).await?,
            feeds: feeds(tx, ctx.now).await?,
            jobs: jobs(tx, ctx.now).await?,
        }))
    }
}

async fn sweeps(tx: &mut Tx<'_>, now: Time) -> Result<Vec<SweepView>> {
    const SELECT: &str = "SELECT name, interval_us, last_started, last_finished, last_rows, total_rows, failures, \
                          next_at, holder, last_error, behind_since FROM sweeps ORDER BY name";
    tx.query(SELECT, &[]).await?.iter().map(|row| SweepView::read(row, now)).collect()
}

async fn feeds(tx: &mut Tx<'_>, now: Time) -> Result<Vec<FeedView>> {
    const SELECT: &str = "SELECT f.name, f.seq, f.updated_at, s.behind_since FROM feeds f \
                          JOIN sweeps s ON s.name = f.name ORDER BY f.name";
    let read = |row: &Row| {
        Ok(FeedView {
            name: row.text(0)?.to_owned(),
            seq: row.int(1)?,
            moved_at: row.time(2)?,
            behind_ms: milliseconds(row.time_opt(3)?, now),
        })
    };
    tx.query(SELECT, &[]).await?.iter().map(read).collect()
}

/// By the indexes of those that are due and of the dead: what is done, however much, is not looked at.
async fn jobs(tx: &mut Tx<'_>, now: Time) -> Result<Vec<JobsView>> {
    const ALIVE: &str = "SELECT kind, sum(CASE WHEN state = 'ready' THEN 1 ELSE 0 END), count(*), min(next_at) \
                         FROM jobs WHERE next_at IS NOT NULL GROUP BY kind";
    let mut kinds: BTreeMap<String, JobsView> = BTreeMap::new();
    for row in tx.query(ALIVE, &[]).await? {
        let (ready, alive) = (row.int(1)?, row.int(2)?);
        let lag_ms = milliseconds(row.time_opt(3)?, now);
        let kind = row.text(0)?.to_owned();
        kinds.insert(kind.clone(), JobsView { kind, ready, running: alive - ready, dead: 0, lag_ms });
    }
    for row in tx.query(DeadJobs::SELECT, &[]).await? {
        let kind = row.text(0)?.to_owned();
        kinds.entry(kind.clone()).or_insert_with(|| JobsView { kind, ..JobsView::default() }).dead = row.int(1)?;
    }
    Ok(kinds.into_values().collect())
}
