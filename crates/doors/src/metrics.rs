//! The doors' metric names, and handles made once so that counting costs no look-up. Not before they count: a series of
//! nothing but zeros says nothing, and there would be many.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use metrics::{Counter, Gauge, describe_counter, describe_gauge, describe_histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tokio_util::sync::CancellationToken;
use waybill_kernel::{Code, Error, OperationSpec, Result};

const CALLS: &str = "waybill_operation_calls_total";
const CAPS_REFUSED: &str = "waybill_caps_refused_total";
const HTTP_SECONDS: &str = "waybill_http_request_duration_seconds";
const HTTP_REQUESTS: &str = "waybill_http_requests_total";
const HTTP_OPEN: &str = "waybill_http_requests_open";
const RSS: &str = "waybill_memory_rss_bytes";
pub(crate) const CONNECTIONS: &str = "waybill_http_connections_open";
pub(crate) const CONNECTIONS_CLOSED: &str = "waybill_http_connections_closed_total";

/// From a quarter of a millisecond to ten seconds.
const SECONDS: &[f64] =
    &[0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
const OPERATIONS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0];

const UPKEEP_INTERVAL: Duration = Duration::from_secs(1);

/// The recorder of the whole program; installed once, before anything counts.
pub fn install() -> Result<PrometheusHandle> {
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), SECONDS)
        .and_then(|builder| builder.set_buckets_for_metric(Matcher::Suffix("_operations".to_owned()), OPERATIONS))
        .and_then(PrometheusBuilder::install_recorder)
        .map_err(Error::internal)?;
    describe_counter!(CALLS, "Calls of each operation, by the code of their answer");
    describe_counter!(
        CAPS_REFUSED,
        "Calls refused because there is as much of something as there may be, by the error's code"
    );
    describe_counter!(HTTP_REQUESTS, "HTTP requests answered, by status class");
    describe_histogram!(HTTP_SECONDS, "Time from a request's headers to its answer, waits included");
    describe_gauge!(HTTP_OPEN, "HTTP requests of callers whose answers have not been read to their end");
    describe_gauge!(RSS, "Memory of the process that is in use, by the second");
    describe_gauge!(CONNECTIONS, "Open connections");
    describe_counter!(
        CONNECTIONS_CLOSED,
        "Connections closed to make room, for answers nobody reads, or refused for want of room"
    );
    Ok(handle)
}

/// What histograms were told is kept one by one until it is added up: at every look at the figures, and here, or a server
/// that nobody looks at would grow without end.
pub async fn keep(handle: PrometheusHandle, stopping: CancellationToken) {
    loop {
        tokio::select! {
            () = stopping.cancelled() => return,
            () = tokio::time::sleep(UPKEEP_INTERVAL) => handle.run_upkeep(),
        }
        if let Some(bytes) = resident_bytes() {
            metrics::gauge!(RSS).set(bytes as f64);
        }
    }
}

/// None where the system does not say.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let size = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(size.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

/// One counter per operation and outcome: names are written in the program, so there are only so many.
#[derive(Default)]
pub(crate) struct OperationMeters(RwLock<HashMap<Counted, Counter>>);

/// Domain, name and outcome.
type Counted = (&'static str, &'static str, Option<Code>);

impl OperationMeters {
    /// `id` is asked for once per counter: the operation's name among those of all domains.
    pub(crate) fn count(&self, spec: &OperationSpec, outcome: Option<Code>, id: impl FnOnce() -> Cow<'static, str>) {
        let counted = (spec.domain, spec.name, outcome);
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner).get(&counted).cloned();
        let counter = known.unwrap_or_else(|| {
            let code = outcome.map_or("ok", |code| code.entry().code);
            let first = metrics::counter!(CALLS, "operation" => id(), "code" => code);
            self.0.write().unwrap_or_else(PoisonError::into_inner).insert(counted, first.clone());
            first
        });
        counter.increment(1);
        // Seldom, so that a look-up by name is no matter.
        if let Some(cap) = outcome.filter(|code| code.is_cap()) {
            metrics::counter!(CAPS_REFUSED, "cap" => cap.entry().code).increment(1);
        }
    }
}

const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

#[derive(Clone)]
pub(crate) struct HttpMeters {
    classes: Arc<[OnceLock<Counter>; CLASSES.len()]>,
    seconds: metrics::Histogram,
    pub(crate) open: Gauge,
}

impl HttpMeters {
    pub(crate) fn new() -> Self {
        Self { classes: Arc::default(), seconds: metrics::histogram!(HTTP_SECONDS), open: metrics::gauge!(HTTP_OPEN) }
    }

    pub(crate) fn count(&self, status: u16, took: std::time::Duration) {
        let class = usize::from(status / 100).saturating_sub(1);
        if let (Some(counter), Some(name)) = (self.classes.get(class), CLASSES.get(class)) {
            counter.get_or_init(|| metrics::counter!(HTTP_REQUESTS, "status" => *name)).increment(1);
        }
        self.seconds.record(took.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_of_the_process_is_known() {
        assert!(resident_bytes().is_some_and(|bytes| bytes > 1 << 20), "{:?}", resident_bytes());
    }
}
