use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value as Json, json};
use waybill_kernel::Code;

use super::any_task;
use crate::model::names;
use crate::model::people::{ASKERS, Who};
use crate::model::reference::{Answer, World};
use crate::model::tasks::Ending;

#[derive(Clone, Debug)]
pub struct CancelTask {
    pub task: usize,
    pub reason: Option<&'static str>,
}

pub fn strategy(world: &World) -> impl Strategy<Value = (Who, CancelTask)> + use<> {
    let reason = select(vec![None, Some("late")]);
    (any_task(world, &ASKERS), reason).prop_map(|((who, task), reason)| (who, CancelTask { task, reason }))
}

impl CancelTask {
    pub fn input(&self) -> Json {
        let mut input = json!({ "task_id": names::task(self.task) });
        if let Some(reason) = self.reason {
            input["reason"] = json!(reason);
        }
        input
    }

    pub fn predict(&self, who: Who, world: &mut World) -> Result<Answer, Code> {
        let task = world.reach(who, self.task)?;
        if task.is_terminal() {
            return Ok(Answer::done(json!({ "ok": false, "status": task.status })));
        }
        let error = json!({ "reason": self.reason, "canceled_by": who.principal() });
        let ready = json!({ "status": "canceled", "error": error });
        let ending = Ending {
            status: "canceled",
            from: who.principal(),
            lease: None,
            work: None,
            error: Some(error.clone()),
            bodies: [error, ready],
        };
        world.end(self.task, ending);
        Ok(Answer::done(json!({ "ok": true, "status": "canceled" })))
    }
}
