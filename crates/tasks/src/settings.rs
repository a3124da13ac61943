//! What an operator may set about tasks.

use std::ops::RangeInclusive;
use std::time::Duration;

use serde::Deserialize;
use waybill_kernel::Time;
use waybill_kernel::ranges::{BYTES, KEEP_SECONDS, MANY, PAUSE_SECONDS, SECONDS, Setting, at_least, check, setting};
use waybill_store::effects::PAGES;

use crate::sweeps;

#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The largest payload, as compact JSON.
    pub payload_bytes_max: usize,
    /// The largest result, as compact JSON.
    pub result_bytes_max: usize,
    /// How long a worker holds a task before it must renew, unless it asks for another time.
    pub lease_ttl_s: i64,
    /// Longer leases are shortened to this.
    pub lease_ttl_s_max: i64,
    /// Added on both sides: a worker may still act this long after its lease has ended, and the sweep waits for it.
    pub lease_grace_s: i64,
    /// More renewals of one lease are refused; 0 for no bound.
    pub renewals_max: i64,
    pub max_attempts: i64,
    pub retry_backoff_s: i64,
    /// The longest pause before a retry.
    pub retry_backoff_s_max: i64,
    pub list_limit: i64,
    pub list_limit_max: i64,
    /// A page of tasks has no more bytes of payloads and results than this, or one task.
    pub list_bytes_max: i64,
    /// Tasks looked at for one page, where a filter is none that an index knows.
    pub list_scan_max: i64,
    /// A success without artifacts or proof is refused, instead of leaving its obligation open.
    pub strict_locatability: bool,
    /// One receipt per accepted report of progress.
    pub progress_receipts: bool,
    /// Reports of progress of one task that get a receipt.
    pub progress_receipts_max: i64,
    /// The largest body of a receipt, as compact JSON.
    pub receipt_body_bytes_max: usize,
    pub receipt_parents_max: usize,
    pub receipt_artifacts_max: usize,
    /// Which server this is, to those who share its database. Fixed over restarts; empty for the one the data folder keeps.
    pub instance_id: String,
    /// How often leases that ran out are looked for, and how often a server says that it is alive.
    pub sweep_interval_s: i64,
    /// A server that has been silent for this long is not expected back.
    pub instance_forgotten_s: i64,
    /// Leases ended in one transaction; never more than 20.
    pub sweep_batch: i64,
    /// A task whose lease ran out is offered again after anything from nothing to this.
    pub requeue_delay_s_max: i64,
    /// How often receipts are sealed into their tenant's chain.
    pub chain_interval_s: i64,
    /// Receipts sealed in one transaction.
    pub chain_batch: i64,
    /// Receipts that may wait to be sealed. Four fifths of it are reported, again after it has fallen below half.
    pub receipt_backlog: i64,
    /// How often receipts that nobody waits for any more are looked for.
    pub archive_interval_s: i64,
    /// Receipts looked at in one transaction.
    pub archive_batch: i64,
    /// After its task's end, if the task's obligation has ended as well, a receipt stays in the ledger for this long.
    pub archive_after_s: i64,
    /// So long at most a receipt that is no open obligation stays after its task's end, or its own time if it has no task.
    pub archive_after_s_max: i64,
    /// A contact after a longer silence begins a new session.
    pub session_silence_s: i64,
    /// The last contact is written no more often than this, unless a tenth of that silence is shorter.
    pub contact_note_s: i64,
    /// What kind of place this server runs in, for those who ask it.
    pub environment: String,
    /// Where the defaults of times and attempts come from.
    pub profile: Profile,
    // Switches of older servers. They are accepted as long as they say what is the case anyway.
    pub use_obligations_endpoint: bool,
    pub deprecate_legacy_endpoint: bool,
    pub requeue_on_expiry_no_increment: bool,
}

/// Defaults under a name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Profile {
    #[default]
    Standard,
    /// Short times, for showing it to somebody.
    Demo,
}

impl Profile {
    /// What it gives where nothing is said.
    pub fn defaults(self) -> &'static [(&'static str, i64)] {
        match self {
            Profile::Standard => &[],
            Profile::Demo => {
                &[("lease_ttl_s", 120), ("sweep_interval_s", 5), ("max_attempts", 2), ("retry_backoff_s", 15)]
            }
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            payload_bytes_max: 1 << 20,
            result_bytes_max: 1 << 20,
            lease_ttl_s: 300,
            lease_ttl_s_max: 1800,
            lease_grace_s: 0,
            renewals_max: 0,
            max_attempts: 3,
            retry_backoff_s: 30,
            retry_backoff_s_max: 900,
            list_limit: 50,
            list_limit_max: 200,
            // Over MCP an answer has it twice, once with its quotes escaped, and must find room in what a key has for answers.
            list_bytes_max: 4 << 20,
            list_scan_max: 5_000,
            strict_locatability: false,
            progress_receipts: true,
            progress_receipts_max: 1000,
            receipt_body_bytes_max: 65_536,
            receipt_parents_max: 10,
            receipt_artifacts_max: 100,
            instance_id: String::new(),
            sweep_interval_s: 10,
            instance_forgotten_s: 86_400,
            sweep_batch: 20,
            requeue_delay_s_max: 5,
            chain_interval_s: 5,
            chain_batch: 500,
            receipt_backlog: 10_000,
            archive_interval_s: 3600,
            archive_batch: 200,
            archive_after_s: 7 * 86_400,
            archive_after_s_max: 30 * 86_400,
            session_silence_s: 1800,
            contact_note_s: 60,
            environment: "production".to_owned(),
            profile: Profile::Standard,
            use_obligations_endpoint: true,
            deprecate_legacy_endpoint: true,
            requeue_on_expiry_no_increment: true,
        }
    }
}

/// Room for what the server itself writes, such as the longest reason of a cancel.
const RECEIPT_BYTES: RangeInclusive<i64> = 16_384..=1 << 30;

impl Settings {
    pub fn ranges(&self) -> Vec<Setting> {
        vec![
            setting("payload_bytes_max", self.payload_bytes_max, BYTES),
            setting("result_bytes_max", self.result_bytes_max, BYTES),
            setting("lease_ttl_s", self.lease_ttl_s, SECONDS),
            setting("lease_ttl_s_max", self.lease_ttl_s_max, SECONDS),
            setting("lease_grace_s", self.lease_grace_s, 0..=86_400),
            setting("renewals_max", self.renewals_max, at_least(0)),
            setting("max_attempts", self.max_attempts, MANY),
            setting("retry_backoff_s", self.retry_backoff_s, PAUSE_SECONDS),
            setting("retry_backoff_s_max", self.retry_backoff_s_max, PAUSE_SECONDS),
            setting("list_limit", self.list_limit, 1..=1_000),
            setting("list_limit_max", self.list_limit_max, 1..=1_000),
            setting("list_bytes_max", self.list_bytes_max, at_least(1_024)),
            setting("list_scan_max", self.list_scan_max, MANY),
            setting("progress_receipts_max", self.progress_receipts_max, at_least(0)),
            setting("receipt_body_bytes_max", self.receipt_body_bytes_max, RECEIPT_BYTES),
            // With none, no receipt could end an obligation.
            setting("receipt_parents_max", self.receipt_parents_max, 1..=1_000),
            setting("receipt_artifacts_max", self.receipt_artifacts_max, 0..=1_000_000),
            setting("sweep_interval_s", self.sweep_interval_s, SECONDS),
            setting("sweep_batch", self.sweep_batch, sweeps::LEASE_BATCHES),
            setting("requeue_delay_s_max", self.requeue_delay_s_max, PAUSE_SECONDS),
            setting("instance_forgotten_s", self.instance_forgotten_s, SECONDS),
            setting("chain_interval_s", self.chain_interval_s, SECONDS),
            setting("chain_batch", self.chain_batch, PAGES),
            setting("receipt_backlog", self.receipt_backlog, 1..=1_000_000_000),
            setting("archive_interval_s", self.archive_interval_s, SECONDS),
            setting("archive_batch", self.archive_batch, sweeps::ARCHIVE_BATCHES),
            setting("archive_after_s", self.archive_after_s, KEEP_SECONDS),
            setting("archive_after_s_max", self.archive_after_s_max, KEEP_SECONDS),
            setting("session_silence_s", self.session_silence_s, SECONDS),
            setting("contact_note_s", self.contact_note_s, PAUSE_SECONDS),
        ]
    }

    /// What could not work, in words for whoever wrote the file.
    pub fn check(&self) -> std::result::Result<(), String> {
        if let Some(name) = self.refused_switch() {
            return Err(format!("tasks.{name} cannot be turned off: leave it out or say true."));
        }
        check("tasks", &self.ranges())
    }

    /// The first switch that asks for behaviour there is no code for.
    fn refused_switch(&self) -> Option<&'static str> {
        let switches = [
            ("use_obligations_endpoint", self.use_obligations_endpoint),
            ("deprecate_legacy_endpoint", self.deprecate_legacy_endpoint),
            ("requeue_on_expiry_no_increment", self.requeue_on_expiry_no_increment),
        ];
        switches.into_iter().find(|(_, on)| !on).map(|(name, _)| name)
    }

    /// A lease that ended at or before this moment cannot be used any more.
    pub fn lease_horizon(&self, now: Time) -> Time {
        Time::from_micros(now.micros() - self.lease_grace_s * 1_000_000)
    }

    /// The end of a lease of `seconds`, or of the usual length; longer ones are cut.
    pub fn lease_end(&self, now: Time, seconds: Option<i64>) -> Time {
        now.after(seconds_of(seconds.unwrap_or(self.lease_ttl_s).min(self.lease_ttl_s_max)))
    }
}

pub(crate) fn seconds_of(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}
