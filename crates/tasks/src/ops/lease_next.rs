//! Lease: the best tasks a worker can do, given to it alone for a time.
//!
//! Claimable tasks stand in lines ([`crate::lines`]), one for each set of workers that can do them. A claim takes the first task of
//! its line that no other claim is taking; if it has several lines, it treats them as one. On PostgreSQL it locks only the tasks
//! that it takes, so whatever another claim passes over has really been taken.

use std::collections::BTreeSet;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use waybill_kernel::{Caller, Error, Example, Json, OperationSpec, PrincipalKind, Result, Role, Route, Scope, Time};
use waybill_store::{Ctx, Operation, Reply, Row, Sharing, Statement, Tx, Until, Value, Wait};

use super::create_task::{KEY_CHARS_MAX, length};
use crate::Settings;
use crate::lease::{self, LeaseId};
use crate::lines::{self, ByType, CANDIDATES_MAX, Line, Merged, line};
use crate::needs::{self, Offer};
use crate::receipts::{self, Receipt, ReceiptId, ReceiptType, SYSTEM};
use crate::task::{NAME_CHARS_MAX, NAMES_MAX, TaskId};

/// More is cut to this, not refused.
const TASKS_MAX: i64 = 100;
/// How many tasks whose waiting time is over one claim puts back in line at once.
const RELEASED_MAX: i64 = 256;
/// How often a claim does so, or waits for another claim that does, while the tasks put back do not fit its worker.
const RELEASES_MAX: usize = 16;
/// How often a claim looks for tasks, while other claims take those that it has seen.
const LOOKS_MAX: usize = 4;
/// A waiting claim that could not reach all lines looks at others after this time.
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
        domain: "tasks",
        route: Route::post("/v1/leases/claim"),
        roles: &[Role::Worker, Role::Admin],
        scopes: &[Scope::TasksLease],
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
        ..OperationSpec::WRITE
    };
    type Output = Leased;

    fn wait(&self, caller: &Caller) -> Option<Wait> {
        Wait::up_to(self.wait_seconds, lease::claimable(caller.tenant))
    }

    fn sharing(&self) -> Option<Sharing<'_>> {
        Some(Sharing::FREELY)
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Leased>> {
        let limit = self.check()?;
        let worker = lease::worker(ctx, self.worker_kind, self.worker_id.as_deref())?;
        let offer = Offer::new(&self.capabilities);
        let kinds: BTreeSet<&str> = self.accept_types.iter().map(String::as_str).collect();
        let mut taken = Taken { claim: self, worker: &worker, limit, tasks: Vec::new(), bytes: 0 };
        // Almost every claim: one line has everything for this worker, and no task has to be put back in line first.
        if let Some(line) = Line::only(&kinds, &offer) {
            taken.take_from_line(ctx, tx, &line, ctx.now).await?;
        }
        let mut until = Until::default();
        if taken.tasks.is_empty() {
            until = search(ctx, tx, &kinds, &offer, &mut taken).await?;
        }
        let answer = Leased { tasks: taken.tasks };
        Ok(if answer.tasks.is_empty() { Reply::Empty { answer, until } } else { Reply::Done(answer) })
    }
}

/// Finds the lines that fit and takes from them. Returns when to look again, if nothing was taken.
async fn search(
    ctx: &Ctx<'_>,
    tx: &mut Tx<'_>,
    kinds: &BTreeSet<&str>,
    offer: &Offer<'_>,
    taken: &mut Taken<'_>,
) -> Result<Until> {
    let anywhere = needs::mark(ctx.ids.next().as_bytes());
    let (mut turns, mut released) = (0, false);
    let mut until = Until::default();
    for _ in 0..LOOKS_MAX {
        let mut found = lines::look(tx, kinds, offer, anywhere).await?;
        // Once is enough, unless a crowd of tasks has become due that does not fit this worker.
        while found.next_due.is_some_and(|due| due <= ctx.now)
            && turns < RELEASES_MAX
            && (!released || found.lines.is_empty())
        {
            released |= release_due(ctx, tx).await?;
            turns += 1;
            found = lines::look(tx, kinds, offer, anywhere).await?;
        }
        // There were too many lines for one claim: look at others soon, without waiting for a wake.
        until.look = found.partial.then(|| ctx.now.after(LOOK_AGAIN));
        until.due = found.next_due;
        match &found.lines[..] {
            [] => break,
            [line] => taken.take_from_line(ctx, tx, line, Time::EPOCH).await?,
            _ => taken.take_from_lines(ctx, tx, found.lines).await?,
        }
        if !taken.tasks.is_empty() {
            break;
        }
    }
    Ok(until)
}

/// Puts the tasks whose time has come back in line. Claims do this instead of a sweep, so that no task waits for one. Only one claim
/// does it at a time: a second one could neither take a task that the first has put back and not committed, nor know that it is
/// free. False when this claim has waited for another one instead.
async fn release_due(ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<bool> {
    const RELEASE: &str = "WITH due (found) AS MATERIALIZED (SELECT task_id FROM tasks WHERE tenant = $1 \
        AND status = 'queued' AND held = 1 AND next_eligible_at <= $2 \
        ORDER BY next_eligible_at LIMIT $3 FOR UPDATE SKIP LOCKED) \
        UPDATE tasks SET held = 0 WHERE tenant = $1 AND task_id IN (SELECT due.found FROM due) \
        AND status = 'queued' AND held > 0";
    if !tx.alone(lease::claimable(ctx.caller.tenant)).await? {
        return Ok(false);
    }
    let released = tx.execute(RELEASE, &[ctx.now.into(), RELEASED_MAX.into()]).await?;
    // One is for this claim; other workers may take the rest.
    if released > 1 {
        tx.wake(lease::claimable(ctx.caller.tenant), u32::try_from(released - 1).unwrap_or(u32::MAX));
    }
    Ok(true)
}

/// `$which` selects the task, and [`Claimed`] reads the answer. The guard is `held < 1` and not `held = 0`: with that PostgreSQL
/// might look for the task's id in the index of all claimable tasks, which is not ordered by it.
macro_rules! take {
    ($which:expr) => {
        concat!(
            "UPDATE tasks SET status = 'leased', lease_id = $2, worker = $3, lease_expires_at = $4, \
             epoch = epoch + 1, renewals = 0, updated_at = $5 \
             WHERE tenant = $1 AND task_id = (SELECT t.task_id ",
            $which,
            " LIMIT 1 FOR UPDATE SKIP LOCKED) AND status = 'queued' AND held < 1 \
             RETURNING task_id, type, payload, requirements, attempt, epoch, assigned_receipt"
        )
    };
}

/// What [`take`] answers with.
struct Claimed<'r> {
    task_id: TaskId,
    kind: &'r str,
    payload: &'r str,
    requirements: &'r str,
    attempt: i64,
    epoch: i64,
    assigned: ReceiptId,
}

impl<'r> Claimed<'r> {
    fn read(row: &'r Row) -> Result<Self> {
        Ok(Self {
            task_id: TaskId::from_slice(row.bytes(0)?)?,
            kind: row.text(1)?,
            payload: row.text(2)?,
            requirements: row.text(3)?,
            attempt: row.int(4)?,
            epoch: row.int(5)?,
            assigned: ReceiptId::from_slice(row.bytes(6)?)?,
        })
    }
}

/// The first task of the line `$6`. None if some task should be back in line because its time had come at `$7`.
macro_rules! first_of_line {
    ($of_type:literal) => {
        line!(
            "$6",
            $of_type,
            " AND NOT EXISTS (SELECT 1 FROM tasks d WHERE d.tenant = $1 AND d.status = 'queued' AND d.held = 1 \
              AND d.next_eligible_at <= $7)"
        )
    };
}

pub(crate) const TAKE_FIRST: ByType = [take!(first_of_line!("")), take!(first_of_line!(" AND t.type = $8"))];

/// The first of these tasks that is claimable and free. The status goes through `coalesce` so that PostgreSQL does not choose an
/// index on it and read every queued task.
pub(crate) const TAKE_ONE_OF: &str = take!(
    "FROM tasks t WHERE t.tenant = $1 AND t.task_id IN \
     ($6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21) \
     AND coalesce(t.status, '') = 'queued' AND t.held < 1 ORDER BY t.priority DESC, t.created_at, t.task_id"
);

/// The tasks that a claim has taken so far.
struct Taken<'a> {
    claim: &'a LeaseNext,
    worker: &'a str,
    limit: i64,
    tasks: Vec<LeasedTask>,
    /// Of payloads.
    bytes: i64,
}

impl Taken<'_> {
    /// How many more tasks this claim may take. An answer is bounded in bytes; the rest is for the next claim.
    fn missing(&self, ctx: &Ctx<'_>) -> i64 {
        if self.bytes > ctx.settings::<Settings>().list_bytes_max { 0 } else { self.limit - self.tasks.len() as i64 }
    }

    /// Takes from one line, unless some task should be back in line because its time had come at `due`.
    async fn take_from_line(&mut self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, line: &Line<'_>, due: Time) -> Result<()> {
        while self.missing(ctx) > 0 && self.take(ctx, tx, Which::First(line, due)).await?.is_some() {}
        Ok(())
    }

    /// Takes from several lines as if they were one.
    async fn take_from_lines(&mut self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, lines: Vec<Line<'_>>) -> Result<()> {
        let mut merged = Merged::new(lines);
        while self.missing(ctx) > 0 {
            let front = merged.front();
            if front.is_empty() {
                if merged.read_on(tx, self.missing(ctx)).await? {
                    continue;
                }
                break;
            }
            let got = self.take(ctx, tx, Which::OneOf(&front)).await?;
            // Other claims have taken those before the one that was free.
            let passed = got.and_then(|got| front.iter().position(|task_id| *task_id == got));
            merged.pass(passed.map_or(front.len(), |at| at + 1));
        }
        Ok(())
    }

    /// None when other claims were quicker.
    async fn take(&mut self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, which: Which<'_>) -> Result<Option<TaskId>> {
        let lease_id = LeaseId(ctx.ids.next());
        let expires_at = ctx.settings::<Settings>().lease_end(ctx.now, self.claim.lease_ttl_seconds);
        let lease = [lease_id.as_bytes().into(), self.worker.into(), expires_at.into(), ctx.now.into()];
        let (sql, params) = which.statement(lease);
        let Some(row) = tx.query_opt(sql, &params).await? else { return Ok(None) };
        let task = Claimed::read(&row)?;
        self.claim.record(ctx, tx, &task, lease_id, self.worker).await?;
        self.bytes += task.payload.len() as i64;
        self.tasks.push(LeasedTask {
            task_id: task.task_id,
            lease_id,
            kind: task.kind.to_owned(),
            payload: Json::from_stored(task.payload)?,
            attempt: task.attempt,
            expires_at,
            requirements: Json::from_stored(task.requirements)?,
        });
        Ok(Some(task.task_id))
    }
}

/// Which task is to be taken.
enum Which<'a> {
    First(&'a Line<'a>, Time),
    OneOf(&'a [TaskId]),
}

impl<'a> Which<'a> {
    fn statement(&self, lease: [Value<'a>; 4]) -> Statement<'a> {
        let mut params = lease.to_vec();
        match *self {
            Which::First(line, due) => {
                params.extend([Value::from(line.needs()), Value::from(due)]);
                line.statement(TAKE_FIRST, params)
            }
            Which::OneOf(tasks) => {
                let named = tasks.iter().map(|task_id| Some(task_id.as_bytes()));
                params.extend(named.chain(std::iter::repeat(None)).take(CANDIDATES_MAX).map(Value::from));
                (TAKE_ONE_OF, params)
            }
        }
    }
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

    async fn record(
        &self,
        ctx: &Ctx<'_>,
        tx: &mut Tx<'_>,
        task: &Claimed<'_>,
        lease_id: LeaseId,
        worker: &str,
    ) -> Result<()> {
        const HISTORY: &str = "INSERT INTO leases (tenant, task_id, epoch, lease_id, worker, worker_instance, created_at) \
                               VALUES ($1, $2, $3, $4, $5, $6, $7)";
        let history: Statement<'_> = (
            HISTORY,
            vec![
                Value::from(task.task_id.as_bytes()),
                Value::from(task.epoch),
                Value::from(lease_id.as_bytes()),
                Value::from(worker),
                Value::from(self.worker_instance_id.as_deref()),
                Value::from(ctx.now),
            ],
        );
        let parts = [task.task_id.as_bytes(), worker.as_bytes(), lease_id.as_bytes()];
        let accepted = Receipt {
            id: receipts::keyed_id(ReceiptType::TaskAccepted, &lease_id.0, &parts),
            kind: ReceiptType::TaskAccepted,
            from: worker,
            to: SYSTEM,
            task_id: Some(task.task_id),
            lease_id: Some(lease_id),
            schedule_id: None,
            parents: &[task.assigned],
            unlocated: false,
            body: json!({ "worker_capabilities": self.capabilities }).into(),
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
