//! The real store: takes the same steps and must give the same answers. Each history has two tenants of its own, so
//! that all of them can share one database.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use serde_json::{Value as Json, json};
use waybill_kernel::id::Uuid;
use waybill_kernel::{Caller, Error, Mode, Result};
use waybill_store::effects::{Holder, sweep_once};
use waybill_store::{Ctx, Row, Tx, Work};
use waybill_tasks::Settings;
use waybill_tasks::sweeps::ExpiredLeases;
use waybill_testkit::stores::{TestStore, caller, readable};

use super::names::{self, Names};
use super::people::{Tenant, Who};
use super::reference::{Answer, PASS_FRACTION_MS, Transition, World};

/// Longer than any lease.
const LEASES_OVER: Duration = Duration::from_secs(1801);

pub struct Actual<'a> {
    on: &'a TestStore,
    ours: Caller,
    theirs: Caller,
    names: Names,
}

impl<'a> Actual<'a> {
    pub async fn new(on: &'a TestStore, number: usize) -> anyhow::Result<Self> {
        let ours = on.tenant(&format!("ours {number}")).await?;
        let theirs = on.tenant(&format!("theirs {number}")).await?;
        // Leases of earlier histories would fill the sweep's batch, which is one transaction and one time.
        on.time.pass(LEASES_OVER);
        sweep(on).await?;
        Ok(Self { on, ours, theirs, names: Names::default() })
    }

    fn caller(&self, who: Who) -> anyhow::Result<Caller> {
        let of = match who.tenant() {
            Tenant::Ours => &self.ours,
            Tenant::Theirs => &self.theirs,
            Tenant::Default => &self.on.admin,
        };
        caller(of, &who.principal(), &[who.role()])
    }

    /// Takes the step that led to `world`, whose answer is what it must be answered with.
    pub async fn take(&mut self, world: &World, step: &Transition) -> anyhow::Result<()> {
        let began = self.on.store.now();
        let answer = match step {
            Transition::Pass(seconds) => {
                self.on.time.pass(Duration::from_millis(*seconds * 1000 + PASS_FRACTION_MS));
                None
            }
            Transition::Sweep => {
                sweep(self.on).await?;
                None
            }
            Transition::Call(who, call) => {
                let input = self.names.fill(&call.input());
                Some(self.on.call(&self.caller(*who)?, call.name(), input).await)
            }
        };
        self.names.spans.push((began, self.on.store.now()));
        match (&world.answer, answer) {
            (Answer::Nothing, None) => Ok(()),
            (Answer::Refused(code), Some(Err(error))) if error.code() == *code => Ok(()),
            (Answer::Given { body, replay }, Some(Ok(answer))) => {
                let expected = json!({ "replay": replay, "answer": body });
                self.names.check("it", &expected, &json!({ "replay": answer.replay, "answer": answer.json }))
            }
            (_, Some(Err(error))) => Err(readable(error)).context("the last step was refused"),
            (expected, Some(Ok(answer))) => Err(anyhow!("answered {}, expected {expected:?}", answer.json)),
            (expected, None) => Err(anyhow!("nothing was called, expected {expected:?}")),
        }
        .with_context(|| format!("step {}: {step}", world.step()))
    }

    /// What the store holds after the step: every receipt, and who holds which task.
    pub async fn compare(&mut self, world: &mut World, step: &Transition) -> anyhow::Result<()> {
        self.on.check_stored_bytes().await;
        let tenants = [self.ours.tenant.0, self.theirs.tenant.0];
        let (receipts, tasks) = self.on.store.system().run(Held { tenants }).await.map_err(readable)?;
        let receipts = receipts.iter().map(|row| self.receipt(row)).collect::<Result<Vec<_>>>().map_err(readable)?;
        if matches!(step, Transition::Sweep) {
            world.reorder(|task| {
                let id = self.names.value(&names::task(task));
                receipts.iter().rposition(|receipt| receipt["task_id"].as_str() == id).unwrap_or_default()
            });
        }
        let tasks = tasks.iter().map(holder).collect::<Result<Json>>().map_err(readable)?;
        let after = || format!("after step {}: {step}", world.step());
        self.names.check("ledger", &world.ledger(), &Json::from(receipts)).with_context(after)?;
        self.names.check("tasks", &world.holders(), &tasks).with_context(after)
    }

    fn receipt(&self, row: &Row) -> Result<Json> {
        let tenant = if row.int(0)? == self.ours.tenant.0 { Tenant::Ours } else { Tenant::Theirs };
        Ok(json!({
            "tenant": format!("{tenant:?}"),
            "receipt_id": id(row.bytes(1)?),
            "type": row.text(2)?,
            "from": row.text(3)?,
            "to": row.text(4)?,
            "task_id": id(row.bytes(5)?),
            "open": row.bool(6)?,
            "created_at": row.time(7)?,
            "parent": id(row.bytes(8)?),
            "lease_id": row.bytes_opt(9)?.and_then(id),
            "body": serde_json::from_str::<Json>(row.text(10)?).map_err(Error::internal)?,
            "delivered_at": row.time_opt(11)?,
        }))
    }
}

fn holder(row: &Row) -> Result<Json> {
    Ok(json!({
        "task_id": id(row.bytes(0)?),
        "status": row.text(1)?,
        "attempt": row.int(2)?,
        "updated_at": row.time(3)?,
        "next_eligible_at": row.time(4)?,
        "leases": row.int(5)?,
        "expiries": row.int(6)?,
        "lease_id": row.bytes_opt(7)?.and_then(id),
        "worker": row.text_opt(8)?,
        "expires_at": row.time_opt(9)?,
    }))
}

fn id(bytes: &[u8]) -> Option<String> {
    Uuid::from_slice(bytes).map(|id| id.to_string()).ok()
}

/// Without the pause that it gives tasks by chance, which `tasks/expiry.rs` sees to.
async fn sweep(on: &TestStore) -> anyhow::Result<()> {
    let settings = Settings { requeue_delay_s_max: 0, ..Settings::default() };
    let leases = Arc::new(ExpiredLeases::new(&settings));
    sweep_once(&on.store, &leases, Holder::new(&on.store)).await.map(drop).map_err(readable)
}

/// What two tenants have: receipts with their parent, and tasks, both oldest first.
struct Held {
    tenants: [i64; 2],
}

impl Work for Held {
    type Output = (Vec<Row>, Vec<Row>);

    fn mode(&self) -> Mode {
        Mode::Read
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Self::Output> {
        let [ours, theirs] = self.tenants;
        // A receipt without a parent has one of no bytes, which is the id of nothing.
        let receipts = tx
            .query(
                "SELECT r.tenant, r.receipt_id, r.receipt_type, r.sender, r.addressee, r.task_id, r.open, r.created_at,
                        coalesce(p.parent_id, $3), r.lease_id, r.body, r.delivered_at
                 FROM receipts r LEFT JOIN receipt_parents p ON p.tenant = r.tenant AND p.child_id = r.receipt_id
                 WHERE r.tenant = $1 OR r.tenant = $2 ORDER BY r.seq",
                &[ours.into(), theirs.into(), (&[0_u8; 0][..]).into()],
            )
            .await?;
        let tasks = tx
            .query(
                "SELECT task_id, status, attempt, updated_at, next_eligible_at, epoch, expiries, lease_id, worker,
                        lease_expires_at
                 FROM tasks WHERE tenant = $1 OR tenant = $2 ORDER BY task_id",
                &[ours.into(), theirs.into()],
            )
            .await?;
        Ok((receipts, tasks))
    }
}
