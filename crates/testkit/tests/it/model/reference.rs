//! The model: what there is, and what each step makes of it. No ids, no SQL, no clock; tasks and receipts are numbered
//! in the order of their making.

use proptest::prelude::*;
use proptest_state_machine::ReferenceStateMachine;
use serde_json::{Value as Json, json};
use waybill_kernel::Code;

use super::calls::{Call, CreateTask};
use super::names;
use super::people::{Tenant, Who, anybody, somebody};

/// One of these in so many steps is only time that passes.
const PASS_ONE_IN: u32 = 8;

#[derive(Clone, Debug)]
pub enum Transition {
    /// So many seconds go by.
    Pass(u64),
    Call(Who, Call),
}

/// What the last step is answered with.
#[derive(Clone, Debug)]
pub enum Answer {
    Nothing,
    Refused(Code),
    Given { body: Json, replay: bool },
}

impl Answer {
    pub fn done(body: Json) -> Self {
        Answer::Given { body, replay: false }
    }
}

#[derive(Clone, Debug)]
pub struct World {
    pub tasks: Vec<Task>,
    pub receipts: Vec<Receipt>,
    pub cursors: Vec<Cursor>,
    /// Steps taken, this one included.
    pub steps: usize,
    pub answer: Answer,
}

#[derive(Clone, Debug)]
pub struct Task {
    pub owner: Who,
    /// As it was asked for.
    pub asked: CreateTask,
    pub status: &'static str,
    pub created: usize,
    pub updated: usize,
    pub end: Option<End>,
    /// The receipt of assignment, which every terminator names as its parent.
    pub assigned: usize,
}

/// How a task ended.
#[derive(Clone, Debug)]
pub struct End {
    pub error: Option<Json>,
    pub step: usize,
}

#[derive(Clone, Debug)]
pub struct Receipt {
    pub kind: &'static str,
    pub from: String,
    pub to: String,
    pub task: usize,
    pub parent: Option<usize>,
    pub open: bool,
    pub step: usize,
}

/// A page was given that ended before this task, and more followed.
#[derive(Clone, Debug)]
pub struct Cursor {
    pub list: ListOf,
    pub before: usize,
}

/// Which list a cursor belongs to.
#[derive(Clone, Debug, PartialEq)]
pub struct ListOf {
    pub tenant: Tenant,
    pub owner: Option<String>,
    pub status: Option<&'static str>,
    pub kind: Option<&'static str>,
}

impl Task {
    pub fn tenant(&self) -> Tenant {
        self.owner.tenant()
    }

    pub fn is_terminal(&self) -> bool {
        ["succeeded", "failed", "canceled"].contains(&self.status)
    }
}

impl World {
    fn empty() -> Self {
        World { tasks: Vec::new(), receipts: Vec::new(), cursors: Vec::new(), steps: 0, answer: Answer::Nothing }
    }

    /// The number of the step that is being taken.
    pub fn step(&self) -> usize {
        self.steps - 1
    }

    /// The task, if the caller may act on it. Another tenant's task is no task.
    pub fn reach(&self, who: Who, number: usize) -> Result<&Task, Code> {
        let task = self.tasks.get(number).filter(|task| task.tenant() == who.tenant()).ok_or(Code::NotFound)?;
        if who.may_act_on(task.owner) { Ok(task) } else { Err(Code::Forbidden) }
    }

    /// A transition of a task, into whatever state.
    pub fn turn(&mut self, number: usize, status: &'static str) {
        let step = self.step();
        let task = &mut self.tasks[number];
        assert!(!task.is_terminal(), "the model let a task leave {}", task.status);
        (task.status, task.updated) = (status, step);
    }

    /// The end of a task: its result, the receipt that ends the obligation, and the owner's notice.
    pub fn end(&mut self, number: usize, status: &'static str, from: String, error: Option<Json>) {
        self.turn(number, status);
        let step = self.step();
        self.tasks[number].end = Some(End { error, step });
        let (to, assigned) = (self.tasks[number].owner.principal(), self.tasks[number].assigned);
        let kind = match status {
            "succeeded" => "task.completed",
            "failed" => "task.failed",
            _ => "task.canceled",
        };
        let terminal = self.prove(kind, from, to.clone(), number, Some(assigned));
        self.receipts[assigned].open = false;
        self.prove("task.result_ready", "system:asyncgate".to_owned(), to, number, Some(terminal));
    }

    /// A receipt, by its number.
    pub fn prove(&mut self, kind: &'static str, from: String, to: String, task: usize, parent: Option<usize>) -> usize {
        let open = kind == "task.assigned";
        self.receipts.push(Receipt { kind, from, to, task, parent, open, step: self.step() });
        self.receipts.len() - 1
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
            "attempt": 0,
            "max_attempts": asked.max_attempts.unwrap_or(3),
            "retry_backoff_seconds": asked.retry_backoff_s.unwrap_or(30),
            "created_at": names::time(task.created, 0),
            "updated_at": names::time(task.updated, 0),
            "next_eligible_at": names::time(task.created, asked.delay_s),
        });
        if let Some(key) = asked.key {
            record["idempotency_key"] = json!(key);
        }
        if let Some(end) = &task.end {
            record["result"] = json!({ "outcome": task.status, "completed_at": names::time(end.step, 0) });
            if let Some(error) = &end.error {
                record["result"]["error"] = error.clone();
            }
        }
        record
    }

    /// The ledger, oldest first.
    pub fn ledger(&self) -> Json {
        let receipts = self.receipts.iter().enumerate().map(|(number, receipt)| {
            json!({
                "receipt_id": names::receipt(number),
                "tenant": format!("{:?}", self.tasks[receipt.task].tenant()),
                "type": receipt.kind,
                "from": receipt.from,
                "to": receipt.to,
                "task_id": names::task(receipt.task),
                "parent": receipt.parent.map(names::receipt),
                "open": receipt.open,
                "created_at": names::time(receipt.step, 0),
            })
        });
        receipts.collect()
    }
}

impl ReferenceStateMachine for World {
    type State = World;
    type Transition = Transition;

    fn init_state() -> BoxedStrategy<World> {
        Just(World::empty()).boxed()
    }

    /// Every step is possible in every world, so that shrinking may leave any of them out.
    fn transitions(world: &World) -> BoxedStrategy<Transition> {
        // The operator creates nothing; see `people.rs`.
        let call = (anybody(), somebody(), Call::any(world)).prop_map(|(anybody, somebody, call)| {
            let creates = matches!(call, Call::CreateTask(_));
            Transition::Call(if creates { somebody } else { anybody }, call)
        });
        let pass = proptest::sample::select(vec![1, 30, 400]).prop_map(Transition::Pass);
        prop_oneof![PASS_ONE_IN - 1 => call, 1 => pass].boxed()
    }

    fn apply(mut world: World, transition: &Transition) -> World {
        world.steps += 1;
        world.answer = match transition {
            Transition::Pass(_) => Answer::Nothing,
            Transition::Call(who, call) => call.predict(*who, &mut world).unwrap_or_else(Answer::Refused),
        };
        world
    }
}
