use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value as Json, json};
use waybill_kernel::Code;

use super::create_task::KINDS;
use super::{add, any_task, held};
use crate::model::names;
use crate::model::people::{SYSTEM, WORKERS, Who, one_of};
use crate::model::receipts::Proof;
use crate::model::reference::{Answer, Moment, World};
use crate::model::tasks::{Lease, Live};

/// The length of a lease, in seconds, unless its worker says otherwise; and the longest.
pub const LEASE_S: i64 = 300;
pub const LEASE_S_MAX: i64 = 1800;

#[derive(Clone, Debug)]
pub struct LeaseNext {
    pub named: Option<Who>,
    pub capabilities: Vec<&'static str>,
    pub accept_types: Vec<&'static str>,
    pub max_tasks: Option<i64>,
    pub ttl_s: Option<i64>,
}

pub fn strategy(world: &World) -> impl Strategy<Value = (Who, LeaseNext)> + use<> {
    let named = option::weighted(0.1, one_of(&WORKERS));
    let capabilities = prop_oneof![4 => Just(vec!["rust"]), 2 => Just(vec![]), 1 => Just(vec!["go", "rust"])];
    let kind = select(KINDS.to_vec()).prop_map(|kind| vec![kind]);
    let accept_types = prop_oneof![5 => Just(vec![]), 2 => kind, 1 => Just(KINDS.to_vec())];
    let max_tasks = prop_oneof![5 => Just(None), 5 => select(vec![Some(1), Some(2), Some(3)]), 1 => Just(Some(0))];
    let ttl = prop_oneof![8 => Just(None), 4 => select(vec![Some(20), Some(60), Some(5000)]), 1 => Just(Some(0))];
    let call = (named, capabilities, accept_types, max_tasks, ttl).prop_map(
        |(named, capabilities, accept_types, max_tasks, ttl_s)| LeaseNext {
            named,
            capabilities,
            accept_types,
            max_tasks,
            ttl_s,
        },
    );
    // Where there is something to do, more often than not.
    (any_task(world, &WORKERS).prop_map(|(who, _)| who), call)
}

impl LeaseNext {
    pub fn input(&self) -> Json {
        let mut input = json!({ "capabilities": self.capabilities, "accept_types": self.accept_types });
        add(&mut input, held::named(self.named));
        add(
            &mut input,
            [("max_tasks", self.max_tasks.map(Json::from)), ("lease_ttl_seconds", self.ttl_s.map(Json::from))],
        );
        input
    }

    pub fn predict(&self, who: Who, world: &mut World) -> Result<Answer, Code> {
        let limit = self.max_tasks.unwrap_or(1);
        if limit < 1 || self.ttl_s.is_some_and(|ttl| ttl < 1) {
            return Err(Code::InvalidRequest);
        }
        let worker = held::worker(who, self.named)?;
        let mut fitting: Vec<usize> = (0..world.tasks.len()).filter(|task| self.fits(who, world, *task)).collect();
        // The oldest first among those of one priority.
        fitting.sort_by_key(|task| -world.tasks[*task].asked.priority);
        fitting.truncate(usize::try_from(limit).unwrap());
        let tasks: Vec<Json> = fitting.into_iter().map(|task| self.take(&worker, world, task)).collect();
        Ok(Answer::done(json!({ "tasks": tasks })))
    }

    fn fits(&self, who: Who, world: &World, number: usize) -> bool {
        let task = &world.tasks[number];
        task.tenant() == who.tenant()
            && task.status == "queued"
            && world.ms(task.eligible) <= world.now_ms()
            && (self.accept_types.is_empty() || self.accept_types.contains(&task.asked.kind))
            && task.asked.capability.is_none_or(|needed| self.capabilities.contains(&needed))
    }

    fn take(&self, worker: &str, world: &mut World, number: usize) -> Json {
        let (lease, step) = (world.leases.len(), world.step());
        world.leases.push(Lease { task: number, worker: worker.to_owned(), said: None });
        let until = Moment { step, plus_s: self.ttl_s.unwrap_or(LEASE_S).min(LEASE_S_MAX) };
        let task = world.turn(number, "leased");
        task.live = Some(Live { lease, until, renewals: 0 });
        task.leases += 1;
        let (asked, attempt, assigned) = (task.asked.clone(), task.attempt, task.assigned);
        world.prove(Proof {
            kind: "task.accepted",
            from: worker,
            to: SYSTEM,
            task: number,
            lease: Some(lease),
            parent: Some(assigned),
            body: json!({ "worker_capabilities": self.capabilities }),
        });
        json!({
            "task_id": names::task(number),
            "lease_id": names::lease(lease),
            "type": asked.kind,
            "payload": asked.payload,
            "attempt": attempt,
            "expires_at": until.name(),
            "requirements": asked.requirements(),
        })
    }
}
