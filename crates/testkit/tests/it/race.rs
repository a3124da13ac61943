//! Every pair of writes on one entity ends as if one had come after the other.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value as Json, json};
use waybill_access::ops::{CreateKey, CreateTenant, RevokeKey, RotateKey};
use waybill_kernel::{Error, Mode, OperationSpec, Result};
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
use waybill_testkit::race::{Contender, Entity, Report, World, explore, pairs};
use waybill_testkit::stores;
use waybill_webhooks::ops::{CreateWebhook, DeleteWebhook, RedeliverWebhook};

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
        Contender::new::<RedeliverWebhook>("what it never got", Entity::Webhook, |world| {
            (world.caller.clone(), json!({ "webhook_id": world.id, "delivery_id": NOBODY }))
        }),
    ]
}

/// What a call of the lease's worker says, and more.
fn lease(world: &World, more: Json) -> Json {
    with(&json!({ "task_id": world.id, "lease_id": world.lease_id }), more)
}

#[test]
fn every_operation_that_writes_is_raced() {
    let registry = waybill_domains::registry();
    let writes = registry.entries().map(|entry| entry.spec()).filter(|spec| spec.mode == Mode::Write);
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

async fn all_are_serial(entity: Entity) {
    for pair in pairs(&contenders(), entity) {
        let report = race(&pair).await;
        assert!(report.complete, "{} / {} has too many schedules", pair[0], pair[1]);
        if let Some(stranger) = report.strangers.first() {
            let [first, second] = &stranger.serial;
            panic!(
                "{} / {}, schedule {:?} left\n{}\nwhich is neither\n{first}\nnor\n{second}",
                pair[0], pair[1], stranger.schedule, stranger.saw
            );
        }
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
async fn two_writes_on_one_webhook_end_as_if_one_came_after_the_other() {
    all_are_serial(Entity::Webhook).await;
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
