//! The real store: takes the same steps and must give the same answers. Each history has two tenants of its own, so
//! that all of them can share one database.

use std::time::Duration;

use anyhow::{Context, anyhow};
use serde_json::{Value as Json, json};
use waybill_kernel::id::Uuid;
use waybill_kernel::{Caller, Mode, Result, Role};
use waybill_store::{Ctx, Row, Tx, Work};
use waybill_testkit::stores::{TestStore, caller, readable};

use super::names::Names;
use super::people::{Tenant, Who};
use super::reference::{Answer, Transition, World};

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
        Ok(Self { on, ours, theirs, names: Names::default() })
    }

    fn caller(&self, who: Who) -> anyhow::Result<Caller> {
        let of = match who.tenant() {
            Tenant::Ours => &self.ours,
            Tenant::Theirs => &self.theirs,
            Tenant::Default => &self.on.admin,
        };
        caller(of, &who.principal(), &[if who.sees_all_owners() { Role::Admin } else { Role::Agent }])
    }

    /// Takes the step that led to `world`, whose answer is what it must be answered with.
    pub async fn take(&mut self, world: &World, step: &Transition) -> anyhow::Result<()> {
        let began = self.on.store.now();
        let answer = match step {
            Transition::Pass(seconds) => {
                self.on.time.pass(Duration::from_secs(*seconds));
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
        .with_context(|| format!("step {}: {step:?}", world.step()))
    }

    pub async fn compare_ledger(&mut self, world: &World) -> anyhow::Result<()> {
        let tenants = [self.ours.tenant.0, self.theirs.tenant.0];
        let rows = self.on.store.system().run(Ledger { tenants }).await.map_err(readable)?;
        let shown = rows.iter().map(|row| self.shown(row)).collect::<Result<Json>>().map_err(readable)?;
        self.names.check("ledger", &world.ledger(), &shown).with_context(|| format!("after step {}", world.step()))
    }

    fn shown(&self, row: &Row) -> Result<Json> {
        let id = |bytes: &[u8]| Uuid::from_slice(bytes).map(|id| id.to_string()).ok();
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
        }))
    }
}

/// Receipts of two tenants with their parent, oldest first.
struct Ledger {
    tenants: [i64; 2],
}

impl Work for Ledger {
    type Output = Vec<Row>;

    fn mode(&self) -> Mode {
        Mode::Read
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Vec<Row>> {
        // A receipt without a parent has one of no bytes, which is the id of nothing.
        tx.query(
            "SELECT r.tenant, r.receipt_id, r.receipt_type, r.sender, r.addressee, r.task_id, r.open, r.created_at,
                    coalesce(p.parent_id, $3)
             FROM receipts r LEFT JOIN receipt_parents p ON p.tenant = r.tenant AND p.child_id = r.receipt_id
             WHERE r.tenant = $1 OR r.tenant = $2 ORDER BY r.seq",
            &[self.tenants[0].into(), self.tenants[1].into(), (&[0_u8; 0][..]).into()],
        )
        .await
    }
}
