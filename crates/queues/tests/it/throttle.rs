//! Queues that are held to a budget of their own: one case per rule, where a store is involved.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use waybill_kernel::{Code, Error};
use waybill_queues::Limiter;
use waybill_queues::ops::delete_queue::DeleteQueue;
use waybill_queues::ops::get_queue_attributes::GetQueueAttributes;
use waybill_queues::ops::receive_message::ReceiveMessage;
use waybill_queues::ops::send_message::SendMessage;
use waybill_queues::ops::send_message_batch::{SendEntry, SendMessageBatch};
use waybill_queues::ops::set_queue_attributes::SetQueueAttributes;
use waybill_store::effects::Runner;
use waybill_testkit::both;
use waybill_testkit::stores::{TestStore, readable};

use crate::support::{
    FAILED, JOBS, attributes_of, body, call, jobs, map, ok, pass, purge, queue, receive, refusal, refused, rows, send,
    url,
};

both! {
    rule_01_a_queue_without_a_throttle_is_never_refused,
    rule_02_the_six_attributes_are_set_shown_and_kept,
    rule_03_sends_and_receives_share_the_default_bucket,
    rule_05_a_batch_passes_whole_or_not_at_all,
    rule_06_what_is_judged_is_the_pair_after_the_change,
    rule_07_ten_pass_and_then_one_each_second,
    rule_08_a_refused_call_reaches_no_transaction_and_writes_nothing,
    rule_09_a_refusal_names_the_queue_and_its_bucket,
    rule_10_the_wait_is_for_the_whole_batch,
    rule_11_each_queue_of_each_tenant_has_its_own_bucket_for_each_action,
    rule_12_another_queue_of_the_same_name_starts_full_and_a_purged_one_does_not,
    rule_13_a_change_by_another_process_is_found_by_the_next_call,
    rule_14_only_another_throttle_fills_the_buckets_again,
    rule_15_of_many_callers_at_once_exactly_the_capacity_pass,
    rule_16_the_sweep_runs_beside_the_server_and_ends_with_it,
    rule_17_a_throttle_that_is_named_is_compared,
    rule_18_a_gauge_tells_each_decision_and_goes_with_the_throttle,
    rule_20_a_fifo_queue_has_one_bucket_for_all_of_its_groups,
}

/// Ten sends, and one more each second.
pub const SENDS: [(&str, &str); 2] = [("ThrottleSendCapacity", "10"), ("ThrottleSendRefillPerSecond", "1")];
/// So slow that no test sees it.
const SLOW: &str = "0.0001";

pub fn set(attributes: &[(&str, &str)]) -> SetQueueAttributes {
    SetQueueAttributes { queue_url: JOBS.to_owned(), attributes: map(attributes) }
}

pub fn look() -> ReceiveMessage {
    ReceiveMessage { queue_url: JOBS.to_owned(), wait_time_seconds: Some(0), ..ReceiveMessage::default() }
}

pub fn batch(messages: usize) -> SendMessageBatch {
    let entry = |id: usize| SendEntry { id: id.to_string(), message_body: "m".to_owned(), ..SendEntry::default() };
    let entries = (0..messages).map(entry).collect();
    SendMessageBatch { queue_url: JOBS.to_owned(), entries, ..SendMessageBatch::default() }
}

/// What the figures say that a bucket of the queue `jobs` has left.
pub fn left(on: &TestStore, action: &str) -> Option<f64> {
    left_in(on, "jobs", action)
}

pub fn left_in(on: &TestStore, queue: &str, action: &str) -> Option<f64> {
    let mut text = String::new();
    on.store.settings().get::<Limiter>().write_figures(&mut text);
    let wanted = format!("queue=\"{queue}\",action=\"{action}\"}} ");
    let line = text.lines().find(|line| line.contains(&wanted))?;
    line.rsplit(' ').next().unwrap().parse().ok()
}

pub async fn send_many(on: &TestStore, messages: usize) {
    for _ in 0..messages {
        send(on, "m").await;
    }
}

fn wait_of(error: &Error) -> Option<u64> {
    error.detail("retry_after").and_then(serde_json::Value::as_u64)
}

async fn rule_01_a_queue_without_a_throttle_is_never_refused(on: TestStore) {
    jobs(&on, &[]).await;
    for _ in 0..5 {
        assert_eq!(ok(&on, batch(10)).await.successful.len(), 10);
    }
    receive(&on, 10).await;
    let mut text = String::new();
    on.store.settings().get::<Limiter>().write_figures(&mut text);
    assert_eq!(text, "", "no bucket was made");
}

async fn rule_02_the_six_attributes_are_set_shown_and_kept(on: TestStore) {
    let all = [
        ("ThrottleDefaultCapacity", "30"),
        ("ThrottleDefaultRefillPerSecond", "0.5"),
        ("ThrottleRecvCapacity", "20.25"),
        ("ThrottleRecvRefillPerSecond", "2"),
        ("ThrottleSendCapacity", "10"),
        ("ThrottleSendRefillPerSecond", "1"),
    ];
    let shown = async |names: &[&str]| {
        let mut shown = attributes_of(&on, "jobs", names).await;
        shown.retain(|name, _| name.starts_with("Throttle"));
        shown
    };
    jobs(&on, &[("ThrottleSendCapacity", "1e1"), ("ThrottleSendRefillPerSecond", "1.0")]).await;
    assert_eq!(shown(&["All"]).await, map(&SENDS), "only pairs that are set");
    ok(&on, set(&all)).await;
    assert_eq!(shown(&["All"]).await, map(&all));
    assert_eq!(shown(&["ThrottleRecvCapacity"]).await, map(&all[2..3]));
    ok(&on, set(&[("ThrottleSendCapacity", "0"), ("ThrottleSendRefillPerSecond", "0")])).await;
    assert_eq!(shown(&["All"]).await, map(&all[..4]));
    assert_eq!(shown(&["ThrottleSendCapacity"]).await, map(&[]));
    // In the queue's row: whoever serves it next finds them there.
    let stored = on.rows("SELECT attributes FROM queues").await.unwrap();
    assert_eq!(serde_json::from_str::<serde_json::Value>(stored[0].text(0).unwrap()).unwrap(), {
        serde_json::to_value(map(&all[..4])).unwrap()
    });
    for unknown in ["ThrottleNobodyCapacity", "ThrottleSend", "throttleSendCapacity"] {
        assert_eq!(refusal(&on, set(&[(unknown, "10")])).await, Code::InvalidAttributeName, "{unknown}");
        assert_eq!(refusal(&on, queue("other", &[(unknown, "10")])).await, Code::InvalidAttributeName, "{unknown}");
        let asked = GetQueueAttributes { queue_url: JOBS.to_owned(), attribute_names: vec![unknown.to_owned()] };
        assert_eq!(refusal(&on, asked).await, Code::InvalidAttributeName, "{unknown}");
    }
}

async fn rule_03_sends_and_receives_share_the_default_bucket(on: TestStore) {
    jobs(&on, &[("ThrottleDefaultCapacity", "10"), ("ThrottleDefaultRefillPerSecond", SLOW)]).await;
    for _ in 0..5 {
        send(&on, "m").await;
        ok(&on, look()).await;
    }
    for error in [refused(&on, body("m")).await, refused(&on, look()).await] {
        assert_eq!(error.code(), Code::Throttling);
        assert!(error.message().contains("\"*\""), "{}", error.message());
    }
    // A pair of its own takes sends out of it.
    ok(&on, set(&[("ThrottleSendCapacity", "20"), ("ThrottleSendRefillPerSecond", SLOW)])).await;
    send_many(&on, 20).await;
    for _ in 0..10 {
        ok(&on, look()).await;
    }
    assert!(refused(&on, body("m")).await.message().contains("\"Send\""));
    assert!(refused(&on, look()).await.message().contains("\"*\""));
}

async fn rule_05_a_batch_passes_whole_or_not_at_all(on: TestStore) {
    jobs(&on, &[("ThrottleSendCapacity", "10"), ("ThrottleSendRefillPerSecond", SLOW)]).await;
    send(&on, "m").await;
    assert_eq!(refusal(&on, batch(10)).await, Code::Throttling);
    assert_eq!((rows(&on).await, left(&on, "send").map(f64::floor)), ((1, 0), Some(9.0)), "it took nothing");
    assert_eq!(ok(&on, batch(9)).await.successful.len(), 9);
    assert_eq!(refusal(&on, batch(1)).await, Code::Throttling);
}

async fn rule_06_what_is_judged_is_the_pair_after_the_change(on: TestStore) {
    jobs(&on, &SENDS).await;
    for bad in [
        &[("ThrottleSendCapacity", "9")][..],
        &[("ThrottleSendRefillPerSecond", "11")],
        &[("ThrottleSendRefillPerSecond", "0")],
        &[("ThrottleRecvCapacity", "10")],
        &[("ThrottleDefaultCapacity", "5"), ("ThrottleDefaultRefillPerSecond", "1")],
        &[("ThrottleRecvCapacity", "1e9"), ("ThrottleRecvRefillPerSecond", "1")],
        &[("ThrottleRecvCapacity", "NaN"), ("ThrottleRecvRefillPerSecond", "1")],
    ] {
        assert_eq!(refusal(&on, set(bad)).await, Code::InvalidAttributeValue, "{bad:?}");
        let mut made = bad.to_vec();
        made.extend(SENDS.iter().filter(|(name, _)| bad.iter().all(|(other, _)| other != name)));
        assert_eq!(refusal(&on, queue("other", &made)).await, Code::InvalidAttributeValue, "{bad:?}");
    }
    // Each of the two alone would be refused.
    ok(&on, set(&[("ThrottleSendCapacity", "100"), ("ThrottleSendRefillPerSecond", "50")])).await;
    ok(&on, set(&[("ThrottleSendCapacity", "20"), ("ThrottleSendRefillPerSecond", "5")])).await;
    ok(&on, set(&[("ThrottleSendCapacity", "30")])).await;
    ok(&on, set(&[("ThrottleSendCapacity", "0"), ("ThrottleSendRefillPerSecond", "0")])).await;
    assert_eq!(on.rows("SELECT attributes FROM queues").await.unwrap()[0].text(0).unwrap(), "{}");
    for _ in 0..3 {
        ok(&on, batch(10)).await;
    }
}

async fn rule_07_ten_pass_and_then_one_each_second(on: TestStore) {
    jobs(&on, &SENDS).await;
    send_many(&on, 10).await;
    assert_eq!(wait_of(&refused(&on, body("m")).await), Some(1));
    // Half a second more than two: the clock may be some microseconds behind.
    on.time.pass(Duration::from_millis(2_500));
    send_many(&on, 2).await;
    assert_eq!(refusal(&on, body("m")).await, Code::Throttling);
    pass(&on, 1_000);
    send_many(&on, 10).await;
    assert_eq!(refusal(&on, body("m")).await, Code::Throttling);
}

async fn rule_08_a_refused_call_reaches_no_transaction_and_writes_nothing(on: TestStore) {
    jobs(&on, &[("ThrottleSendCapacity", "10"), ("ThrottleSendRefillPerSecond", SLOW)]).await;
    send_many(&on, 10).await;
    for _ in 0..3 {
        assert_eq!(refusal(&on, body("m")).await, Code::Throttling);
    }
    assert_eq!(rows(&on).await, (10, 0));
    // Also when nobody has confirmed for long that the limit is what it was: then the transaction says so.
    pass(&on, 60);
    assert_eq!(refusal(&on, body("m")).await, Code::Throttling);
    assert_eq!(rows(&on).await, (10, 0));
    // With the database gone the answer is still the same, so nobody has asked it.
    let store = on.store.clone();
    tokio::task::spawn_blocking(move || store.close()).await.unwrap();
    assert_eq!(refusal(&on, body("m")).await, Code::Throttling);
    assert_ne!(refusal(&on, look()).await, Code::Throttling);
}

async fn rule_09_a_refusal_names_the_queue_and_its_bucket(on: TestStore) {
    jobs(&on, &[("ThrottleRecvCapacity", "10"), ("ThrottleRecvRefillPerSecond", SLOW)]).await;
    for _ in 0..10 {
        ok(&on, look()).await;
    }
    let error = refused(&on, look()).await;
    assert_eq!((error.code(), wait_of(&error)), (Code::Throttling, Some(3_600)));
    assert!(error.message().contains("\"jobs\"") && error.message().contains("\"Receive\""), "{}", error.message());
    let sqs = error.code().entry().sqs;
    assert_eq!((sqs.shape, sqs.query_code, sqs.http), ("Throttling", "Throttling", 400));
}

async fn rule_10_the_wait_is_for_the_whole_batch(on: TestStore) {
    jobs(&on, &SENDS).await;
    ok(&on, batch(10)).await;
    assert_eq!(wait_of(&refused(&on, batch(10)).await), Some(10));
    assert_eq!(wait_of(&refused(&on, body("m")).await), Some(1));
    ok(&on, set(&[("ThrottleSendRefillPerSecond", "0.1")])).await;
    ok(&on, batch(10)).await;
    assert_eq!(wait_of(&refused(&on, body("m")).await), Some(10));
    assert_eq!(wait_of(&refused(&on, batch(10)).await), Some(100));
}

async fn rule_11_each_queue_of_each_tenant_has_its_own_bucket_for_each_action(on: TestStore) {
    let limits = [
        ("ThrottleSendCapacity", "10"),
        ("ThrottleSendRefillPerSecond", SLOW),
        ("ThrottleRecvCapacity", "10"),
        ("ThrottleRecvRefillPerSecond", SLOW),
    ];
    jobs(&on, &limits).await;
    ok(&on, queue("other", &limits)).await;
    let stranger = on.tenant("other").await.unwrap();
    call(&on, &stranger, queue("jobs", &limits)).await.map_err(readable).unwrap();
    send_many(&on, 10).await;
    assert_eq!(refusal(&on, body("m")).await, Code::Throttling);
    // The same action on another queue, another action on this one, the same queue of another tenant.
    let elsewhere = SendMessageBatch { queue_url: url("other"), ..batch(10) };
    assert_eq!(ok(&on, elsewhere).await.successful.len(), 10);
    assert_eq!(receive(&on, 10).await.len(), 10);
    let theirs = call(&on, &stranger, SendMessageBatch { queue_url: "jobs".to_owned(), ..batch(10) }).await;
    assert_eq!(theirs.map_err(readable).unwrap().successful.len(), 10);
    assert_eq!((left(&on, "send").map(f64::floor), left(&on, "receive")), (Some(0.0), Some(9.0)));
}

async fn rule_12_another_queue_of_the_same_name_starts_full_and_a_purged_one_does_not(on: TestStore) {
    let slow = [("ThrottleSendCapacity", "10"), ("ThrottleSendRefillPerSecond", SLOW)];
    jobs(&on, &slow).await;
    send_many(&on, 10).await;
    ok(&on, purge()).await;
    assert_eq!(refusal(&on, body("m")).await, Code::Throttling, "a purge fills nothing");
    ok(&on, DeleteQueue { queue_url: JOBS.to_owned() }).await;
    assert_eq!(refusal(&on, body("m")).await, Code::QueueDoesNotExist);
    jobs(&on, &slow).await;
    send_many(&on, 10).await;
    assert_eq!(refusal(&on, body("m")).await, Code::Throttling);
    // Deleted and made again behind this process's back, while it remembers the queue of before.
    on.write("UPDATE queues SET incarnation = incarnation + 1").await.unwrap();
    pass(&on, 2);
    send_many(&on, 10).await;
    assert_eq!(refusal(&on, body("m")).await, Code::Throttling);
}

async fn rule_13_a_change_by_another_process_is_found_by_the_next_call(on: TestStore) {
    let stored = |capacity: &str| {
        format!(
            "UPDATE queues SET attributes = '{{\"ThrottleSendCapacity\":\"{capacity}\",\
             \"ThrottleSendRefillPerSecond\":\"{SLOW}\"}}'"
        )
    };
    jobs(&on, &[("ThrottleSendCapacity", "10"), ("ThrottleSendRefillPerSecond", SLOW)]).await;
    send_many(&on, 5).await;
    // The memory lets the call in, and its transaction finds another limit: a full bucket of it.
    on.write(&stored("20")).await.unwrap();
    send_many(&on, 20).await;
    assert_eq!(refusal(&on, body("m")).await, Code::Throttling);
    // The memory would refuse, and is asked about no longer than a moment after it was confirmed.
    on.write(&stored("30")).await.unwrap();
    pass(&on, 2);
    send_many(&on, 30).await;
    assert_eq!(refusal(&on, body("m")).await, Code::Throttling);
    pass(&on, 2);
    assert_eq!(refusal(&on, body("m")).await, Code::Throttling, "nothing has changed, so nothing is filled");
    on.write("UPDATE queues SET attributes = '{}'").await.unwrap();
    pass(&on, 2);
    send_many(&on, 40).await;
    assert_eq!(left(&on, "send"), None);
    // And from no limit to one: the first call that meets it pays for itself.
    on.write(&stored("10")).await.unwrap();
    send_many(&on, 10).await;
    assert_eq!(refusal(&on, body("m")).await, Code::Throttling);
}

async fn rule_14_only_another_throttle_fills_the_buckets_again(on: TestStore) {
    let slow = [
        ("ThrottleRecvCapacity", "10"),
        ("ThrottleRecvRefillPerSecond", SLOW),
        ("ThrottleSendCapacity", "10"),
        ("ThrottleSendRefillPerSecond", SLOW),
    ];
    jobs(&on, &slow).await;
    let use_up = async |calls: usize| {
        send_many(&on, calls).await;
        for _ in 0..calls {
            ok(&on, look()).await;
        }
    };
    let is_used_up = async || {
        assert_eq!(refusal(&on, body("m")).await, Code::Throttling);
        assert_eq!(refusal(&on, look()).await, Code::Throttling);
    };
    use_up(10).await;
    is_used_up().await;
    // What changes nothing about the limit.
    ok(&on, set(&slow)).await;
    ok(&on, set(&[("ThrottleSendCapacity", "10.0")])).await;
    ok(&on, set(&[("VisibilityTimeout", "7"), ("ThrottleSendCapacity", "10")])).await;
    jobs(&on, &slow).await;
    assert_eq!(refusal(&on, set(&[("ThrottleSendCapacity", "9")])).await, Code::InvalidAttributeValue);
    assert_eq!(refusal(&on, queue("jobs", &[("ThrottleSendCapacity", "50")])).await, Code::QueueNameExists);
    is_used_up().await;
    // Another limit, and the next call passes without any time passing: every action's bucket is another.
    ok(&on, set(&[("ThrottleSendCapacity", "20")])).await;
    assert_eq!((left(&on, "send"), left(&on, "receive")), (None, None));
    use_up(10).await;
    send_many(&on, 10).await;
    is_used_up().await;
    ok(&on, set(&[("ThrottleSendCapacity", "10")])).await;
    use_up(10).await;
    is_used_up().await;
}

async fn rule_15_of_many_callers_at_once_exactly_the_capacity_pass(on: TestStore) {
    jobs(&on, &[("ThrottleSendCapacity", "20"), ("ThrottleSendRefillPerSecond", SLOW)]).await;
    let on = Arc::new(on);
    let mut callers = JoinSet::new();
    for _ in 0..60 {
        let on = Arc::clone(&on);
        // Nobody remembers the queue yet: all of them find out at once.
        callers.spawn(async move { on.store.run(body("m"), on.admin.clone()).await.map(drop) });
    }
    let outcomes = callers.join_all().await;
    let passed = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
    let codes: Vec<Code> = outcomes.into_iter().filter_map(Result::err).map(|error| error.code()).collect();
    assert_eq!((passed, codes), (20, vec![Code::Throttling; 40]));
    assert_eq!(rows(&on).await, (20, 0));
}

async fn rule_16_the_sweep_runs_beside_the_server_and_ends_with_it(on: TestStore) {
    let looks = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&looks);
    let chore = move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
    };
    let runner = Runner::new(on.store.clone(), FAILED).with_chore("looks", Duration::from_millis(1), chore);
    while looks.load(Ordering::Relaxed) < 3 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    tokio::time::timeout(FAILED, runner.stop()).await.unwrap();
    let last = looks.load(Ordering::Relaxed);
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(looks.load(Ordering::Relaxed), last);
}

async fn rule_17_a_throttle_that_is_named_is_compared(on: TestStore) {
    jobs(&on, &SENDS).await;
    for same in [
        &[][..],
        &SENDS,
        &[("ThrottleSendCapacity", "10.0")],
        &[("ThrottleRecvCapacity", "0"), ("ThrottleRecvRefillPerSecond", "0")],
    ] {
        jobs(&on, same).await;
    }
    for other in [
        &[("ThrottleSendCapacity", "20"), ("ThrottleSendRefillPerSecond", "1")][..],
        &[("ThrottleSendCapacity", "0"), ("ThrottleSendRefillPerSecond", "0")],
        &[("ThrottleDefaultCapacity", "10"), ("ThrottleDefaultRefillPerSecond", "1")],
    ] {
        assert_eq!(refusal(&on, queue("jobs", other)).await, Code::QueueNameExists, "{other:?}");
    }
    // What no queue could have is wrong in itself.
    for never in [
        &[("ThrottleSendCapacity", "9")][..],
        &[("ThrottleSendRefillPerSecond", "11")],
        &[("ThrottleSendCapacity", "0")],
        &[("ThrottleRecvCapacity", "10")],
        &[("ThrottleDefaultCapacity", "10"), ("ThrottleDefaultRefillPerSecond", "11")],
    ] {
        assert_eq!(refusal(&on, queue("jobs", never)).await, Code::InvalidAttributeValue, "{never:?}");
    }
    // No throttle and one of zeros are the same.
    let zeros = [("ThrottleSendCapacity", "0"), ("ThrottleSendRefillPerSecond", "0.0")];
    ok(&on, queue("plain", &[])).await;
    ok(&on, queue("plain", &zeros)).await;
    ok(&on, queue("zeros", &zeros)).await;
    ok(&on, queue("zeros", &[])).await;
    assert_eq!(refusal(&on, queue("plain", &SENDS)).await, Code::QueueNameExists);
}

async fn rule_18_a_gauge_tells_each_decision_and_goes_with_the_throttle(on: TestStore) {
    jobs(&on, &[("ThrottleDefaultCapacity", "10"), ("ThrottleDefaultRefillPerSecond", SLOW)]).await;
    assert_eq!(left(&on, "default"), None, "nothing was decided yet");
    send_many(&on, 4).await;
    assert_eq!(left(&on, "default").map(f64::round), Some(6.0));
    assert_eq!(refusal(&on, batch(10)).await, Code::Throttling);
    assert_eq!(left(&on, "default").map(f64::round), Some(6.0), "a refusal is a decision as well, and takes nothing");
    ok(&on, set(&[("ThrottleDefaultCapacity", "0"), ("ThrottleDefaultRefillPerSecond", "0")])).await;
    assert_eq!(left(&on, "default"), None, "it is not throttled any more");
    send_many(&on, 11).await;
    assert_eq!(left(&on, "default"), None);
    ok(&on, set(&SENDS)).await;
    send(&on, "m").await;
    assert_eq!(left(&on, "send").map(f64::round), Some(9.0));
    ok(&on, DeleteQueue { queue_url: JOBS.to_owned() }).await;
    assert_eq!(left(&on, "send"), None, "it is gone");
}

async fn rule_20_a_fifo_queue_has_one_bucket_for_all_of_its_groups(on: TestStore) {
    let attributes = [("FifoQueue", "true"), ("ThrottleSendCapacity", "10"), ("ThrottleSendRefillPerSecond", SLOW)];
    ok(&on, queue("orders.fifo", &attributes)).await;
    let message = |group: usize| SendMessage {
        queue_url: url("orders.fifo"),
        message_group_id: Some(group.to_string()),
        message_deduplication_id: Some(group.to_string()),
        ..body("m")
    };
    for group in 0..10 {
        ok(&on, message(group)).await;
    }
    for group in [0, 10] {
        assert_eq!(refusal(&on, message(group)).await, Code::Throttling, "{group}");
    }
}
