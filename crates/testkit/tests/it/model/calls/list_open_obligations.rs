use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value as Json, json};
use waybill_kernel::Code;

use super::list_receipts::limit;
use super::{given, inboxes, page};
use crate::model::names;
use crate::model::people::{ALL, Who, any_principal, one_of, split};
use crate::model::receipts::whose;
use crate::model::reference::{Answer, World};

#[derive(Clone, Debug, Default)]
pub struct ListOpenObligations {
    pub of: Option<String>,
    pub since: Option<usize>,
    pub limit: Option<usize>,
}

pub fn strategy(world: &World) -> BoxedStrategy<(Who, ListOpenObligations)> {
    let since = option::weighted(0.1, 0..=world.receipts.len());
    let begun = (one_of(&ALL), option::weighted(0.2, any_principal()), since, limit())
        .prop_map(|(who, of, since, limit)| (who, ListOpenObligations { of, since, limit }));
    // After one that is or was an obligation, or another receipt of its addressee.
    let after = |(who, number)| (who, ListOpenObligations { since: Some(number), ..ListOpenObligations::default() });
    let shown: Vec<_> = inboxes(world).into_iter().map(after).collect();
    if shown.is_empty() { begun.boxed() } else { prop_oneof![3 => begun, 1 => select(shown)].boxed() }
}

impl ListOpenObligations {
    pub fn input(&self) -> Json {
        let of = self.of.as_deref().map(split);
        given([
            ("principal_kind", of.map(|(kind, _)| json!(kind))),
            ("principal_id", of.map(|(_, id)| json!(id))),
            ("since_receipt_id", self.since.map(names::receipt)),
            ("limit", self.limit.map(Json::from)),
        ])
    }

    pub fn predict(&self, who: Who, world: &mut World) -> Result<Answer, Code> {
        let limit = page(self.limit)?;
        let of = whose(who, self.of.as_ref())?;
        let found = world.receipts_after(
            who.tenant(),
            self.since,
            limit,
            |receipt| receipt.to == of,
            |receipt| receipt.open,
        )?;
        let relationship = world.relationship(who.tenant(), &of);
        if of == who.principal() {
            world.look_in(who.tenant(), &of);
        }
        Ok(Answer::done(json!({
            "server": { "name": "waybill", "version": "0.3.0", "instance_id": "", "uptime": names::anything() },
            "relationship": relationship,
            "open_obligations": found.iter().map(|number| world.receipt(*number)).collect::<Vec<_>>(),
            "cursor": found.last().copied().map(names::receipt),
        })))
    }
}
