//! What a worker says about itself and its task in each of its calls, and what that is worth.

use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value as Json, json};
use waybill_kernel::Code;

use super::{add, any_task};
use crate::model::names;
use crate::model::people::{WORKERS, Who, one_of};
use crate::model::reference::World;
use crate::model::tasks::{Lease, Live};

#[derive(Clone, Copy, Debug)]
pub struct Held {
    pub task: usize,
    pub lease: usize,
    /// Whom the caller says it is, if it says so.
    pub named: Option<Who>,
}

/// A lease there is, by whom it was given; one there has been; one that another has taken the place of, by whoever holds
/// the task now; one that somebody else says is his, or an admin says for him; or a task and a lease that have nothing to
/// do with each other.
pub fn strategy(world: &World) -> BoxedStrategy<(Who, Held)> {
    let any = (any_task(world, &WORKERS), 0..=world.leases.len())
        .prop_map(|((who, task), lease)| (who, Held { task, lease, named: None }));
    let own: Vec<(Who, Held)> = (0..world.leases.len()).map(|lease| own(world, lease)).collect();
    if own.is_empty() {
        return any.boxed();
    }
    let foreign = (one_of(&WORKERS), option::weighted(0.7, one_of(&WORKERS)), select(own.clone()))
        .prop_map(|(who, named, (_, held))| (who, Held { named, ..held }));
    let spoken_for = select(own.clone())
        .prop_map(|(worker, held)| (Who::admin_of(worker.tenant()), Held { named: Some(worker), ..held }));
    let live = |(_, held): &&(Who, Held)| world.live(held.lease).is_some();
    let live: Vec<(Who, Held)> = own.iter().filter(live).copied().collect();
    let now = if live.is_empty() { own.clone() } else { live };
    let replaced: Vec<(Who, Held)> = (0..world.leases.len()).filter_map(|lease| replaced(world, lease)).collect();
    let replaced = if replaced.is_empty() { own.clone() } else { replaced };
    prop_oneof![10 => select(now), 3 => select(own), 3 => select(replaced), 3 => foreign, 2 => spoken_for, 1 => any]
        .boxed()
}

/// A lease as its worker speaks of it.
pub fn own(world: &World, lease: usize) -> (Who, Held) {
    let Lease { task, worker, .. } = &world.leases[lease];
    let tenant = world.tasks[*task].tenant();
    // An admin may have named a worker that its tenant does not have.
    let who = Who::find(tenant, worker).unwrap_or_else(|| Who::admin_of(tenant));
    (who, Held { task: *task, lease, named: None })
}

/// A lease whose task is held by another one, as the holder of that one speaks of it.
fn replaced(world: &World, lease: usize) -> Option<(Who, Held)> {
    let live = world.tasks[world.leases[lease].task].live.filter(|live| live.lease != lease)?;
    let (holder, held) = own(world, live.lease);
    Some((holder, Held { lease, ..held }))
}

impl World {
    /// The lease is the one its task is held by, whether or not it has run out.
    pub fn live(&self, lease: usize) -> Option<Live> {
        let task = self.leases.get(lease)?.task;
        self.tasks[task].live.filter(|live| live.lease == lease)
    }
}

impl Held {
    pub fn input(&self) -> Json {
        let mut input = json!({ "task_id": names::task(self.task), "lease_id": names::lease(self.lease) });
        add(&mut input, named(self.named));
        input
    }

    /// The lease in its history, if there has been such a one of this task and worker. The caller's tenant is the task's.
    pub fn past<'a>(&self, who: Who, worker: &str, world: &'a World) -> Option<&'a Lease> {
        world.task_of(who.tenant(), self.task).ok()?;
        world.leases.get(self.lease).filter(|lease| lease.task == self.task && lease.worker == worker)
    }

    pub fn is_live(&self, who: Who, worker: &str, world: &World) -> bool {
        let live = self.past(who, worker, world).and_then(|_| world.live(self.lease));
        live.is_some_and(|live| world.ms(live.until) > world.now_ms())
    }

    /// Why a call is refused that is neither by the live lease nor a repetition.
    pub fn refusal(&self, who: Who, world: &World) -> Code {
        world.task_of(who.tenant(), self.task).err().unwrap_or(Code::LeaseInvalidOrExpired)
    }
}

/// The fields by which a caller says who it is.
pub fn named(named: Option<Who>) -> [(&'static str, Option<Json>); 2] {
    [("worker_id", named.map(|who| json!(who.id()))), ("worker_kind", named.map(|who| json!(who.kind())))]
}

/// Who acts: the caller, whatever it says, but for admins, who may act for anybody.
pub fn worker(who: Who, named: Option<Who>) -> Result<String, Code> {
    match named {
        Some(other) if other.principal() != who.principal() && !who.is_admin() => Err(Code::Forbidden),
        named => Ok(named.unwrap_or(who).principal()),
    }
}
