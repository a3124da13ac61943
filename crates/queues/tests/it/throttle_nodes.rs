//! Two nodes on one PostgreSQL database: each has its own buckets and finds out what the other has changed.

use std::time::Duration;

use waybill_kernel::Code;
use waybill_store::Store;
use waybill_testkit::stores::{TestStore, open_postgres};

use crate::support::{body, jobs, ok, pass, refusal};
use crate::throttle::{send_many, set};

const SLOW: [(&str, &str); 2] = [("ThrottleSendCapacity", "10"), ("ThrottleSendRefillPerSecond", "0.0001")];

/// Sends by the second node until it refuses.
async fn sends(on: &TestStore, node: &Store) -> usize {
    for sent in 0..1_000 {
        match node.run(body("m"), on.admin.clone()).await {
            Ok(_) => {}
            Err(error) if error.code() == Code::Throttling => return sent,
            Err(error) => panic!("{error}"),
        }
    }
    panic!("it never refuses");
}

#[tokio::test]
async fn rule_13_a_node_that_meets_a_queue_first_has_a_full_bucket_and_one_that_missed_a_change_finds_it() {
    let on = open_postgres().await.unwrap();
    let other = on.second_node(|_| {}).await.unwrap();
    jobs(&on, &SLOW).await;
    send_many(&on, 10).await;
    assert_eq!(refusal(&on, body("m")).await, Code::Throttling);
    assert_eq!(sends(&on, &other).await, 10, "each node has buckets of its own");
    // The change is made by one node; the other learns of it within a moment.
    ok(&on, set(&[("ThrottleSendCapacity", "30")])).await;
    send_many(&on, 30).await;
    pass(&on, 2);
    assert_eq!(sends(&on, &other).await, 30);
    // The same configuration, seen again after a time: what was left stays, and the time away has added to it.
    ok(&on, set(&[("ThrottleSendRefillPerSecond", "1")])).await;
    pass(&on, 2);
    assert_eq!(sends(&on, &other).await, 30);
    on.time.pass(Duration::from_millis(5_500));
    assert_eq!(sends(&on, &other).await, 5);
    other.close();
}
