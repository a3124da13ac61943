//! A peek shows what could be received, and changes nothing.

use std::collections::BTreeMap;

use waybill_kernel::Code;
use waybill_queues::ops::operator::peek_messages::{PeekMessages, Peeked};
use waybill_queues::ops::send_message::SendMessage;
use waybill_queues::{Blob, MessageAttribute};
use waybill_testkit::both;
use waybill_testkit::stores::TestStore;

use crate::partitions::{FOUR, GROUPS, send_to_all};
use crate::support::{body, call, change, counted, jobs, ok, pass, purge, queue, receive, refusal, send, text, upkeep};
use crate::{dead_letters, fifo};

both! {
    a_peek_shows_what_could_be_received_and_changes_nothing,
    pages_follow_each_other_until_a_purge,
    a_cursor_is_of_one_queue_of_one_tenant,
    bodies_and_attributes_are_shown_as_far_as_they_were_asked_for,
    a_fifo_queue_is_shown_in_the_order_of_its_numbers,
    all_partitions_are_shown_one_after_another,
    one_call_looks_at_so_many_of_all_partitions,
    a_dead_letter_tells_where_it_comes_from,
    what_is_in_flight_is_passed_over_some_at_a_time,
    what_is_not_kept_any_more_is_not_shown,
    bad_peeks,
}

fn peek() -> PeekMessages {
    PeekMessages { queue: "jobs".to_owned(), ..PeekMessages::default() }
}

fn texts(peeked: &Peeked) -> Vec<&str> {
    peeked.messages.iter().map(|message| message.body.as_str()).collect()
}

/// Everything that a receive would have changed.
async fn state(on: &TestStore) -> Vec<String> {
    let mut state = Vec::new();
    for sql in [
        "SELECT mid || ' ' || visible_at || ' ' || receives FROM flights ORDER BY mid",
        "SELECT part || ' ' || head || ' ' || seen || ' ' || total || ' ' || next FROM parts ORDER BY part",
        "SELECT mid || ' ' || sent_at FROM messages ORDER BY mid",
        "SELECT grp || ' ' || ready_at FROM fifo_groups ORDER BY grp",
    ] {
        state.extend(on.rows(sql).await.unwrap().iter().map(|row| row.text(0).unwrap().to_owned()));
    }
    state
}

async fn a_peek_shows_what_could_be_received_and_changes_nothing(on: TestStore) {
    jobs(&on, &[("VisibilityTimeout", "30")]).await;
    assert!(ok(&on, peek()).await.messages.is_empty());
    for name in ["given back", "in flight", "fresh"] {
        send(&on, name).await;
    }
    ok(&on, SendMessage { delay_seconds: Some(60), ..body("delayed") }).await;
    let received = receive(&on, 2).await;
    ok(&on, change(&received[0], 0)).await;
    let before = state(&on).await;
    for _ in 0..2 {
        let peeked = ok(&on, peek()).await;
        assert_eq!((texts(&peeked), &peeked.next_cursor), (vec!["given back", "fresh"], &None));
        let [again, fresh] = peeked.messages.as_slice() else { panic!("two messages") };
        assert_eq!((again.receives, fresh.receives), (1, 0));
        assert!(again.first_received_at.is_some() && fresh.first_received_at.is_none());
        assert_eq!(again.message_id, received[0].message_id);
        assert_eq!(again.md5_of_body, received[0].md5_of_body);
        assert_eq!((again.sender.as_str(), &again.sequence_number), (on.admin.principal.to_string().as_str(), &None));
    }
    assert_eq!(state(&on).await, before);
    assert_eq!(counted(&on, "jobs").await, (2, 1, 1));
    pass(&on, 61);
    assert_eq!(texts(&ok(&on, peek()).await), ["given back", "in flight", "fresh", "delayed"]);
}

async fn pages_follow_each_other_until_a_purge(on: TestStore) {
    jobs(&on, &[]).await;
    for number in 0..5 {
        send(&on, &number.to_string()).await;
    }
    let (mut seen, mut cursor, mut pages) = (Vec::new(), None, 0);
    loop {
        let page = ok(&on, PeekMessages { limit: Some(2), cursor, ..peek() }).await;
        seen.extend(texts(&page).into_iter().map(str::to_owned));
        pages += 1;
        cursor = page.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!((seen.join(""), pages), ("01234".to_owned(), 3));
    let cursor = ok(&on, PeekMessages { limit: Some(2), ..peek() }).await.next_cursor;
    assert!(cursor.as_ref().is_some_and(|cursor| cursor.len() <= 512));
    ok(&on, purge()).await;
    send(&on, "new").await;
    assert_eq!(refusal(&on, PeekMessages { cursor, ..peek() }).await, Code::InvalidCursor);
    assert_eq!(texts(&ok(&on, peek()).await), ["new"]);
}

async fn a_cursor_is_of_one_queue_of_one_tenant(on: TestStore) {
    let stranger = on.tenant("other").await.unwrap();
    for name in ["jobs", "other"] {
        ok(&on, queue(name, &[])).await;
        call(&on, &stranger, queue(name, &[])).await.unwrap();
    }
    for text in ["a", "b"] {
        send(&on, text).await;
    }
    let cursor = ok(&on, PeekMessages { limit: Some(1), ..peek() }).await.next_cursor;
    assert!(cursor.is_some());
    let elsewhere = PeekMessages { queue: "other".to_owned(), cursor: cursor.clone(), ..peek() };
    assert_eq!(refusal(&on, elsewhere).await, Code::InvalidCursor);
    let theirs = call(&on, &stranger, PeekMessages { cursor, ..peek() }).await;
    assert_eq!(theirs.err().map(|error| error.code()), Some(Code::InvalidCursor));
    assert!(call(&on, &stranger, peek()).await.unwrap().messages.is_empty());
}

async fn bodies_and_attributes_are_shown_as_far_as_they_were_asked_for(on: TestStore) {
    jobs(&on, &[]).await;
    let binary = MessageAttribute {
        data_type: "Binary.png".to_owned(),
        string_value: None,
        binary_value: Some(Blob(vec![0, 1, 255])),
    };
    let short = BTreeMap::from([
        ("kind".to_owned(), text("String", "new")),
        ("count".to_owned(), text("Number", "42")),
        ("picture".to_owned(), binary),
    ]);
    ok(&on, SendMessage { message_attributes: short, ..body("short") }).await;
    // The 256th byte is the first half of a character.
    let long = format!("{}{}", "a".repeat(255), "ä".repeat(3_000));
    let large = BTreeMap::from([("large".to_owned(), text("String", &"v".repeat(300)))]);
    ok(&on, SendMessage { message_attributes: large, ..body(&long) }).await;

    let peeked = ok(&on, PeekMessages { body_bytes: Some(256), ..peek() }).await;
    let [short, cut] = peeked.messages.as_slice() else { panic!("two messages") };
    assert_eq!((short.body.as_str(), short.body_bytes, short.body_is_cut), ("short", 5, false));
    let attributes = serde_json::to_value(&short.message_attributes).unwrap();
    let expected = serde_json::json!({
        "kind": { "data_type": "String", "string_value": "new" },
        "count": { "data_type": "Number", "string_value": "42" },
        "picture": { "data_type": "Binary.png", "binary_value": "AAH/" },
    });
    assert_eq!((attributes, short.message_attributes_are_cut), (expected, false));
    assert_eq!((cut.body.as_str(), cut.body_bytes, cut.body_is_cut), ("a".repeat(255).as_str(), 6_255, true));
    assert!(cut.message_attributes.is_empty() && cut.message_attributes_are_cut);

    let usual = ok(&on, peek()).await.messages.remove(1);
    assert_eq!((usual.body.len(), usual.body_is_cut), (4_095, true));
    assert_eq!(usual.message_attributes["large"].string_value.as_ref().map(String::len), Some(300));
    let whole = ok(&on, PeekMessages { body_bytes: Some(262_144), ..peek() }).await.messages.remove(1);
    assert_eq!((whole.body == long, whole.body_is_cut), (true, false));
}

async fn a_fifo_queue_is_shown_in_the_order_of_its_numbers(on: TestStore) {
    fifo::orders(&on, &[]).await;
    let mut sent = Vec::new();
    for (group, text) in [("a", "a1"), ("b", "b1"), ("a", "a2"), ("b", "b2"), ("c", "c1")] {
        sent.push(fifo::send(&on, group, text).await.sequence_number);
    }
    fifo::receive(&on, 1).await;
    let before = state(&on).await;
    let peeked = ok(&on, PeekMessages { queue: fifo::ORDERS.to_owned(), ..peek() }).await;
    assert_eq!(texts(&peeked), ["b1", "a2", "b2", "c1"]);
    let numbers: Vec<_> = peeked.messages.iter().map(|message| message.sequence_number.clone()).collect();
    assert_eq!(numbers, sent[1..]);
    assert_eq!(peeked.messages[1].group_id.as_deref(), Some("a"));
    assert!(peeked.messages.iter().all(|message| message.deduplication_id.is_some()));
    assert_eq!(state(&on).await, before);
}

async fn all_partitions_are_shown_one_after_another(on: TestStore) {
    fifo::orders(&on, FOUR).await;
    for text in ["1", "2", "3"] {
        send_to_all(&on, text).await;
    }
    // The first message of the first group is in flight.
    fifo::receive(&on, 1).await;
    let expected: Vec<String> =
        GROUPS.iter().flat_map(|group| ["1", "2", "3"].map(|text| format!("{group} {text}"))).skip(1).collect();
    let before = state(&on).await;
    // Of eleven: pages that end within a partition, and with one.
    for (limit, pages_expected) in [(1, 11), (2, 6), (4, 3), (5, 3), (10, 2), (11, 1), (100, 1)] {
        let (mut seen, mut cursor, mut pages) = (Vec::new(), None, 0);
        loop {
            let look = PeekMessages { queue: fifo::ORDERS.to_owned(), limit: Some(limit), cursor, ..peek() };
            let page = ok(&on, look).await;
            seen.extend(texts(&page).into_iter().map(str::to_owned));
            for message in &page.messages {
                assert!(message.sequence_number.is_some() && message.group_id.is_some());
            }
            pages += 1;
            cursor = page.next_cursor;
            if cursor.is_none() {
                break;
            }
        }
        assert_eq!((&seen, pages), (&expected, pages_expected), "{limit} at a time");
    }
    assert_eq!(state(&on).await, before);
    let received = fifo::receive(&on, 1).await.remove(0);
    assert!(!ok(&on, PeekMessages { queue: fifo::ORDERS.to_owned(), ..peek() }).await.messages.iter().any(|message| {
        message.sequence_number.as_ref() == received.attributes.get("SequenceNumber")
            && message.group_id.as_ref() == received.attributes.get("MessageGroupId")
    }));
}

async fn one_call_looks_at_so_many_of_all_partitions(on: TestStore) {
    fifo::orders(&on, FOUR).await;
    send_to_all(&on, "m").await;
    // Each partition has some thousands in front that are no longer kept, and in the last there is one that is.
    let many = format!(
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 4000) \
         INSERT INTO messages (mid, tenant, id, body, md5, sent_at, sender) \
         SELECT (p.part << 40) + 1000000 + n.i, p.tenant, m.id, 'old', m.md5, {old}, 's' FROM n, parts p, \
         messages m WHERE m.body = 'g0 m'",
        old = on.store.now().micros() - 400_000 * 1_000_000
    );
    on.write(&many).await.unwrap();
    let look = |cursor| PeekMessages { queue: fifo::ORDERS.to_owned(), cursor, ..peek() };
    let first = ok(&on, look(None)).await;
    assert_eq!(texts(&first), ["user-1 m", "g1 m", "g0 m"]);
    let second = ok(&on, look(first.next_cursor)).await;
    assert_eq!((texts(&second), &second.next_cursor), (vec!["g3 m"], &None));
}

async fn a_dead_letter_tells_where_it_comes_from(on: TestStore) {
    dead_letters::one_dead_letter(&on).await;
    let peeked = ok(&on, PeekMessages { queue: "dead".to_owned(), ..peek() }).await;
    assert_eq!(peeked.messages[0].dead_letter_source.as_deref(), Some("jobs"));
    assert_eq!(peeked.messages[0].receives, 0);
}

async fn what_is_in_flight_is_passed_over_some_at_a_time(on: TestStore) {
    jobs(&on, &[]).await;
    send(&on, "first").await;
    // In flight for a long time, in front of the one that is not.
    let many = format!(
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10500) \
         INSERT INTO messages (mid, tenant, id, body, md5, sent_at, sender) \
         SELECT (p.part << 40) + 1000000 + n.i, p.tenant, m.id, 'm' || n.i, m.md5, {now}, 's' \
         FROM n, parts p, messages m WHERE m.body = 'first'",
        now = on.store.now().micros()
    );
    on.write(&many).await.unwrap();
    let flying = format!(
        "INSERT INTO flights (mid, tenant, part, visible_at, receives) SELECT m.mid, m.tenant, m.mid >> 40, {later}, 1 \
         FROM messages m WHERE m.body <> 'first' AND m.body <> 'm10500'",
        later = on.store.now().micros() + 3_600_000_000
    );
    on.write(&flying).await.unwrap();
    let first = ok(&on, peek()).await;
    assert_eq!(texts(&first), ["first"]);
    assert!(first.next_cursor.is_some(), "there is more behind what was looked at");
    let second = ok(&on, PeekMessages { cursor: first.next_cursor, ..peek() }).await;
    assert_eq!((texts(&second), &second.next_cursor), (vec!["m10500"], &None));
}

async fn what_is_not_kept_any_more_is_not_shown(on: TestStore) {
    jobs(&on, &[("MessageRetentionPeriod", "60")]).await;
    send(&on, "old").await;
    pass(&on, 61);
    send(&on, "new").await;
    assert_eq!(texts(&ok(&on, peek()).await), ["new"]);
    upkeep(&on).await;
    assert_eq!(texts(&ok(&on, peek()).await), ["new"]);
}

async fn bad_peeks(on: TestStore) {
    jobs(&on, &[]).await;
    let with = |limit, body_bytes| PeekMessages { limit, body_bytes, ..peek() };
    for (limit, bytes) in [(Some(0), None), (Some(101), None), (None, Some(255)), (None, Some(262_145))] {
        assert_eq!(refusal(&on, with(limit, bytes)).await, Code::InvalidRequest, "{limit:?} {bytes:?}");
    }
    for (limit, bytes) in [(Some(1), Some(256)), (Some(100), Some(262_144))] {
        ok(&on, with(limit, bytes)).await;
    }
    for name in ["nowhere", "a b", "", "http://localhost:9324/000000000000/jobs"] {
        let elsewhere = PeekMessages { queue: name.to_owned(), ..peek() };
        assert_eq!(refusal(&on, elsewhere).await, Code::QueueDoesNotExist, "{name:?}");
    }
    for cursor in ["", "zz", "00"] {
        let garbage = PeekMessages { cursor: Some(cursor.to_owned()), ..peek() };
        assert_eq!(refusal(&on, garbage).await, Code::InvalidCursor, "{cursor:?}");
    }
}
