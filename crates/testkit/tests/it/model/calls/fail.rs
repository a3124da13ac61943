use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value as Json, json};
use waybill_kernel::Code;

use super::held::{self, Held};
use crate::model::people::Who;
use crate::model::receipts::Proof;
use crate::model::reference::{Answer, Moment, World};
use crate::model::tasks::{Ending, Said};

/// The longest pause before a retry, in seconds.
const BACKOFF_S_MAX: i64 = 900;

#[derive(Clone, Copy, Debug)]
pub struct Fail {
    pub held: Held,
    pub error: u8,
    pub retryable: bool,
}

/// Besides whatever anybody says of a lease: what was said of it before.
pub fn strategy(world: &World) -> BoxedStrategy<(Who, Fail)> {
    let fresh = (held::strategy(world), 0..2_u8, proptest::bool::weighted(0.7))
        .prop_map(|((who, held), error, retryable)| (who, Fail { held, error, retryable }));
    let said = world.leases.iter().enumerate().filter_map(|(number, lease)| match lease.said {
        Some(Said::Failed { error, retryable, .. }) => {
            let (who, held) = held::own(world, number);
            Some((who, Fail { held, error, retryable }))
        }
        _ => None,
    });
    let said: Vec<(Who, Fail)> = said.collect();
    if said.is_empty() { fresh.boxed() } else { prop_oneof![5 => fresh, 1 => select(said)].boxed() }
}

impl Fail {
    pub fn input(&self) -> Json {
        let mut input = self.held.input();
        input["error"] = self.shown();
        input["retryable"] = json!(self.retryable);
        input
    }

    fn shown(&self) -> Json {
        json!({ "code": self.error })
    }

    pub fn predict(&self, who: Who, world: &mut World) -> Result<Answer, Code> {
        let worker = held::worker(who, self.held.named)?;
        if self.held.is_live(who, &worker, world) {
            let again = self.end(&worker, world);
            return Ok(Answer::done(answer(again)));
        }
        let past = self.held.past(who, &worker, world).and_then(|lease| lease.said.as_ref());
        match past {
            None => Err(self.held.refusal(who, world)),
            Some(Said::Failed { error, retryable, again }) if (*error, *retryable) == (self.error, self.retryable) => {
                Ok(Answer::again(answer(*again)))
            }
            Some(Said::Failed { again: Some(_), .. }) => Err(Code::LeaseInvalidOrExpired),
            Some(_) => Err(Code::InvalidStateTransition),
        }
    }

    /// When the task may be tried again, if it may.
    fn end(&self, worker: &str, world: &mut World) -> Option<Moment> {
        let (number, lease, step) = (self.held.task, Some(self.held.lease), world.step());
        let task = &world.tasks[number];
        let (attempt, max_attempts) = (task.attempt + 1, task.max_attempts());
        let delay_s = (task.backoff_s() << task.attempt).min(BACKOFF_S_MAX);
        let again = (self.retryable && attempt < max_attempts).then_some(Moment { step, plus_s: delay_s });
        let (error, retryable) = (self.error, self.retryable);
        world.leases[self.held.lease].said = Some(Said::Failed { error, retryable, again });
        let Some(eligible) = again else {
            let body = json!({
                "error": self.shown(), "retry_recommended": self.retryable, "retry_after_seconds": null,
            });
            let ready = json!({ "status": "failed", "error": self.shown() });
            let ending = Ending {
                status: "failed",
                from: worker.to_owned(),
                lease,
                work: None,
                error: Some(self.shown()),
                bodies: [body, ready],
            };
            world.end(number, ending);
            return None;
        };
        let task = world.requeue(number, eligible);
        task.attempt = attempt;
        let (to, parent) = (task.owner.principal(), Some(task.assigned));
        let body = json!({
            "error": self.shown(), "attempt": attempt, "max_attempts": max_attempts, "requeued": true,
            "next_eligible_at": eligible.name(),
        });
        let kind = "task.retry_scheduled";
        world.prove(Proof { kind, from: worker, to: &to, task: number, lease, parent, body });
        again
    }
}

fn answer(again: Option<Moment>) -> Json {
    let mut answer = json!({ "ok": true, "requeued": again.is_some() });
    super::add(&mut answer, [("next_eligible_at", again.map(Moment::name))]);
    answer
}
