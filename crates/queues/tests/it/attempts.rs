//! Receives that are made again: whoever names the same attempt gets the same messages, also at the same moment.

use std::sync::Arc;

use tokio::sync::Barrier;
use tokio::task::JoinSet;
use waybill_queues::Message;
use waybill_queues::ops::receive_message::ReceiveMessage;
use waybill_testkit::both;
use waybill_testkit::stores::TestStore;

use crate::fifo::{delete, orders, send, up_to};
use crate::partitions::FOUR;
use crate::support::ok;

both! {
    an_attempt_that_is_made_twice_at_once_has_one_answer,
    an_attempt_from_many_partitions_that_is_made_twice_at_once_has_one_answer,
}

fn attempt(id: &str, messages: i64) -> ReceiveMessage {
    ReceiveMessage { receive_request_attempt_id: Some(id.to_owned()), ..up_to(messages) }
}

/// What each of those got who make the same attempt at one moment.
async fn at_once(on: &Arc<TestStore>, id: &str, messages: i64) -> Vec<Vec<Message>> {
    const CALLERS: usize = 4;
    let (mut all, begin) = (JoinSet::new(), Arc::new(Barrier::new(CALLERS)));
    for _ in 0..CALLERS {
        let (on, begin, call) = (Arc::clone(on), Arc::clone(&begin), attempt(id, messages));
        all.spawn(async move {
            begin.wait().await;
            ok(&on, call).await.messages
        });
    }
    all.join_all().await
}

/// Each round there is more than one of them takes.
async fn has_one_answer(on: TestStore, messages: i64) {
    let on = Arc::new(on);
    for round in 0..12 {
        for group in 0..8 {
            send(&on, &format!("g{group}"), &format!("{round} {group}")).await;
        }
        let got = at_once(&on, &format!("round-{round}"), messages).await;
        assert!(!got[0].is_empty(), "round {round}");
        for other in &got[1..] {
            assert_eq!(other, &got[0], "round {round}");
        }
        for message in &got[0] {
            delete(&on, message).await;
        }
    }
}

async fn an_attempt_that_is_made_twice_at_once_has_one_answer(on: TestStore) {
    orders(&on, &[]).await;
    has_one_answer(on, 3).await;
}

async fn an_attempt_from_many_partitions_that_is_made_twice_at_once_has_one_answer(on: TestStore) {
    orders(&on, FOUR).await;
    has_one_answer(on, 5).await;
}

/// With partitions in several stores.
pub mod shards {
    use std::time::Duration;

    use waybill_queues::Process;
    use waybill_store::{Flow, Reply};
    use waybill_testkit::both;
    use waybill_testkit::stores::TestStore;

    use super::{attempt, has_one_answer};
    use crate::fifo::{orders, receive, send};
    use crate::partitions::{FOUR, send_to_all};
    use crate::shards::{messages_of, placed, restarted_as};
    use crate::support::{ok, pass, refused};

    both! {
        crate::shards::placed(), shards crate::shards_rules::SHARDS =>
        an_attempt_from_many_stores_that_is_made_twice_at_once_has_one_answer,
        what_was_given_before_is_whole_however_long_it_takes,
        what_was_given_before_needs_every_store,
        an_attempt_that_is_used_again_can_be_made_again,
    }

    async fn an_attempt_from_many_stores_that_is_made_twice_at_once_has_one_answer(on: TestStore) {
        orders(&on, FOUR).await;
        has_one_answer(on, 5).await;
    }

    async fn what_was_given_before_is_whole_however_long_it_takes(on: TestStore) {
        orders(&on, &[FOUR, &[("VisibilityTimeout", "100")]].concat()).await;
        send_to_all(&on, "m").await;
        let first = ok(&on, attempt("one", 10)).await.messages;
        assert_eq!(first.len(), 4);
        // A program that has no time to look at more than one store.
        let hasty = Process::default().with_pass_max(Duration::ZERO);
        let again = restarted_as(&on, placed(), hasty).await;
        // Also one that asks for fewer than it was given.
        for messages in [10, 2] {
            let (reply, _) = {
                use waybill_queues::shards::OnShards;
                attempt("one", messages).dispatch(&Flow::new(&on.admin, &again)).await.unwrap()
            };
            let Reply::Done(second) = reply else { panic!("nothing") };
            let ids = |messages: &[waybill_queues::Message]| {
                let mut handles: Vec<_> = messages.iter().map(|message| message.receipt_handle.clone()).collect();
                handles.sort();
                handles
            };
            assert_eq!(ids(&second.messages), ids(&first));
        }
        again.close();
    }

    async fn what_was_given_before_needs_every_store(on: TestStore) {
        orders(&on, &[FOUR, &[("VisibilityTimeout", "100")]].concat()).await;
        send_to_all(&on, "m").await;
        assert_eq!(ok(&on, attempt("one", 10)).await.messages.len(), 4);
        for group in 0..8 {
            send(&on, &format!("more-{group}"), &format!("more {group}")).await;
        }
        // Home has one of the first, a has two, b has one.
        let there = messages_of(&on).await;
        let left = usize::try_from(there[0] - 1 + there[1] - 2).unwrap();
        on.stores.find("b").unwrap().close();
        for _ in 0..2 {
            assert_eq!(refused(&on, attempt("one", 10)).await.code().entry().http, 503);
        }
        // Nothing was taken by those, and whoever names no attempt gets what the other stores have.
        let got = receive(&on, 10).await;
        assert_eq!(got.len(), left);
        assert!(got.iter().all(|message| message.attributes["ApproximateReceiveCount"] == "1"));
    }

    /// What it was given the first time is over in three stores, and what it is given the second time is in one of them.
    async fn an_attempt_that_is_used_again_can_be_made_again(on: TestStore) {
        orders(&on, &[FOUR, &[("VisibilityTimeout", "100")]].concat()).await;
        send_to_all(&on, "m").await;
        assert_eq!(ok(&on, attempt("one", 10)).await.messages.len(), 4);
        pass(&on, 101);
        let second = ok(&on, attempt("one", 1)).await.messages;
        assert_eq!(second.len(), 1);
        for _ in 0..2 {
            assert_eq!(ok(&on, attempt("one", 1)).await.messages, second);
        }
    }
}
