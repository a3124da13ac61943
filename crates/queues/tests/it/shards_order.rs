//! A dead letter on its way to another store comes before all that is behind it in its group, also if it is turned away there.

use waybill_queues::Message;
use waybill_queues::ops::delete_queue::DeleteQueue;
use waybill_queues::ops::receive_message::ReceiveMessage;
use waybill_testkit::both;
use waybill_testkit::stores::TestStore;

use crate::fifo::{ORDERS, orders, receive, send, texts, up_to};
use crate::support::{arn, counted, ok, pass, queue, tend, url};

const DEAD: &str = "dead.fifo";
/// Its partition is not in home, where the dead letters go.
const GROUP: &str = "g1";

both! {
    crate::shards::placed(), shards crate::shards_rules::SHARDS =>
    what_is_behind_a_dead_letter_waits_until_it_has_arrived,
    what_is_behind_a_dead_letter_comes_after_it_when_it_is_turned_away,
    a_dead_letter_stays_behind_one_that_is_delivered_once_more,
    one_that_was_turned_away_waits_for_one_that_goes,
}

/// Messages die after one receive.
async fn dying(on: &TestStore) {
    bury_in(on).await;
    let policy = format!(r#"{{"deadLetterTargetArn":"{}","maxReceiveCount":1}}"#, arn(DEAD));
    orders(on, &[("PartitionCount", "4"), ("RedrivePolicy", &policy), ("VisibilityTimeout", "1")]).await;
}

async fn bury_in(on: &TestStore) {
    ok(on, queue(DEAD, &[("FifoQueue", "true")])).await;
}

async fn nobody_buries(on: &TestStore) {
    ok(on, DeleteQueue { queue_url: url(DEAD) }).await;
}

/// One that has been received, and is visible again; and one that came later.
async fn one_dead_one_new(on: &TestStore) {
    dying(on).await;
    send(on, GROUP, "1").await;
    assert_eq!(texts(&receive(on, 10).await), ["1"]);
    pass(on, 2);
    send(on, GROUP, "2").await;
    assert!(receive(on, 10).await.is_empty(), "one is on its way, and the other waits");
    assert_eq!((on_their_way(on).await, counted(on, ORDERS).await), (1, (1, 1, 0)));
    assert!(receive(on, 10).await.is_empty(), "nor does anybody else get it");
}

/// Two that have been received, and are visible again.
async fn two_dead(on: &TestStore) {
    dying(on).await;
    for text in ["1", "2"] {
        send(on, GROUP, text).await;
    }
    assert_eq!(texts(&receive(on, 10).await), ["1", "2"]);
    pass(on, 2);
}

async fn on_their_way(on: &TestStore) -> i64 {
    on.count("SELECT count(*) FROM transfers WHERE refused = 0").await.unwrap()
}

async fn turned_away(on: &TestStore) -> i64 {
    on.count("SELECT count(*) FROM transfers WHERE refused = 1").await.unwrap()
}

fn receives(messages: &[Message]) -> Vec<&str> {
    messages.iter().map(|message| message.attributes["ApproximateReceiveCount"].as_str()).collect()
}

async fn what_is_behind_a_dead_letter_waits_until_it_has_arrived(on: TestStore) {
    one_dead_one_new(&on).await;
    tend(&on).await;
    assert_eq!(counted(&on, DEAD).await, (1, 0, 0));
    let got = receive(&on, 10).await;
    assert_eq!((texts(&got), receives(&got)), (vec!["2"], vec!["1"]), "it was not received before");
}

async fn what_is_behind_a_dead_letter_comes_after_it_when_it_is_turned_away(on: TestStore) {
    one_dead_one_new(&on).await;
    nobody_buries(&on).await;
    tend(&on).await;
    let got = receive(&on, 10).await;
    assert_eq!((texts(&got), receives(&got)), (vec!["1", "2"], vec!["3", "1"]));
    assert_eq!((on_their_way(&on).await, turned_away(&on).await), (0, 0));
}

async fn a_dead_letter_stays_behind_one_that_is_delivered_once_more(on: TestStore) {
    two_dead(&on).await;
    nobody_buries(&on).await;
    // The first one alone goes, and comes back.
    assert!(receive(&on, 1).await.is_empty());
    tend(&on).await;
    assert_eq!((on_their_way(&on).await, turned_away(&on).await), (0, 1));
    bury_in(&on).await;
    assert_eq!(texts(&receive(&on, 10).await), ["1"]);
    assert_eq!((on_their_way(&on).await, turned_away(&on).await), (0, 0), "the second stays where it is");
    assert!(receive(&on, 10).await.is_empty(), "while the first is in flight");
    pass(&on, 2);
    assert!(receive(&on, 10).await.is_empty());
    assert_eq!(on_their_way(&on).await, 2);
    tend(&on).await;
    let buried = ok(&on, ReceiveMessage { queue_url: url(DEAD), ..up_to(10) }).await.messages;
    assert_eq!(texts(&buried), ["1", "2"]);
}

async fn one_that_was_turned_away_waits_for_one_that_goes(on: TestStore) {
    two_dead(&on).await;
    nobody_buries(&on).await;
    assert!(receive(&on, 10).await.is_empty());
    tend(&on).await;
    assert_eq!((on_their_way(&on).await, turned_away(&on).await), (0, 2));
    // The first is delivered once more, alone, and dies again.
    assert_eq!(texts(&receive(&on, 1).await), ["1"]);
    pass(&on, 2);
    assert!(receive(&on, 10).await.is_empty());
    assert_eq!((on_their_way(&on).await, turned_away(&on).await), (1, 1), "the second has not had its turn");
    tend(&on).await;
    let got = receive(&on, 10).await;
    assert_eq!((texts(&got), receives(&got)), (vec!["1", "2"], vec!["5", "3"]));
    assert_eq!((on_their_way(&on).await, turned_away(&on).await), (0, 0));
}
