//! How much of everything: the whole attack, or the short form.
//!
//! What is bounded in bytes is attacked in full either way. Where the bound is a number of places, the short form gives the
//! server fewer of them and brings as many more than those as the whole attack does.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use crate::marks::{ANSWER_MAX, ANSWER_SHORT_MAX};

#[derive(Clone)]
pub struct Scale {
    pub before: Duration,
    /// How long each attack goes on.
    pub hold: Duration,
    pub after: Duration,
    /// What everybody else is answered within.
    pub answer_max: Duration,
    pub idle_connections: usize,
    /// Of an attack that comes from several machines.
    pub addresses: usize,
    pub waits: usize,
    pub event_streams: usize,
    /// HTTP/2 connections whose windows stay shut, and the requests on each.
    pub shut_connections: usize,
    pub shut_requests: usize,
    pub bodies: usize,
    pub unread_connections: usize,
    /// Sockets without an answer to their challenge.
    pub mesh_sockets: usize,
    /// Members of the attackers' mesh.
    pub mesh_members: usize,
    /// Members of the mesh that is posted to as a whole: as many as one may have beside its owner (`members_max` of `[mesh]`).
    pub fanout_members: usize,
    /// Keys of the attacker's principals, all of one tenant.
    pub attacker_keys: usize,
    /// Keys that the process is shown for the first time during an attack.
    pub new_keys: usize,
    /// Keys that the operator revokes during an attack.
    pub spare_keys: usize,
    /// For `serve --config`; empty for the defaults.
    settings: &'static str,
}

impl Scale {
    pub fn whole() -> Self {
        Self {
            before: Duration::from_secs(3),
            hold: Duration::from_secs(20),
            after: Duration::from_secs(3),
            answer_max: ANSWER_MAX,
            idle_connections: 10_000,
            addresses: 20,
            waits: 8_192,
            event_streams: 2_000,
            shut_connections: 40,
            shut_requests: 128,
            bodies: 60,
            unread_connections: 200,
            mesh_sockets: 4_000,
            mesh_members: 400,
            fanout_members: 9_999,
            attacker_keys: 8,
            new_keys: 12,
            spare_keys: 20,
            settings: "",
        }
    }

    pub fn short() -> Self {
        Self {
            before: Duration::from_millis(600),
            hold: Duration::from_secs(4),
            after: Duration::from_secs(2),
            answer_max: ANSWER_SHORT_MAX,
            idle_connections: 600,
            addresses: 10,
            waits: 1_024,
            event_streams: 256,
            mesh_sockets: 600,
            mesh_members: 60,
            fanout_members: 300,
            attacker_keys: 4,
            new_keys: 5,
            spare_keys: 5,
            settings: "[doors]\nconnections_max = 400\nrequests_max = 1024\nstreams_max = 128\n\
                       [mesh]\nmembers_max = 301\n",
            ..Self::whole()
        }
    }

    /// The arguments of `serve` that this scale needs.
    pub fn write_settings(&self, path: &Path) -> Result<Vec<std::ffi::OsString>> {
        if self.settings.is_empty() {
            return Ok(Vec::new());
        }
        std::fs::write(path, self.settings)?;
        Ok(vec!["--config".into(), path.into()])
    }
}
