//! List sweeps, for those who run the server.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::id::Uuid;
use waybill_kernel::{Door, Error, Method, Mode, OperationSpec, Result, Role, Scope, Time};

use crate::{Ctx, Operation, Reach, Reply, Row, Tx};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListSweeps {}

/// All sweeps that have run on this database, by name. There are as many as the program has, so there are no pages.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Sweeps {
    pub sweeps: Vec<SweepView>,
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
    /// The node that ran it last.
    pub holder: String,
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
            lag_ms: i64::try_from(now.since(next_at).as_millis()).unwrap_or(i64::MAX),
            holder: Uuid::from_slice(row.bytes(8)?).map_err(Error::internal)?.to_string(),
            last_error: row.text_opt(9)?.map(str::to_owned),
        })
    }
}

impl Operation for ListSweeps {
    const SPEC: OperationSpec = OperationSpec {
        name: "list_sweeps",
        door: Door::Admin,
        method: Method::Get,
        path: "/admin/sweeps",
        tool: false,
        mode: Mode::Read,
        destructive: false,
        repeatable: true,
        relieves: false,
        roles: &[Role::Admin],
        scopes: &[Scope::AdminRead],
        status: 200,
        title: "List sweeps",
        description: "Shows the server's recurring work: when each last ran, what it did, and how late it is. \
                      For admins of the default tenant.",
    };
    const REACH: Reach = Reach::System;
    type Output = Sweeps;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Sweeps>> {
        const SELECT: &str = "SELECT name, interval_us, last_started, last_finished, last_rows, total_rows, failures, \
                              next_at, holder, last_error FROM sweeps ORDER BY name";
        ctx.caller.require_operator("see sweeps")?;
        let rows = tx.query(SELECT, &[]).await?;
        let sweeps = rows.iter().map(|row| SweepView::read(row, ctx.now)).collect::<Result<_>>()?;
        Ok(Reply::Done(Sweeps { sweeps }))
    }
}
