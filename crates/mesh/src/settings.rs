//! Bounds of the broker, as the section `[mesh]` has them.

use std::time::Duration;

use serde::Deserialize;
use waybill_kernel::Time;
use waybill_kernel::ranges::{BYTES, MANY, SECONDS, Setting, check, setting};

const DAY_S: u64 = 86_400;
/// Daemons refuse a broker that promises less.
pub const DEDUPE_DAYS_MIN: i64 = 7;
/// A hundred years.
const DEDUPE_DAYS_MAX: i64 = 36_500;

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Of one tenant.
    pub meshes_max: i64,
    /// Of one mesh, those who have left not counted.
    pub members_max: i64,
    /// Of one mesh.
    pub topics_max: i64,
    /// Open invites of one mesh.
    pub invites_max: i64,
    /// Bytes of all files of one mesh.
    pub files_bytes_max: i64,
    /// Files of one mesh: however small, each has a row with what its owner says of it.
    pub files_max: i64,
    /// New messages of one mesh in one window.
    pub sends_per_window: u32,
    pub window_s: u64,
    /// Of one message's body, as it is sent.
    pub inline_bytes: u64,
    /// Of one file.
    pub blob_bytes: u64,
    /// How long messages are kept.
    pub message_retention_s: u64,
    /// How long the ids of messages are kept.
    pub dedupe_retention_days: i64,
    /// Keep the ids of messages for ever.
    pub dedupe_permanent: bool,
    /// How long files are kept that are not persistent.
    pub file_retention_s: u64,
    /// A file that has not arrived as a whole by then is removed.
    pub file_arrival_s: u64,
    /// How long it is known what happened to a mesh.
    pub events_retention_s: u64,
    /// How long an invite is good that names no time.
    pub invite_s: u64,
    /// The longest time an invite may name.
    pub invite_s_max: u64,
    /// How often one invite may be used.
    pub invite_uses_max: i64,
    /// Within this time a joiner answers its challenge.
    pub join_challenge_s: u64,
    /// A connection that is not renewed for so long is taken for dead.
    pub connection_lease_s: u64,
    /// Subscribers of one topic on an encrypted mesh: the boxes of its key come in one frame.
    pub encrypted_subscribers_max: i64,
    /// Epochs of one topic, the newest included, whose keys messages may be encrypted with.
    pub max_concurrent_epochs: i64,
    /// How often is looked for what is over.
    pub sweep_interval_s: u64,
    /// How often all rows are checked for what does not belong together.
    pub check_interval_s: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            meshes_max: 100,
            members_max: 10_000,
            topics_max: 1_000,
            invites_max: 1_000,
            files_bytes_max: 10 << 30,
            files_max: 100_000,
            sends_per_window: 600,
            window_s: 60,
            inline_bytes: waybill_mesh_protocol::INLINE_BYTES,
            blob_bytes: waybill_mesh_protocol::BLOB_BYTES,
            message_retention_s: 90 * DAY_S,
            dedupe_retention_days: 365,
            dedupe_permanent: false,
            file_retention_s: 7 * DAY_S,
            file_arrival_s: 3_600,
            events_retention_s: 90 * DAY_S,
            invite_s: DAY_S,
            invite_s_max: 30 * DAY_S,
            invite_uses_max: 10_000,
            join_challenge_s: 60,
            connection_lease_s: 90,
            encrypted_subscribers_max: 1_000,
            max_concurrent_epochs: 8,
            sweep_interval_s: 60,
            check_interval_s: DAY_S,
        }
    }
}

impl Settings {
    pub fn ranges(&self) -> Vec<Setting> {
        vec![
            setting("meshes_max", self.meshes_max, 0..=100_000),
            setting("members_max", self.members_max, 1..=100_000),
            setting("topics_max", self.topics_max, 0..=100_000),
            setting("invites_max", self.invites_max, 0..=100_000),
            setting("files_bytes_max", self.files_bytes_max, 0..=1 << 50),
            setting("files_max", self.files_max, 0..=10_000_000),
            setting("sends_per_window", self.sends_per_window, 1..=100_000),
            setting("window_s", self.window_s, 1..=86_400),
            setting("inline_bytes", self.inline_bytes, 100..=4 << 20),
            setting("blob_bytes", self.blob_bytes, BYTES),
            setting("message_retention_s", self.message_retention_s, SECONDS),
            setting("dedupe_retention_days", self.dedupe_retention_days, DEDUPE_DAYS_MIN..=DEDUPE_DAYS_MAX),
            setting("file_retention_s", self.file_retention_s, SECONDS),
            setting("file_arrival_s", self.file_arrival_s, SECONDS),
            setting("events_retention_s", self.events_retention_s, SECONDS),
            setting("invite_s", self.invite_s, SECONDS),
            setting("invite_s_max", self.invite_s_max, SECONDS),
            setting("invite_uses_max", self.invite_uses_max, MANY),
            setting("join_challenge_s", self.join_challenge_s, 1..=3_600),
            setting("connection_lease_s", self.connection_lease_s, 1..=86_400),
            setting("encrypted_subscribers_max", self.encrypted_subscribers_max, 1..=2_000),
            setting("max_concurrent_epochs", self.max_concurrent_epochs, 1..=1_000),
            setting("sweep_interval_s", self.sweep_interval_s, SECONDS),
            setting("check_interval_s", self.check_interval_s, SECONDS),
        ]
    }

    /// What could not work, in words for whoever wrote the file.
    pub fn check(&self) -> std::result::Result<(), String> {
        check("mesh", &self.ranges())
    }

    pub fn window(&self) -> Duration {
        Duration::from_secs(self.window_s.max(1))
    }

    /// When the id of a message that is accepted now is forgotten; None for never.
    pub(crate) fn dedupe_until(&self, now: Time) -> Option<Time> {
        let days = u64::try_from(self.dedupe_retention_days.max(DEDUPE_DAYS_MIN)).unwrap_or(u64::MAX);
        (!self.dedupe_permanent).then(|| now.after(Duration::from_secs(days.saturating_mul(DAY_S))))
    }

    pub(crate) fn sweep_interval(&self) -> Duration {
        Duration::from_secs(self.sweep_interval_s.max(1))
    }
}

/// The time that lies so far in the past.
pub(crate) fn before(now: Time, seconds: u64) -> Time {
    let micros = i64::try_from(Duration::from_secs(seconds).as_micros()).unwrap_or(i64::MAX);
    Time::from_micros(now.micros().saturating_sub(micros))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_settings_are_within_their_ranges() {
        assert_eq!(Settings::default().check(), Ok(()));
        let short = Settings { dedupe_retention_days: 6, ..Settings::default() };
        assert!(short.check().unwrap_err().contains("from 7"), "{:?}", short.check());
    }

    #[test]
    fn an_id_is_kept_for_at_least_seven_days_or_for_ever() {
        let now = Time::from_micros(0);
        let least = Settings { dedupe_retention_days: 1, ..Settings::default() };
        assert_eq!(least.dedupe_until(now), Some(now.after(Duration::from_secs(7 * DAY_S))));
        let ever = Settings { dedupe_permanent: true, ..Settings::default() };
        assert_eq!(ever.dedupe_until(now), None);
    }
}
