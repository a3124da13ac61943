//! The store's metric names, each with its unit and meaning.

use metrics::{describe_counter, describe_gauge, describe_histogram};

pub(crate) const OPS: &str = "waybill_store_ops_total";
pub(crate) const COMMITS: &str = "waybill_store_commits_total";
pub(crate) const FSYNCS: &str = "waybill_store_fsyncs_total";
pub(crate) const WRITER_BUSY: &str = "waybill_store_writer_busy_nanoseconds_total";
pub(crate) const BATCH: &str = "waybill_store_batch_operations";
pub(crate) const VOIDED: &str = "waybill_store_voided_batches_total";
pub(crate) const RETRIES: &str = "waybill_store_retries_total";
pub(crate) const WAL_BYTES: &str = "waybill_store_wal_bytes";
pub(crate) const CLOCK_OFFSET: &str = "waybill_clock_offset_microseconds";

pub(crate) fn describe() {
    describe_counter!(OPS, "Write operations committed");
    describe_counter!(COMMITS, "Transactions committed");
    describe_counter!(FSYNCS, "Times the database was told to reach the disk before an answer");
    describe_counter!(WRITER_BUSY, "Nanoseconds the SQLite writer ran operations, without its waits for the disk");
    describe_histogram!(BATCH, "Operations in one group commit");
    describe_counter!(VOIDED, "Group commits that SQLite ended early and that were run again one by one");
    describe_counter!(RETRIES, "Transactions run again after a serialization failure or a lost connection");
    describe_gauge!(WAL_BYTES, "Size of SQLite's write-ahead log");
    describe_gauge!(CLOCK_OFFSET, "How far the wall clock is ahead of the program's clock");
}
