//! A12.9: a sweep and whoever else wants the task, stepped through every order: exactly one of them has it.
//!
//! The sweep's clock is ahead, by a grace below nothing: what is live to the worker has ended to the sweep, as between
//! two nodes whose calls began at different times.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use waybill_kernel::{OperationSpec, Result};
use waybill_store::{Ctx, Operation, Reach, Reply, Tx};
use waybill_tasks::Settings;
use waybill_tasks::ops::cancel_task::CancelTask;
use waybill_tasks::ops::complete::Complete;
use waybill_tasks::ops::fail::Fail;
use waybill_tasks::ops::renew_lease::RenewLease;
use waybill_tasks::ops::report_progress::ReportProgress;
use waybill_tasks::sweeps::ExpiredLeases;
use waybill_testkit::race::{Contender, Entity, World, explore};
use waybill_testkit::stores;

use crate::support::spec;

/// One batch of the sweep.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SweepNow {}

impl Operation for SweepNow {
    const SPEC: OperationSpec = spec("sweep_now");
    const REACH: Reach = Reach::System;
    type Output = bool;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<bool>> {
        let ahead = Settings { lease_grace_s: -400, requeue_delay_s_max: 0, ..Settings::default() };
        ExpiredLeases::new(&ahead).requeue_ended(ctx, tx, 20).await.map(|_| Reply::Done(true))
    }
}

fn held(world: &World, further: serde_json::Value) -> (waybill_kernel::Caller, serde_json::Value) {
    (world.caller.clone(), super::about(&json!({ "task_id": world.id, "lease_id": world.lease_id }), further))
}

#[tokio::test]
async fn a12_9_a_sweep_and_any_other_write_on_a_leased_task_end_as_if_one_came_after_the_other() {
    let sweep = Contender::new::<SweepNow>("ahead", Entity::Lease, |world| (world.caller.clone(), json!({})));
    let others = [
        Contender::new::<Complete>("with a place", Entity::Lease, |world| {
            held(world, json!({ "result": 1, "artifacts": [{ "url": "memory:1" }] }))
        }),
        Contender::new::<Fail>("for good", Entity::Lease, |world| held(world, json!({ "error": {} }))),
        Contender::new::<Fail>("again", Entity::Lease, |world| held(world, json!({ "error": {}, "retryable": true }))),
        Contender::new::<RenewLease>("for long", Entity::Lease, |world| {
            held(world, json!({ "extend_by_seconds": 1800 }))
        }),
        Contender::new::<ReportProgress>("half", Entity::Lease, |world| held(world, json!({ "progress": {} }))),
        Contender::new::<CancelTask>("the task", Entity::Lease, |world| {
            (world.caller.clone(), json!({ "task_id": world.id }))
        }),
        sweep,
    ];
    for other in others {
        let on = stores::open_postgres().await.unwrap();
        let report = explore(&on, &[sweep, other]).await.unwrap();
        println!("{sweep} / {other}: {} schedules, a lock was waited for: {}", report.runs, report.blocked);
        assert!(report.complete && report.blocked, "{other}");
        if let Some(stranger) = report.strangers.first() {
            let [first, second] = &stranger.serial;
            panic!(
                "{sweep} / {other}, schedule {:?} left\n{}\nwhich is neither\n{first}\nnor\n{second}",
                stranger.schedule, stranger.saw
            );
        }
    }
}
