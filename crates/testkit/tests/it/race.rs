//! Every pair of writes on one entity ends as if one had come after the other.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value as Json, json};
use waybill_access::ops::{CreateKey, CreateTenant, RevokeKey, RotateKey};
use waybill_kernel::{Error, Mode, OperationSpec, Result};
use waybill_mail::ops::acknowledge_message::AcknowledgeMessage;
use waybill_mail::ops::create_agent_identity::CreateAgentIdentity;
use waybill_mail::ops::ensure_project::EnsureProject;
use waybill_mail::ops::fetch_inbox::FetchInbox;
use waybill_mail::ops::files::file_reservation_paths::FileReservationPaths;
use waybill_mail::ops::files::force_release_file_reservation::ForceReleaseFileReservation;
use waybill_mail::ops::files::release_file_reservations::ReleaseFileReservations;
use waybill_mail::ops::files::renew_file_reservations::RenewFileReservations;
use waybill_mail::ops::health_check::HealthCheck;
use waybill_mail::ops::macros::macro_contact_handshake::MacroContactHandshake;
use waybill_mail::ops::macros::macro_file_reservation_cycle::MacroFileReservationCycle;
use waybill_mail::ops::macros::macro_prepare_thread::MacroPrepareThread;
use waybill_mail::ops::macros::macro_start_session::MacroStartSession;
use waybill_mail::ops::mark_message_read::MarkMessageRead;
use waybill_mail::ops::products::ensure_product::EnsureProduct;
use waybill_mail::ops::products::products_link::ProductsLink;
use waybill_mail::ops::register_agent::RegisterAgent;
use waybill_mail::ops::reply_message::ReplyMessage;
use waybill_mail::ops::request_contact::RequestContact;
use waybill_mail::ops::respond_contact::RespondContact;
use waybill_mail::ops::retire_agent::RetireAgent;
use waybill_mail::ops::send_message::SendMessage;
use waybill_mail::ops::send_overseer_message::SendOverseerMessage;
use waybill_mail::ops::set_contact_policy::SetContactPolicy;
use waybill_mail::ops::slots::acquire_build_slot::AcquireBuildSlot;
use waybill_mail::ops::slots::release_build_slot::ReleaseBuildSlot;
use waybill_mail::ops::slots::renew_build_slot::RenewBuildSlot;
use waybill_mail::ops::unretire_agent::UnretireAgent;
use waybill_mesh::ops::manage::{CloseMesh, CreateMesh, RevokeMeshMember, SetMeshPolicy};
use waybill_queues::ops::operator::cancel_redrive::CancelRedrive;
use waybill_queues::ops::operator::create_queue::CreateQueue;
use waybill_queues::ops::operator::purge_queue::PurgeQueue;
use waybill_queues::ops::operator::set_queue_attributes::SetQueueAttributes;
use waybill_queues::ops::operator::start_redrive::StartRedrive;
use waybill_store::{Ctx, Operation, Reply, Tx, Value};
use waybill_tasks::ops::ack_receipt::AckReceipt;
use waybill_tasks::ops::bootstrap::Bootstrap;
use waybill_tasks::ops::cancel_task::CancelTask;
use waybill_tasks::ops::complete::Complete;
use waybill_tasks::ops::create_task::CreateTask;
use waybill_tasks::ops::fail::Fail;
use waybill_tasks::ops::lease_next::LeaseNext;
use waybill_tasks::ops::renew_lease::RenewLease;
use waybill_tasks::ops::report_progress::ReportProgress;
use waybill_testkit::race::{Contender, Entity, PROJECT, Report, World, explore, explore_some, mesh_keys, pairs};
use waybill_testkit::stores;
use waybill_webhooks::ops::{CreateWebhook, DeleteWebhook, EnableWebhook, RedeliverWebhook};

use crate::support::{NOBODY, spec, with};

fn contenders() -> Vec<Contender> {
    vec![
        Contender::new::<CreateTask>("a new key", Entity::Task, |world| {
            (world.caller.clone(), json!({ "type": "work", "idempotency_key": "new" }))
        }),
        Contender::new::<CreateTask>("the key of the task", Entity::Task, |world| {
            (world.caller.clone(), json!({ "type": "work", "idempotency_key": "taken" }))
        }),
        Contender::new::<CancelTask>("the task", Entity::Task, |world| {
            (world.caller.clone(), json!({ "task_id": world.id }))
        }),
        Contender::new::<LeaseNext>("any task", Entity::Task, |world| (world.caller.clone(), json!({}))),
        Contender::new::<CancelTask>("a leased task", Entity::Lease, |world| {
            (world.caller.clone(), json!({ "task_id": world.id }))
        }),
        Contender::new::<LeaseNext>("beside the leased one", Entity::Lease, |world| (world.caller.clone(), json!({}))),
        Contender::new::<RenewLease>("the lease", Entity::Lease, |world| {
            (world.caller.clone(), lease(world, json!({})))
        }),
        Contender::new::<ReportProgress>("the lease", Entity::Lease, |world| {
            (world.caller.clone(), lease(world, json!({ "progress": 1 })))
        }),
        Contender::new::<Complete>("the lease", Entity::Lease, |world| {
            (world.caller.clone(), lease(world, json!({ "artifacts": { "p": 1 } })))
        }),
        Contender::new::<Fail>("for good", Entity::Lease, |world| {
            (world.caller.clone(), lease(world, json!({ "error": 1 })))
        }),
        Contender::new::<Fail>("for a while", Entity::Lease, |world| {
            (world.caller.clone(), lease(world, json!({ "error": 2, "retryable": true })))
        }),
        Contender::new::<AckReceipt>("the receipt", Entity::Receipt, |world| {
            (world.caller.clone(), json!({ "receipt_id": world.id }))
        }),
        Contender::new::<Bootstrap>("the inbox", Entity::Receipt, |world| (world.caller.clone(), json!({}))),
        Contender::new::<Bootstrap>("the inbox, as an instance", Entity::Receipt, |world| {
            (world.caller.clone(), json!({ "agent_instance_id": "one" }))
        }),
        Contender::new::<CreateKey>("for the same principal", Entity::Key, |world| {
            (world.caller.clone(), json!({ "principal": "agent:a" }))
        }),
        Contender::new::<RotateKey>("the key", Entity::Key, |world| {
            (world.caller.clone(), json!({ "key_id": world.id }))
        }),
        Contender::new::<RevokeKey>("the key", Entity::Key, |world| {
            (world.caller.clone(), json!({ "key_id": world.id }))
        }),
        Contender::new::<CreateTenant>("a name", Entity::Tenant, |world| {
            (world.operator.clone(), json!({ "name": world.label }))
        }),
        Contender::new::<CreateTenant>("another name", Entity::Tenant, |world| {
            (world.operator.clone(), json!({ "name": format!("{} too", world.label) }))
        }),
        Contender::new::<CreateWebhook>("beside the webhook", Entity::Webhook, |world| {
            (world.caller.clone(), json!({ "url": "https://hooks.example/" }))
        }),
        Contender::new::<DeleteWebhook>("the webhook", Entity::Webhook, |world| {
            (world.caller.clone(), json!({ "webhook_id": world.id }))
        }),
        Contender::new::<EnableWebhook>("the webhook", Entity::Webhook, |world| {
            (world.caller.clone(), json!({ "webhook_id": world.id }))
        }),
        Contender::new::<RedeliverWebhook>("what it never got", Entity::Webhook, |world| {
            (world.caller.clone(), json!({ "webhook_id": world.id, "delivery_id": NOBODY }))
        }),
        Contender::new::<CreateQueue>("the queue, as it is", Entity::Queue, |world| {
            (world.caller.clone(), json!({ "queue": world.id }))
        }),
        Contender::new::<CreateQueue>("a name", Entity::NewQueue, |world| {
            (world.caller.clone(), json!({ "queue": "jobs" }))
        }),
        Contender::new::<CreateQueue>("a name with another delay", Entity::NewQueue, |world| {
            (world.caller.clone(), json!({ "queue": "jobs", "attributes": { "DelaySeconds": "1" } }))
        }),
        Contender::new::<SetQueueAttributes>("the queue", Entity::Queue, |world| {
            (world.caller.clone(), json!({ "queue": world.id, "attributes": { "VisibilityTimeout": "7" } }))
        }),
        Contender::new::<SetQueueAttributes>("another attribute", Entity::Queue, |world| {
            (world.caller.clone(), json!({ "queue": world.id, "attributes": { "DelaySeconds": "3" } }))
        }),
        Contender::new::<PurgeQueue>("the queue", Entity::Queue, |world| {
            (world.caller.clone(), json!({ "queue": world.id }))
        }),
        Contender::new::<StartRedrive>("of no dead letters", Entity::Queue, |world| {
            (world.caller.clone(), json!({ "queue": world.id }))
        }),
        Contender::new::<CancelRedrive>("of no dead letters", Entity::Queue, |world| {
            (world.caller.clone(), json!({ "queue": world.id }))
        }),
        Contender::new::<FileReservationPaths>("what another holds", Entity::Reservation, |world| {
            (world.caller.clone(), agent("GreenCastle", json!({ "paths": ["src/a.rs", "docs"] })))
        }),
        Contender::new::<FileReservationPaths>("under a key", Entity::Reservation, |world| {
            (world.caller.clone(), agent("GreenCastle", json!({ "paths": ["docs/**"], "idempotency_key": "k" })))
        }),
        Contender::new::<RenewFileReservations>("its own", Entity::Reservation, |world| {
            (world.caller.clone(), agent("BlueLake", json!({ "extend_seconds": 60 })))
        }),
        Contender::new::<ReleaseFileReservations>("its own", Entity::Reservation, |world| {
            (world.caller.clone(), agent("BlueLake", json!({})))
        }),
        Contender::new::<AcquireBuildSlot>("what another has", Entity::BuildSlot, |world| {
            (world.caller.clone(), agent("BlueLake", json!({ "slot": "build" })))
        }),
        Contender::new::<AcquireBuildSlot>("what it has", Entity::BuildSlot, |world| {
            (world.caller.clone(), agent("GreenCastle", json!({ "slot": "build", "exclusive": false })))
        }),
        Contender::new::<RenewBuildSlot>("its own", Entity::BuildSlot, |world| {
            (world.caller.clone(), agent("GreenCastle", json!({ "slot": "build" })))
        }),
        Contender::new::<ReleaseBuildSlot>("its own", Entity::BuildSlot, |world| {
            (world.caller.clone(), agent("GreenCastle", json!({ "slot": "build" })))
        }),
        Contender::new::<EnsureProduct>("a key", Entity::NewProduct, |world| {
            (world.caller.clone(), json!({ "product_key": "shop", "name": "One" }))
        }),
        Contender::new::<EnsureProduct>("the key with another name", Entity::NewProduct, |world| {
            (world.caller.clone(), json!({ "product_key": "shop", "name": "Two" }))
        }),
        Contender::new::<ProductsLink>("the product, if there is one", Entity::NewProduct, |world| {
            (world.caller.clone(), json!({ "product_key": "shop", "project_key": PROJECT }))
        }),
        Contender::new::<ForceReleaseFileReservation>("another's", Entity::Reservation, |world| {
            let id: i64 = world.id.parse().unwrap();
            (world.caller.clone(), agent("GreenCastle", json!({ "file_reservation_id": id })))
        }),
        Contender::new::<MacroFileReservationCycle>("what another holds", Entity::Reservation, |world| {
            (world.caller.clone(), agent("GreenCastle", json!({ "paths": ["src/a.rs", "docs"], "auto_release": true })))
        }),
        Contender::new::<EnsureProject>("a path", Entity::NewProject, |world| {
            (world.caller.clone(), json!({ "human_key": PROJECT }))
        }),
        Contender::new::<MacroStartSession>("a path and a name", Entity::NewProject, |world| {
            let named = json!({ "human_key": PROJECT, "program": "p", "model": "m", "agent_name": "BlueLake" });
            (world.caller.clone(), named)
        }),
        Contender::new::<RegisterAgent>("a free name", Entity::Agent, |world| {
            (world.caller.clone(), profile(json!({ "name": "BlueLake" })))
        }),
        Contender::new::<RegisterAgent>("a name that is there", Entity::Agent, |world| {
            (world.caller.clone(), profile(json!({ "name": "GreenCastle", "task_description": "t" })))
        }),
        Contender::new::<CreateAgentIdentity>("a free name", Entity::Agent, |world| {
            (world.caller.clone(), profile(json!({ "name_hint": "BlueLake" })))
        }),
        Contender::new::<MacroPrepareThread>("a free name", Entity::Agent, |world| {
            (world.caller.clone(), profile(json!({ "agent_name": "BlueLake", "thread_id": "T-1" })))
        }),
        Contender::new::<RetireAgent>("the agent", Entity::Agent, |world| {
            (world.caller.clone(), agent("GreenCastle", json!({})))
        }),
        Contender::new::<UnretireAgent>("the agent", Entity::Agent, |world| {
            (world.caller.clone(), agent("GreenCastle", json!({})))
        }),
        Contender::new::<SendMessage>("under a key", Entity::Letter, |world| {
            let letter = json!({ "project_key": PROJECT, "sender_name": "GreenCastle", "to": ["BlueLake"], "subject": "c",
                "body_md": "d", "idempotency_key": "k" });
            (world.caller.clone(), letter)
        }),
        Contender::new::<SendOverseerMessage>("as the first of its project", Entity::Letter, |world| {
            let order = json!({ "project_key": PROJECT, "to": ["BlueLake"], "subject": "Stop", "body_md": "Now." });
            (world.caller.clone(), order)
        }),
        Contender::new::<ReplyMessage>("the letter", Entity::Letter, |world| {
            let reply = json!({ "project_key": PROJECT, "sender_name": "BlueLake", "body_md": "e" });
            (world.caller.clone(), with(&reply, number(world)))
        }),
        Contender::new::<MarkMessageRead>("the letter", Entity::Letter, |world| {
            (world.caller.clone(), agent("BlueLake", number(world)))
        }),
        Contender::new::<AcknowledgeMessage>("the letter", Entity::Letter, |world| {
            (world.caller.clone(), agent("BlueLake", number(world)))
        }),
        Contender::new::<FetchInbox>("and mark it", Entity::Letter, |world| {
            (world.caller.clone(), agent("BlueLake", json!({ "mark_read": true, "limit": 1 })))
        }),
        Contender::new::<SetContactPolicy>("of who got it", Entity::Letter, |world| {
            (world.caller.clone(), agent("BlueLake", json!({ "policy": "block_all" })))
        }),
        Contender::new::<RequestContact>("again", Entity::Contact, |world| (world.caller.clone(), pair(json!({})))),
        Contender::new::<RespondContact>("yes", Entity::Contact, |world| {
            (world.caller.clone(), pair(json!({ "accept": true })))
        }),
        Contender::new::<RespondContact>("no", Entity::Contact, |world| {
            (world.caller.clone(), pair(json!({ "accept": false })))
        }),
        Contender::new::<MacroContactHandshake>("and accept", Entity::Contact, |world| {
            let hands = json!({ "project_key": PROJECT, "requester": "GreenCastle", "target": "BlueLake", "auto_accept": true });
            (world.caller.clone(), hands)
        }),
        Contender::new::<HealthCheck>("beside it", Entity::Contact, |world| (world.caller.clone(), json!({}))),
        Contender::new::<CreateMesh>("a slug", Entity::NewMesh, |world| {
            (world.caller.clone(), json!({ "slug": "team", "name": "alice", "keys": mesh_keys() }))
        }),
        Contender::new::<CreateMesh>("another slug", Entity::NewMesh, |world| {
            (world.caller.clone(), json!({ "slug": "others", "name": "alice", "keys": mesh_keys() }))
        }),
        Contender::new::<SetMeshPolicy>("to oldest", Entity::Mesh, |world| {
            (world.caller.clone(), json!({ "mesh": "team", "connection_policy": "prefer_oldest" }))
        }),
        Contender::new::<SetMeshPolicy>("to both", Entity::Mesh, |world| {
            (world.caller.clone(), json!({ "mesh": "team", "connection_policy": "allow_concurrent" }))
        }),
        Contender::new::<RevokeMeshMember>("alice", Entity::Mesh, |world| {
            (world.caller.clone(), json!({ "mesh": "team", "member": mesh_keys()["ed25519"] }))
        }),
        Contender::new::<CloseMesh>("all of it", Entity::Mesh, |world| {
            (world.caller.clone(), json!({ "mesh": "team" }))
        }),
    ]
}

/// What a call about GreenCastle's request to BlueLake says, and more.
fn pair(more: Json) -> Json {
    with(&json!({ "project_key": PROJECT, "from_agent": "GreenCastle", "to_agent": "BlueLake" }), more)
}

/// What a call that registers an agent says, and more.
fn profile(more: Json) -> Json {
    with(&json!({ "project_key": PROJECT, "program": "p", "model": "m" }), more)
}

/// Of the letter.
fn number(world: &World) -> Json {
    json!({ "message_id": world.id.parse::<i64>().unwrap() })
}

/// What a call for an agent says, and more.
fn agent(name: &str, more: Json) -> Json {
    with(&json!({ "project_key": PROJECT, "agent_name": name }), more)
}

/// What a call of the lease's worker says, and more.
fn lease(world: &World, more: Json) -> Json {
    with(&json!({ "task_id": world.id, "lease_id": world.lease_id }), more)
}

/// They write files of a repository, each as one step, and no row.
const WITHOUT_ROWS: [&str; 2] = ["install_precommit_guard", "uninstall_precommit_guard"];

#[test]
fn every_operation_that_writes_is_raced() {
    let registry = waybill_domains::registry();
    let has_rows = |spec: &&OperationSpec| !WITHOUT_ROWS.contains(&spec.name);
    let writes = registry.entries().map(|entry| entry.spec()).filter(|spec| spec.mode == Mode::Write).filter(has_rows);
    let contenders = contenders();
    let raced: Vec<_> = contenders.iter().map(|contender| contender.operation).collect();
    let gaps = stores::uncovered(writes.map(|spec| spec.name), &raced);
    assert!(gaps.is_empty(), "{gaps:?}");
}

async fn race(pair: &[Contender; 2]) -> Report {
    let on = stores::open_postgres().await.unwrap();
    let report = explore(&on, pair).await.unwrap();
    println!("{} / {}: {} schedules, a lock was waited for: {}", pair[0], pair[1], report.runs, report.blocked);
    report
}

/// Every schedule left what one of the two serial orders leaves.
fn assert_serial(pair: &[Contender; 2], report: &Report) {
    if let Some(stranger) = report.strangers.first() {
        let [first, second] = &stranger.serial;
        panic!(
            "{} / {}, schedule {:?} left\n{}\nwhich is neither\n{first}\nnor\n{second}",
            pair[0], pair[1], stranger.schedule, stranger.saw
        );
    }
}

async fn all_are_serial(entity: Entity) {
    for pair in pairs(&contenders(), entity) {
        let report = race(&pair).await;
        assert!(report.complete, "{} / {} has too many schedules", pair[0], pair[1]);
        assert_serial(&pair, &report);
    }
}

#[tokio::test]
async fn two_writes_on_one_task_end_as_if_one_came_after_the_other() {
    all_are_serial(Entity::Task).await;
}

#[tokio::test]
async fn a12_9_two_writes_on_one_leased_task_end_as_if_one_came_after_the_other() {
    all_are_serial(Entity::Lease).await;
}

#[tokio::test]
async fn two_writes_on_one_receipt_end_as_if_one_came_after_the_other() {
    all_are_serial(Entity::Receipt).await;
}

#[tokio::test]
async fn two_writes_on_one_key_end_as_if_one_came_after_the_other() {
    all_are_serial(Entity::Key).await;
}

#[tokio::test]
async fn two_new_tenants_end_as_if_one_came_after_the_other() {
    all_are_serial(Entity::Tenant).await;
}

#[tokio::test]
async fn two_new_meshes_end_as_if_one_came_after_the_other() {
    all_are_serial(Entity::NewMesh).await;
}

#[tokio::test]
async fn two_writes_on_one_mesh_end_as_if_one_came_after_the_other() {
    all_are_serial(Entity::Mesh).await;
}

#[tokio::test]
async fn two_writes_on_one_webhook_end_as_if_one_came_after_the_other() {
    all_are_serial(Entity::Webhook).await;
}

#[tokio::test]
async fn two_writes_on_one_queue_end_as_if_one_came_after_the_other() {
    all_are_serial(Entity::Queue).await;
}

#[tokio::test]
async fn two_new_queues_end_as_if_one_came_after_the_other() {
    all_are_serial(Entity::NewQueue).await;
}

#[tokio::test]
async fn two_writes_on_one_build_slot_end_as_if_one_came_after_the_other() {
    some_are_serial(Entity::BuildSlot).await;
}

#[tokio::test]
async fn two_new_products_end_as_if_one_came_after_the_other() {
    all_are_serial(Entity::NewProduct).await;
}

#[tokio::test]
async fn two_writes_on_one_reservation_end_as_if_one_came_after_the_other() {
    some_are_serial(Entity::Reservation).await;
}

/// Calls of mail have many statements, and two of them more schedules than can be run: as many as this are.
const RUNS_OF_MAIL: usize = 8;

/// All in one database: to make one takes as long as to run the few schedules of a pair.
async fn some_are_serial(entity: Entity) {
    let on = stores::open_postgres().await.unwrap();
    for pair in pairs(&contenders(), entity) {
        let report = explore_some(&on, &pair, RUNS_OF_MAIL).await.unwrap();
        println!("{} / {}: {} schedules", pair[0], pair[1], report.runs);
        assert!(report.runs > 1, "{} / {} were not raced", pair[0], pair[1]);
        assert_serial(&pair, &report);
    }
}

#[tokio::test]
async fn two_new_projects_end_as_if_one_came_after_the_other() {
    some_are_serial(Entity::NewProject).await;
}

#[tokio::test]
async fn two_writes_on_one_agent_end_as_if_one_came_after_the_other() {
    some_are_serial(Entity::Agent).await;
}

#[tokio::test]
async fn two_writes_on_one_letter_end_as_if_one_came_after_the_other() {
    some_are_serial(Entity::Letter).await;
}

#[tokio::test]
async fn two_writes_on_one_contact_end_as_if_one_came_after_the_other() {
    some_are_serial(Entity::Contact).await;
}

/// `revoke_key` without its guard: it looks, and then writes whatever has happened meanwhile.
#[derive(Deserialize, JsonSchema)]
struct SloppyRevoke {
    key_id: String,
}

impl Operation for SloppyRevoke {
    const SPEC: OperationSpec = spec("sloppy_revoke");
    type Output = bool;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<bool>> {
        const SELECT: &str = "SELECT revoked_at FROM api_keys WHERE tenant = $1 AND key_id = $2";
        const UPDATE: &str = "UPDATE api_keys SET revoked_at = $3 WHERE tenant = $1 AND key_id = $2";
        let key_id = Value::from(&self.key_id);
        let row = tx.query_opt(SELECT, &[key_id]).await?.ok_or_else(|| Error::not_found("key"))?;
        if row.time_opt(0)?.is_some() {
            return Ok(Reply::Done(false));
        }
        tx.execute(UPDATE, &[key_id, Value::from(ctx.now)]).await?;
        Ok(Reply::Done(true))
    }
}

/// `revoke_key` by one write, demanded, which is sent together with the COMMIT.
#[derive(Deserialize, JsonSchema)]
struct LastRevoke {
    key_id: String,
}

impl Operation for LastRevoke {
    const SPEC: OperationSpec = spec("last_revoke");
    type Output = bool;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<bool>> {
        const UPDATE: &str =
            "UPDATE api_keys SET revoked_at = $3 WHERE tenant = $1 AND key_id = $2 AND revoked_at IS NULL";
        let write = (UPDATE, vec![Value::from(&self.key_id), Value::from(ctx.now)]);
        tx.conclude(&[write], &[0], || Error::not_found("key")).await?;
        Ok(Reply::Done(true))
    }
}

/// Its write and its COMMIT are two steps, or the other side could never be seen to wait for it.
#[tokio::test]
async fn the_suite_steps_between_the_last_writes_and_the_commit() {
    let last = Contender::new::<LastRevoke>("the key", Entity::Key, |world| {
        (world.caller.clone(), json!({ "key_id": world.id }))
    });
    let report = race(&[last, last]).await;
    assert!(report.complete && report.blocked, "{report:?}");
    assert!(report.strangers.is_empty(), "a demanded write is guarded: {report:?}");
}

#[tokio::test]
async fn the_suite_sees_an_unguarded_update() {
    let sloppy = Contender::new::<SloppyRevoke>("the key", Entity::Key, |world| {
        (world.caller.clone(), json!({ "key_id": world.id }))
    });
    let report = race(&[sloppy, sloppy]).await;
    assert!(report.complete && report.blocked);
    assert!(!report.strangers.is_empty(), "both said that they were the one");
    assert!(report.strangers.len() < report.runs, "some schedules are serial after all");
}
