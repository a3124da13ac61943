//! The daemon's metrics: their names, what each counts, and one function per thing that is counted.

use std::sync::OnceLock;
use std::time::Duration;

use metrics::{Counter, Histogram, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use waybill_kernel::{Error, Result};

use crate::outbox::{Figures, Status};

const CONNECTED: &str = "waybill_daemon_connected";
const RECONNECTS: &str = "waybill_daemon_reconnects_total";
const LAG: &str = "waybill_daemon_lag_ms";
const OUTBOX_DEPTH: &str = "waybill_daemon_outbox_depth";
const OUTBOX_AGE: &str = "waybill_daemon_outbox_age_seconds";
const DEDUPE: &str = "waybill_daemon_dedupe_total";
const DISK: &str = "waybill_daemon_disk_pct";
const SENT: &str = "waybill_daemon_send_total";
const RECEIVED: &str = "waybill_daemon_recv_total";
const HOOKS: &str = "waybill_daemon_hook_invocations_total";
const HOOK_SECONDS: &str = "waybill_daemon_hook_duration_seconds";
const HOOKS_UNENFORCEABLE: &str = "waybill_daemon_hook_unenforceable_total";
const IPC_REQUESTS: &str = "waybill_daemon_ipc_request_total";
const IPC_SECONDS: &str = "waybill_daemon_ipc_duration_seconds";
const TOKEN_ROTATIONS: &str = "waybill_daemon_local_token_rotations_total";
const CLONES: &str = "waybill_daemon_clone_suspected_total";
const DECRYPT_ARCHIVED: &str = "waybill_daemon_decrypt_archived_total";
const DECRYPT_STALE: &str = "waybill_daemon_decrypt_stale_total";
const FORCE_EXPIRED: &str = "waybill_daemon_archive_force_expired_total";
const INVALID_INBOUND: &str = "waybill_daemon_invalid_inbound_total";
const HISTORY_PRUNED: &str = "waybill_daemon_dedupe_history_pruned_total";
const SECURITY: &str = "waybill_daemon_security_events_total";

/// From a tenth of a millisecond to ten seconds.
const SECONDS: &[f64] =
    &[0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// The recorder of the process, which all daemons in it share. Made by whoever asks first, before anything counts.
pub fn recorder() -> Result<PrometheusHandle> {
    static RECORDER: OnceLock<PrometheusHandle> = OnceLock::new();
    if let Some(handle) = RECORDER.get() {
        return Ok(handle.clone());
    }
    let recorder = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), SECONDS)
        .map_err(Error::internal)?
        .build_recorder();
    let handle = RECORDER.get_or_init(|| recorder.handle()).clone();
    // Somebody else's is kept: then this one shows nothing, and nothing else is wrong.
    if metrics::set_global_recorder(recorder).is_ok() {
        describe();
    }
    Ok(handle)
}

fn describe() {
    describe_gauge!(CONNECTED, "1 while the link to the broker is up");
    describe_counter!(RECONNECTS, "Connections to the broker after the first");
    describe_gauge!(LAG, "Milliseconds between a message's acceptance by the broker and its arrival, for the last one");
    describe_gauge!(OUTBOX_DEPTH, "Messages of the outbox, by status");
    describe_gauge!(OUTBOX_AGE, "Age of the oldest message that is not delivered");
    describe_counter!(DEDUPE, "Repeats that were recognised, by direction");
    describe_gauge!(DISK, "Percent of the budget that is used, by kind");
    describe_counter!(SENT, "Messages that the outbox has taken");
    describe_counter!(RECEIVED, "Messages that the inbox has taken");
    describe_counter!(HOOKS, "Hooks that were run, by hook and result");
    describe_histogram!(HOOK_SECONDS, "How long hooks ran");
    describe_counter!(HOOKS_UNENFORCEABLE, "Hooks that ran without the policy that was asked for");
    describe_counter!(IPC_REQUESTS, "Local requests, by endpoint and status");
    describe_histogram!(IPC_SECONDS, "Time from a local request's head to its answer");
    describe_counter!(TOKEN_ROTATIONS, "Rotations of the local token");
    describe_counter!(CLONES, "Starts in a folder that was made on another host");
    describe_counter!(DECRYPT_ARCHIVED, "Messages that only an archived key has opened");
    describe_counter!(DECRYPT_STALE, "Direct messages that no key at hand has opened");
    describe_counter!(FORCE_EXPIRED, "Archived keys that were dropped before their time, to make room");
    describe_counter!(INVALID_INBOUND, "What came from the broker and was refused, by reason");
    describe_counter!(HISTORY_PRUNED, "Messages whose repeat found that the broker has pruned them");
    describe_counter!(SECURITY, "Local requests that only a mistake or an attack makes, by kind");
}

pub fn connected(is_connected: bool) {
    gauge!(CONNECTED).set(f64::from(u8::from(is_connected)));
}

pub fn reconnected() {
    counter!(RECONNECTS).increment(1);
}

pub fn lag(lag: Duration) {
    gauge!(LAG).set(lag.as_secs_f64() * 1_000.0);
}

pub fn outbox(figures: &Figures, oldest: Duration) {
    for status in Status::ALL {
        gauge!(OUTBOX_DEPTH, "status" => status.as_str()).set(figures.of(status) as f64);
    }
    gauge!(OUTBOX_AGE).set(oldest.as_secs_f64());
}

/// `kind` is `outbox` or `inbox`.
pub fn disk(kind: &'static str, percent: u64) {
    gauge!(DISK, "kind" => kind).set(percent as f64);
}

/// A repeat that a local program has sent.
pub fn repeat_out() {
    counter!(DEDUPE, "direction" => "out").increment(1);
}

/// A repeat that the broker has sent.
pub fn repeat_in() {
    counter!(DEDUPE, "direction" => "in").increment(1);
}

pub fn accepted() {
    counter!(SENT).increment(1);
}

pub fn received() {
    counter!(RECEIVED).increment(1);
}

pub fn hook(name: String, result: &'static str, took: Duration) {
    counter!(HOOKS, "hook" => name, "result" => result).increment(1);
    histogram!(HOOK_SECONDS).record(took.as_secs_f64());
}

pub fn hook_unenforceable() {
    counter!(HOOKS_UNENFORCEABLE).increment(1);
}

/// `endpoint` is one of the program's own words, never the caller's path.
pub fn ipc_requests(endpoint: &'static str, status: u16) -> Counter {
    counter!(IPC_REQUESTS, "endpoint" => endpoint, "status" => class(status))
}

pub fn ipc_seconds() -> Histogram {
    histogram!(IPC_SECONDS)
}

const fn class(status: u16) -> &'static str {
    match status {
        ..300 => "2xx",
        300..400 => "3xx",
        400..500 => "4xx",
        500.. => "5xx",
    }
}

pub fn token_rotated() {
    counter!(TOKEN_ROTATIONS).increment(1);
}

pub fn clone_suspected() {
    counter!(CLONES).increment(1);
}

pub fn decrypt_archived() {
    counter!(DECRYPT_ARCHIVED).increment(1);
}

pub fn decrypt_stale() {
    counter!(DECRYPT_STALE).increment(1);
}

pub fn archive_force_expired(count: u64) {
    counter!(FORCE_EXPIRED).increment(count);
}

/// `reason` is one of the program's own words.
pub fn invalid_inbound(reason: &'static str) {
    counter!(INVALID_INBOUND, "reason" => reason).increment(1);
}

pub fn history_pruned() {
    counter!(HISTORY_PRUNED).increment(1);
}

pub fn security(kind: &'static str) {
    counter!(SECURITY, "kind" => kind).increment(1);
}
