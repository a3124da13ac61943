//! Two write operations on one entity, stepped statement by statement through every order PostgreSQL allows.
//!
//! # Contract
//! What two transactions answered and left in the tables must equal what one of the two serial orders answers and
//! leaves. The serial orders are really run, on entities of their own; ids, times and secrets are made comparable by
//! [`normal`].
//!
//! A schedule is a list of choices: which side may send its next statement while both stand at their gates. A side that
//! waits for a row lock of the other has no choice to offer, so the tree of schedules is walked depth-first from what was
//! really possible, and each leaf is one run on a fresh entity.

mod normal;
mod schedule;
mod watch;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Context;
use futures_util::future::BoxFuture;
use serde_json::{Value as Json, json};
use waybill_kernel::{Caller, Error};
use waybill_store::{Gate, Operation, Reply, Store};

use crate::stores::TestStore;
use watch::Watcher;

/// More schedules than any pair of ours has; a pair that has more is cut here and says so.
const RUNS_MAX: usize = 1_000;

/// Worlds of this process: several pairs may be run in one database.
static WORLDS: AtomicUsize = AtomicUsize::new(1);

/// What the two sides fight for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entity {
    Task,
    /// A task that `caller` holds.
    Lease,
    /// The one that assigned a task.
    Receipt,
    Key,
    Tenant,
    Webhook,
    Queue,
    /// One that is not there yet.
    NewQueue,
    /// A folder that BlueLake holds, in a project that GreenCastle is in as well.
    Reservation,
    /// One that is not there yet.
    NewProject,
    /// An agent named GreenCastle; BlueLake is free.
    Agent,
    /// A message in the thread T-1 that BlueLake, who is open to all, has got from GreenCastle.
    Letter,
    /// GreenCastle has asked BlueLake.
    Contact,
    /// A project with GreenCastle, who has the slot `build`, and BlueLake.
    BuildSlot,
    /// A project, and no product yet.
    NewProduct,
    /// Named team.
    Mesh,
    /// One that is not there yet.
    NewMesh,
}

/// The project that worlds of mail are about.
pub const PROJECT: &str = "/data/projects/backend";

/// Public keys of an owner of meshes. Only tests know the secrets, which are all ones and all twos.
pub fn mesh_keys() -> Json {
    json!({
        "ed25519": "8a88e3dd7409f195fd52db2d3cba5d72ca6709bf1d94121bf3748801b40f6f5c",
        "x25519": "ce8d3ad1ccb633ec7b70c17814a5c76ecd029685050d344745ba05870e587d59",
        "x25519_signature": "zIZu-PeKNfS0ENSjO2RLMqujYrMsJl8LbKAJU_r3XgsuTbW5TwKh07-6A_VdkRo1TewigPm1kvE_XrX5qi9mAw",
    })
}

/// One fresh entity, and who may touch it.
pub struct World {
    pub caller: Caller,
    pub operator: Caller,
    /// Unlike any other world's, for names that must be new.
    pub label: String,
    /// The id of the task, receipt, key, webhook, reservation or letter, or the name of the queue.
    pub id: String,
    /// Of the leased task.
    pub lease_id: String,
}

type Start = fn(Store, Caller, Json, Option<Arc<Gate>>) -> BoxFuture<'static, Json>;

/// One side of a race: an operation and what it is asked to do with the entity.
#[derive(Clone, Copy)]
pub struct Contender {
    pub operation: &'static str,
    pub variant: &'static str,
    pub entity: Entity,
    input: fn(&World) -> (Caller, Json),
    start: Start,
}

impl Contender {
    pub fn new<O: Operation>(variant: &'static str, entity: Entity, input: fn(&World) -> (Caller, Json)) -> Self {
        Self { operation: O::SPEC.name, variant, entity, input, start: start::<O> }
    }

    fn run(&self, on: &TestStore, world: &World, gate: Option<Arc<Gate>>) -> BoxFuture<'static, Json> {
        let (caller, input) = (self.input)(world);
        (self.start)(on.store.clone(), caller, input, gate)
    }
}

impl std::fmt::Display for Contender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.operation, self.variant)
    }
}

/// Every pair of contenders for the same entity, each with itself included.
pub fn pairs(contenders: &[Contender], entity: Entity) -> Vec<[Contender; 2]> {
    let those: Vec<_> = contenders.iter().filter(|contender| contender.entity == entity).collect();
    let pair = |first: usize| those[first..].iter().map(move |second| (first, **second));
    (0..those.len()).flat_map(pair).map(|(first, second)| [*those[first], second]).collect()
}

#[derive(Debug)]
pub struct Report {
    pub runs: usize,
    /// False when the tree of schedules was cut.
    pub complete: bool,
    /// A side had to wait for the other's lock in at least one of them.
    pub blocked: bool,
    pub strangers: Vec<Stranger>,
}

/// A run that equals neither serial order.
#[derive(Debug)]
pub struct Stranger {
    pub schedule: Vec<usize>,
    pub saw: String,
    pub serial: [String; 2],
}

/// Runs a pair through all its schedules.
pub async fn explore(on: &TestStore, pair: &[Contender; 2]) -> anyhow::Result<Report> {
    explore_some(on, pair, RUNS_MAX).await
}

/// As [`explore`], for operations of so many statements that their schedules cannot all be run: the first of them.
pub async fn explore_some(on: &TestStore, pair: &[Contender; 2], runs_max: usize) -> anyhow::Result<Report> {
    let watcher = Watcher::new(on.database()?).await?;
    let fresh = async || world(on, pair[0].entity, WORLDS.fetch_add(1, Ordering::Relaxed)).await;
    let mut serial = [String::new(), String::new()];
    for (saw, order) in serial.iter_mut().zip([[0, 1], [1, 0]]) {
        let world = fresh().await?;
        let before = watcher.before(world.caller.tenant).await?;
        let mut answers = [Json::Null, Json::Null];
        for side in order {
            answers[side] = pair[side].run(on, &world, None).await;
        }
        *saw = normal::describe(&world.label, &answers, &before.contents, &watcher.after(&before).await?)?;
    }

    let mut report = Report { runs: 0, complete: false, blocked: false, strangers: Vec::new() };
    let mut prefix = Some(Vec::new());
    while let Some(choices) = prefix.filter(|_| report.runs < runs_max) {
        let world = fresh().await?;
        let before = watcher.before(world.caller.tenant).await?;
        let run = schedule::follow(&watcher, &choices, |side, gate| pair[side].run(on, &world, Some(gate))).await?;
        let saw = normal::describe(&world.label, &run.answers, &before.contents, &watcher.after(&before).await?)?;
        report.runs += 1;
        report.blocked |= run.blocked;
        prefix = schedule::next(&run.choices);
        report.complete = prefix.is_none();
        if !serial.contains(&saw) {
            report.strangers.push(Stranger { schedule: run.choices, saw, serial: serial.clone() });
        }
    }
    Ok(report)
}

fn start<O: Operation>(store: Store, caller: Caller, input: Json, gate: Option<Arc<Gate>>) -> BoxFuture<'static, Json> {
    Box::pin(async move {
        let outcome = match serde_json::from_value::<O>(input) {
            Ok(operation) => store.run_gated(operation, caller, gate).await,
            Err(error) => Err(Error::invalid(error.to_string())),
        };
        match outcome {
            Ok(Reply::Done(answer) | Reply::Empty { answer, .. }) => json!({ "answer": answer }),
            Ok(Reply::Replay(answer)) => json!({ "replay": answer }),
            // The code is the contract; the text may tell one way of losing from another.
            Err(error) => json!({ "error": error.code().to_string() }),
        }
    })
}

/// Made by the real operations, in a tenant of its own where the entity has one.
async fn world(on: &TestStore, entity: Entity, number: usize) -> anyhow::Result<World> {
    let label = format!("world{number}x");
    let caller = match entity {
        Entity::Tenant => on.admin.clone(),
        _ => on.tenant(&label).await?,
    };
    let made = match entity {
        Entity::Task | Entity::Lease | Entity::Receipt => {
            Some(("create_task", json!({ "type": "work", "idempotency_key": "taken" }), "task_id"))
        }
        Entity::Key => Some(("create_key", json!({ "principal": "agent:a" }), "key_id")),
        Entity::Webhook => Some(("create_webhook", json!({ "url": "https://hooks.example/" }), "webhook_id")),
        Entity::Queue => Some(("create_queue", json!({ "queue": "jobs" }), "queue")),
        Entity::Mesh => {
            Some(("create_mesh", json!({ "slug": "team", "name": "alice", "keys": mesh_keys() }), "mesh_id"))
        }
        Entity::Tenant
        | Entity::NewQueue
        | Entity::Reservation
        | Entity::NewProject
        | Entity::Agent
        | Entity::Letter
        | Entity::Contact
        | Entity::BuildSlot
        | Entity::NewProduct
        | Entity::NewMesh => None,
    };
    let mut id = String::new();
    if let Some((operation, input, field)) = made {
        let answer = on.call(&caller, operation, input).await.map_err(crate::stores::readable)?;
        id = answer.json[field].as_str().with_context(|| format!("no {field}"))?.to_owned();
    }
    let mut lease_id = String::new();
    if entity == Entity::Lease {
        let answer = on.call(&caller, "lease_next", json!({})).await.map_err(crate::stores::readable)?;
        lease_id = answer.json["tasks"][0]["lease_id"].as_str().context("no lease")?.to_owned();
    }
    if entity == Entity::Receipt {
        let listed = on.call(&caller, "list_receipts", json!({})).await.map_err(crate::stores::readable)?;
        id = listed.json["next_cursor"].as_str().context("no receipt")?.to_owned();
    }
    match entity {
        Entity::Reservation => id = reservation(on, &caller).await?,
        Entity::Agent | Entity::NewProduct => agents(on, &caller, &["GreenCastle"]).await?,
        Entity::BuildSlot => slot(on, &caller).await?,
        Entity::Letter | Entity::Contact => id = letter(on, &caller, entity).await?,
        _ => {}
    }
    Ok(World { caller, operator: on.admin.clone(), label, id, lease_id })
}

async fn slot(on: &TestStore, caller: &Caller) -> anyhow::Result<()> {
    agents(on, caller, &["GreenCastle", "BlueLake"]).await?;
    let slot = json!({ "project_key": PROJECT, "agent_name": "GreenCastle", "slot": "build" });
    on.call(caller, "acquire_build_slot", slot).await.map_err(crate::stores::readable)?;
    Ok(())
}

/// Makes a project with two agents, one of which holds a folder, and answers with the number of its reservation.
async fn reservation(on: &TestStore, caller: &Caller) -> anyhow::Result<String> {
    let call = async |name: &str, input: Json| on.call(caller, name, input).await.map_err(crate::stores::readable);
    agents(on, caller, &["GreenCastle", "BlueLake"]).await?;
    let paths = json!({ "project_key": PROJECT, "agent_name": "BlueLake", "paths": ["src/**"] });
    let held = call("file_reservation_paths", paths).await?;
    Ok(held.json["granted"][0]["id"].as_i64().context("no reservation")?.to_string())
}

/// Makes a project with these agents.
async fn agents(on: &TestStore, caller: &Caller, names: &[&str]) -> anyhow::Result<()> {
    let call = async |name: &str, input: Json| on.call(caller, name, input).await.map_err(crate::stores::readable);
    call("ensure_project", json!({ "human_key": PROJECT })).await?;
    for name in names {
        let agent = json!({ "project_key": PROJECT, "name": name, "program": "p", "model": "m" });
        call("register_agent", agent).await?;
    }
    Ok(())
}

/// A message from GreenCastle to BlueLake, or its request for contact, and the number of it.
async fn letter(on: &TestStore, caller: &Caller, entity: Entity) -> anyhow::Result<String> {
    let call = async |name: &str, input: Json| on.call(caller, name, input).await.map_err(crate::stores::readable);
    agents(on, caller, &["GreenCastle", "BlueLake"]).await?;
    let number = if entity == Entity::Contact {
        let ask = json!({ "project_key": PROJECT, "from_agent": "GreenCastle", "to_agent": "BlueLake" });
        call("request_contact", ask).await?.json["intro_message_id"].as_i64()
    } else {
        call("set_contact_policy", json!({ "project_key": PROJECT, "agent_name": "BlueLake", "policy": "open" }))
            .await?;
        let letter = json!({ "project_key": PROJECT, "sender_name": "GreenCastle", "to": ["BlueLake"], "subject": "a",
            "body_md": "b", "thread_id": "T-1" });
        call("send_message", letter).await?.json["deliveries"][0]["payload"]["id"].as_i64()
    };
    Ok(number.context("no message")?.to_string())
}
