use proptest::prelude::*;
use serde_json::{Value as Json, json};
use waybill_kernel::Code;

use crate::model::people::{ALL, Who, one_of};
use crate::model::reference::{Answer, World};

#[derive(Clone, Debug)]
pub struct GetConfig;

pub fn strategy(_: &World) -> impl Strategy<Value = (Who, GetConfig)> + use<> {
    (one_of(&ALL), Just(GetConfig))
}

impl GetConfig {
    pub fn input(&self) -> Json {
        json!({})
    }

    pub fn predict(&self, _: Who, _: &mut World) -> Result<Answer, Code> {
        Ok(Answer::done(json!({
            "receipt_mode": "standalone", "memorygate_url": null, "instance_id": "",
            "capabilities": ["lease_based_execution", "receipt_emission"], "version": "0.3.0", "spec": "asyncgate/0.3.0",
        })))
    }
}
