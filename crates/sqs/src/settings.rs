//! The settings of the SQS door.

use std::ops::RangeInclusive;

use serde::Deserialize;
use waybill_kernel::ranges::{Setting, check, setting};

/// From a short message to what a key's part of the room for bodies always holds.
const BODY_BYTES: RangeInclusive<i64> = 1 << 10..=8 << 20;

#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The region that clients sign for and that ARNs name.
    pub region: String,
    /// What queue URLs begin with, as in `https://queues.example`, where clients reach the server by another name than the
    /// one they ask for. Left out, it is the name that the request came to.
    pub endpoint: Option<String>,
    /// A request body beyond this is refused. A message of the largest size, written as JSON or in percents, needs several
    /// times its length.
    pub body_bytes_max: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self { region: "us-east-1".to_owned(), endpoint: None, body_bytes_max: 8 << 20 }
    }
}

impl Settings {
    /// What could not work, in words for whoever wrote the file. The region is looked at by the settings of queues.
    pub fn check(&self) -> std::result::Result<(), String> {
        if let Some(endpoint) = &self.endpoint {
            let rest = endpoint.strip_prefix("http://").or_else(|| endpoint.strip_prefix("https://"));
            let is_host = |rest: &str| !rest.is_empty() && !rest.contains(['/', '?', '#', '@', ' ']);
            if !rest.is_some_and(is_host) {
                return Err(format!(
                    "sqs.endpoint is {endpoint:?}; it must be like https://queues.example, without a path."
                ));
            }
        }
        check("sqs", &self.ranges())
    }

    pub fn ranges(&self) -> Vec<Setting> {
        vec![setting("body_bytes_max", self.body_bytes_max, BODY_BYTES)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_an_address_without_a_path() {
        let check = |endpoint: &str| Settings { endpoint: Some(endpoint.to_owned()), ..Settings::default() }.check();
        for good in ["http://localhost:9324", "https://queues.example"] {
            assert!(check(good).is_ok(), "{good}");
        }
        for bad in ["", "queues.example", "ftp://x", "https://", "https://x/", "https://u@x", "https://x?y"] {
            assert!(check(bad).is_err(), "{bad}");
        }
    }
}
