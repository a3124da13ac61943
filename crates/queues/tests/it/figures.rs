//! The gauges of queues show what is in them, of all tenants.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use waybill_queues::Figures;
use waybill_queues::ops::delete_queue::DeleteQueue;
use waybill_queues::ops::send_message::SendMessage;
use waybill_testkit::both;
use waybill_testkit::stores::TestStore;

use crate::support::{body, call, jobs, ok, queue, receive, send, url};

both! {
    gauges_show_what_is_in_each_queue_of_each_tenant,
}

/// Remembers gauges by their labels.
#[derive(Default)]
pub struct Gauges(Mutex<BTreeMap<String, Arc<AtomicU64>>>);

impl Gauges {
    /// None where nothing was ever told.
    pub fn of(&self, account: &str, queue: &str, state: &str) -> Option<f64> {
        let gauges = self.0.lock().unwrap();
        gauges.get(&format!("{account} {queue} {state}")).map(|bits| f64::from_bits(bits.load(Ordering::Relaxed)))
    }
}

impl Recorder for Gauges {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        Counter::noop()
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        let labels: Vec<&str> = key.labels().map(|label| label.value()).collect();
        let gauge = Arc::clone(self.0.lock().unwrap().entry(labels.join(" ")).or_default());
        Gauge::from_arc(gauge)
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

async fn gauges_show_what_is_in_each_queue_of_each_tenant(on: TestStore) {
    const OURS: &str = "000000000000";
    let gauges = Gauges::default();
    let _guard = metrics::set_default_local_recorder(&gauges);
    let stranger = on.tenant("other").await.unwrap();
    jobs(&on, &[]).await;
    for text in ["a", "b", "c"] {
        send(&on, text).await;
    }
    receive(&on, 1).await;
    ok(&on, SendMessage { delay_seconds: Some(60), ..body("later") }).await;
    // More than one page of them.
    for number in 0..70 {
        ok(&on, queue(&format!("q{number:02}"), &[])).await;
    }
    ok(&on, SendMessage { queue_url: url("q69"), ..body("m") }).await;
    call(&on, &stranger, queue("jobs", &[])).await.unwrap();
    call(&on, &stranger, body("theirs")).await.unwrap();

    let mut figures = Figures::default();
    figures.measure(&on.stores).await.unwrap();
    let ours = |queue: &str| ["visible", "in_flight", "delayed"].map(|state| gauges.of(OURS, queue, state));
    assert_eq!(ours("jobs"), [Some(2.0), Some(1.0), Some(1.0)]);
    assert_eq!((ours("q00")[0], ours("q69")[0]), (Some(0.0), Some(1.0)));
    let theirs = waybill_queues::account_of(&stranger);
    assert_eq!(gauges.of(&theirs, "jobs", "visible"), Some(1.0));
    assert_eq!(gauges.of("_other", "_other", "visible"), None);

    receive(&on, 2).await;
    ok(&on, DeleteQueue { queue_url: url("q69") }).await;
    figures.measure(&on.stores).await.unwrap();
    assert_eq!(ours("jobs"), [Some(0.0), Some(3.0), Some(1.0)]);
    assert_eq!(ours("q69"), [Some(0.0); 3]);
}
