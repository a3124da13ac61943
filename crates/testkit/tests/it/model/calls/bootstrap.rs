use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value as Json, json};
use waybill_kernel::Code;

use super::list_receipts::limit;
use super::{given, inboxes, page};
use crate::model::names;
use crate::model::people::{ALL, Tenant, Who, any_principal, one_of, split};
use crate::model::receipts::whose;
use crate::model::reference::{Answer, Moment, Visitor, World};

/// A contact after a longer silence begins a new session; the last one is written no more often than that.
const SILENCE_MS: u64 = 1_800_000;
const NOTE_EVERY_MS: u64 = 60_000;

#[derive(Clone, Debug)]
pub struct Bootstrap {
    pub of: Option<String>,
    pub instance: Option<&'static str>,
    pub since: Option<usize>,
    pub max_items: Option<usize>,
}

pub fn strategy(world: &World) -> BoxedStrategy<(Who, Bootstrap)> {
    let instance = select(vec![None, Some("run 1"), Some("run 2")]);
    let since = option::weighted(0.1, 0..=world.receipts.len());
    let call = (option::weighted(0.2, any_principal()), instance, since, limit())
        .prop_map(|(of, instance, since, max_items)| Bootstrap { of, instance, since, max_items });
    // All histories share the operator, and its visits would outlast them.
    let who = one_of(&ALL).prop_filter("the operator", |who| *who != Who::Operator);
    let begun = (who, call).boxed();
    let shown = inboxes(world);
    if shown.is_empty() {
        return begun;
    }
    let next = (begun.clone(), select(shown))
        .prop_map(|((_, call), (who, number))| (who, Bootstrap { of: None, since: Some(number), ..call }));
    prop_oneof![3 => begun, 1 => next].boxed()
}

impl Bootstrap {
    pub fn input(&self) -> Json {
        let of = self.of.as_deref().map(split);
        given([
            ("principal_kind", of.map(|(kind, _)| json!(kind))),
            ("principal_id", of.map(|(_, id)| json!(id))),
            ("agent_instance_id", self.instance.map(Json::from)),
            ("since_receipt_id", self.since.map(names::receipt)),
            ("max_items", self.max_items.map(Json::from)),
        ])
    }

    /// An admin that looks after somebody delivers nothing to them, and is no visit of theirs.
    pub fn predict(&self, who: Who, world: &mut World) -> Result<Answer, Code> {
        let limit = page(self.max_items)?;
        let (tenant, step) = (who.tenant(), world.step());
        let of = whose(who, self.of.as_ref())?;
        let found = world.receipts_after(tenant, self.since, limit, |receipt| receipt.to == of, |_| true)?;
        if of == who.principal() {
            for number in &found {
                world.receipts[*number].delivered.get_or_insert(step);
            }
            world.visit(tenant, &of, self.instance);
        }
        Ok(Answer::done(json!({
            "server": {
                "name": "waybill", "version": "0.3.0", "spec": "asyncgate/0.3.0", "instance_id": "",
                "uptime": names::anything(), "environment": "production",
            },
            "relationship": world.relationship(tenant, &of),
            "attention": {
                "inbox_receipts": found.iter().map(|number| world.receipt(*number)).collect::<Vec<_>>(),
                "assigned_tasks": [], "waiting_results": [], "running_or_scheduled": [], "anomalies": [],
            },
            "cursor": { "latest_receipt_id": found.last().copied().or(self.since).map(names::receipt) },
        })))
    }
}

impl World {
    fn visitor(&mut self, tenant: Tenant, principal: &str) -> Option<&mut Visitor> {
        self.visitors.iter_mut().find(|known| known.tenant == tenant && known.principal == principal)
    }

    /// A look at the obligations. Nobody writes it down while a history is played.
    pub fn look_in(&mut self, tenant: Tenant, principal: &str) {
        let step = self.step();
        match self.visitor(tenant, principal) {
            Some(known) if known.sessions == 0 => known.last = step,
            Some(_) => {}
            None => {
                let (principal, instances) = (principal.to_owned(), Vec::new());
                self.visitors.push(Visitor { tenant, principal, instances, first: step, last: step, sessions: 0 });
            }
        }
    }

    fn visit(&mut self, tenant: Tenant, principal: &str, instance: Option<&'static str>) {
        self.look_in(tenant, principal);
        let (step, now) = (self.step(), self.now_ms());
        let Some(known) = self.visitor(tenant, principal) else { return };
        let before = match instance {
            Some(instance) => known.instances.iter().find(|(name, _)| *name == instance).map(|(_, last)| *last),
            None => Some(known.last).filter(|_| known.sessions > 0),
        };
        let silent_ms = before.map(|before| now - self.ms(Moment { step: before, plus_s: 0 }));
        let Some(known) = self.visitor(tenant, principal) else { return };
        if silent_ms.is_some_and(|silent_ms| silent_ms < NOTE_EVERY_MS) {
            return;
        }
        known.sessions += usize::from(silent_ms.is_none_or(|silent_ms| silent_ms > SILENCE_MS));
        known.last = step;
        if let Some(instance) = instance {
            known.instances.retain(|(name, _)| *name != instance);
            known.instances.push((instance, step));
        }
    }

    /// One that has never been here is here for the first time now. All histories share the operator's.
    pub fn relationship(&self, tenant: Tenant, principal: &str) -> Json {
        let known = self.visitors.iter().find(|known| known.tenant == tenant && known.principal == principal);
        let step = self.step();
        let (first, last, sessions) = known.map_or((step, step, 0), |known| (known.first, known.last, known.sessions));
        let (kind, id) = split(principal);
        let time = |step| if tenant == Tenant::Default { names::anything() } else { names::time(step, 0) };
        json!({
            "principal_kind": kind, "principal_id": id, "sessions_count": sessions,
            "first_seen_at": time(first), "last_seen_at": time(last),
        })
    }
}
