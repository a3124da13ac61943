//! The bounds of the HTTP side, each with its unit in its name.

use serde::Deserialize;

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
    /// Open connections; further ones wait to be accepted.
    pub connections_max: usize,
    /// Open streams of events; one more gets 503.
    pub streams_max: usize,
    /// A stream that has had nothing to give for this long says that it is alive, and its key is looked at again.
    pub heartbeat_s: u64,
    /// After this long a stopping server closes what is still open.
    pub drain_ms: u64,
    /// How long an answer of /readyz is shared.
    pub probe_ms: u64,
    /// A proxy that is trusted stands before the server: it ends TLS, and every caller comes from its address.
    pub trusted_proxy: bool,
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
            requests_max: 8_192,
            connections_max: 10_000,
            streams_max: 1_000,
            heartbeat_s: 15,
            drain_ms: 10_000,
            probe_ms: 1_000,
            trusted_proxy: false,
            mcp: McpSettings::default(),
        }
    }
}
