//! config.toml of a daemon's folder: every interval, age, bound and budget, each with its range.
//!
//! A file that is not there means the usual values. What the file does not know is refused, so that a misspelt setting is
//! found at start and not in production.

use std::time::Duration;

use serde::Deserialize;
use waybill_kernel::ranges::{BYTES, MANY, PERCENT, SECONDS, Setting, at_least, check, setting};
use waybill_kernel::{Code, Error, Result};

use crate::drain::ANSWERS_MAX;

/// A millisecond to a year.
const MILLIS: std::ops::RangeInclusive<i64> = 1..=31_536_000_000;
const DAY_MS: u64 = 86_400_000;

/// A section of the file. All values have a default, so a section may be left out or be given in part.
macro_rules! section {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty = $default:expr),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $name { $($(#[$field_doc])* pub $field: $type),+ }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default),+ }
            }
        }
    };
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    pub ipc: Ipc,
    pub outbox: Outbox,
    pub inbox: Inbox,
    pub link: Link,
    pub rotation: Rotation,
    pub files: Files,
    pub hooks: Hooks,
    pub events: Events,
    pub clone: Cloning,
    pub log: Log,
}

section! {
    /// What local programs may ask of the daemon.
    Ipc {
        /// Loopback TCP beside the socket. Never in a container.
        tcp: bool = true,
        /// 0 for one that the system chooses; the file http.port says which.
        tcp_port: u16 = 0,
        body_bytes_max: usize = 1 << 20,
        in_flight_max: usize = 64,
        streams_max: usize = 32,
        /// Open connections of both listeners, streams included.
        connections_max: usize = 512,
        /// Of TCP alone: the socket's callers are this user's own.
        rate_per_s: u32 = 100,
        rate_burst: u32 = 1_000,
        /// Beyond this an answer is cut, with a link to the rest.
        answer_bytes_max: usize = 10 << 20,
        /// Web pages that may call. None, unless they are named here.
        origins: Vec<String> = Vec::new(),
        /// /v1/health without a token.
        public_health_check: bool = false,
        /// How long a token is taken after it was replaced.
        token_grace_ms: u64 = 60_000,
        /// Also how long a connection may rest between two requests.
        header_read_ms: u64 = 60_000,
        body_read_ms: u64 = 30_000,
        /// Between two comments on a stream that has nothing to say.
        stream_comment_ms: u64 = 15_000,
        /// How long requests under way may take when the daemon stops.
        drain_ms: u64 = 5_000,
    }
}

section! {
    Outbox {
        bytes_max: u64 = 5_000_000_000,
        /// From here on an event is told …
        pressure_percent: u64 = 80,
        /// … and from here on new messages are refused.
        refuse_percent: u64 = 95,
        /// Between two looks at size and age.
        sweep_ms: u64 = 1_000,
        backoff_min_ms: u64 = 1_000,
        backoff_max_ms: u64 = 60_000,
        /// What was in flight at a crash is tried again after this.
        restart_pause_ms: u64 = 1_000,
        /// How old a message may become unsent; None for what the broker's memory of ids allows.
        max_age_seconds: Option<u64> = None,
        /// How old a delivered message must be for `prune` to remove its payload.
        prune_age_ms: u64 = 7 * DAY_MS,
    }
}

section! {
    Inbox {
        bytes_max: u64 = 5_000_000_000,
        keep_ms: u64 = 30 * DAY_MS,
        /// How long the id of a removed message is known, so that a second delivery is a repeat. Longer than any broker usually
        /// keeps messages and ids.
        seen_keep_ms: u64 = 400 * DAY_MS,
        sweep_ms: u64 = 60_000,
    }
}

section! {
    Link {
        ping_ms: u64 = 10_000,
        dead_ms: u64 = 30_000,
        connect_ms: u64 = 10_000,
        /// How long one message may be without an answer before it is tried again.
        answer_ms: u64 = 30_000,
        backoff_min_ms: u64 = 1_000,
        backoff_max_ms: u64 = 60_000,
        /// A connection that lived for this long was a good one: after it the pauses begin with the shortest again.
        steady_ms: u64 = 10_000,
        /// For how long after its end a connection that the broker still keeps may be this daemon's own. Longer than a broker
        /// that was killed has its connections kept for.
        own_connection_ms: u64 = 180_000,
        /// Between two readings of members, topics and keys, however often one is asked for …
        sync_pause_ms: u64 = 1_000,
        /// … and after one that failed.
        sync_retry_ms: u64 = 10_000,
        /// Destinations with a message in flight.
        window: usize = 64,
        /// Messages of one page of history.
        history_page: usize = 100,
    }
}

section! {
    Rotation {
        grace_ms: u64 = 7 * DAY_MS,
        archived_max: usize = 8,
        cleanup_ms: u64 = DAY_MS,
    }
}

section! {
    Files {
        bytes_max: u64 = 524_288_000,
        /// How long one transfer may take in all.
        transfer_ms: u64 = 3_600_000,
    }
}

section! {
    /// Of all hooks alike; hooks.toml says which run, and for how long.
    Hooks {
        /// Between asking a hook to end and ending it.
        grace_ms: u64 = 5_000,
        /// How long a capability lives at most; it ends with its hook in any case.
        capability_ms: u64 = 300_000,
        /// At this size hooks-audit.jsonl is put aside, in the place of the one before.
        audit_bytes_max: u64 = 16 << 20,
    }
}

section! {
    Events {
        /// Kept for those who come back with a Last-Event-ID.
        ring: usize = 1_024,
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClonePolicy {
    #[default]
    Refuse,
    Warn,
    Allow,
}

section! {
    /// What happens in a folder that was made on another host.
    Cloning {
        policy: ClonePolicy = ClonePolicy::Refuse,
    }
}

section! {
    Log {
        bytes_max: u64 = 100_000_000,
        keep_ms: u64 = 14 * DAY_MS,
    }
}

impl Settings {
    /// From the text of config.toml.
    pub fn read(text: &str) -> Result<Self> {
        let invalid = |message: String| Error::new(Code::ConfigInvalid, message);
        let settings: Self = toml::from_str(text).map_err(|error| invalid(format!("config.toml: {error}")))?;
        settings.check().map_err(invalid)?;
        Ok(settings)
    }

    /// What could not work, in words for whoever wrote the file.
    pub fn check(&self) -> std::result::Result<(), String> {
        for (section, settings) in self.ranges() {
            check(section, &settings)?;
        }
        if self.outbox.pressure_percent >= self.outbox.refuse_percent {
            return Err("outbox.pressure_percent must be below outbox.refuse_percent.".to_owned());
        }
        for (least, most, section) in [
            (self.outbox.backoff_min_ms, self.outbox.backoff_max_ms, "outbox"),
            (self.link.backoff_min_ms, self.link.backoff_max_ms, "link"),
        ] {
            if least > most {
                return Err(format!("{section}.backoff_min_ms must not be above {section}.backoff_max_ms."));
            }
        }
        if self.link.ping_ms >= self.link.dead_ms {
            return Err("link.ping_ms must be below link.dead_ms.".to_owned());
        }
        Ok(())
    }

    pub fn ranges(&self) -> Vec<(&'static str, Vec<Setting>)> {
        vec![
            ("ipc", self.ipc.ranges()),
            ("outbox", self.outbox.ranges()),
            (
                "inbox",
                vec![
                    setting("bytes_max", self.inbox.bytes_max, at_least(1 << 16)),
                    setting("keep_ms", self.inbox.keep_ms, MILLIS),
                    // Up to ten years.
                    setting("seen_keep_ms", self.inbox.seen_keep_ms, 1..=3_650 * DAY_MS as i64),
                    setting("sweep_ms", self.inbox.sweep_ms, MILLIS),
                ],
            ),
            ("link", self.link.ranges()),
            (
                "rotation",
                vec![
                    // Longer would keep old keys able to read for as long.
                    setting("grace_ms", self.rotation.grace_ms, 1..=30 * DAY_MS as i64),
                    setting("archived_max", self.rotation.archived_max, 1..=8),
                    setting("cleanup_ms", self.rotation.cleanup_ms, MILLIS),
                ],
            ),
            (
                "files",
                vec![
                    setting("bytes_max", self.files.bytes_max, at_least(1)),
                    setting("transfer_ms", self.files.transfer_ms, MILLIS),
                ],
            ),
            (
                "hooks",
                vec![
                    setting("grace_ms", self.hooks.grace_ms, 0..=DAY_MS as i64),
                    // What a hook was trusted with must not outlive what it was about.
                    setting("capability_ms", self.hooks.capability_ms, 1..=300_000),
                    setting("audit_bytes_max", self.hooks.audit_bytes_max, at_least(1 << 10)),
                ],
            ),
            ("events", vec![setting("ring", self.events.ring, MANY)]),
            (
                "log",
                vec![
                    setting("bytes_max", self.log.bytes_max, at_least(1 << 10)),
                    setting("keep_ms", self.log.keep_ms, MILLIS),
                ],
            ),
        ]
    }
}

impl Ipc {
    fn ranges(&self) -> Vec<Setting> {
        vec![
            setting("body_bytes_max", self.body_bytes_max, BYTES),
            setting("in_flight_max", self.in_flight_max, MANY),
            setting("streams_max", self.streams_max, MANY),
            setting("connections_max", self.connections_max, MANY),
            setting("rate_per_s", self.rate_per_s, MANY),
            setting("rate_burst", self.rate_burst, MANY),
            setting("answer_bytes_max", self.answer_bytes_max, BYTES),
            setting("token_grace_ms", self.token_grace_ms, 0..=DAY_MS as i64),
            setting("header_read_ms", self.header_read_ms, MILLIS),
            setting("body_read_ms", self.body_read_ms, MILLIS),
            setting("stream_comment_ms", self.stream_comment_ms, MILLIS),
            setting("drain_ms", self.drain_ms, MILLIS),
        ]
    }
}

impl Outbox {
    fn ranges(&self) -> Vec<Setting> {
        vec![
            setting("bytes_max", self.bytes_max, at_least(1 << 16)),
            setting("pressure_percent", self.pressure_percent, PERCENT),
            setting("refuse_percent", self.refuse_percent, PERCENT),
            setting("sweep_ms", self.sweep_ms, MILLIS),
            setting("backoff_min_ms", self.backoff_min_ms, MILLIS),
            setting("backoff_max_ms", self.backoff_max_ms, MILLIS),
            setting("restart_pause_ms", self.restart_pause_ms, 0..=DAY_MS as i64),
            setting("max_age_seconds", self.max_age_seconds.unwrap_or(1), SECONDS),
            setting("prune_age_ms", self.prune_age_ms, 0..=*MILLIS.end()),
        ]
    }

    pub fn backoff(&self) -> crate::outbox::rules::Backoff {
        crate::outbox::rules::Backoff {
            least: Duration::from_millis(self.backoff_min_ms),
            most: Duration::from_millis(self.backoff_max_ms),
        }
    }
}

impl Link {
    fn ranges(&self) -> Vec<Setting> {
        vec![
            setting("ping_ms", self.ping_ms, MILLIS),
            setting("dead_ms", self.dead_ms, MILLIS),
            setting("connect_ms", self.connect_ms, MILLIS),
            setting("answer_ms", self.answer_ms, MILLIS),
            setting("backoff_min_ms", self.backoff_min_ms, MILLIS),
            setting("backoff_max_ms", self.backoff_max_ms, MILLIS),
            setting("steady_ms", self.steady_ms, MILLIS),
            setting("own_connection_ms", self.own_connection_ms, MILLIS),
            setting("sync_pause_ms", self.sync_pause_ms, MILLIS),
            setting("sync_retry_ms", self.sync_retry_ms, MILLIS),
            // As many answers as may wait: more would hold up the one who reads them, and with it the pings.
            setting("window", self.window, 1..=ANSWERS_MAX as i64),
            setting("history_page", self.history_page, 1..=1_000),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_settings_can_be_used_and_a_file_may_have_any_part_of_them() {
        assert_eq!(Settings::default().check(), Ok(()));
        assert_eq!(Settings::read("").unwrap().outbox, Outbox::default());
        let read = Settings::read("[outbox]\nmax_age_seconds = 5\n[clone]\npolicy = \"warn\"\n").unwrap();
        assert_eq!((read.outbox.max_age_seconds, read.clone.policy), (Some(5), ClonePolicy::Warn));
        assert_eq!(read.ipc, Ipc::default());
    }

    #[test]
    fn what_cannot_work_is_named() {
        for (text, named) in [
            ("[ipc]\nin_flight_max = 0", "ipc.in_flight_max"),
            ("[ipc]\nno_such = 1", "no_such"),
            ("[nothing]\n", "nothing"),
            ("[outbox]\nbackoff_min_ms = 70000", "outbox.backoff_min_ms"),
            ("[outbox]\npressure_percent = 95", "outbox.pressure_percent"),
            ("[outbox]\nmax_age_seconds = 0", "outbox.max_age_seconds"),
            ("[link]\nping_ms = 30000", "link.ping_ms"),
            ("[link]\nwindow = 129", "link.window"),
            ("[link]\nown_connection_ms = 0", "link.own_connection_ms"),
            ("[rotation]\ngrace_ms = 2592000001", "rotation.grace_ms"),
            ("[hooks]\ncapability_ms = 300001", "hooks.capability_ms"),
            ("[inbox]\nseen_keep_ms = 0", "inbox.seen_keep_ms"),
            ("[clone]\npolicy = \"ignore\"", "policy"),
        ] {
            let error = Settings::read(text).unwrap_err();
            assert_eq!(error.code(), Code::ConfigInvalid, "{text}");
            assert!(error.message().contains(named), "{text}: {error}");
        }
    }
}
