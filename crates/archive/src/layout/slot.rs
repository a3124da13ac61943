//! A build slot that an agent has or had: one file per slot and agent, written again by its next acquisition.

use serde::{Deserialize, Serialize};
use waybill_kernel::Time;

use super::json;
use crate::error::Result;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuildSlot {
    pub slot: String,
    pub agent: String,
    pub exclusive: bool,
    #[serde(with = "json::timestamp")]
    pub acquired_ts: Time,
    #[serde(with = "json::timestamp")]
    pub expires_ts: Time,
    #[serde(default, with = "json::timestamp_opt", skip_serializing_if = "Option::is_none")]
    pub released_ts: Option<Time>,
}

impl BuildSlot {
    pub fn write(&self) -> Result<Vec<u8>> {
        json::write(self)
    }

    pub fn read(text: &[u8]) -> Result<Self> {
        json::read(text)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_build_slot_comes_back(slot in "\\PC{1,40}", exclusive: bool, at in 0..4_000_000_000_000_000_i64, released: bool) {
            let at = Time::from_micros(at);
            let held = BuildSlot { slot, agent: "BlueLake".to_owned(), exclusive, acquired_ts: at, expires_ts: at, released_ts: released.then_some(at) };
            prop_assert_eq!(BuildSlot::read(&held.write().unwrap()).unwrap(), held);
        }
    }
}
