//! The bounds of the HTTP side, each with its unit in its name.

use std::ops::RangeInclusive;

use serde::Deserialize;
use waybill_kernel::ranges::{BYTES, MANY, PERCENT, SHARED_BYTES, Setting, at_least, check, setting};

use crate::mcp::McpSettings;

#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// A request body beyond this is refused with 413 before it is read.
    pub body_bytes_max: usize,
    /// From the first byte of a request to the last of its headers.
    pub header_read_ms: u64,
    /// From the headers to the last byte of the body.
    pub body_read_ms: u64,
    /// From the whole request to its answer, waits included.
    pub answer_ms: u64,
    /// Requests being answered at one time; one more gets 503.
    pub requests_max: usize,
    /// Open connections; for one more the longest idle one is closed.
    pub connections_max: usize,
    /// Open connections of one address; for one more the longest idle one of that address is closed.
    pub connections_per_address_max: usize,
    /// A proxy that you run stands before this server and ends TLS: addresses are not counted, since all are the proxy's,
    /// and the log takes the client's from X-Forwarded-For.
    pub trusted_proxy: bool,
    /// A connection without a request is closed after this long.
    pub idle_ms: u64,
    /// A connection whose client has not taken an answer for this long is closed.
    pub write_ms: u64,
    /// Answers that clients have not taken; beyond it the connection that has left most of them is closed.
    pub answers_unread_max: usize,
    /// Bytes of such answers to callers; one more large one is refused with 503.
    pub answers_bytes_max: usize,
    /// Bytes of bodies being read and worked on; further ones wait to be read.
    pub bodies_bytes_max: usize,
    /// What one key may have of the places for requests, of streams, and of the bytes of bodies and answers.
    pub key_share_percent: usize,
    /// What all keys of one tenant may have of them together.
    pub tenant_share_percent: usize,
    /// Places for requests and streams beside the others, for admins alone.
    pub admin_places: usize,
    /// Open streams of events; one more gets 503.
    pub streams_max: usize,
    /// A stream that has had nothing to give for this long says that it is alive, and its key is looked at again.
    pub heartbeat_s: u64,
    /// After this long a stopping server closes what is still open.
    pub drain_ms: u64,
    /// How long an answer of /readyz is shared.
    pub probe_ms: u64,
    pub mcp: McpSettings,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            // A payload of the largest size, the other fields, and JSON's own characters.
            body_bytes_max: 2 << 20,
            header_read_ms: 10_000,
            body_read_ms: 30_000,
            answer_ms: 60_000,
            requests_max: 6_144,
            connections_max: 10_000,
            connections_per_address_max: 2_500,
            trusted_proxy: false,
            idle_ms: 60_000,
            write_ms: 30_000,
            answers_unread_max: 8_192,
            answers_bytes_max: 64 << 20,
            bodies_bytes_max: 32 << 20,
            key_share_percent: 25,
            tenant_share_percent: 50,
            admin_places: 64,
            streams_max: 1_000,
            heartbeat_s: 15,
            drain_ms: 10_000,
            probe_ms: 1_000,
            mcp: McpSettings::default(),
        }
    }
}

/// Up to the longest that any call waits.
const HEARTBEAT_SECONDS: RangeInclusive<i64> = 1..=20;

impl Settings {
    pub fn ranges(&self) -> Vec<Setting> {
        vec![
            setting("body_bytes_max", self.body_bytes_max, BYTES),
            setting("header_read_ms", self.header_read_ms, at_least(10)),
            setting("body_read_ms", self.body_read_ms, at_least(10)),
            setting("answer_ms", self.answer_ms, at_least(1_000)),
            setting("requests_max", self.requests_max, MANY),
            setting("connections_max", self.connections_max, MANY),
            setting("connections_per_address_max", self.connections_per_address_max, MANY),
            setting("idle_ms", self.idle_ms, at_least(10)),
            setting("write_ms", self.write_ms, at_least(10)),
            setting("answers_unread_max", self.answers_unread_max, MANY),
            setting("answers_bytes_max", self.answers_bytes_max, SHARED_BYTES),
            setting("bodies_bytes_max", self.bodies_bytes_max, SHARED_BYTES),
            setting("key_share_percent", self.key_share_percent, PERCENT),
            setting("tenant_share_percent", self.tenant_share_percent, PERCENT),
            setting("admin_places", self.admin_places, 0..=1_000_000),
            setting("streams_max", self.streams_max, MANY),
            setting("heartbeat_s", self.heartbeat_s, HEARTBEAT_SECONDS),
            setting("drain_ms", self.drain_ms, at_least(0)),
            setting("probe_ms", self.probe_ms, at_least(0)),
        ]
    }

    /// What could not work, in words for whoever wrote the file.
    pub fn check(&self) -> std::result::Result<(), String> {
        check("doors", &self.ranges())
    }
}
