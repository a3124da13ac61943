//! Bounds of webhooks, as the section `[webhooks]` has them.

use std::time::Duration;

use serde::Deserialize;
use waybill_guard::Guard;
use waybill_kernel::ranges::{PAUSE_SECONDS, SECONDS, Setting, check, setting};

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Let webhooks reach addresses that are none of the public internet's, on any port.
    pub allow_private: bool,
    /// Of one tenant.
    pub endpoints_max: i64,
    /// Requests at a time on one node; a quarter as many beside them are for endpoints that do not answer.
    pub requests_max: usize,
    /// Requests at a time to one endpoint.
    pub endpoint_requests_max: usize,
    pub connect_ms: u64,
    /// From the beginning of a request to the end of its answer.
    pub request_ms: u64,
    /// A delivery that has not succeeded for so long has failed.
    pub give_up_s: u64,
    /// An endpoint that has failed for so long without a success is disabled.
    pub disable_after_s: u64,
    /// How long ended deliveries are shown.
    pub retention_s: u64,
    /// How often deliveries that are over are looked for.
    pub sweep_interval_s: u64,
    /// How often receipts are looked for at least; while there are webhooks, each receipt is looked for when it is written.
    pub feed_interval_s: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            allow_private: false,
            endpoints_max: 100,
            requests_max: 64,
            endpoint_requests_max: 8,
            connect_ms: 5_000,
            request_ms: 15_000,
            give_up_s: 72 * 3600,
            disable_after_s: 5 * 86_400,
            retention_s: 7 * 86_400,
            sweep_interval_s: 60,
            feed_interval_s: 5,
        }
    }
}

impl Settings {
    pub fn ranges(&self) -> Vec<Setting> {
        vec![
            setting("endpoints_max", self.endpoints_max, 0..=10_000),
            setting("requests_max", self.requests_max, 1..=10_000),
            setting("endpoint_requests_max", self.endpoint_requests_max, 1..=1_000),
            setting("connect_ms", self.connect_ms, 100..=60_000),
            setting("request_ms", self.request_ms, 100..=60_000),
            setting("give_up_s", self.give_up_s, SECONDS),
            setting("disable_after_s", self.disable_after_s, SECONDS),
            setting("retention_s", self.retention_s, PAUSE_SECONDS),
            setting("sweep_interval_s", self.sweep_interval_s, SECONDS),
            setting("feed_interval_s", self.feed_interval_s, SECONDS),
        ]
    }

    /// What could not work, in words for whoever wrote the file.
    pub fn check(&self) -> std::result::Result<(), String> {
        check("webhooks", &self.ranges())
    }

    /// Of the ports below 1024 only those of the web: whoever may make a webhook is not to speak to everybody's mail servers.
    pub(crate) fn guard<R>(&self, resolver: R) -> Guard<R> {
        Guard::new(&[], &[], resolver).with_ports(1024..=u16::MAX).anywhere(self.allow_private)
    }

    pub(crate) fn request(&self) -> Duration {
        Duration::from_millis(self.request_ms)
    }

    pub(crate) fn give_up(&self) -> Duration {
        Duration::from_secs(self.give_up_s)
    }

    pub(crate) fn retention(&self) -> Duration {
        Duration::from_secs(self.retention_s)
    }

    pub(crate) fn disable_after(&self) -> Duration {
        Duration::from_secs(self.disable_after_s)
    }
}
