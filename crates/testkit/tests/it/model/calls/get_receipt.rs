use proptest::prelude::*;
use serde_json::{Value as Json, json};
use waybill_kernel::Code;

use super::any_receipt;
use crate::model::names;
use crate::model::people::Who;
use crate::model::reference::{Answer, World};

#[derive(Clone, Debug)]
pub struct GetReceipt {
    pub receipt: usize,
}

pub fn strategy(world: &World) -> impl Strategy<Value = (Who, GetReceipt)> + use<> {
    any_receipt(world).prop_map(|(who, receipt)| (who, GetReceipt { receipt }))
}

impl GetReceipt {
    pub fn input(&self) -> Json {
        json!({ "receipt_id": names::receipt(self.receipt) })
    }

    /// For those it concerns: its sender, its addressee, and the owner of the task.
    pub fn predict(&self, who: Who, world: &mut World) -> Result<Answer, Code> {
        let receipt = world.receipt_of(who.tenant(), self.receipt).ok_or(Code::NotFound)?;
        let (caller, owner) = (who.principal(), world.tasks[receipt.task].owner);
        if ![&receipt.from, &receipt.to].contains(&&caller) && !who.may_act_on(owner) {
            return Err(Code::Forbidden);
        }
        Ok(Answer::done(world.receipt(self.receipt)))
    }
}
