use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value as Json, json};
use waybill_kernel::Code;

use super::add;
use crate::model::names;
use crate::model::people::{OWNERS, Who, one_of};
use crate::model::receipts::Proof;
use crate::model::reference::{Answer, World};
use crate::model::tasks::Task;

#[derive(Clone, Debug)]
pub struct CreateTask {
    /// Whose task it is to be, if the caller says so.
    pub of: Option<Who>,
    pub kind: &'static str,
    pub payload: u8,
    pub key: Option<&'static str>,
    pub priority: i32,
    pub capability: Option<&'static str>,
    pub max_attempts: Option<i64>,
    pub retry_backoff_s: Option<i64>,
    pub delay_s: i64,
}

pub const KINDS: [&str; 2] = ["build", "test"];

/// One in so many is out of range: it must write nothing, and leave its key free.
const WRONG_ONE_IN: u32 = 12;

pub fn strategy(_: &World) -> impl Strategy<Value = (Who, CreateTask)> + use<> {
    let key = prop_oneof![2 => Just(None), 3 => select(vec![Some("k1"), Some("k2"), Some("k3")])];
    let attempts = prop_oneof![WRONG_ONE_IN - 1 => select(vec![None, Some(1), Some(2)]), 1 => Just(Some(0))];
    let backoff = select(vec![None, Some(0), Some(10)]);
    let capability = prop_oneof![3 => Just(None), 2 => Just(Some("rust"))];
    let delay = prop_oneof![4 => Just(0), 1 => Just(60)];
    let call = (select(KINDS.to_vec()), 0..4_u8, key, -1..=1, capability, attempts, backoff, delay).prop_map(
        |(kind, payload, key, priority, capability, max_attempts, retry_backoff_s, delay_s)| CreateTask {
            of: None,
            kind,
            payload,
            key,
            priority,
            capability,
            max_attempts,
            retry_backoff_s,
            delay_s,
        },
    );
    let of = option::weighted(0.2, one_of(&OWNERS));
    (one_of(&OWNERS), of, call).prop_map(|(who, of, call)| {
        let of = of.filter(|owner| owner.tenant() == who.tenant());
        (who, CreateTask { of, ..call })
    })
}

impl CreateTask {
    pub fn requirements(&self) -> Json {
        self.capability.map_or_else(|| json!({}), |capability| json!({ "capabilities": [capability] }))
    }

    pub fn input(&self) -> Json {
        let mut input = json!({
            "type": self.kind, "payload": self.payload, "priority": self.priority, "delay_seconds": self.delay_s,
            "requirements": self.requirements(),
        });
        let optional = [
            ("created_by", self.of.map(|owner| json!(owner.principal()))),
            ("idempotency_key", self.key.map(Json::from)),
            ("max_attempts", self.max_attempts.map(Json::from)),
            ("retry_backoff_seconds", self.retry_backoff_s.map(Json::from)),
        ];
        add(&mut input, optional);
        input
    }

    /// The first of an owner with a key decides, whatever is asked for again.
    pub fn predict(&self, who: Who, world: &mut World) -> Result<Answer, Code> {
        if self.max_attempts.is_some_and(|attempts| attempts < 1) {
            return Err(Code::InvalidRequest);
        }
        let owner = self.of.unwrap_or(who);
        if !who.may_act_on(owner) {
            return Err(Code::Forbidden);
        }
        let same_key = |task: &Task| task.owner == owner && task.asked.key == self.key;
        if let Some(first) = self.key.and_then(|_| world.tasks.iter().position(same_key)) {
            let body = json!({ "task_id": names::task(first), "status": world.tasks[first].status });
            return Ok(Answer::again(body));
        }
        let (number, step) = (world.tasks.len(), world.step());
        world.tasks.push(Task::new(owner, self, step, world.receipts.len()));
        let body = json!({
            "instructions": { "type": self.kind },
            "requirements": self.requirements(),
            "result_delivery": { "mode": "retrieve", "operation": "get_task" },
            "timeouts": { "lease_ttl": 300 },
        });
        let kind = "task.assigned";
        let (from, to) = (who.principal(), owner.principal());
        world.prove(Proof { kind, from: &from, to: &to, task: number, lease: None, parent: None, body });
        Ok(Answer::done(json!({ "task_id": names::task(number), "status": "queued" })))
    }
}
