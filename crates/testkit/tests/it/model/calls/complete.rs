use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value as Json, json};
use waybill_kernel::Code;

use super::add;
use super::held::{self, Held};
use crate::model::people::Who;
use crate::model::receipts::Proof;
use crate::model::reference::{Answer, World};
use crate::model::tasks::{Ending, Said};

#[derive(Clone, Copy, Debug)]
pub struct Complete {
    pub held: Held,
    pub work: Work,
}

/// What is handed in.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    pub result: Option<u8>,
    pub artifacts: Artifacts,
    pub proof: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Artifacts {
    Absent,
    /// As good as absent.
    Empty,
    At(&'static str),
    /// Not a pointer at all.
    Wrong,
}

/// Besides whatever anybody says of a lease: what was said of it before, and the same work with a place to find it at, whose
/// result is said again or not.
pub fn strategy(world: &World) -> BoxedStrategy<(Who, Complete)> {
    let fresh = (held::strategy(world), work()).prop_map(|((who, held), work)| (who, Complete { held, work }));
    let said = world.leases.iter().enumerate().filter_map(|(number, lease)| match lease.said {
        Some(Said::Done(work)) => Some((held::own(world, number), work)),
        _ => None,
    });
    let said: Vec<((Who, Held), Work)> = said.collect();
    if said.is_empty() {
        return fresh.boxed();
    }
    // By a lease that was given up, of the work of a later one.
    let given_up = world.leases.iter().enumerate().filter_map(|(number, lease)| {
        let done = world.tasks[lease.task].end.as_ref()?.work?;
        matches!(lease.said, Some(Said::Failed { .. })).then(|| (held::own(world, number), done))
    });
    let done: Vec<((Who, Held), Work)> = said.iter().copied().chain(given_up).collect();
    let again = select(said).prop_map(|((who, held), work)| (who, Complete { held, work }));
    let located = (select(done), proptest::bool::ANY).prop_map(|(((who, held), work), alone)| {
        let work = Work { artifacts: Artifacts::At("a"), result: work.result.filter(|_| !alone), ..work };
        (who, Complete { held, work })
    });
    prop_oneof![6 => fresh, 1 => again, 1 => located].boxed()
}

fn work() -> impl Strategy<Value = Work> {
    let artifacts = prop_oneof![
        5 => Just(Artifacts::Absent),
        1 => Just(Artifacts::Empty),
        4 => select(vec![Artifacts::At("a"), Artifacts::At("b")]),
        1 => Just(Artifacts::Wrong),
    ];
    (option::weighted(0.8, 0..2_u8), artifacts, proptest::bool::weighted(0.2))
        .prop_map(|(result, artifacts, proof)| Work { result, artifacts, proof })
}

impl Work {
    pub fn is_located(self) -> bool {
        self.pointers().is_some() || self.proof
    }

    fn pointers(self) -> Option<Json> {
        match self.artifacts {
            Artifacts::At(location) => Some(json!([{ "url": location }])),
            _ => None,
        }
    }

    fn proven(self) -> Option<Json> {
        self.proof.then(|| json!({ "mode": "push" }))
    }

    /// Where it is, as far as it says so.
    pub fn point(self, body: &mut Json) {
        add(body, [("artifacts", self.pointers()), ("delivery_proof", self.proven())]);
    }

    fn is_same_as(self, other: Work) -> bool {
        (self.result, self.pointers(), self.proof) == (other.result, other.pointers(), other.proof)
    }

    fn receipt_body(self, attempt: i64) -> Json {
        let mut body = json!({
            "result_summary": json!(self.result).to_string(),
            "completion_metadata": { "attempt": attempt },
            "result_payload": self.result,
        });
        self.point(&mut body);
        body
    }
}

impl Complete {
    pub fn input(&self) -> Json {
        let mut input = self.held.input();
        let artifacts = match self.work.artifacts {
            Artifacts::Empty => Some(json!([])),
            Artifacts::Wrong => Some(json!("a")),
            _ => self.work.pointers(),
        };
        let result = self.work.result.map(Json::from);
        add(&mut input, [("result", result), ("artifacts", artifacts), ("delivery_proof", self.work.proven())]);
        input
    }

    pub fn predict(&self, who: Who, world: &mut World) -> Result<Answer, Code> {
        if self.work.artifacts == Artifacts::Wrong {
            return Err(Code::InvalidRequest);
        }
        let worker = held::worker(who, self.held.named)?;
        let done = json!({ "ok": true });
        if self.held.is_live(who, &worker, world) {
            self.end(&worker, world);
            return Ok(Answer::done(done));
        }
        let past = self.held.past(who, &worker, world).and_then(|lease| lease.said.as_ref());
        match past {
            None => Err(self.held.refusal(who, world)),
            Some(Said::Done(said)) if said.is_same_as(self.beside(*said)) => Ok(Answer::again(done)),
            Some(Said::Done(said)) if self.repairs(*said) => {
                let work = self.beside(*said);
                self.locate(&worker, work, world);
                Ok(Answer::done(done))
            }
            Some(Said::Failed { again: Some(_), .. }) => Err(Code::LeaseInvalidOrExpired),
            Some(_) => Err(Code::InvalidStateTransition),
        }
    }

    fn end(&self, worker: &str, world: &mut World) {
        let (held, work) = (self.held, self.work);
        world.leases[held.lease].said = Some(Said::Done(work));
        let mut ready = json!({ "status": "succeeded", "result_payload": work.result });
        add(&mut ready, [("artifacts", work.pointers())]);
        let ending = Ending {
            status: "succeeded",
            from: worker.to_owned(),
            lease: Some(held.lease),
            work: Some(work),
            error: None,
            bodies: [work.receipt_body(world.tasks[held.task].attempt), ready],
        };
        world.end(held.task, ending);
    }

    /// What is said, given what was: whoever says where the work is need not say again what came out.
    fn beside(&self, said: Work) -> Work {
        match self.work {
            work @ Work { result: None, .. } if work.is_located() => Work { result: said.result, ..work },
            work => work,
        }
    }

    /// The same result of the same lease, which was not to be found and now is.
    fn repairs(&self, said: Work) -> bool {
        !said.is_located() && self.work.is_located() && said.result == self.beside(said).result
    }

    fn locate(&self, worker: &str, work: Work, world: &mut World) {
        let held = self.held;
        world.leases[held.lease].said = Some(Said::Done(work));
        let task = &mut world.tasks[held.task];
        task.end.as_mut().unwrap().work = Some(work);
        let (to, attempt, assigned) = (task.owner.principal(), task.attempt, task.assigned);
        world.receipts[assigned].open = false;
        world.prove(Proof {
            kind: "task.completed",
            from: worker,
            to: &to,
            task: held.task,
            lease: Some(held.lease),
            parent: Some(assigned),
            body: work.receipt_body(attempt),
        });
    }
}
