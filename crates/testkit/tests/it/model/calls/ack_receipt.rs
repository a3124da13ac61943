use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value as Json, json};
use waybill_kernel::Code;

use super::{any_receipt, inboxes};
use crate::model::names;
use crate::model::people::{SYSTEM, Who};
use crate::model::receipts::{Proof, Receipt};
use crate::model::reference::{Answer, World};

const KIND: &str = "receipt.acknowledged";

#[derive(Clone, Debug)]
pub struct AckReceipt {
    pub receipt: usize,
}

/// Besides whatever receipt: one that is addressed to the caller, and one that it has acknowledged.
pub fn strategy(world: &World) -> BoxedStrategy<(Who, AckReceipt)> {
    let (own, mut said) = (inboxes(world), acknowledged(world));
    let any = any_receipt(world);
    if own.is_empty() {
        return any.prop_map(call).boxed();
    }
    if said.is_empty() {
        said.clone_from(&own);
    }
    prop_oneof![2 => any, 1 => select(own), 1 => select(said)].prop_map(call).boxed()
}

fn call((who, receipt): (Who, usize)) -> (Who, AckReceipt) {
    (who, AckReceipt { receipt })
}

fn acknowledged(world: &World) -> Vec<(Who, usize)> {
    let said = |receipt: &Receipt| {
        let tenant = world.tasks[receipt.task].tenant();
        let parent = receipt.parent.filter(|_| receipt.kind == KIND)?;
        Some((Who::find(tenant, &receipt.from)?, parent))
    };
    world.receipts.iter().filter_map(said).collect()
}

impl AckReceipt {
    pub fn input(&self) -> Json {
        json!({ "receipt_id": names::receipt(self.receipt) })
    }

    /// Once for each reader; nothing is ended by it.
    pub fn predict(&self, who: Who, world: &mut World) -> Result<Answer, Code> {
        let receipt = world.receipt_of(who.tenant(), self.receipt).ok_or(Code::NotFound)?;
        let (from, task) = (who.principal(), receipt.task);
        if receipt.to != from && !who.is_admin() {
            return Err(Code::Forbidden);
        }
        let (kind, parent, done) = (KIND, Some(self.receipt), json!({ "ok": true }));
        let same = |other: &Receipt| other.kind == kind && other.parent == parent && other.from == from;
        if world.receipts.iter().any(same) {
            return Ok(Answer::again(done));
        }
        let body = json!({ "acknowledged_receipt_id": names::receipt(self.receipt) });
        world.prove(Proof { kind, from: &from, to: SYSTEM, task, lease: None, parent, body });
        Ok(Answer::done(done))
    }
}
