use proptest::prelude::*;
use serde_json::{Value as Json, json};
use waybill_kernel::Code;

use super::any_task;
use crate::model::names;
use crate::model::people::{ALL, Who};
use crate::model::reference::{Answer, World};

#[derive(Clone, Debug)]
pub struct GetTask {
    pub task: usize,
}

pub fn strategy(world: &World) -> impl Strategy<Value = (Who, GetTask)> + use<> {
    any_task(world, &ALL).prop_map(|(who, task)| (who, GetTask { task }))
}

impl GetTask {
    pub fn input(&self) -> Json {
        json!({ "task_id": names::task(self.task) })
    }

    pub fn predict(&self, who: Who, world: &mut World) -> Result<Answer, Code> {
        world.see(who, self.task)?;
        Ok(Answer::done(world.record(self.task)))
    }
}
