//! Deliveries and history: who gets what, in which order, and until when.

use std::collections::BTreeSet;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use tokio::task::JoinSet;
use waybill_kernel::{Code, OperationSpec, Result};
use waybill_mesh::ops::messages::{AcknowledgeDeliveries, Delivery, FindDeliveries, ReadHistory};
use waybill_mesh::ops::topics::{Subscribe, Unsubscribe};
use waybill_mesh_protocol::frames::Message;
use waybill_store::{Ctx, Operation, Reply, Tx};
use waybill_testkit::stores::{self, TestStore, readable};

use crate::support::{
    Person, count, create_topic, dm, join, ok, plain_mesh, post, refused, rows, send, sent, subscribe, topic,
};

mod usual {
    use super::*;

    waybill_testkit::both! {
        a_delivery_is_there_until_it_is_acknowledged,
        a_post_goes_to_every_subscriber_but_its_sender,
        a_post_reaches_ten_thousand_subscribers_in_one_transaction,
        history_has_what_was_for_the_member_from_when_it_subscribed,
        history_shows_who_mentions_the_member,
        a_page_of_history_ends_somewhere_also_where_nothing_is_for_the_member,
    }
}

mod often {
    use super::*;

    waybill_testkit::both! { waybill_mesh::Settings { sends_per_window: 100_000, ..waybill_mesh::Settings::default() } =>
        history_is_in_the_order_of_commits_while_many_send,
    }
}

async fn deliveries(on: &TestStore, who: &Person, after: u64) -> Vec<Delivery> {
    let find = FindDeliveries { mesh: who.mesh(), member: who.id(), connection: None, after, limit: None };
    ok(on, who.caller(), find).await.deliveries
}

async fn history(on: &TestStore, who: &Person, after: u64) -> Vec<Message> {
    let (mut all, mut after) = (Vec::new(), after);
    loop {
        let read = ReadHistory { mesh: who.mesh(), member: who.id(), after, limit: Some(7), mentions: false };
        let page = ok(on, who.caller(), read).await;
        all.extend(page.messages);
        after = page.next_after;
        if !page.more {
            return all;
        }
    }
}

fn texts<'a>(messages: impl IntoIterator<Item = &'a Message>) -> Vec<String> {
    let text = |message: &Message| String::from_utf8(message.envelope.body.0.clone()).unwrap();
    messages.into_iter().map(text).collect()
}

async fn a_delivery_is_there_until_it_is_acknowledged(on: TestStore) {
    let alice = plain_mesh(&on).await;
    let bob = join(&on, &alice, "bob").await;
    for number in 0..3 {
        sent(&on, &alice, &format!("m{number}"), dm(&bob, &format!("text {number}"))).await;
    }
    let first = deliveries(&on, &bob, 0).await;
    assert_eq!(texts(first.iter().map(|delivery| &delivery.message)), ["text 0", "text 1", "text 2"]);
    let message = &first[0].message;
    assert_eq!((message.sender_id, message.sender_name.as_str()), (alice.id(), "alice"));
    assert_eq!((message.sender, message.client_message_id.as_str()), (alice.identity.public(), "m0"));
    // A page that has the last of them says so, also when it is full.
    for (limit, more) in [(2, true), (3, false), (4, false)] {
        let (mesh, member) = (bob.mesh(), bob.id());
        let find = FindDeliveries { mesh, member, connection: None, after: 0, limit: Some(limit) };
        let page = ok(&on, bob.caller(), find).await;
        assert_eq!((page.deliveries.len(), page.more), (limit.min(3) as usize, more));
    }
    // Nothing is written by looking.
    assert_eq!(deliveries(&on, &bob, 0).await.len(), 3);
    assert_eq!(deliveries(&on, &bob, message.seq).await.len(), 2);
    let acknowledge =
        |who: &Person, ids: Vec<_>| AcknowledgeDeliveries { mesh: who.mesh(), member: who.id(), deliveries: ids };
    let ids = vec![first[0].delivery_id, first[2].delivery_id];
    // Another's deliveries are none of one's own.
    assert_eq!(ok(&on, alice.caller(), acknowledge(&alice, ids.clone())).await.acknowledged, 0);
    assert_eq!(ok(&on, bob.caller(), acknowledge(&bob, ids.clone())).await.acknowledged, 2);
    assert_eq!(ok(&on, bob.caller(), acknowledge(&bob, ids)).await.acknowledged, 0);
    let rest = deliveries(&on, &bob, 0).await;
    assert_eq!(texts(rest.iter().map(|delivery| &delivery.message)), ["text 1"]);
    assert_eq!(history(&on, &bob, 0).await.len(), 3, "history keeps what was acknowledged");
    let many = acknowledge(&bob, vec![first[0].delivery_id; 257]);
    assert_eq!(refused(&on, bob.caller(), many).await, Code::InvalidRequest);
}

async fn a_post_goes_to_every_subscriber_but_its_sender(on: TestStore) {
    let alice = plain_mesh(&on).await;
    let (bob, carol) = (join(&on, &alice, "bob").await, join(&on, &alice, "carol").await);
    create_topic(&on, &alice, "jobs").await;
    subscribe(&on, &bob, "jobs").await;
    sent(&on, &alice, "a", post("jobs", "one")).await;
    subscribe(&on, &carol, "jobs").await;
    sent(&on, &bob, "b", post("jobs", "two")).await;
    let of = async |who: &Person| texts(deliveries(&on, who, 0).await.iter().map(|delivery| &delivery.message));
    assert_eq!(of(&alice).await, ["two"]);
    assert_eq!(of(&bob).await, ["one"]);
    assert_eq!(of(&carol).await, ["two"]);
    let end = Unsubscribe { mesh: carol.mesh(), member: carol.id(), topic: topic("jobs") };
    assert!(ok(&on, carol.caller(), end).await.was_subscribed);
    sent(&on, &bob, "c", post("jobs", "three")).await;
    assert_eq!(of(&carol).await, ["two"], "what was posted for it is still delivered, and nothing more");
    let again = Subscribe { mesh: bob.mesh(), member: bob.id(), topic: topic("jobs") };
    assert!(!ok(&on, bob.caller(), again).await.is_new);
    let nowhere = Subscribe { mesh: bob.mesh(), member: bob.id(), topic: topic("nowhere") };
    assert_eq!(refused(&on, bob.caller(), nowhere).await, Code::TopicUnknown);
}

async fn a_post_reaches_ten_thousand_subscribers_in_one_transaction(on: TestStore) {
    let alice = plain_mesh(&on).await;
    let bob = join(&on, &alice, "bob").await;
    create_topic(&on, &alice, "news").await;
    subscribe(&on, &bob, "news").await;
    let id = if on.store.is_postgres() {
        "convert_to(lpad(n.i::text, 16, '0'), 'UTF8')"
    } else {
        "CAST(printf('%016d', n.i) AS BLOB)"
    };
    let fill = format!(
        "INSERT INTO mesh_subscriptions (tenant, mesh_id, topic, member_id, since_seq, created_at) \
         WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10000) \
         SELECT t.tenant, t.mesh_id, t.topic, {id}, 0, 0 FROM n CROSS JOIN mesh_topics t"
    );
    on.write(&fill).await.unwrap();
    sent(&on, &alice, "a", post("news", "to all")).await;
    assert_eq!(count(&on, "mesh_deliveries").await, 10_001);
    assert_eq!(deliveries(&on, &bob, 0).await.len(), 1);
    let (again, _) = send(&on, &alice, "a", post("news", "to all")).await.map_err(readable).unwrap();
    assert!(again.duplicate);
    assert_eq!(rows(&on).await, [1, 1, 1, 10_001, 0]);
}

async fn history_has_what_was_for_the_member_from_when_it_subscribed(on: TestStore) {
    let alice = plain_mesh(&on).await;
    let (bob, carol) = (join(&on, &alice, "bob").await, join(&on, &alice, "carol").await);
    create_topic(&on, &alice, "jobs").await;
    sent(&on, &alice, "a", post("jobs", "before")).await;
    subscribe(&on, &bob, "jobs").await;
    sent(&on, &alice, "b", post("jobs", "after")).await;
    sent(&on, &alice, "c", dm(&bob, "direct")).await;
    sent(&on, &alice, "d", dm(&carol, "for another")).await;
    sent(&on, &bob, "e", post("jobs", "own")).await;
    let all = history(&on, &bob, 0).await;
    assert_eq!(texts(&all), ["after", "direct"]);
    assert!(all.is_sorted_by_key(|message| message.seq));
    assert_eq!(texts(&history(&on, &bob, all[0].seq).await), ["direct"]);
    assert_eq!(texts(&history(&on, &carol, 0).await), ["for another"]);
    let wrong = ReadHistory { mesh: bob.mesh(), member: bob.id(), after: u64::MAX, limit: None, mentions: false };
    assert_eq!(refused(&on, bob.caller(), wrong).await, Code::InvalidRequest);
}

async fn history_shows_who_mentions_the_member(on: TestStore) {
    let alice = plain_mesh(&on).await;
    let (bob, carol) = (join(&on, &alice, "bob").await, join(&on, &alice, "carol").await);
    create_topic(&on, &alice, "jobs").await;
    subscribe(&on, &bob, "jobs").await;
    subscribe(&on, &carol, "jobs").await;
    let mut envelope = post("jobs", "bob, look");
    envelope.mentions = vec![bob.key()];
    sent(&on, &alice, "a", envelope).await;
    sent(&on, &alice, "b", post("jobs", "nobody")).await;
    for (who, expected) in [(&bob, vec!["bob, look"]), (&carol, vec![])] {
        let read = ReadHistory { mesh: who.mesh(), member: who.id(), after: 0, limit: None, mentions: true };
        assert_eq!(texts(&ok(&on, who.caller(), read).await.messages), expected);
    }
}

async fn a_page_of_history_ends_somewhere_also_where_nothing_is_for_the_member(on: TestStore) {
    let alice = plain_mesh(&on).await;
    let bob = join(&on, &alice, "bob").await;
    for number in 0..10 {
        sent(&on, &alice, &format!("m{number}"), dm(&alice, "to itself")).await;
    }
    let read = |after| ReadHistory { mesh: bob.mesh(), member: bob.id(), after, limit: None, mentions: false };
    let page = ok(&on, bob.caller(), read(0)).await;
    assert_eq!((page.messages.len(), page.next_after, page.more), (0, 10, false));
    let page = ok(&on, bob.caller(), read(10)).await;
    assert_eq!((page.messages.len(), page.next_after, page.more), (0, 10, false));
}

/// A reader that goes on from the last number it has seen finds every message, each once.
async fn history_is_in_the_order_of_commits_while_many_send(on: TestStore) {
    const SENDERS: usize = 8;
    const EACH: usize = 25;
    let alice = plain_mesh(&on).await;
    let reader = join(&on, &alice, "reader").await;
    create_topic(&on, &alice, "jobs").await;
    subscribe(&on, &reader, "jobs").await;
    let on = Arc::new(on);
    let mut senders = JoinSet::new();
    for sender in 0..SENDERS {
        let (on, alice) = (Arc::clone(&on), alice.clone());
        senders.spawn(async move {
            for number in 0..EACH {
                let id = format!("{sender} {number}");
                sent(&on, &alice, &id, post("jobs", &id)).await;
            }
        });
    }
    let (mut seen, mut last) = (Vec::new(), 0);
    while seen.len() < SENDERS * EACH {
        let found = history(&on, &reader, last).await;
        if let Some(message) = found.last() {
            last = message.seq;
        }
        seen.extend(found);
        assert!(seen.is_sorted_by(|one, next| one.seq < next.seq));
        tokio::task::yield_now().await;
        if senders.is_empty() && seen.len() < SENDERS * EACH {
            let rest = history(&on, &reader, last).await;
            assert!(!rest.is_empty(), "{} of {} were passed over", SENDERS * EACH - seen.len(), SENDERS * EACH);
        }
        while senders.try_join_next().is_some() {}
    }
    senders.join_all().await;
    let numbers: Vec<u64> = seen.iter().map(|message| message.seq).collect();
    assert!(numbers.iter().copied().eq(1..=(SENDERS * EACH) as u64), "there are gaps: {numbers:?}");
    let ids: BTreeSet<_> = seen.iter().map(|message| message.client_message_id.as_str()).collect();
    assert_eq!(ids.len(), SENDERS * EACH);
    assert_eq!(deliveries(&on, &reader, 0).await.len(), 32);
}

/// How many rows of messages an operation has read, as PostgreSQL counts them within the transaction.
#[derive(Deserialize, JsonSchema)]
struct Counted<O>(O);

async fn rows_read(tx: &mut Tx<'_>) -> Result<i64> {
    const READ: &str = "SELECT coalesce(sum(coalesce(idx_tup_fetch, 0) + seq_tup_read), 0)::bigint \
                        FROM pg_stat_xact_user_tables WHERE relname IN ('mesh_history', 'mesh_messages')";
    tx.query(READ, &[]).await?[0].int(0)
}

impl<O: Operation> Operation for Counted<O> {
    const SPEC: OperationSpec = O::SPEC;
    type Output = i64;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<i64>> {
        let before = rows_read(tx).await?;
        self.0.run(ctx, tx).await?;
        Ok(Reply::Done(rows_read(tx).await? - before))
    }
}

/// Without statistics a part of a key is as good to PostgreSQL as all of it, unless it has no choice.
#[tokio::test]
async fn a_page_reads_its_own_rows_of_a_database_that_was_never_analyzed() {
    let settings = waybill_mesh::Settings { sends_per_window: 100_000, ..waybill_mesh::Settings::default() };
    let on = stores::open_postgres_set(settings).await.unwrap();
    let alice = plain_mesh(&on).await;
    let (bob, carol) = (join(&on, &alice, "bob").await, join(&on, &alice, "carol").await);
    for number in 0..200 {
        sent(&on, &alice, &format!("c{number}"), dm(&carol, "for carol")).await;
    }
    for number in 0..3 {
        sent(&on, &alice, &format!("b{number}"), dm(&bob, "for bob")).await;
    }
    let find = FindDeliveries { mesh: bob.mesh(), member: bob.id(), connection: None, after: 0, limit: None };
    let read = ok(&on, bob.caller(), Counted(find)).await;
    assert!(read <= 30, "{read} rows were read for three deliveries");
    let page = ReadHistory { mesh: carol.mesh(), member: carol.id(), after: 0, limit: Some(10), mentions: false };
    let read = ok(&on, carol.caller(), Counted(page)).await;
    // The end of what is looked at is found by walking over the history.
    assert!(read <= 300, "{read} rows were read for ten messages of history");
}
