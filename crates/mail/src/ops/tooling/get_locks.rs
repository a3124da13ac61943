//! Who writes the archive, and what stands in its way.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Error, Example, OperationSpec, Resource, Result, Route};
use waybill_store::{Ctx, Operation, Reply, Tx};

use crate::archive_health::ArchiveHealth;

/// Projects of one answer.
const PROJECTS_MAX: i64 = 200;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GetLocks {}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Locks {
    /// Whether this process holds the lock of the archive: one server at a time writes it.
    pub is_archive_writer: bool,
    /// Of this process.
    pub pid: u32,
    /// Projects of the tenant whose archive could not be written lately.
    pub projects_failing: u64,
    /// Those of them that rest for a while after many failures.
    pub projects_resting: u64,
    /// Projects of the tenant with rows that are not written yet, those with the oldest rows first; at most 200.
    pub waiting: Vec<WaitingProject>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct WaitingProject {
    pub slug: String,
    pub rows: i64,
    pub oldest_seconds: i64,
}

impl Operation for GetLocks {
    const SPEC: OperationSpec = OperationSpec {
        name: "get_locks",
        route: Route::get("/v1/mail/tooling/locks"),
        resources: &[Resource::at(
            "resource://tooling/locks",
            "tooling-locks",
            "Who writes the archive, and which projects wait for it.",
        )],
        tool: false,
        title: "Show who writes the archive",
        description: "Whether this server holds the lock of the archive, and which projects of yours wait to be written.",
        example: Example {
            arguments: "{}",
            answer: r#"{"is_archive_writer": true, "pid": 4711, "projects_failing": 0, "projects_resting": 0,
                "waiting": [{"slug": "data-projects-backend", "rows": 3, "oldest_seconds": 0}]}"#,
        },
        ..super::READ
    };
    type Output = Locks;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Locks>> {
        // Of the rows that wait a bounded part is looked at.
        const WAITING: &str = "SELECT p.slug, count(*), min(w.at) FROM \
            (SELECT project, at FROM mail_archive_rows WHERE tenant = $1 AND state <> 'failed' LIMIT 100000) w \
            JOIN mail_projects p ON p.tenant = $1 AND p.project = w.project \
            GROUP BY p.slug ORDER BY min(w.at), p.slug LIMIT $2";
        let state = ctx.settings_if_given::<ArchiveHealth>().map(|health| health.state(ctx.caller.tenant));
        let mut waiting = Vec::new();
        for row in tx.query(WAITING, &[PROJECTS_MAX.into()]).await? {
            let oldest = ctx.now.since(row.time(2)?).as_secs();
            waiting.push(WaitingProject {
                slug: row.text(0)?.to_owned(),
                rows: row.int(1)?,
                oldest_seconds: i64::try_from(oldest).map_err(Error::internal)?,
            });
        }
        Ok(Reply::Done(Locks {
            is_archive_writer: state.is_some(),
            pid: std::process::id(),
            projects_failing: state.as_ref().map_or(0, |state| state.failing),
            projects_resting: state.as_ref().map_or(0, |state| state.breakers_open),
            waiting,
        }))
    }
}
