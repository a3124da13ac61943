//! The store's metric names, each with its unit and meaning.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use metrics::{Counter, Histogram, counter, describe_counter, describe_gauge, describe_histogram};

pub(crate) const OPS: &str = "waybill_store_ops_total";
pub(crate) const OPERATION_SECONDS: &str = "waybill_operation_duration_seconds";
pub(crate) const COMMITS: &str = "waybill_store_commits_total";
pub(crate) const FSYNCS: &str = "waybill_store_fsyncs_total";
pub(crate) const WRITER_BUSY: &str = "waybill_store_writer_busy_nanoseconds_total";
pub(crate) const BATCH: &str = "waybill_store_batch_operations";
pub(crate) const VOIDED: &str = "waybill_store_voided_batches_total";
pub(crate) const RETRIES: &str = "waybill_store_retries_total";
pub(crate) const REOPENED: &str = "waybill_store_reopened_total";
pub(crate) const WAL_BYTES: &str = "waybill_store_wal_bytes";
pub(crate) const POOL_LATENCY: &str = "waybill_pool_acquire_latency_us";
pub(crate) const POOL_ACQUIRES: &str = "waybill_pool_acquires_total";
pub(crate) const POOL_ERRORS: &str = "waybill_pool_acquire_errors_total";
pub(crate) const POOL_ACTIVE: &str = "waybill_pool_active_connections";
pub(crate) const INTEGRITY_FAILURES: &str = "waybill_integrity_failures_total";
pub(crate) const CLOCK_OFFSET: &str = "waybill_clock_offset_microseconds";

pub(crate) const SWEEP_RUNS: &str = "waybill_sweep_runs_total";
pub(crate) const SWEEP_ROWS: &str = "waybill_sweep_rows_total";
pub(crate) const SWEEP_FAILURES: &str = "waybill_sweep_failures_total";
pub(crate) const SWEEP_BATCH: &str = "waybill_sweep_batch_duration_seconds";
pub(crate) const SWEEP_LONG_BATCHES: &str = "waybill_sweep_long_batches_total";
pub(crate) const SWEEP_LAG: &str = "waybill_sweep_lag_seconds";
pub(crate) const SWEEP_BEHIND: &str = "waybill_sweep_behind_seconds";
pub(crate) const FEED_SETTLE: &str = "waybill_feed_settle_duration_seconds";
pub(crate) const FEED_UNSETTLED: &str = "waybill_feed_unsettled_total";
pub(crate) const FEED_LAG: &str = "waybill_feed_lag_transactions";
pub(crate) const JOBS: &str = "waybill_job_attempts_total";
pub(crate) const JOB_LAG: &str = "waybill_job_lag_seconds";

pub(crate) fn describe() {
    describe_counter!(OPS, "Write operations committed");
    describe_histogram!(
        OPERATION_SECONDS,
        "Time in the queue and the transaction of each operation's answer (lease_next: of a claim), without waiting for \
         something to come"
    );
    describe_counter!(COMMITS, "Transactions committed");
    describe_counter!(FSYNCS, "Times the database was told to reach the disk before an answer");
    describe_counter!(WRITER_BUSY, "Nanoseconds the SQLite writer ran operations, without its waits for the disk");
    describe_histogram!(BATCH, "Operations in one group commit");
    describe_counter!(VOIDED, "Group commits that SQLite ended early and that were run again one by one");
    describe_counter!(RETRIES, "Transactions run again after a serialization failure or a lost connection");
    describe_counter!(REOPENED, "Times the SQLite database was opened again and verified after a failed commit");
    describe_gauge!(WAL_BYTES, "Size of SQLite's write-ahead log");
    describe_histogram!(POOL_LATENCY, "How long calls waited for a reader, the writer or a lane, in microseconds");
    describe_counter!(POOL_ACQUIRES, "Calls that got a connection");
    describe_counter!(POOL_ERRORS, "Calls that got none");
    describe_gauge!(POOL_ACTIVE, "Connections that run something");
    describe_counter!(INTEGRITY_FAILURES, "Checks that found the database damaged");
    for tools in TOOLS {
        describe_counter!(tools.calls, "Calls of each operation, by any door");
        describe_counter!(tools.errors, "Of them, those that were answered with an error");
        describe_histogram!(tools.latency, "Time of each call, with its wait for the database, in microseconds");
    }
    describe_gauge!(CLOCK_OFFSET, "How far the wall clock is ahead of the program's clock");
    describe_counter!(SWEEP_RUNS, "Runs of each sweep on this node");
    describe_counter!(SWEEP_ROWS, "Rows each sweep has done on this node");
    describe_counter!(SWEEP_FAILURES, "Runs of each sweep that failed on this node");
    describe_histogram!(SWEEP_BATCH, "Time in one batch's transaction, without its commit");
    describe_counter!(SWEEP_LONG_BATCHES, "Batches that took longer than their sweep wants");
    describe_gauge!(SWEEP_LAG, "How late each sweep's latest run on this node began");
    describe_gauge!(
        SWEEP_BEHIND,
        "How long the runs of each sweep and feed have ended before their work did; 0 when it keeps up"
    );
    describe_histogram!(
        FEED_SETTLE,
        "How long lists waited for what was committed before them to come into their feed"
    );
    describe_counter!(FEED_UNSETTLED, "Lists that waited in vain: older transactions stayed open");
    describe_gauge!(FEED_LAG, "Transactions begun since the oldest that is still open, whose rows feeds withhold");
    describe_counter!(JOBS, "Attempts at jobs, by kind and how they ended");
    describe_gauge!(JOB_LAG, "How long the first job of a kind that is not yet taken has been due");
}

/// How often an operation was called since the start, and how long that took together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationFigures {
    pub name: &'static str,
    pub calls: u64,
    pub errors: u64,
    pub total_us: u64,
}

/// What the calls of a domain are counted as besides, for those who know its tools by other servers. The label is the name of
/// the operation.
struct Tools {
    domain: &'static str,
    calls: &'static str,
    errors: &'static str,
    latency: &'static str,
}

const TOOLS: &[Tools] = &[Tools {
    domain: "mail",
    calls: "waybill_mail_tool_calls_total",
    errors: "waybill_mail_tool_errors_total",
    latency: "waybill_mail_tool_latency_us",
}];

/// The same of one operation.
struct ToolMeter {
    calls: Counter,
    errors: Counter,
    latency: Histogram,
}

impl ToolMeter {
    fn of(domain: &str, operation: &'static str) -> Option<Self> {
        let tools = TOOLS.iter().find(|tools| tools.domain == domain)?;
        Some(Self {
            calls: counter!(tools.calls, "tool" => operation),
            errors: counter!(tools.errors, "tool" => operation),
            latency: metrics::histogram!(tools.latency, "tool" => operation),
        })
    }

    fn record(&self, took_us: u64, failed: bool) {
        self.calls.increment(1);
        self.errors.increment(u64::from(failed));
        self.latency.record(took_us as f64);
    }
}

/// The meters of one operation.
pub(crate) struct Meter {
    seconds: Histogram,
    tool: Option<ToolMeter>,
    calls: AtomicU64,
    errors: AtomicU64,
    total_us: AtomicU64,
}

impl Meter {
    pub(crate) fn record(&self, took: Duration, failed: bool) {
        self.seconds.record(took.as_secs_f64());
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.errors.fetch_add(u64::from(failed), Ordering::Relaxed);
        let took = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.total_us.fetch_add(took, Ordering::Relaxed);
        if let Some(tool) = &self.tool {
            tool.record(took, failed);
        }
    }
}

/// Each operation's, kept so that a call does not look its histogram up by name and label: names are written in the
/// program, so there are only so many. By domain and name.
#[derive(Default)]
pub(crate) struct OperationTimes(RwLock<HashMap<(&'static str, &'static str), Arc<Meter>>>);

impl OperationTimes {
    pub(crate) fn of(&self, domain: &'static str, operation: &'static str) -> Arc<Meter> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner).get(&(domain, operation)).cloned();
        known.unwrap_or_else(|| {
            let made = Arc::new(Meter {
                seconds: metrics::histogram!(OPERATION_SECONDS, "operation" => operation),
                tool: ToolMeter::of(domain, operation),
                calls: AtomicU64::new(0),
                errors: AtomicU64::new(0),
                total_us: AtomicU64::new(0),
            });
            let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(all.entry((domain, operation)).or_insert(made))
        })
    }

    pub(crate) fn figures(&self, domain: &str) -> Vec<OperationFigures> {
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let of = |((_, name), meter): (&(&'static str, &'static str), &Arc<Meter>)| OperationFigures {
            name,
            calls: meter.calls.load(Ordering::Relaxed),
            errors: meter.errors.load(Ordering::Relaxed),
            total_us: meter.total_us.load(Ordering::Relaxed),
        };
        all.iter().filter(|((of, _), _)| *of == domain).map(of).collect()
    }
}
