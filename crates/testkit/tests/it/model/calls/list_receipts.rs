use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value as Json, json};
use waybill_kernel::Code;

use super::{add, any_task, given, page};
use crate::model::names;
use crate::model::people::{ALL, Who, any_principal, split};
use crate::model::receipts::{Receipt, whose};
use crate::model::reference::{Answer, World};

#[derive(Clone, Debug, Default)]
pub struct ListReceipts {
    pub to: Option<String>,
    pub task: Option<usize>,
    pub since: Option<usize>,
    pub limit: Option<usize>,
}

/// A list from its beginning; what came after a receipt that it has shown; or a receipt that may be of another list.
pub fn strategy(world: &World) -> BoxedStrategy<(Who, ListReceipts)> {
    let begun = (any_task(world, &ALL), proptest::bool::ANY, option::weighted(0.3, any_principal()), limit()).prop_map(
        |((who, task), of_task, to, limit)| {
            let task = of_task.then_some(task);
            (who, ListReceipts { to, task, since: None, limit })
        },
    );
    let shown: Vec<(Who, ListReceipts)> = (0..world.receipts.len()).flat_map(|number| after(world, number)).collect();
    if shown.is_empty() {
        return begun.boxed();
    }
    let next = (select(shown), limit()).prop_map(|((who, list), limit)| (who, ListReceipts { limit, ..list }));
    let mixed = (next.clone(), 0..=world.receipts.len())
        .prop_map(|((who, list), since)| (who, ListReceipts { since: Some(since), ..list }));
    prop_oneof![4 => begun, 4 => next, 1 => mixed].boxed()
}

/// The lists that a receipt stands in, each by somebody who may read it.
fn after(world: &World, number: usize) -> [(Who, ListReceipts); 3] {
    let (receipt, tenant) = (&world.receipts[number], world.tenant_of(number));
    let (admin, since) = (Who::admin_of(tenant), Some(number));
    let (to, task) = (Some(receipt.to.clone()), Some(receipt.task));
    let owner = world.tasks[receipt.task].owner;
    let own = match Who::find(tenant, &receipt.to) {
        Some(addressee) => (addressee, ListReceipts { since, ..ListReceipts::default() }),
        None => (admin, ListReceipts { to: to.clone(), task, since, limit: None }),
    };
    [
        own,
        (admin, ListReceipts { to, since, ..ListReceipts::default() }),
        (owner, ListReceipts { task, since, ..ListReceipts::default() }),
    ]
}

pub fn limit() -> impl Strategy<Value = Option<usize>> + Clone {
    prop_oneof![10 => select(vec![Some(1), Some(2), Some(5)]), 4 => Just(None), 1 => Just(Some(0))]
}

impl ListReceipts {
    pub fn input(&self) -> Json {
        let to = self.to.as_deref().map(split);
        given([
            ("to_kind", to.map(|(kind, _)| json!(kind))),
            ("to_id", to.map(|(_, id)| json!(id))),
            ("task_id", self.task.map(names::task)),
            ("since_receipt_id", self.since.map(names::receipt)),
            ("limit", self.limit.map(Json::from)),
        ])
    }

    pub fn predict(&self, who: Who, world: &mut World) -> Result<Answer, Code> {
        let limit = page(self.limit)?;
        let tenant = who.tenant();
        let found = if let Some(task) = self.task {
            world.see(who, task)?;
            let to = self.to.as_ref().map(|_| whose(who, self.to.as_ref())).transpose()?;
            let addressed = |receipt: &Receipt| to.as_ref().is_none_or(|to| *to == receipt.to);
            world.receipts_after(tenant, self.since, limit, |receipt| receipt.task == task, addressed)?
        } else {
            let to = whose(who, self.to.as_ref())?;
            world.receipts_after(tenant, self.since, limit, |receipt| receipt.to == to, |_| true)?
        };
        let mut body = json!({ "receipts": found.iter().map(|number| world.receipt(*number)).collect::<Vec<_>>() });
        let last = || found.last().copied().map(names::receipt);
        add(&mut body, [("next_cursor", last()), ("cursor", last())]);
        Ok(Answer::done(body))
    }
}
