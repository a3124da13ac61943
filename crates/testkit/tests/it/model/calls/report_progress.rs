use proptest::prelude::*;
use serde_json::{Value as Json, json};
use waybill_kernel::Code;

use super::held::{self, Held};
use crate::model::people::{SYSTEM, Who};
use crate::model::receipts::Proof;
use crate::model::reference::{Answer, World};

#[derive(Clone, Copy, Debug)]
pub struct ReportProgress {
    pub held: Held,
    pub progress: u8,
}

pub fn strategy(world: &World) -> impl Strategy<Value = (Who, ReportProgress)> + use<> {
    (held::strategy(world), 0..3_u8).prop_map(|((who, held), progress)| (who, ReportProgress { held, progress }))
}

impl ReportProgress {
    pub fn input(&self) -> Json {
        let mut input = self.held.input();
        input["progress"] = json!(self.progress);
        input
    }

    /// The first report says that the work has begun.
    pub fn predict(&self, who: Who, world: &mut World) -> Result<Answer, Code> {
        let worker = held::worker(who, self.held.named)?;
        if !self.held.is_live(who, &worker, world) {
            return Err(self.held.refusal(who, world));
        }
        let step = world.step();
        let task = world.turn(self.held.task, "running");
        task.started.get_or_insert(step);
        task.progress = Some((self.progress, step));
        let assigned = task.assigned;
        world.prove(Proof {
            kind: "task.progress",
            from: &worker,
            to: SYSTEM,
            task: self.held.task,
            lease: Some(self.held.lease),
            parent: Some(assigned),
            body: json!({ "progress": self.progress }),
        });
        Ok(Answer::done(json!({ "ok": true })))
    }
}
