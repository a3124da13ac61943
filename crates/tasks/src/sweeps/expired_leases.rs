//! Leases that ran out: their tasks go back to the queue, as if nobody had had them. A vanished worker is no failed
//! attempt, so a task comes back as often as it takes.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::json;
use waybill_kernel::{Result, Tenant, Time};
use waybill_store::effects::{self, Plan, Sweep};
use waybill_store::{Ctx, Row, Tx, Value};

use super::instances;
use crate::Settings;
use crate::anomaly::{self, Anomaly};
use crate::lease::{self, LeaseId};
use crate::metrics;
use crate::outcome::{EndReason, end_lease};
use crate::receipts::{self, Party, Receipt, ReceiptId, ReceiptType, SYSTEM};
use crate::settings::seconds_of;
use crate::task::TaskId;

/// Each task wakes three topics and all of them one more, and a transaction wakes 64 at most.
pub(crate) const BATCHES: RangeInclusive<i64> = 1..=20;
/// A task whose leases ran out more often than this is worth a look.
const EXPIRIES_USUAL: i64 = 3;

/// Every instance sweeps its own tasks, and those of instances that have fallen silent.
#[derive(Debug)]
pub struct ExpiredLeases {
    settings: Settings,
    /// Of the latest batch, told to the metrics once it is committed.
    requeued: AtomicU64,
    lag_us: AtomicU64,
}

impl ExpiredLeases {
    pub fn new(settings: &Settings) -> Self {
        metrics::describe();
        Self { settings: settings.clone(), requeued: AtomicU64::new(0), lag_us: AtomicU64::new(0) }
    }
}

impl Sweep for ExpiredLeases {
    const NAME: &'static str = "tasks.leases";

    fn plan(&self) -> Plan {
        let plan = Plan::every(seconds_of(self.settings.sweep_interval_s.max(1)));
        Plan { batch: self.settings.sweep_batch, ..plan }
    }

    fn row(&self) -> String {
        Self::row_of(&self.settings.instance_id)
    }

    async fn run_batch(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, limit: i64) -> Result<u64> {
        instances::beat(ctx, tx, &self.settings).await?;
        for gone in instances::forget(ctx, tx, &self.settings).await? {
            effects::forget(tx, &Self::row_of(&gone), ctx.now).await?;
        }
        let adopted = instances::adopt(ctx, tx, &self.settings, limit).await?;
        let found = self.requeue_ended(ctx, tx, limit).await?;
        Ok(adopted.max(found))
    }

    fn committed(&self) {
        let requeued = self.requeued.load(Ordering::Relaxed);
        if requeued > 0 {
            ::metrics::counter!(metrics::LEASE_EXPIRIES).increment(requeued);
        }
        ::metrics::gauge!(metrics::LEASE_EXPIRY_LAG).set(self.lag_us.load(Ordering::Relaxed) as f64 / 1e6);
    }
}

/// Leases that ended, of all tenants; [`Ended`] reads the answer.
const ENDED: &str = "SELECT tenant, task_id, lease_id, worker, lease_expires_at FROM tasks \
    WHERE instance = $1 AND lease_id IS NOT NULL AND lease_expires_at <= $2 ORDER BY lease_expires_at LIMIT $3";

/// A lease that was seen to have ended. Whether it is still the task's lease, the write decides.
struct Ended {
    tenant: Tenant,
    task_id: TaskId,
    lease_id: LeaseId,
    worker: String,
    expires_at: Time,
}

impl Ended {
    fn read(row: &Row) -> Result<Self> {
        Ok(Self {
            tenant: Tenant(row.int(0)?),
            task_id: TaskId::from_slice(row.bytes(1)?)?,
            lease_id: LeaseId::from_slice(row.bytes(2)?)?,
            worker: row.text(3)?.to_owned(),
            expires_at: row.time(4)?,
        })
    }
}

pub(crate) const REQUEUE: &str = "UPDATE tasks SET status = 'queued', lease_id = NULL, worker = NULL, \
    lease_expires_at = NULL, started_at = NULL, held = 1, next_eligible_at = $5, expiries = expiries + 1, updated_at = $6 \
    WHERE tenant = $1 AND task_id = $2 AND lease_id = $3 AND lease_expires_at <= $4 AND status IN ('leased', 'running') \
    RETURNING owner, assigned_receipt, attempt, epoch, expiries";

/// What [`REQUEUE`] answers with.
struct Requeued<'r> {
    owner: &'r str,
    assigned: ReceiptId,
    attempt: i64,
    epoch: i64,
    expiries: i64,
}

impl<'r> Requeued<'r> {
    fn read(row: &'r Row) -> Result<Self> {
        Ok(Self {
            owner: row.text(0)?,
            assigned: ReceiptId::from_slice(row.bytes(1)?)?,
            attempt: row.int(2)?,
            epoch: row.int(3)?,
            expiries: row.int(4)?,
        })
    }
}

impl ExpiredLeases {
    /// What is left of a batch when nobody else is about. Answers with the leases that were found to have ended.
    pub async fn requeue_ended(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, limit: i64) -> Result<u64> {
        let leases = self.ended(ctx, tx, limit).await?;
        let mut requeued = 0;
        for lease in &leases {
            requeued += u64::from(self.requeue(ctx, tx, lease).await?);
        }
        let lag = leases.first().map_or(Duration::ZERO, |lease| ctx.now.since(lease.expires_at));
        self.requeued.store(requeued, Ordering::Relaxed);
        self.lag_us.store(u64::try_from(lag.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
        Ok(leases.len() as u64)
    }

    /// The key of an instance's row.
    fn row_of(instance: &str) -> String {
        format!("{}/{instance}", Self::NAME)
    }

    async fn ended(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, limit: i64) -> Result<Vec<Ended>> {
        let params = [
            Value::from(&self.settings.instance_id),
            Value::from(self.settings.lease_horizon(ctx.now)),
            Value::from(limit),
        ];
        tx.query(ENDED, &params).await?.iter().map(Ended::read).collect()
    }

    /// False when the lease was renewed or ended by somebody who was quicker.
    async fn requeue(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, lease: &Ended) -> Result<bool> {
        let tx = &mut *tx.as_tenant(lease.tenant);
        let params = [
            Value::from(lease.task_id.as_bytes()),
            Value::from(lease.lease_id.as_bytes()),
            Value::from(self.settings.lease_horizon(ctx.now)),
            Value::from(ctx.now.after(self.pause(ctx))),
            Value::from(ctx.now),
        ];
        let Some(row) = tx.query_opt(REQUEUE, &params).await? else { return Ok(false) };
        let task = Requeued::read(&row)?;
        record(ctx, tx, lease, &task).await?;
        if task.expiries == EXPIRIES_USUAL + 1 {
            report(ctx, tx, lease, &task).await?;
        }
        // Those who wait for work learn when to look again.
        tx.wake(lease::claimable(lease.tenant), 1);
        tx.wake(lease.task_id.topic(lease.tenant), u32::MAX);
        Ok(true)
    }

    /// By chance, so that the tasks of a worker that vanished with many do not all come back at once. From the call's
    /// ids, so that a second run of the same batch waits for as long.
    fn pause(&self, ctx: &Ctx<'_>) -> Duration {
        let [.., a, b, c, d] = *ctx.ids.next().as_bytes();
        let chance = f64::from(u32::from_be_bytes([a, b, c, d])) / f64::from(u32::MAX);
        seconds_of(self.settings.requeue_delay_s_max).mul_f64(chance)
    }
}

async fn record(ctx: &Ctx<'_>, tx: &mut Tx<'_>, lease: &Ended, task: &Requeued<'_>) -> Result<()> {
    let expired = Receipt {
        id: receipts::keyed_id(
            ReceiptType::LeaseExpired,
            &lease.lease_id.0,
            &[lease.task_id.as_bytes(), lease.lease_id.as_bytes()],
        ),
        kind: ReceiptType::LeaseExpired,
        from: SYSTEM,
        to: task.owner,
        task_id: Some(lease.task_id),
        lease_id: Some(lease.lease_id),
        schedule_id: None,
        parents: &[task.assigned],
        unlocated: false,
        body: json!({
            "task_id": lease.task_id,
            "previous_worker_id": Party::read(&lease.worker)?.id,
            "attempt": task.attempt,
            "requeued": true,
        })
        .into(),
    };
    let end = end_lease(lease.task_id.as_bytes(), task.epoch, ctx.now, EndReason::Expired, None, None);
    receipts::emit_all(tx, ctx, vec![end], &[expired]).await
}

async fn report(ctx: &Ctx<'_>, tx: &mut Tx<'_>, lease: &Ended, task: &Requeued<'_>) -> Result<()> {
    let anomaly = Anomaly {
        kind: anomaly::Kind::ExcessiveExpiries,
        to: task.owner,
        task_id: Some(lease.task_id),
        related: Some(task.assigned),
        // The count only grows, so a task comes by here once.
        crossing: &[],
        details: json!({ "expiries": task.expiries, "latest_worker": lease.worker, "attempt": task.attempt }),
        recommended_action: "Look why its workers vanish or do not renew; cancel the task if it brings them down.",
    };
    anomaly::report(tx, ctx, anomaly).await
}
