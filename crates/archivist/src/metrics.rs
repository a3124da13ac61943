//! The metrics of the archive, each with its unit and meaning. The names behind the prefix are those of the existing tools.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use metrics::{counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};

const WBQ_DEPTH: &str = "waybill_mail_wbq_depth";
const WBQ_CAPACITY: &str = "waybill_mail_wbq_capacity";
const WBQ_PEAK_DEPTH: &str = "waybill_mail_wbq_peak_depth";
const WBQ_ENQUEUED: &str = "waybill_mail_wbq_enqueued_total";
const WBQ_DRAINED: &str = "waybill_mail_wbq_drained_total";
const WBQ_ERRORS: &str = "waybill_mail_wbq_errors_total";
const WBQ_FALLBACKS: &str = "waybill_mail_wbq_fallbacks_total";
const WBQ_LATENCY: &str = "waybill_mail_wbq_queue_latency_us";
const COMMITS: &str = "waybill_mail_lockfree_commits_total";
const COMMIT_ENQUEUED: &str = "waybill_mail_commit_enqueued_total";
const COMMIT_DRAINED: &str = "waybill_mail_commit_drained_total";
const COMMIT_LATENCY: &str = "waybill_mail_commit_queue_latency_us";
const COMMIT_ERRORS: &str = "waybill_mail_commit_errors_total";
const COMMIT_FALLBACKS: &str = "waybill_mail_commit_sync_fallbacks_total";
const COMMIT_PENDING: &str = "waybill_mail_commit_pending_requests";
const COMMIT_BATCH: &str = "waybill_mail_commit_batch_size_last";
const GIT_LATENCY: &str = "waybill_mail_git_commit_latency_us";
const LOCK_RETRIES: &str = "waybill_mail_git_index_lock_retries_total";
const LOCK_FAILURES: &str = "waybill_mail_git_index_lock_failures_total";
const NEEDS_REINDEX: &str = "waybill_mail_needs_reindex_total";
const DISK_PRESSURE: &str = "waybill_mail_disk_pressure_level";
const DISK_FREE: &str = "waybill_mail_disk_effective_free_bytes";
const LAG: &str = "waybill_mail_archive_lag_seconds";

static PEAK: AtomicI64 = AtomicI64::new(0);
/// Rows that were written since the start.
static DRAINED: AtomicU64 = AtomicU64::new(0);

pub(crate) fn describe(capacity: i64) {
    describe_gauge!(WBQ_DEPTH, "Rows that the archive of mail has not written yet");
    describe_gauge!(WBQ_CAPACITY, "Unwritten rows at which the archive counts as full");
    describe_gauge!(WBQ_PEAK_DEPTH, "The most unwritten rows seen since the start");
    describe_counter!(WBQ_ENQUEUED, "Rows that were found to be written, those of before the start included");
    describe_counter!(WBQ_DRAINED, "Rows that were written to the archive");
    describe_counter!(WBQ_ERRORS, "Windows that could not be written and are tried again");
    describe_counter!(WBQ_FALLBACKS, "Rows that were passed over because of a full disk or of failures");
    describe_histogram!(WBQ_LATENCY, "From the commit of a row to that of the archive, in microseconds");
    describe_counter!(COMMITS, "Commits to repositories of the archive, all of them without an index");
    describe_counter!(COMMIT_ENQUEUED, "Windows that were to be written");
    describe_counter!(COMMIT_DRAINED, "Windows that were written");
    describe_histogram!(COMMIT_LATENCY, "How long windows waited for a thread that writes them, in microseconds");
    describe_counter!(COMMIT_ERRORS, "Windows that were given up for a while after all tries");
    describe_counter!(COMMIT_FALLBACKS, "Windows that were written again after whoever wrote them had died");
    describe_gauge!(COMMIT_PENDING, "Windows that are being written");
    describe_gauge!(COMMIT_BATCH, "Rows and changes in the last commit");
    describe_histogram!(GIT_LATENCY, "Time of writing a window, files and commit, in microseconds");
    describe_counter!(LOCK_RETRIES, "Windows that waited for a lock of a git program");
    describe_counter!(LOCK_FAILURES, "Windows that were given up for a while because of a lock of a git program");
    describe_gauge!(NEEDS_REINDEX, "Rows that were passed over, and messages that the probe found without a file");
    describe_gauge!(DISK_PRESSURE, "Of the archive's disk: 0 none, 1 warning, 2 critical, nothing is written");
    describe_gauge!(DISK_FREE, "Free bytes on the archive's disk");
    describe_gauge!(LAG, "Age of the oldest row that is not written");
    gauge!(WBQ_CAPACITY).set(capacity as f64);
    gauge!(NEEDS_REINDEX).set(0);
    depth(0, Duration::ZERO);
}

pub(crate) fn depth(rows: i64, lag: Duration) {
    gauge!(WBQ_DEPTH).set(rows as f64);
    gauge!(WBQ_PEAK_DEPTH).set(PEAK.fetch_max(rows, Ordering::Relaxed).max(rows) as f64);
    gauge!(LAG).set(lag.as_secs_f64());
    // Rows come by transactions of any process: those that are left and those that went are all there were. A counter that
    // is told less than before stays as it is.
    let enqueued = DRAINED.load(Ordering::Relaxed).saturating_add_signed(rows);
    // A series begins with what it counts.
    if enqueued > 0 {
        counter!(WBQ_ENQUEUED).absolute(enqueued);
    }
}

pub(crate) fn needs_reindex(count: u64) {
    gauge!(NEEDS_REINDEX).set(count as f64);
}

pub(crate) fn disk(level: u8, free: u64) {
    gauge!(DISK_PRESSURE).set(f64::from(level));
    gauge!(DISK_FREE).set(free as f64);
}

pub(crate) fn pending(count: usize) {
    gauge!(COMMIT_PENDING).set(count as f64);
}

pub(crate) fn drained(latencies: impl Iterator<Item = Duration>) {
    let mut rows = 0;
    for latency in latencies {
        histogram!(WBQ_LATENCY).record(latency.as_micros() as f64);
        rows += 1;
    }
    counter!(WBQ_DRAINED).increment(rows);
    DRAINED.fetch_add(rows, Ordering::Relaxed);
}

pub(crate) fn window_begun() {
    counter!(COMMIT_ENQUEUED).increment(1);
}

/// A thread has taken it.
pub(crate) fn window_taken(waited: Duration) {
    histogram!(COMMIT_LATENCY).record(waited.as_micros() as f64);
}

pub(crate) fn window_ended() {
    counter!(COMMIT_DRAINED).increment(1);
}

pub(crate) fn committed(size: usize, took: Duration) {
    counter!(COMMITS).increment(1);
    gauge!(COMMIT_BATCH).set(size as f64);
    histogram!(GIT_LATENCY).record(took.as_micros() as f64);
}

pub(crate) fn failed(locked: bool) {
    counter!(WBQ_ERRORS).increment(1);
    if locked {
        counter!(LOCK_RETRIES).increment(1);
    }
}

pub(crate) fn given_up(locked: bool) {
    counter!(COMMIT_ERRORS).increment(1);
    if locked {
        counter!(LOCK_FAILURES).increment(1);
    }
}

pub(crate) fn passed_over(rows: u64) {
    counter!(WBQ_FALLBACKS).increment(rows);
}

pub(crate) fn worker_died() {
    counter!(COMMIT_FALLBACKS).increment(1);
}
