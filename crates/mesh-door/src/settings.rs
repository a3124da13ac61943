//! Bounds of the mesh's door, in the section `[mesh]` beside those of the broker.

use std::time::Duration;

use serde::Deserialize;
use waybill_kernel::ranges::{MANY, SHARED_BYTES, Setting, at_least, check, setting};

macro_rules! settings {
    ($($(#[$doc:meta])* $name:ident: $type:ty = $usual:expr;)+) => {
        #[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct Settings { $($(#[$doc])* pub $name: $type),+ }

        impl Default for Settings {
            fn default() -> Self {
                Self { $($name: $usual),+ }
            }
        }

        impl Settings {
            /// Those of a section that are the door's; the rest are the broker's.
            pub const NAMES: &'static [&'static str] = &[$(stringify!($name)),+];
        }
    };
}

settings! {
    /// `redis://…`: where servers count new messages together. Without it each counts its own.
    redis: Option<String> = None;
    /// Redis is taken for gone when it has not answered for so long.
    redis_ms: u64 = 250;
    /// After Redis has failed it is left alone for so long.
    redis_pause_ms: u64 = 1_000;
    /// Open sockets of members; a tenant has its part of them, a member a hundredth.
    sockets_max: usize = 8_000;
    /// What all members of one tenant may have of them, in percent.
    sockets_tenant_percent: usize = 50;
    /// Sockets whose challenge is not answered yet.
    challenges_max: usize = 2_048;
    /// Of one address.
    challenges_per_address_max: usize = 256;
    /// Within this time a challenge is answered, and then the features agreed on.
    challenge_ms: u64 = 10_000;
    /// A socket that has been quiet for so long is asked whether it is there.
    ping_ms: u64 = 10_000;
    /// One that has been quiet for so long is taken for dead.
    dead_ms: u64 = 30_000;
    /// A member that does not take a frame for so long is left.
    write_ms: u64 = 10_000;
    /// Messages that may be pushed to a socket and not acknowledged.
    deliveries_max: usize = 64;
    /// A message that is not acknowledged is pushed again after so long.
    redeliver_ms: u64 = 30_000;
    /// Frames of one socket that are worked on at the same time.
    frames_max: usize = 64;
    /// Bytes of the frames of all sockets, those being worked on and those on their way out.
    frames_bytes_max: usize = 64 << 20;
}

impl Settings {
    pub fn ranges(&self) -> Vec<Setting> {
        vec![
            setting("redis_ms", self.redis_ms, at_least(1)),
            setting("redis_pause_ms", self.redis_pause_ms, at_least(1)),
            setting("sockets_max", self.sockets_max, MANY),
            setting("sockets_tenant_percent", self.sockets_tenant_percent, waybill_kernel::ranges::PERCENT),
            setting("challenges_max", self.challenges_max, MANY),
            setting("challenges_per_address_max", self.challenges_per_address_max, MANY),
            setting("challenge_ms", self.challenge_ms, at_least(10)),
            setting("ping_ms", self.ping_ms, at_least(10)),
            setting("dead_ms", self.dead_ms, at_least(20)),
            setting("write_ms", self.write_ms, at_least(10)),
            setting("deliveries_max", self.deliveries_max, 1..=10_000),
            setting("redeliver_ms", self.redeliver_ms, at_least(10)),
            setting("frames_max", self.frames_max, 1..=10_000),
            setting("frames_bytes_max", self.frames_bytes_max, SHARED_BYTES),
        ]
    }

    /// What could not work, in words for whoever wrote the file. The address may hold a password and is not repeated.
    pub fn check(&self) -> Result<(), String> {
        check("mesh", &self.ranges())?;
        match &self.redis {
            Some(address) if crate::redis::client(address).is_err() => {
                Err("mesh.redis must be an address like redis://host:6379/0.".to_owned())
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn challenge(&self) -> Duration {
        Duration::from_millis(self.challenge_ms)
    }

    /// Sockets whose other side is not known take a quarter of all connections at most, and of one address a quarter of that.
    #[must_use]
    pub fn within(mut self, connections_max: usize) -> Self {
        let most = (connections_max / 4).max(1);
        self.challenges_max = self.challenges_max.min(most);
        self.challenges_per_address_max = self.challenges_per_address_max.min((most / 4).max(1));
        self
    }

    pub(crate) fn write(&self) -> Duration {
        Duration::from_millis(self.write_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_settings_are_within_their_ranges_and_every_number_has_one() {
        let usual = Settings::default();
        assert_eq!(usual.check(), Ok(()));
        let ranged: Vec<_> = usual.ranges().iter().map(|setting| setting.name).collect();
        let left: Vec<_> = Settings::NAMES.iter().filter(|name| !ranged.contains(name)).collect();
        assert_eq!(left, [&"redis"]);
    }

    #[test]
    fn an_address_that_is_none_is_refused_without_repeating_it() {
        let set = |address: &str| Settings { redis: Some(address.to_owned()), ..Settings::default() }.check();
        assert_eq!(set("redis://127.0.0.1:6379/2"), Ok(()));
        let error = set("redi://u:hunter2@h").unwrap_err();
        assert!(error.contains("mesh.redis") && !error.contains("hunter2"), "{error}");
    }
}
