//! Reading, acknowledging, following.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value as Json, json};
use waybill_kernel::{Caller, Code, Scope, Scopes};
use waybill_mail::Settings;
use waybill_mail::sweeps::OldEvents;
use waybill_store::effects::Cursor;
use waybill_testkit::stores::TestStore;

use crate::support::*;

waybill_testkit::both! {
    rule_07_reading_and_acknowledging_write_no_archive_row,
    rule_08_the_first_read_counts,
    rule_09_the_first_acknowledgement_counts_and_reads,
    an_inbox_is_shown_by_its_filters_and_reading_marks_nothing,
    filters_that_no_index_has_together_look_so_far_and_say_so,
    a_page_has_its_room_and_marks_only_what_it_shows,
    an_inbox_costs_the_same_at_a_hundred_thousand,
    views_show_what_they_are_called,
    deliveries_are_followed_once_each_in_order,
    a_cursor_that_is_too_old_or_ahead_is_told,
    a_cursor_of_deliveries_that_a_restore_has_lost_is_told,
    a_follower_is_woken_by_the_message,
    health_is_told_after_a_write,
}

async fn rule_07_reading_and_acknowledging_write_no_archive_row(on: TestStore) {
    let (alice, bob) = two(&on).await;
    let id = send(&on, &alice, letter("a")).await;
    let (rows, changes) = archive(&on).await;
    ok(&on, &bob, "mark_message_read", message("BlueLake", id)).await;
    ok(&on, &bob, "acknowledge_message", message("BlueLake", id)).await;
    policy(&on, &bob, "BlueLake", "contacts_only").await;
    assert_eq!(archive(&on).await, (rows, changes + 3), "what changed is noted once each");
    ok(&on, &bob, "mark_message_read", message("BlueLake", id)).await;
    ok(&on, &bob, "acknowledge_message", message("BlueLake", id)).await;
    assert_eq!(archive(&on).await, (rows, changes + 3), "nothing changed");
}

async fn rule_08_the_first_read_counts(on: TestStore) {
    let (alice, bob) = two(&on).await;
    let id = send(&on, &alice, letter("a")).await;
    let first = ok(&on, &bob, "mark_message_read", message("BlueLake", id)).await;
    pass(&on, 60);
    assert_eq!(ok(&on, &bob, "mark_message_read", message("bluelake", id)).await, first);
    let got = inbox(&on, &bob, "BlueLake", json!({})).await;
    assert_eq!((&got[0]["read_ts"], got[0].get("ack_ts")), (&first["read_at"], None));
}

async fn rule_09_the_first_acknowledgement_counts_and_reads(on: TestStore) {
    let (alice, bob) = two(&on).await;
    let (one, two) = (send(&on, &alice, letter("a")).await, send(&on, &alice, letter("b")).await);
    let read = ok(&on, &bob, "mark_message_read", message("BlueLake", one)).await;
    pass(&on, 60);
    let acked = ok(&on, &bob, "acknowledge_message", message("BlueLake", one)).await;
    assert_eq!(acked["read_at"], read["read_at"], "the earlier read stays");
    assert!(text(&acked, "acknowledged_at") > text(&acked, "read_at"));
    pass(&on, 60);
    assert_eq!(ok(&on, &bob, "acknowledge_message", message("BlueLake", one)).await, acked);
    let both = ok(&on, &bob, "acknowledge_message", message("BlueLake", two)).await;
    assert_eq!(both["read_at"], both["acknowledged_at"]);
}

async fn an_inbox_is_shown_by_its_filters_and_reading_marks_nothing(on: TestStore) {
    let (alice, bob) = two(&on).await;
    for (subject, importance, ack) in
        [("a", "normal", true), ("b", "high", false), ("c", "urgent", true), ("d", "low", false)]
    {
        send(&on, &alice, with(letter(subject), json!({ "importance": importance, "ack_required": ack }))).await;
        pass(&on, 60);
    }
    let shown = async |further: Json| subjects(&inbox(&on, &bob, "BlueLake", further).await);
    for _ in 0..2 {
        assert_eq!(shown(json!({})).await, ["d", "c", "b", "a"], "the newest first");
        assert_eq!(shown(json!({ "unread_only": true })).await, ["d", "c", "b", "a"], "reading marks nothing");
    }
    assert_eq!(shown(json!({ "limit": 2 })).await, ["d", "c"]);
    assert_eq!(shown(json!({ "urgent_only": true })).await, ["c", "b"]);
    let all = inbox(&on, &bob, "BlueLake", json!({})).await;
    let since = |at: usize| json!({ "since_ts": all[at]["created_ts"] });
    assert_eq!(shown(since(2)).await, ["d", "c"], "strictly newer");
    assert!(all[0].get("body_md").is_none());
    assert_eq!(inbox(&on, &bob, "BlueLake", json!({ "include_bodies": true })).await[0]["body_md"], "Hello.");
    pass(&on, 1_900);
    assert_eq!(shown(json!({ "ack_overdue_only": true })).await, ["c", "a"]);
    assert_eq!(shown(json!({ "ack_overdue_only": true, "urgent_only": true })).await, ["c"]);
    assert_eq!(shown(json!({ "ack_overdue_only": true, "unread_only": true })).await, ["c", "a"]);
    ok(&on, &bob, "mark_message_read", message("BlueLake", number(&all[1], "id"))).await;
    assert_eq!(shown(json!({ "ack_overdue_only": true, "unread_only": true })).await, ["a"]);
    assert!(shown(json!({ "ack_overdue_only": true, "unread_only": true, "urgent_only": true })).await.is_empty());
    ok(&on, &bob, "acknowledge_message", message("BlueLake", number(&all[3], "id"))).await;
    assert_eq!(shown(json!({ "ack_overdue_only": true })).await, ["c"]);
    let marked = inbox(&on, &bob, "BlueLake", json!({ "limit": 2, "mark_read": true })).await;
    assert!(marked.iter().all(|message| message.get("read_ts").is_some()), "{marked:?}");
    assert_eq!(shown(json!({ "unread_only": true })).await, ["b"]);
    assert_eq!(shown(json!({ "unread_only": true, "urgent_only": true })).await, ["b"]);
    for bad in [json!({ "limit": 0 }), json!({ "limit": -1 }), json!({ "since_ts": "yesterday" })] {
        assert_eq!(
            refusal(&on, &bob, "fetch_inbox", with(of("BlueLake"), bad.clone())).await,
            Code::InvalidRequest,
            "{bad}"
        );
    }
    let reader = Caller { scopes: Scopes::new([Scope::MailRead]), ..bob.clone() };
    inbox(&on, &reader, "BlueLake", json!({})).await;
    let mark = with(of("BlueLake"), json!({ "mark_read": true }));
    assert_eq!(refusal(&on, &reader, "fetch_inbox", mark).await, Code::Forbidden, "a key that reads does not mark");
}

async fn a_page_has_its_room_and_marks_only_what_it_shows(on: TestStore) {
    let (alice, bob) = two(&on).await;
    let mut sent = Vec::new();
    for (subject, body) in [("a", "x"), ("b", "\""), ("c", "\n"), ("d", "x"), ("e", "x"), ("f", "\u{1}")] {
        sent.push(send(&on, &alice, with(letter(subject), json!({ "body_md": body.repeat(900_000) }))).await);
        pass(&on, 1);
    }
    let wanted = json!({ "unread_only": true, "include_bodies": true, "mark_read": true, "limit": 1_000 });
    let mut seen = Vec::new();
    loop {
        let page = ok(&on, &bob, "fetch_inbox", with(of("BlueLake"), wanted.clone())).await;
        let shown = page["result"].as_array().unwrap();
        assert!(shown.len() == 1 || page.to_string().len() <= 2 << 20, "{}", page.to_string().len());
        assert!(shown.iter().all(|message| text(message, "body_md").len() == 900_000));
        seen.push(subjects(shown).concat());
        let unread = inbox(&on, &bob, "BlueLake", json!({ "unread_only": true })).await.len();
        assert_eq!(unread, sent.len() - seen.concat().len(), "what was not shown is unread");
        assert_eq!(page.get("has_more").is_some(), unread > 0);
        if unread == 0 {
            break;
        }
    }
    assert_eq!(seen, ["f", "ed", "c", "b", "a"], "as much as JSON has room for, the newest first");
    for view in ["outbox", "mailbox"] {
        let input = with(of("GreenCastle"), json!({ "view": view, "include_bodies": true, "limit": 6 }));
        let page = ok(&on, &alice, "read_mailbox", input).await;
        assert_eq!(
            (subjects(page["messages"].as_array().unwrap()).concat(), &page["has_more"]),
            ("f".into(), &json!(true))
        );
    }
    let few = ok(&on, &bob, "fetch_inbox", with(of("BlueLake"), json!({ "limit": 5 }))).await;
    assert_eq!((few["result"].as_array().unwrap().len(), &few["has_more"]), (5, &json!(true)));
    let all = ok(&on, &bob, "fetch_inbox", with(of("BlueLake"), json!({ "limit": 6 }))).await;
    assert_eq!((all["result"].as_array().unwrap().len(), all.get("has_more")), (6, None));
}

/// What is overdue and urgent is looked for among a bounded number of those that are overdue.
async fn filters_that_no_index_has_together_look_so_far_and_say_so(on: TestStore) {
    let (alice, bob) = two(&on).await;
    send(&on, &alice, with(letter("old"), json!({ "ack_required": true, "importance": "urgent" }))).await;
    pass(&on, 10);
    let id = send(&on, &alice, with(letter("first"), json!({ "ack_required": true }))).await;
    let copies = |count: usize| {
        format!(
            "INSERT INTO mail_messages (tenant, project, sender, sender_name, subject, body, importance, ack_required, \
             names, created_at) WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count}) \
             SELECT tenant, project, sender, sender_name, 'more', 'x', 'normal', 1, names, created_at + n.i \
             FROM mail_messages, n WHERE message = {id}"
        )
    };
    let delivered = format!(
        "INSERT INTO mail_recipients (tenant, message, agent, kind, sender, urgent, ack_required, intro, created_at) \
         SELECT m.tenant, m.message, r.agent, 'to', m.sender, 0, 1, 0, m.created_at FROM mail_messages m, mail_recipients r \
         WHERE r.message = {id} AND m.subject = 'more' \
         AND NOT EXISTS (SELECT 1 FROM mail_recipients k WHERE k.message = m.message)"
    );
    let wanted = with(of("BlueLake"), json!({ "ack_overdue_only": true, "urgent_only": true, "limit": 5 }));
    for (more, shown, has_more) in [(998, 1, false), (1, 0, true)] {
        on.write(&copies(more)).await.unwrap();
        on.write(&delivered).await.unwrap();
        pass(&on, 2_000);
        let page = ok(&on, &bob, "fetch_inbox", wanted.clone()).await;
        let found = page["result"].as_array().unwrap().len();
        assert_eq!((found, page["has_more"] == true), (shown, has_more), "{more} more");
    }
    // As many as one page may have: the same bound.
    let all = with(wanted, json!({ "limit": 1_000, "urgent_only": false, "unread_only": true }));
    let page = ok(&on, &bob, "fetch_inbox", all).await;
    assert_eq!((page["result"].as_array().unwrap().len(), &page["has_more"]), (1_000, &json!(true)));
}

/// Not by time, which a busy machine distorts, but by what the engine says it walks over.
async fn an_inbox_costs_the_same_at_a_hundred_thousand(on: TestStore) {
    let (alice, bob) = two(&on).await;
    let id = send(&on, &alice, with(letter("first"), json!({ "ack_required": true, "importance": "high" }))).await;
    ok(&on, &bob, "acknowledge_message", message("BlueLake", id)).await;
    on.write(&format!(
        "INSERT INTO mail_messages (tenant, project, sender, sender_name, subject, body, importance, ack_required, names, \
         created_at) WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000) \
         SELECT tenant, project, sender, sender_name, 'old', 'x', 'high', 1, names, created_at - n.i \
         FROM mail_messages, n WHERE message = {id}"
    ))
    .await
    .unwrap();
    on.write(&format!(
        "INSERT INTO mail_recipients (tenant, message, agent, kind, sender, urgent, ack_required, intro, created_at, read_at, \
         ack_at) SELECT m.tenant, m.message, r.agent, 'to', m.sender, 1, 1, 0, m.created_at, m.created_at, m.created_at \
         FROM mail_messages m, mail_recipients r WHERE r.message = {id} AND m.message <> {id}"
    ))
    .await
    .unwrap();
    if on.store.is_postgres() {
        on.write("ANALYZE mail_recipients").await.unwrap();
        on.write("ANALYZE mail_messages").await.unwrap();
    }
    send(&on, &alice, letter("new")).await;
    let began = std::time::Instant::now();
    for further in
        [json!({}), json!({ "unread_only": true }), json!({ "urgent_only": true }), json!({ "ack_overdue_only": true })]
    {
        inbox(&on, &bob, "BlueLake", with(json!({ "limit": 5 }), further)).await;
    }
    let counts =
        ok(&on, &bob, "read_mailbox", with(of("BlueLake"), json!({ "view": "inbox" }))).await["counts"].clone();
    assert_eq!(counts, json!({ "unread": 1, "urgent_unread": 0, "ack_open": 0 }));
    send(&on, &alice, letter("another")).await;
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}: something walks over all of it", began.elapsed());
}

async fn views_show_what_they_are_called(on: TestStore) {
    let (alice, bob) = two(&on).await;
    send(&on, &alice, with(letter("urgent"), json!({ "importance": "urgent" }))).await;
    send(&on, &alice, with(letter("ack"), json!({ "ack_required": true }))).await;
    pass(&on, 10);
    send(&on, &bob, with(letter("back"), json!({ "sender_name": "BlueLake", "to": ["GreenCastle"] }))).await;
    let view = async |view: &str, further: Json| {
        let input = with(with(of("BlueLake"), json!({ "view": view })), further);
        subjects(ok(&on, &bob, "read_mailbox", input).await["messages"].as_array().unwrap())
    };
    assert_eq!(view("inbox", json!({})).await, ["ack", "urgent"]);
    assert_eq!(view("outbox", json!({})).await, ["back"]);
    assert_eq!(view("mailbox", json!({ "limit": 2 })).await, ["back", "ack"]);
    assert_eq!(view("urgent-unread", json!({})).await, ["urgent"]);
    assert_eq!(view("ack-required", json!({})).await, ["ack"]);
    assert_eq!(view("ack-overdue", json!({})).await, Vec::<String>::new());
    assert_eq!(view("acks-stale", json!({ "ttl_seconds": 5 })).await, ["ack"]);
    let unknown = with(of("BlueLake"), json!({ "view": "all" }));
    assert_eq!(refusal(&on, &bob, "read_mailbox", unknown).await, Code::InvalidRequest);
}

async fn deliveries_are_followed_once_each_in_order(on: TestStore) {
    let (alice, bob) = two(&on).await;
    let events = async |further: Json| ok(&on, &bob, "fetch_inbox_events", with(of("BlueLake"), further)).await;
    let empty = events(json!({})).await;
    assert_eq!((&empty["events"], &empty["has_more"]), (&json!([]), &json!(false)));
    for subject in ["a", "b", "c"] {
        send(&on, &alice, letter(subject)).await;
    }
    let first = events(json!({ "after": empty["next_cursor"], "limit": 2 })).await;
    assert_eq!(
        (subjects(first["events"].as_array().unwrap()), &first["has_more"]),
        (vec!["a".into(), "b".into()], &json!(true))
    );
    assert!(first["events"][0].get("body_md").is_none());
    let second = events(json!({ "after": first["next_cursor"] })).await;
    assert_eq!(
        (subjects(second["events"].as_array().unwrap()), &second["has_more"]),
        (vec!["c".into()], &json!(false))
    );
    assert_eq!(
        (&second["next_cursor"], &second["tail_cursor"]),
        (&second["events"][0]["cursor"], &second["next_cursor"])
    );
    let none = events(json!({ "after": second["next_cursor"] })).await;
    assert_eq!((&none["events"], &none["next_cursor"]), (&json!([]), &second["next_cursor"]));
    let now = events(json!({ "position_now": true })).await;
    assert_eq!((&now["events"], &now["next_cursor"]), (&json!([]), &second["next_cursor"]));
    // A cursor is of one inbox.
    let foreign = with(of("GreenCastle"), json!({ "after": second["next_cursor"] }));
    assert_eq!(refusal(&on, &alice, "fetch_inbox_events", foreign).await, Code::InvalidCursor);
    assert_eq!(
        refusal(&on, &bob, "fetch_inbox_events", with(of("BlueLake"), json!({ "after": "xyz" }))).await,
        Code::InvalidCursor
    );
}

async fn a_cursor_that_is_too_old_or_ahead_is_told(on: TestStore) {
    let (alice, bob) = two(&on).await;
    let events = async |further: Json| ok(&on, &bob, "fetch_inbox_events", with(of("BlueLake"), further)).await;
    let start = events(json!({})).await["next_cursor"].clone();
    send(&on, &alice, letter("a")).await;
    send(&on, &alice, letter("b")).await;
    let read = events(json!({ "limit": 1 })).await["next_cursor"].clone();
    let end = events(json!({ "after": read })).await["next_cursor"].clone();
    let settings = Settings { events_retention_s: 3_600, ..Settings::default() };
    pass(&on, 3_000);
    send(&on, &alice, letter("c")).await;
    pass(&on, 1_000);
    assert_eq!(sweep(&on, OldEvents::new(&settings)).await, 2);
    let after = |cursor: &Json| with(of("BlueLake"), json!({ "after": cursor }));
    let oldest = events(json!({})).await["oldest_available_cursor"].clone();
    for old in [&start, &read] {
        let error = refused(&on, &bob, "fetch_inbox_events", after(old)).await;
        assert_eq!((error.code(), error.detail("oldest_available_cursor")), (Code::CursorExpired, Some(&oldest)));
    }
    let rest = ok(&on, &bob, "fetch_inbox_events", after(&end)).await;
    assert_eq!(subjects(rest["events"].as_array().unwrap()), ["c"]);
    assert_eq!(ok(&on, &bob, "fetch_inbox_events", after(&oldest)).await["events"], rest["events"]);
    assert_eq!(subjects(events(json!({})).await["events"].as_array().unwrap()), ["c"], "from the oldest there is");
    // As after a restore from a time before.
    let newest = rest["next_cursor"].clone();
    on.write("DELETE FROM mail_inbox_events").await.unwrap();
    let error = refused(&on, &bob, "fetch_inbox_events", after(&newest)).await;
    assert_eq!((error.code(), error.detail("tail_cursor")), (Code::CursorAhead, Some(&oldest)));
}

/// SQLite gives their numbers out again, to deliveries of the same agent and of others.
async fn a_cursor_of_deliveries_that_a_restore_has_lost_is_told(on: TestStore) {
    let (alice, bob) = two(&on).await;
    let events = async |after: &Json| {
        let page = ok(&on, &bob, "fetch_inbox_events", with(of("BlueLake"), json!({ "after": after }))).await;
        (subjects(page["events"].as_array().unwrap()), page["next_cursor"].clone())
    };
    let refused = async |after: &Json| {
        let input = with(of("BlueLake"), json!({ "after": after }));
        let error = refused(&on, &bob, "fetch_inbox_events", input).await;
        assert_eq!(error.code(), Code::CursorAhead, "{error}");
        error
    };
    send(&on, &alice, letter("kept")).await;
    let kept = events(&Json::Null).await.1;
    let lost = send(&on, &alice, letter("lost")).await;
    let ahead = events(&Json::Null).await.1;
    on.write(&format!("DELETE FROM mail_inbox_events WHERE message = {lost}")).await.unwrap();
    pass(&on, 60);
    refused(&ahead).await;
    let mut later = Vec::new();
    for subject in ["c", "d", "e"] {
        later.push(send(&on, &alice, letter(subject)).await);
    }
    // By now there are higher numbers, so that the cursor is ahead of nothing.
    let error = refused(&ahead).await;
    let tail = error.detail("tail_cursor").unwrap().clone();
    assert_eq!(events(&tail).await.0, Vec::<String>::new());
    assert_eq!(events(&kept).await.0, ["c", "d", "e"]);

    // A cursor that says no time, as before: good where its number is this agent's.
    let numbers = format!("SELECT xact, seq, agent FROM mail_inbox_events WHERE message = {}", later[1]);
    let row = on.rows(&numbers).await.unwrap().remove(0);
    let at = Cursor { xact: row.int(0).unwrap(), seq: row.int(1).unwrap() };
    let agent = row.int(2).unwrap().to_be_bytes();
    let scope: [&[u8]; 3] = [b"mail.inbox", bob.tenant_id.as_bytes(), &agent];
    let old = json!(at.to_text(&scope));
    assert_eq!(events(&old).await.0, ["e"]);
    on.write(&format!("UPDATE mail_inbox_events SET agent = 0 WHERE message = {}", later[1])).await.unwrap();
    refused(&old).await;
}

async fn a_follower_is_woken_by_the_message(on: TestStore) {
    let (alice, bob) = two(&on).await;
    let on = Arc::new(on);
    for key in [HOME, "data-projects-backend"] {
        let at = ok(&on, &bob, "fetch_inbox_events", with(of("BlueLake"), json!({ "position_now": true }))).await;
        let input =
            json!({ "project_key": key, "agent_name": "bluelake", "after": at["next_cursor"], "wait_seconds": 20 });
        let waiting = {
            let (on, bob) = (Arc::clone(&on), bob.clone());
            tokio::spawn(async move { on.call(&bob, "fetch_inbox_events", input).await.unwrap().json })
        };
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(!waiting.is_finished(), "it waits");
        send(&on, &alice, letter("wake")).await;
        let got = tokio::time::timeout(Duration::from_secs(10), waiting).await.unwrap().unwrap();
        assert_eq!(subjects(got["events"].as_array().unwrap()), ["wake"], "{key}");
    }
}

async fn health_is_told_after_a_write(on: TestStore) {
    let (alice, _) = two(&on).await;
    let health = ok(&on, &alice, "health_check", json!({})).await;
    assert_eq!(
        (&health["status"], &health["health_level"], &health["projects"]),
        (&json!("ok"), &json!("green"), &json!(1))
    );
    assert_eq!(health["semantic_ready"], false, "{health}");
    assert_eq!(on.count("SELECT count(*) FROM mail_probes").await.unwrap(), 1);
}
