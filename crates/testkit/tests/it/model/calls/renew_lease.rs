use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value as Json, json};
use waybill_kernel::Code;

use super::add;
use super::held::{self, Held};
use super::lease_next::{LEASE_S, LEASE_S_MAX};
use crate::model::people::Who;
use crate::model::reference::{Answer, Moment, World};
use crate::model::tasks::RENEWALS_USUAL;

#[derive(Clone, Copy, Debug)]
pub struct RenewLease {
    pub held: Held,
    pub extend_s: Option<i64>,
}

pub fn strategy(world: &World) -> impl Strategy<Value = (Who, RenewLease)> + use<> {
    let extend = prop_oneof![8 => select(vec![None, Some(60), Some(5000)]), 1 => Just(Some(0))];
    (held::strategy(world), extend).prop_map(|((who, held), extend_s)| (who, RenewLease { held, extend_s }))
}

impl RenewLease {
    pub fn input(&self) -> Json {
        let mut input = self.held.input();
        add(&mut input, [("extend_by_seconds", self.extend_s.map(Json::from))]);
        input
    }

    /// A lease is never shortened.
    pub fn predict(&self, who: Who, world: &mut World) -> Result<Answer, Code> {
        if self.extend_s.is_some_and(|seconds| seconds < 1) {
            return Err(Code::InvalidRequest);
        }
        let worker = held::worker(who, self.held.named)?;
        if !self.held.is_live(who, &worker, world) {
            return Err(self.held.refusal(who, world));
        }
        let step = world.step();
        let asked = Moment { step, plus_s: self.extend_s.unwrap_or(LEASE_S).min(LEASE_S_MAX) };
        let mut live = world.live(self.held.lease).unwrap();
        if world.ms(asked) >= world.ms(live.until) {
            live.until = asked;
        }
        live.renewals += 1;
        let task = &mut world.tasks[self.held.task];
        (task.live, task.updated) = (Some(live), step);
        if live.renewals == RENEWALS_USUAL + 1 {
            world.anomaly(self.held.task, "excessive_renewals");
        }
        Ok(Answer::done(json!({ "ok": true, "expires_at": live.until.name() })))
    }
}
