//! Lease: the best tasks a worker can do, given to it alone for a time.
//!
//! Tasks that fit the same workers share a digest of their needs. A claim looks at which digests have claimable tasks,
//! keeps those the worker satisfies, takes the head of each by the index, and merges the heads. So a backlog that does not fit
//! costs one look per digest, however long it is, and one that does fit costs as much as is taken.

use std::collections::BTreeSet;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use waybill_kernel::id::digest_id;
use waybill_kernel::{
    Caller, Door, Error, Example, Json, Method, Mode, OperationSpec, PrincipalKind, Result, Role, Scope, Time,
};
use waybill_store::{Ctx, Operation, Reply, Row, Statement, Tx, Value, Wait};

use super::create_task::{KEY_CHARS_MAX, length};
use crate::Settings;
use crate::lease::{self, LeaseId};
use crate::receipts::{self, Receipt, ReceiptId, ReceiptType, SYSTEM};
use crate::task::{NAME_CHARS_MAX, NAMES_MAX, Requirements, TaskId};

/// More is cut to this, not refused.
const TASKS_MAX: i64 = 100;
/// Different needs looked at in one claim. With more, each claim begins at a place of its own, so that all get their turn.
const NEEDS_MAX: i64 = 1_000;
/// Tasks whose waiting is over that one claim puts back in line.
const RELEASED_MAX: i64 = 256;
/// Times that it does so, while what was put back is for others.
const RELEASES_MAX: usize = 16;
/// Of tasks it has looked at and left, so many others are told.
const WOKEN_MAX: usize = 16;
/// A waiting claim that could not look at all needs looks at others after this.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LeaseNext {
    /// Who you are; your key says it anyway, and must agree.
    #[schemars(extend("deprecated" = true))]
    pub worker_id: Option<String>,
    /// With `worker_id`.
    #[schemars(extend("deprecated" = true))]
    pub worker_kind: Option<PrincipalKind>,
    /// Which run of the worker this is, for the record.
    #[schemars(length(min = 1, max = 255))]
    pub worker_instance_id: Option<String>,
    /// What you can do. You are given tasks all of whose required capabilities are among these.
    #[serde(default)]
    #[schemars(length(max = 64), inner(length(min = 1, max = 128)))]
    pub capabilities: Vec<String>,
    /// Only tasks of these types; any type when empty.
    #[serde(default)]
    #[schemars(length(max = 64), inner(length(min = 1, max = 200)))]
    pub accept_types: Vec<String>,
    /// How many tasks at most: 1 unless given, never more than 100.
    #[schemars(range(min = 1))]
    pub max_tasks: Option<i64>,
    /// How long you have before you must renew: 300 unless given, never more than 1,800.
    #[schemars(range(min = 1))]
    pub lease_ttl_seconds: Option<i64>,
    /// Wait up to this many seconds (at most 20) for a task. 0 answers at once.
    #[serde(default)]
    #[schemars(range(min = 0, max = 4_294_967_295_u32))]
    pub wait_seconds: u32,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Leased {
    /// Empty when there is nothing for you now.
    pub tasks: Vec<LeasedTask>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct LeasedTask {
    pub task_id: TaskId,
    /// Send it with everything you say about the task.
    pub lease_id: LeaseId,
    #[serde(rename = "type")]
    pub kind: String,
    pub payload: Json,
    /// Failures reported so far.
    pub attempt: i64,
    /// Renew before this time, or the task goes to somebody else.
    pub expires_at: Time,
    pub requirements: Json,
}

impl Operation for LeaseNext {
    const SPEC: OperationSpec = OperationSpec {
        name: "lease_next",
        door: Door::Tasks,
        method: Method::Post,
        path: "/v1/leases/claim",
        tool: true,
        mode: Mode::Write,
        destructive: false,
        repeatable: false,
        relieves: false,
        roles: &[Role::Worker, Role::Admin],
        scopes: &[Scope::TasksLease],
        status: 200,
        title: "Take work",
        description: "Take the next task you can do, highest priority first. It is yours alone until expires_at: renew the \
                      lease while you work, then call complete or fail with its lease_id. With wait_seconds the call \
                      waits for a task, so there is no need to poll.",
        example: Example {
            arguments: r#"{"capabilities": ["pdf"], "accept_types": ["report.render"], "wait_seconds": 20}"#,
            answer: r#"{"tasks": [{"task_id": "0198c0de-1a2b-7c3d-8e4f-5a6b7c8d9e0f",
                "lease_id": "0198c0df-2b3c-7d4e-9f50-6b7c8d9e0f1a", "type": "report.render",
                "payload": {"month": "2025-12"}, "attempt": 0, "expires_at": "2026-01-05T12:35:04.250000Z",
                "requirements": {"capabilities": ["pdf"]}}]}"#,
        },
    };
    type Output = Leased;

    fn wait(&self, caller: &Caller) -> Option<Wait> {
        Wait::up_to(self.wait_seconds, lease::claimable(caller.tenant))
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Leased>> {
        let limit = self.check()?;
        let settings = ctx.settings::<Settings>();
        let worker = lease::worker(ctx, self.worker_kind, self.worker_id.as_deref())?;
        let mut wanted = self.satisfied(ctx, tx).await?;
        // More than one turn only past a crowd whose time has come and that is not for this worker.
        let mut releases = 0;
        while wanted.due && releases < RELEASES_MAX && (releases == 0 || wanted.satisfied.is_empty()) {
            release_due(ctx, tx).await?;
            wanted = self.satisfied(ctx, tx).await?;
            releases += 1;
        }
        let mut tasks = Vec::new();
        if let ([needs], 1) = (&wanted.satisfied[..], limit) {
            // Almost every claim: nothing to merge, so finding and taking are one statement.
            tasks.extend(self.take(ctx, tx, TAKE_FIRST, needs, &worker).await?);
        } else {
            let (heads, passed_over) = heads(tx, &wanted.satisfied, limit).await?;
            let mut bytes = 0;
            for head in heads {
                // What one answer holds has a bound; the rest is for the next claim.
                if bytes > settings.list_bytes_max {
                    break;
                }
                let task = self.take(ctx, tx, TAKE, head.task_id(), &worker).await?;
                bytes += task.as_ref().map_or(0, |task| task.payload.as_str().len() as i64);
                tasks.extend(task);
            }
            // Locked until now, so that others have looked past them.
            if passed_over > 0 {
                tx.wake(lease::claimable(ctx.caller.tenant), passed_over.min(WOKEN_MAX) as u32);
            }
        }
        if tasks.is_empty() {
            let due = if self.wait_seconds > 0 { next_due(tx).await? } else { None };
            // Of too many needs only some were looked at: other ones soon, and not when something happens.
            let soon = wanted.partial.then(|| ctx.now.after(LOOK_AGAIN));
            let at = due.into_iter().chain(soon).min();
            return Ok(Reply::Empty { answer: Leased { tasks }, at });
        }
        Ok(Reply::Done(Leased { tasks }))
    }
}

/// The first claimable task of its needs.
struct Head {
    /// Lowest first: priority turned round, then age, then id.
    place: (i64, i64, Vec<u8>),
}

/// Whose time has come goes back in line. Here and not in a sweep, so that nobody waits for one.
async fn release_due(ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<()> {
    const RELEASE: &str = "UPDATE tasks SET held = 0 WHERE tenant = $1 AND task_id IN (\
        SELECT task_id FROM tasks WHERE tenant = $1 AND status = 'queued' AND held = 1 AND next_eligible_at <= $2 \
        ORDER BY next_eligible_at LIMIT $3 FOR UPDATE SKIP LOCKED) AND status = 'queued' AND held > 0";
    let released = tx.execute(RELEASE, &[ctx.now.into(), RELEASED_MAX.into()]).await?;
    // They are for others too.
    if released > 1 {
        tx.wake(lease::claimable(ctx.caller.tenant), u32::try_from(released - 1).unwrap_or(u32::MAX));
    }
    Ok(())
}

async fn next_due(tx: &mut Tx<'_>) -> Result<Option<Time>> {
    const NEXT: &str = "SELECT next_eligible_at FROM tasks WHERE tenant = $1 AND status = 'queued' AND held = 1 \
                        ORDER BY next_eligible_at LIMIT 1";
    tx.query_opt(NEXT, &[]).await?.map(|row| row.time(0)).transpose()
}

/// The line of one need, `$2`.
macro_rules! first_of_needs {
    () => {
        "FROM tasks WHERE tenant = $1 AND status = 'queued' AND held = 0 AND needs = $2 \
         ORDER BY priority DESC, created_at, task_id"
    };
}

/// The first claimable tasks of all these needs together, and how many more were looked at.
async fn heads(tx: &mut Tx<'_>, satisfied: &[Vec<u8>], limit: i64) -> Result<(Vec<Head>, usize)> {
    const HEADS: &str =
        concat!("SELECT priority, created_at, task_id ", first_of_needs!(), " LIMIT $3 FOR UPDATE SKIP LOCKED");
    let mut heads = Vec::new();
    for needs in satisfied {
        let rows = tx.query(HEADS, &[Value::from(&needs[..]), limit.into()]).await?;
        heads.extend(rows.iter().map(Head::read).collect::<Result<Vec<_>>>()?);
    }
    heads.sort_by(|a, b| a.place.cmp(&b.place));
    let found = heads.len();
    heads.truncate(limit as usize);
    let passed_over = found - heads.len();
    Ok((heads, passed_over))
}

impl Head {
    fn read(row: &Row) -> Result<Self> {
        Ok(Self { place: (-row.int(0)?, row.int(1)?, row.bytes(2)?.to_vec()) })
    }

    fn task_id(&self) -> &[u8] {
        &self.place.2
    }
}

/// Each different need that has claimable tasks. What it asks for is read from the task that is first in its line; said with
/// an order, because without one a planner may look for any such task from the beginning of the table. `$2` is where to
/// begin after, `$4` is now.
macro_rules! different_needs {
    () => {
        "WITH RECURSIVE found (needs) AS ( \
           SELECT (SELECT t.needs FROM tasks t WHERE t.tenant = $1 AND t.status = 'queued' AND t.held = 0 \
                   AND t.needs > $2 ORDER BY t.needs LIMIT 1) \
           UNION ALL \
           SELECT (SELECT t.needs FROM tasks t WHERE t.tenant = $1 AND t.status = 'queued' AND t.held = 0 \
                   AND t.needs > found.needs ORDER BY t.needs LIMIT 1) \
           FROM found WHERE found.needs IS NOT NULL \
         ) \
         SELECT found.needs, \
           (SELECT t.type FROM tasks t WHERE t.tenant = $1 AND t.status = 'queued' AND t.held = 0 \
            AND t.needs = found.needs ORDER BY t.priority DESC, t.created_at, t.task_id LIMIT 1), \
           (SELECT t.requirements FROM tasks t WHERE t.tenant = $1 AND t.status = 'queued' AND t.held = 0 \
            AND t.needs = found.needs ORDER BY t.priority DESC, t.created_at, t.task_id LIMIT 1), \
           CAST(CASE WHEN EXISTS (SELECT 1 FROM tasks t WHERE t.tenant = $1 AND t.status = 'queued' \
                AND t.held = 1 AND t.next_eligible_at <= $4) THEN 1 ELSE 0 END AS BIGINT) \
         FROM found \
         LIMIT $3"
    };
}

/// `$2` says which task, by `$which`. The guard is not `held = 0`, or PostgreSQL might look for the task's id in the line of
/// all claimable tasks, which is not ordered by it.
macro_rules! take {
    ($which:expr) => {
        concat!(
            "UPDATE tasks SET status = 'leased', lease_id = $3, worker = $4, lease_expires_at = $5, \
             epoch = epoch + 1, renewals = 0, updated_at = $6 \
             WHERE tenant = $1 AND task_id = ",
            $which,
            " AND status = 'queued' AND held < 1 \
             RETURNING type, payload, attempt, requirements, assigned_receipt, epoch, task_id"
        )
    };
}

const TAKE: &str = take!("$2");
const TAKE_FIRST: &str = take!(concat!("(SELECT task_id ", first_of_needs!(), " LIMIT 1 FOR UPDATE SKIP LOCKED)"));

/// What is wanted of a worker.
struct Wanted {
    /// The digests of what this worker can do and somebody wants done.
    satisfied: Vec<Vec<u8>>,
    /// There are tasks whose waiting is over and that are not in line yet.
    due: bool,
    /// There are more needs than one claim looks at.
    partial: bool,
}

impl LeaseNext {
    fn check(&self) -> Result<i64> {
        for (field, names) in [("capabilities", &self.capabilities), ("accept_types", &self.accept_types)] {
            if names.len() > NAMES_MAX {
                return Err(Error::invalid(format!("{field} has more than {NAMES_MAX} entries.")));
            }
            if names.iter().any(|name| name.is_empty() || name.chars().count() > NAME_CHARS_MAX.max(200)) {
                return Err(Error::invalid(format!("{field} has an entry that is empty or too long.")));
            }
        }
        if let Some(instance) = &self.worker_instance_id {
            length("worker_instance_id", instance, KEY_CHARS_MAX)?;
        }
        positive("lease_ttl_seconds", self.lease_ttl_seconds)?;
        positive("max_tasks", self.max_tasks)?;
        Ok(self.max_tasks.unwrap_or(1).min(TASKS_MAX))
    }

    async fn satisfied(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Wanted> {
        const NEEDS: &str = different_needs!();
        // The last row found may be the one that says there is no other.
        let after = |place: &'static [u8]| [Value::from(place), Value::from(NEEDS_MAX + 1), Value::from(ctx.now)];
        let mut rows = tx.query(NEEDS, &after(&[])).await?;
        let partial = rows.len() as i64 > NEEDS_MAX;
        if partial {
            // Too many to look at all of them: from anywhere on, and round the end. An id begins with the time and would
            // lead every claim to the same place.
            let anywhere = digest_id(&[ctx.ids.next().as_bytes()]);
            let params = [Value::from(anywhere.as_bytes().as_slice()), Value::from(NEEDS_MAX), Value::from(ctx.now)];
            let mut later = tx.query(NEEDS, &params).await?;
            later.append(&mut rows);
            later.truncate(NEEDS_MAX as usize);
            rows = later;
        }
        let capabilities: BTreeSet<&str> = self.capabilities.iter().map(String::as_str).collect();
        let mut wanted = Wanted { satisfied: Vec::new(), due: false, partial };
        for row in &rows {
            wanted.due |= row.bool(3)?;
            let (Some(kind), Some(requirements)) = (row.text_opt(1)?, row.text_opt(2)?) else { continue };
            let accepted = self.accept_types.is_empty() || self.accept_types.iter().any(|accepted| accepted == kind);
            let requirements: Requirements = serde_json::from_str(requirements).map_err(Error::internal)?;
            if accepted && requirements.capabilities.iter().all(|needed| capabilities.contains(needed.as_str())) {
                wanted.satisfied.push(row.bytes(0)?.to_vec());
            }
        }
        Ok(wanted)
    }

    /// None when somebody else was quicker.
    async fn take(
        &self,
        ctx: &Ctx<'_>,
        tx: &mut Tx<'_>,
        sql: &'static str,
        which: &[u8],
        worker: &str,
    ) -> Result<Option<LeasedTask>> {
        let lease_id = LeaseId(ctx.ids.next());
        let expires_at = ctx.settings::<Settings>().lease_end(ctx.now, self.lease_ttl_seconds);
        let params = [
            Value::from(which),
            Value::from(lease_id.as_bytes()),
            Value::from(worker),
            Value::from(expires_at),
            Value::from(ctx.now),
        ];
        let Some(row) = tx.query_opt(sql, &params).await? else { return Ok(None) };
        let task_id = TaskId::from_slice(row.bytes(6)?)?;
        self.record(ctx, tx, task_id, lease_id, worker, &row).await?;
        Ok(Some(LeasedTask {
            task_id,
            lease_id,
            kind: row.text(0)?.to_owned(),
            payload: Json::from_stored(row.text(1)?)?,
            attempt: row.int(2)?,
            expires_at,
            requirements: Json::from_stored(row.text(3)?)?,
        }))
    }

    async fn record(
        &self,
        ctx: &Ctx<'_>,
        tx: &mut Tx<'_>,
        task_id: TaskId,
        lease_id: LeaseId,
        worker: &str,
        task: &Row,
    ) -> Result<()> {
        const HISTORY: &str = "INSERT INTO leases (tenant, task_id, epoch, lease_id, worker, worker_instance, created_at) \
                               VALUES ($1, $2, $3, $4, $5, $6, $7)";
        let history: Statement<'_> = (
            HISTORY,
            vec![
                Value::from(task_id.as_bytes()),
                Value::from(task.int(5)?),
                Value::from(lease_id.as_bytes()),
                Value::from(worker),
                Value::from(self.worker_instance_id.as_deref()),
                Value::from(ctx.now),
            ],
        );
        let parts = [task_id.as_bytes(), worker.as_bytes(), lease_id.as_bytes()];
        let accepted = Receipt {
            id: receipts::keyed_id(ReceiptType::TaskAccepted, &parts),
            kind: ReceiptType::TaskAccepted,
            from: worker,
            to: SYSTEM,
            task_id: Some(task_id),
            lease_id: Some(lease_id),
            schedule_id: None,
            parents: &[ReceiptId::from_slice(task.bytes(4)?)?],
            unlocated: false,
            body: json!({ "worker_capabilities": self.capabilities }),
        };
        receipts::emit_all(tx, ctx, vec![history], &[accepted]).await
    }
}

pub(crate) fn positive(field: &str, value: Option<i64>) -> Result<()> {
    match value {
        Some(value) if value < 1 => Err(Error::invalid(format!("{field} must be at least 1."))),
        _ => Ok(()),
    }
}
