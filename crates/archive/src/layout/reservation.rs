//! A reservation of files, one file each, written again when it is renewed or released.

use serde::{Deserialize, Serialize};
use waybill_kernel::Time;

use super::json;
use crate::error::Result;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reservation {
    pub id: i64,
    pub agent: String,
    pub path_pattern: String,
    pub exclusive: bool,
    pub reason: String,
    #[serde(with = "json::timestamp")]
    pub created_ts: Time,
    #[serde(with = "json::timestamp")]
    pub expires_ts: Time,
    #[serde(default, with = "json::timestamp_opt", skip_serializing_if = "Option::is_none")]
    pub released_ts: Option<Time>,
    pub project: String,
}

impl Reservation {
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
        fn a_reservation_comes_back(id in 0..i64::MAX, pattern in "\\PC{1,40}", exclusive: bool, at in 0..4_000_000_000_000_000_i64, released: bool) {
            let at = Time::from_micros(at);
            let reservation = Reservation {
                id, agent: "BlueLake".to_owned(), path_pattern: pattern, exclusive, reason: String::new(), created_ts: at,
                expires_ts: at, released_ts: released.then_some(at), project: "/p".to_owned(),
            };
            prop_assert_eq!(Reservation::read(&reservation.write().unwrap()).unwrap(), reservation);
        }
    }
}
