//! Counts calls that use a lease that has ended or belongs to another worker. A single one is a worker that was too slow. After the
//! third on one task the task's owner gets a receipt, because that worker does not listen.
//!
//! A refused call is rolled back and cannot count itself, so the process remembers it and the count is written later.

use std::collections::HashMap;

use serde_json::json;
use waybill_kernel::id::Uuid;
use waybill_kernel::{Error, Mode, Result, Tenant};
use waybill_store::{Ctx, Tx, Value, Work};

use crate::anomaly::{self, Anomaly};
use crate::receipts::ReceiptId;
use crate::task::TaskId;

/// The use that is reported, and the only one.
const USES_REPORTED: i64 = 3;
/// Pairs of task and worker remembered between two flushes. Further ones are not counted.
const PAIRS_MAX: usize = 10_000;
/// Written in one transaction: each may wake somebody, and a transaction wakes 64 at most.
pub(crate) const BATCH_MAX: usize = 50;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Pair {
    pub tenant: Tenant,
    pub task_id: TaskId,
    pub worker: String,
}

/// The misuses since the last flush, by an id of each call. A call that is run twice has the same id both times.
#[derive(Debug, Default)]
pub(crate) struct Misuses(HashMap<Pair, Vec<Uuid>>);

impl Misuses {
    pub fn add(&mut self, pair: Pair, call: Uuid) {
        if self.0.len() >= PAIRS_MAX && !self.0.contains_key(&pair) {
            return;
        }
        let calls = self.0.entry(pair).or_default();
        // Further ones make no difference.
        if calls.len() < USES_REPORTED as usize && !calls.contains(&call) {
            calls.push(call);
        }
    }

    pub fn take(&mut self) -> Vec<(Pair, Vec<Uuid>)> {
        self.0.drain().collect()
    }
}

/// Adds to the stored counts, and reports each that has reached three.
pub(crate) struct Count(pub Vec<(Pair, Vec<Uuid>)>);

impl Work for Count {
    type Output = ();

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<()> {
        const COUNT: &str = "INSERT INTO lease_misuses (tenant, task_id, worker, uses) VALUES ($1, $2, $3, $4) \
            ON CONFLICT (tenant, task_id, worker) DO UPDATE SET uses = lease_misuses.uses + excluded.uses \
            RETURNING uses";
        for (pair, calls) in &self.0 {
            let tx = &mut *tx.as_tenant(pair.tenant);
            let more = calls.len() as i64;
            let params = [Value::from(pair.task_id.as_bytes()), Value::from(&pair.worker), Value::from(more)];
            let row = tx.query_opt(COUNT, &params).await?;
            let uses = row.ok_or_else(|| Error::internal("a count without a row"))?.int(0)?;
            if uses >= USES_REPORTED && uses - more < USES_REPORTED {
                report(ctx, tx, pair).await?;
            }
        }
        Ok(())
    }
}

async fn report(ctx: &Ctx<'_>, tx: &mut Tx<'_>, pair: &Pair) -> Result<()> {
    const TASK: &str = "SELECT owner, assigned_receipt FROM tasks WHERE tenant = $1 AND task_id = $2";
    let Some(task) = tx.query_opt(TASK, &[pair.task_id.as_bytes().into()]).await? else { return Ok(()) };
    let anomaly = Anomaly {
        kind: anomaly::Kind::InvalidLeaseUses,
        to: task.text(0)?,
        task_id: Some(pair.task_id),
        related: Some(ReceiptId::from_slice(task.bytes(1)?)?),
        crossing: pair.worker.as_bytes(),
        details: json!({ "worker": pair.worker, "uses": USES_REPORTED }),
        recommended_action: "Look why the worker goes on with a task that is not its own any more; it should stop at the \
                             first LEASE_INVALID_OR_EXPIRED.",
    };
    anomaly::report(tx, ctx, anomaly).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_counts_once_however_often_it_is_run() {
        let pair = Pair { tenant: Tenant(1), task_id: TaskId(Uuid::nil()), worker: "worker:w".to_owned() };
        let mut misuses = Misuses::default();
        for call in [1, 1, 2, 1, 3, 4] {
            misuses.add(pair.clone(), Uuid::from_u128(call));
        }
        let taken = misuses.take();
        assert_eq!(taken, [(pair, [1, 2, 3].map(Uuid::from_u128).to_vec())]);
        assert!(misuses.take().is_empty());
    }
}
