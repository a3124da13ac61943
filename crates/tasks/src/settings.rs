//! What an operator may set about tasks.

use serde::Deserialize;

#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The largest payload, as compact JSON.
    pub payload_bytes_max: usize,
    /// How long a worker holds a task before it must renew; shown in the receipt of assignment.
    pub lease_ttl_s: i64,
    pub max_attempts: i64,
    pub retry_backoff_s: i64,
    pub list_limit: i64,
    pub list_limit_max: i64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            payload_bytes_max: 1 << 20,
            lease_ttl_s: 300,
            max_attempts: 3,
            retry_backoff_s: 30,
            list_limit: 50,
            list_limit_max: 200,
        }
    }
}
