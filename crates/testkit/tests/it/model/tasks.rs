//! The model's tasks and leases: what they are, and the ways from state to state.

use serde_json::{Value as Json, json};
use waybill_kernel::Code;

use super::calls::{CreateTask, Work};
use super::names;
use super::people::{SYSTEM, Tenant, Who, split};
use super::receipts::Proof;
use super::reference::{Moment, World};

/// An anomaly is told with the first expiry beyond these, and with the first renewal beyond those.
const EXPIRIES_USUAL: usize = 3;
pub const RENEWALS_USUAL: usize = 10;

#[derive(Clone, Debug)]
pub struct Task {
    pub owner: Who,
    /// As it was asked for.
    pub asked: CreateTask,
    pub status: &'static str,
    /// Failures reported so far.
    pub attempt: i64,
    pub created: usize,
    pub updated: usize,
    pub eligible: Moment,
    pub started: Option<usize>,
    pub progress: Option<(u8, usize)>,
    pub live: Option<Live>,
    pub leases: usize,
    pub expiries: usize,
    pub end: Option<End>,
    /// The receipt of assignment, which every terminator names as its parent.
    pub assigned: usize,
}

/// The lease a task is held by.
#[derive(Clone, Copy, Debug)]
pub struct Live {
    pub lease: usize,
    pub until: Moment,
    pub renewals: usize,
}

/// A lease there has been.
#[derive(Clone, Debug)]
pub struct Lease {
    pub task: usize,
    pub worker: String,
    /// What its worker has ended it with, if it was its worker.
    pub said: Option<Said>,
}

#[derive(Clone, Debug)]
pub enum Said {
    Done(Work),
    Failed { error: u8, retryable: bool, again: Option<Moment> },
}

/// How a task ended.
#[derive(Clone, Debug)]
pub struct End {
    pub work: Option<Work>,
    pub error: Option<Json>,
    pub step: usize,
}

/// What ends a task.
pub struct Ending {
    pub status: &'static str,
    pub from: String,
    pub lease: Option<usize>,
    pub work: Option<Work>,
    pub error: Option<Json>,
    /// Of the receipt that ends the obligation, and of the owner's notice.
    pub bodies: [Json; 2],
}

impl Task {
    pub fn new(owner: Who, asked: &CreateTask, step: usize, assigned: usize) -> Self {
        Task {
            owner,
            asked: asked.clone(),
            status: "queued",
            attempt: 0,
            created: step,
            updated: step,
            eligible: Moment { step, plus_s: asked.delay_s },
            started: None,
            progress: None,
            live: None,
            leases: 0,
            expiries: 0,
            end: None,
            assigned,
        }
    }

    pub fn tenant(&self) -> Tenant {
        self.owner.tenant()
    }

    pub fn is_terminal(&self) -> bool {
        ["succeeded", "failed", "canceled"].contains(&self.status)
    }

    pub fn max_attempts(&self) -> i64 {
        self.asked.max_attempts.unwrap_or(3)
    }

    pub fn backoff_s(&self) -> i64 {
        self.asked.retry_backoff_s.unwrap_or(30)
    }
}

impl World {
    /// The task, if the tenant has it. Another tenant's task is no task.
    pub fn task_of(&self, tenant: Tenant, number: usize) -> Result<&Task, Code> {
        self.tasks.get(number).filter(|task| task.tenant() == tenant).ok_or(Code::NotFound)
    }

    /// The task, if the caller may act on it.
    pub fn reach(&self, who: Who, number: usize) -> Result<&Task, Code> {
        let task = self.task_of(who.tenant(), number)?;
        if who.may_act_on(task.owner) { Ok(task) } else { Err(Code::Forbidden) }
    }

    /// The task, if the caller may read it: whoever has worked on it may.
    pub fn see(&self, who: Who, number: usize) -> Result<&Task, Code> {
        let held = |lease: &Lease| lease.task == number && lease.worker == who.principal();
        match self.reach(who, number) {
            Err(Code::Forbidden) if self.leases.iter().any(held) => self.task_of(who.tenant(), number),
            judged => judged,
        }
    }

    /// A transition of a task, into whatever state.
    pub fn turn(&mut self, number: usize, status: &'static str) -> &mut Task {
        let step = self.step();
        let task = &mut self.tasks[number];
        assert!(!task.is_terminal(), "the model let a task leave {}", task.status);
        (task.status, task.updated) = (status, step);
        task
    }

    /// Back to the queue, as if nobody had had it.
    pub fn requeue(&mut self, number: usize, eligible: Moment) -> &mut Task {
        let task = self.turn(number, "queued");
        (task.live, task.started, task.eligible) = (None, None, eligible);
        task
    }

    /// The end of a task: its result, the receipt that ends the obligation, and the owner's notice. Work that nobody
    /// can find ends no obligation.
    pub fn end(&mut self, number: usize, ending: Ending) {
        let step = self.step();
        let located = ending.work.is_none_or(Work::is_located);
        let task = self.turn(number, ending.status);
        task.live = None;
        task.end = Some(End { work: ending.work, error: ending.error, step });
        let (to, assigned) = (task.owner.principal(), task.assigned);
        let kind = match ending.status {
            "succeeded" => "task.completed",
            "failed" => "task.failed",
            _ => "task.canceled",
        };
        let [body, ready] = ending.bodies;
        let (lease, parent) = (ending.lease, located.then_some(assigned));
        let terminal = self.prove(Proof { kind, from: &ending.from, to: &to, task: number, lease, parent, body });
        if located {
            self.receipts[assigned].open = false;
        }
        let kind = "task.result_ready";
        let parent = Some(terminal);
        self.prove(Proof { kind, from: SYSTEM, to: &to, task: number, lease: None, parent, body: ready });
        if !located {
            self.anomaly(number, "locatability_missing");
        }
    }

    /// The sweep: every lease that has ended goes, the one that ended first at first.
    pub fn sweep(&mut self) {
        let now = self.now_ms();
        let ended = |(number, task): (usize, &Task)| {
            let until = task.live.filter(|live| self.ms(live.until) <= now)?.until;
            Some((self.ms(until), until.step, number))
        };
        let mut ended: Vec<_> = self.tasks.iter().enumerate().filter_map(ended).collect();
        ended.sort_unstable();
        for (.., number) in ended {
            self.expire(number);
        }
    }

    fn expire(&mut self, number: usize) {
        let step = self.step();
        let lease = self.tasks[number].live.unwrap().lease;
        let task = self.requeue(number, Moment { step, plus_s: 0 });
        task.expiries += 1;
        let (expiries, to, parent) = (task.expiries, task.owner.principal(), Some(task.assigned));
        let (_, worker) = split(&self.leases[lease].worker);
        let attempt = self.tasks[number].attempt;
        let body = json!({
            "task_id": names::task(number), "previous_worker_id": worker, "attempt": attempt, "requeued": true,
        });
        let (kind, from, lease) = ("lease.expired", SYSTEM, Some(lease));
        self.prove(Proof { kind, from, to: &to, task: number, lease, parent, body });
        if expiries == EXPIRIES_USUAL + 1 {
            self.anomaly(number, "excessive_lease_expiries");
        }
    }

    pub fn anomaly(&mut self, number: usize, what: &'static str) {
        let (to, parent) = (self.tasks[number].owner.principal(), Some(self.tasks[number].assigned));
        let body = json!({ "kind": what, "details": names::anything(), "recommended_action": names::anything() });
        let (kind, from, lease) = ("system.anomaly", SYSTEM, None);
        self.prove(Proof { kind, from, to: &to, task: number, lease, parent, body });
    }

    /// The whole record, as get and list show it.
    pub fn record(&self, number: usize) -> Json {
        let task = &self.tasks[number];
        let asked = &task.asked;
        let mut record = json!({
            "task_id": names::task(number),
            "type": asked.kind,
            "status": task.status,
            "payload": asked.payload,
            "created_by": { "principal_kind": task.owner.kind(), "principal_id": task.owner.id() },
            "requirements": asked.requirements(),
            "priority": asked.priority,
            "attempt": task.attempt,
            "max_attempts": task.max_attempts(),
            "retry_backoff_seconds": task.backoff_s(),
            "created_at": names::time(task.created, 0),
            "updated_at": names::time(task.updated, 0),
            "next_eligible_at": task.eligible.name(),
        });
        if let Some(key) = asked.key {
            record["idempotency_key"] = json!(key);
        }
        if let Some(step) = task.started {
            record["started_at"] = names::time(step, 0);
        }
        if let Some((progress, step)) = task.progress {
            record["progress"] = json!({ "progress": progress, "updated_at": names::time(step, 0) });
        }
        if let Some(end) = &task.end {
            record["result"] = end.shown(task.status);
        }
        record
    }

    /// What stands in the rows of tasks and is not shown to everybody: who holds them, and until when.
    pub fn holders(&self) -> Json {
        let rows = self.tasks.iter().enumerate().map(|(number, task)| {
            json!({
                "task_id": names::task(number),
                "status": task.status,
                "attempt": task.attempt,
                "updated_at": names::time(task.updated, 0),
                "next_eligible_at": task.eligible.name(),
                "leases": task.leases,
                "expiries": task.expiries,
                "lease_id": task.live.map(|live| names::lease(live.lease)),
                "worker": task.live.map(|live| &self.leases[live.lease].worker),
                "expires_at": task.live.map(|live| live.until.name()),
            })
        });
        rows.collect()
    }
}

impl End {
    fn shown(&self, outcome: &str) -> Json {
        let mut shown = json!({ "outcome": outcome, "completed_at": names::time(self.step, 0) });
        if let Some(error) = &self.error {
            shown["error"] = error.clone();
        }
        if let Some(work) = self.work {
            shown["result"] = json!(work.result);
            work.point(&mut shown);
        }
        shown
    }
}
