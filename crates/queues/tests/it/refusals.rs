//! Bad requests are refused by name and change nothing.

use std::collections::BTreeMap;

use waybill_kernel::Code;
use waybill_queues::ops::create_queue::CreateQueue;
use waybill_queues::ops::delete_message::DeleteMessage;
use waybill_queues::ops::get_queue_attributes::GetQueueAttributes;
use waybill_queues::ops::receive_message::ReceiveMessage;
use waybill_queues::ops::send_message::SendMessage;
use waybill_queues::ops::untag_queue::UntagQueue;
use waybill_testkit::both;
use waybill_testkit::stores::TestStore;

use crate::support::{JOBS, body, jobs, map, ok, queue, refusal, rows, send, text, up_to};

both! {
    bad_queues,
    bad_messages,
    bad_receives,
    too_many_in_flight,
}

async fn bad_queues(on: TestStore) {
    let many: BTreeMap<_, _> = (0..51).map(|number| (format!("k{number}"), String::new())).collect();
    let tagged = |tags| CreateQueue { tags, ..queue("jobs", &[]) };
    for (create, code) in [
        (queue("", &[]), Code::MissingParameter),
        (queue("a b", &[]), Code::InvalidRequest),
        (queue(&"a".repeat(81), &[]), Code::InvalidRequest),
        (queue("jobs.fifo", &[]), Code::InvalidRequest),
        (queue("jobs", &[("FifoQueue", "true")]), Code::InvalidRequest),
        (queue("jobs", &[("RedrivePolicy", "{}")]), Code::InvalidAttributeValue),
        (queue("jobs", &[("ThrottleSendCapacity", "10")]), Code::InvalidAttributeValue),
        (queue("jobs", &[("PartitionCount", "2")]), Code::InvalidAttributeValue),
        (queue("jobs", &[("Colour", "red")]), Code::InvalidAttributeName),
        (queue("jobs", &[("QueueArn", "arn")]), Code::InvalidAttributeName),
        (queue("jobs", &[("MaximumMessageSize", "1023")]), Code::InvalidAttributeValue),
        (queue("jobs", &[("VisibilityTimeout", "soon")]), Code::InvalidAttributeValue),
        (tagged(many), Code::InvalidRequest),
        (tagged(map(&[("", "v")])), Code::InvalidRequest),
    ] {
        let shown = format!("{create:?}");
        assert_eq!(refusal(&on, create).await, code, "{shown}");
    }
    assert_eq!(on.count("SELECT count(*) FROM queues").await.unwrap(), 0);
}

async fn bad_messages(on: TestStore) {
    jobs(&on, &[("MaximumMessageSize", "1024")]).await;
    let with = |name: &str, attribute| SendMessage {
        message_attributes: BTreeMap::from([(name.to_owned(), attribute)]),
        ..body("m")
    };
    let traced = |bytes: usize| SendMessage {
        message_system_attributes: BTreeMap::from([("AWSTraceHeader".to_owned(), text("String", &"x".repeat(bytes)))]),
        ..body("m")
    };
    let to = |url: &str| SendMessage { queue_url: url.to_owned(), ..body("m") };
    for (send, code) in [
        (to(""), Code::MissingParameter),
        (to("http://localhost/nowhere"), Code::QueueDoesNotExist),
        (body(""), Code::MissingParameter),
        (body("a\u{B}b"), Code::InvalidMessageContents),
        (body("a\0b"), Code::InvalidMessageContents),
        (body("\u{FFFF}"), Code::InvalidMessageContents),
        (body(&"x".repeat(1_025)), Code::InvalidRequest),
        (SendMessage { delay_seconds: Some(901), ..body("m") }, Code::InvalidRequest),
        (SendMessage { delay_seconds: Some(-1), ..body("m") }, Code::InvalidRequest),
        (SendMessage { message_deduplication_id: Some("d".to_owned()), ..body("m") }, Code::InvalidRequest),
        (SendMessage { message_group_id: Some(String::new()), ..body("m") }, Code::InvalidRequest),
        (with("AWS.x", text("String", "v")), Code::InvalidRequest),
        (with("a", text("Text", "v")), Code::InvalidRequest),
        (with("a", text("Binary", "v")), Code::InvalidRequest),
        (with("a", text("String", "")), Code::InvalidRequest),
        (with("a", text("String", "a\0")), Code::InvalidMessageContents),
        (with("a", text("String", &"x".repeat(1_020))), Code::InvalidRequest),
        (traced(501), Code::InvalidRequest),
    ] {
        let shown = format!("{:?} {:?}", send.message_body, send.message_attributes);
        assert_eq!(refusal(&on, send).await, code, "{shown}");
    }
    assert_eq!(rows(&on).await, (0, 0));
    ok(&on, traced(500)).await;
}

async fn bad_receives(on: TestStore) {
    jobs(&on, &[]).await;
    send(&on, "m").await;
    let many = |name: &str| vec![name.to_owned(); 101];
    let named = |name: &str| ReceiveMessage { message_system_attribute_names: vec![name.to_owned()], ..up_to(1) };
    for (receive, code) in [
        (up_to(0), Code::InvalidRequest),
        (up_to(11), Code::InvalidRequest),
        (ReceiveMessage { visibility_timeout: Some(43_201), ..up_to(1) }, Code::InvalidRequest),
        (ReceiveMessage { visibility_timeout: Some(-1), ..up_to(1) }, Code::InvalidRequest),
        (ReceiveMessage { wait_time_seconds: Some(21), ..up_to(1) }, Code::InvalidRequest),
        (ReceiveMessage { queue_url: "/nowhere".to_owned(), ..up_to(1) }, Code::QueueDoesNotExist),
        (ReceiveMessage { queue_url: String::new(), ..up_to(1) }, Code::MissingParameter),
        (named("Colour"), Code::InvalidAttributeName),
        (ReceiveMessage { attribute_names: many("All"), ..up_to(1) }, Code::InvalidRequest),
        (ReceiveMessage { message_system_attribute_names: many("All"), ..up_to(1) }, Code::InvalidRequest),
        (ReceiveMessage { message_attribute_names: many("a"), ..up_to(1) }, Code::InvalidRequest),
        (ReceiveMessage { message_attribute_names: vec!["a".repeat(259)], ..up_to(1) }, Code::InvalidRequest),
    ] {
        let shown = format!("{receive:?}");
        assert_eq!(refusal(&on, receive).await, code, "{shown}");
    }
    let attributes = GetQueueAttributes { queue_url: JOBS.to_owned(), attribute_names: many("All") };
    assert_eq!(refusal(&on, attributes).await, Code::InvalidRequest);
    let untag = |keys| UntagQueue { queue_url: JOBS.to_owned(), tag_keys: vec!["k".to_owned(); keys] };
    assert_eq!(refusal(&on, untag(51)).await, Code::InvalidRequest);
    ok(&on, untag(50)).await;
    for (queue_url, receipt_handle, code) in [
        (JOBS, "", Code::MissingParameter),
        (JOBS, "nonsense", Code::ReceiptHandleIsInvalid),
        ("/nowhere", "nonsense", Code::QueueDoesNotExist),
    ] {
        let (queue_url, receipt_handle) = (queue_url.to_owned(), receipt_handle.to_owned());
        let shown = format!("{queue_url} {receipt_handle}");
        let delete = DeleteMessage { queue_url, receipt_handle, ..DeleteMessage::default() };
        assert_eq!(refusal(&on, delete).await, code, "{shown}");
    }
    assert_eq!(rows(&on).await, (1, 0));
}

/// As many as a part may have in flight, and none of them a message that there is.
pub const FULL: &str = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 120000) \
    INSERT INTO flights (mid, tenant, part, visible_at, receives) \
    SELECT (p.part << 40) + 500000000000 + n.i, p.tenant, p.part, 9000000000000000, 1 FROM n, parts p";

/// Counted by chance, so it takes some receives until it is seen; from then on every one is refused.
async fn too_many_in_flight(on: TestStore) {
    jobs(&on, &[]).await;
    for number in 0..10 {
        send(&on, &format!("m{number}")).await;
    }
    on.write(FULL).await.unwrap();
    let again = || ReceiveMessage { visibility_timeout: Some(0), ..up_to(10) };
    let mut receives = 0;
    while on.count("SELECT max(crowded) FROM parts").await.unwrap() == 0 {
        assert_eq!(ok(&on, again()).await.messages.len(), 10);
        receives += 1;
        assert!(receives < 3_000, "nobody has counted");
    }
    for _ in 0..3 {
        assert_eq!(refusal(&on, again()).await, Code::OverLimit);
    }
    on.write("DELETE FROM flights WHERE visible_at = 9000000000000000").await.unwrap();
    assert_eq!(ok(&on, again()).await.messages.len(), 10);
    assert_eq!(on.count("SELECT max(crowded) FROM parts").await.unwrap(), 0);
}
