//! Bounds of the archive, as the section `[mail_archive]` has them.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use waybill_archive::repo::{Fsync, Limits};
use waybill_kernel::ranges::{SECONDS, Setting, check, setting};

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Whether this server writes the archive. Unless said, one on SQLite does, and of several on one PostgreSQL those that have a `root`:
    /// it must be one of them.
    pub enabled: Option<bool>,
    /// `mail-archive` in the data folder unless said.
    pub root: Option<PathBuf>,
    /// What is synced before a window counts as written: `off`, `commit` or `files`.
    pub fsync: Fsync,
    /// What is written within this time shares a commit.
    pub window_ms: u64,
    /// To which a window grows while writing takes longer than that.
    pub window_max_ms: u64,
    /// Rows of one window.
    pub window_rows_max: usize,
    /// Bytes of one window, a message that is larger by itself excepted.
    pub window_bytes_max: usize,
    /// Between two looks at what agents have read, acknowledged, released or set.
    pub changes_ms: u64,
    /// Unwritten rows at which the archive counts as full, for `health_check`. More of them only lag.
    pub capacity: i64,
    /// Projects written at a time.
    pub projects_at_once: usize,
    /// Repositories open at a time.
    pub open_max: usize,
    /// A window that fails is tried this often, after pauses that double from the first; then the project rests.
    pub tries_max: u32,
    pub backoff_ms: u64,
    /// How long a project rests. What comes meanwhile is passed over and counted, and written afterwards.
    pub breaker_s: u64,
    /// Free space on the archive's disk below which it is told, and below which nothing is written to it.
    pub disk_warning_mb: u64,
    pub disk_critical_mb: u64,
    pub disk_sample_s: u64,
    /// Newest messages whose files are looked for at the start.
    pub probe_messages: i64,
    /// When the program stops, what waits may still be written for this long.
    pub flush_ms: u64,
    /// From where on a lag is yellow, and red.
    pub lag_yellow_s: u64,
    pub lag_red_s: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            enabled: None,
            root: None,
            fsync: Fsync::default(),
            window_ms: 50,
            window_max_ms: 1_000,
            window_rows_max: 512,
            window_bytes_max: 8 << 20,
            changes_ms: 1_000,
            capacity: 8_192,
            projects_at_once: 4,
            open_max: 32,
            tries_max: 6,
            backoff_ms: 100,
            breaker_s: 60,
            disk_warning_mb: 500,
            disk_critical_mb: 100,
            disk_sample_s: 60,
            probe_messages: 100,
            flush_ms: 10_000,
            lag_yellow_s: 10,
            lag_red_s: 300,
        }
    }
}

impl Settings {
    pub fn ranges(&self) -> Vec<Setting> {
        vec![
            setting("window_ms", self.window_ms, 1..=10_000),
            setting("window_max_ms", self.window_max_ms, 1..=60_000),
            setting("window_rows_max", self.window_rows_max, 1..=8_192),
            setting("window_bytes_max", self.window_bytes_max, 1 << 16..=1 << 30),
            setting("changes_ms", self.changes_ms, 1..=600_000),
            setting("capacity", self.capacity, 16..=1_000_000),
            setting("projects_at_once", self.projects_at_once, 1..=64),
            setting("open_max", self.open_max, 1..=1_024),
            setting("tries_max", self.tries_max, 1..=20),
            setting("backoff_ms", self.backoff_ms, 1..=60_000),
            setting("breaker_s", self.breaker_s, SECONDS),
            setting("disk_warning_mb", self.disk_warning_mb, 0..=1_000_000_000),
            setting("disk_critical_mb", self.disk_critical_mb, 0..=1_000_000_000),
            setting("disk_sample_s", self.disk_sample_s, SECONDS),
            setting("probe_messages", self.probe_messages, 0..=100_000),
            setting("flush_ms", self.flush_ms, 0..=600_000),
            setting("lag_yellow_s", self.lag_yellow_s, SECONDS),
            setting("lag_red_s", self.lag_red_s, SECONDS),
        ]
    }

    /// What could not work, in words for whoever wrote the file.
    pub fn check(&self) -> std::result::Result<(), String> {
        check("mail_archive", &self.ranges())?;
        match &self.root {
            Some(root) if !root.is_absolute() => {
                Err(format!("mail_archive.root is {}; it must be an absolute path.", root.display()))
            }
            _ => Ok(()),
        }
    }

    /// Whether a server on such a store writes the archive.
    pub fn writes(&self, is_postgres: bool) -> bool {
        self.enabled.unwrap_or_else(|| !is_postgres || self.root.is_some())
    }

    pub fn limits(&self) -> Limits {
        Limits { open_max: self.open_max, fsync: self.fsync }
    }

    pub(crate) fn window(&self) -> Duration {
        Duration::from_millis(self.window_ms)
    }

    /// As long as the last writing took: the archive has at most half of a core of the time of each project.
    pub(crate) fn window_after(&self, took: Duration) -> Duration {
        let most = Duration::from_millis(self.window_max_ms).max(self.window());
        took.clamp(self.window(), most)
    }

    pub(crate) fn changes(&self) -> Duration {
        Duration::from_millis(self.changes_ms)
    }

    pub(crate) fn disk_sample(&self) -> Duration {
        Duration::from_secs(self.disk_sample_s.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_27_the_window_grows_with_the_work_and_no_further_than_it_may() {
        let settings = Settings::default();
        let ms = Duration::from_millis;
        for (took, window) in [(ms(3), ms(50)), (ms(200), ms(200)), (ms(5_000), ms(1_000))] {
            assert_eq!(settings.window_after(took), window);
        }
        let odd = Settings { window_ms: 2_000, window_max_ms: 10, ..Settings::default() };
        assert_eq!(odd.window_after(ms(1)), ms(2_000));
    }

    #[test]
    fn nodes_that_share_a_database_write_no_archive_unless_one_is_told_to() {
        let usual = Settings::default();
        assert!(usual.writes(false) && !usual.writes(true));
        let named = Settings { root: Some("/srv/archive".into()), ..usual.clone() };
        assert!(named.writes(true) && named.check().is_ok());
        assert!(!Settings { enabled: Some(false), ..named }.writes(false));
        assert!(Settings { root: Some("archive".into()), ..usual }.check().is_err());
    }
}
