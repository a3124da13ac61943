//! Threads as their parties see them, and what they come to.

use serde_json::{Value as Json, json};
use waybill_kernel::Code;
use waybill_testkit::stores::TestStore;

use crate::support::{HOME, agent, letter, number, ok, person, policy, refusal, send, text, two, with};

waybill_testkit::both! {
    a_thread_is_read_in_order_and_by_pages,
    texts_come_whole_with_their_files_and_a_page_ends_where_it_is_full,
    a_reply_begins_a_thread_by_the_number_of_its_message,
    only_parties_read_a_thread_and_hidden_ones_stay_hidden,
    a_thread_is_summed_up_without_a_model,
    the_thread_of_one_agent_is_found_behind_the_mail_of_others,
    several_threads_make_a_digest,
    what_is_asked_wrongly_is_refused,
}

fn thread(id: impl ToString, further: Json) -> Json {
    with(json!({ "project_key": HOME, "thread_id": id.to_string() }), further)
}

fn ids(answer: &Json) -> Vec<i64> {
    answer["messages"].as_array().unwrap().iter().map(|message| number(message, "id")).collect()
}

async fn a_thread_is_read_in_order_and_by_pages(on: TestStore) {
    let (alice, bob) = two(&on).await;
    let mut sent = Vec::new();
    for n in 0..5 {
        sent.push(send(&on, &alice, with(letter(&format!("m{n}")), json!({ "thread_id": "T-1" }))).await);
        send(&on, &alice, with(letter("other"), json!({ "thread_id": "T-2" }))).await;
    }
    assert_eq!(ids(&ok(&on, &bob, "get_thread", thread("T-1", json!({}))).await), sent);
    let newest = ok(&on, &bob, "get_thread", thread("T-1", json!({ "limit": 2 }))).await;
    assert_eq!(ids(&newest), sent[3..]);
    let older =
        ok(&on, &bob, "get_thread", thread("T-1", json!({ "limit": 3, "cursor": newest["next_cursor"] }))).await;
    assert_eq!((ids(&older), &older["next_cursor"]), (sent[..3].to_vec(), &Json::Null));
    let alone = ok(&on, &bob, "get_thread", thread(sent[2], json!({}))).await;
    assert_eq!(ids(&alone), [sent[2]], "one of a thread is found by its own number as well");
    assert!(newest["messages"][0].get("body_md").is_none());
    let bodies = ok(&on, &bob, "get_thread", thread("T-1", json!({ "include_bodies": true }))).await;
    assert_eq!(bodies["messages"][0]["body_md"], "Hello.");
}

async fn texts_come_whole_with_their_files_and_a_page_ends_where_it_is_full(on: TestStore) {
    const BYTES: usize = 300_000;
    const PAGE: usize = 2 << 20;
    let (alice, bob) = two(&on).await;
    let mut sent = Vec::new();
    for n in 0..8 {
        let file = json!({ "name": "a.txt", "content_base64": "aGVsbG8=" });
        let long = json!({ "thread_id": "T", "body_md": n.to_string().repeat(BYTES), "attachments": [file] });
        sent.push(send(&on, &alice, with(letter("long"), long)).await);
    }
    let (mut pages, mut cursor) = (Vec::new(), Json::Null);
    loop {
        let further = json!({ "include_bodies": true, "limit": 8, "cursor": cursor });
        let page = ok(&on, &bob, "get_thread", thread("T", further)).await;
        assert!(page.to_string().len() <= PAGE, "{}", page.to_string().len());
        for message in page["messages"].as_array().unwrap() {
            assert_eq!(text(message, "body_md").len(), BYTES);
            assert_eq!(message["attachments"][0]["content_base64"], "aGVsbG8=");
        }
        pages.push(ids(&page));
        cursor = page["next_cursor"].clone();
        if cursor.is_null() {
            break;
        }
    }
    assert_eq!(pages, [&sent[2..], &sent[..2]], "as many as there is room for, the newest first");
    let plain = ok(&on, &bob, "get_thread", thread("T", json!({}))).await;
    assert_eq!((ids(&plain), &plain["next_cursor"]), (sent, &Json::Null));
    assert!(plain["messages"][0]["attachments"][0].get("content_base64").is_none(), "{plain}");
}

async fn a_reply_begins_a_thread_by_the_number_of_its_message(on: TestStore) {
    let (alice, bob) = two(&on).await;
    let first = send(&on, &alice, letter("Question")).await;
    assert_eq!(ids(&ok(&on, &bob, "get_thread", thread(first, json!({}))).await), [first]);
    let reply = json!({ "project_key": HOME, "message_id": first, "sender_name": "BlueLake", "body_md": "Answer." });
    ok(&on, &bob, "reply_message", reply).await;
    let read = ok(&on, &alice, "get_thread", thread(first, json!({}))).await;
    assert_eq!((ids(&read).len(), &read["messages"][1]["subject"]), (2, &json!("Re: Question")));
}

async fn only_parties_read_a_thread_and_hidden_ones_stay_hidden(on: TestStore) {
    let (alice, bob) = two(&on).await;
    let (carol, dave) = (person(&on, "carol"), person(&on, "dave"));
    for (caller, name) in [(&carol, "RedStone"), (&dave, "GoldenHawk")] {
        agent(&on, caller, name).await;
        policy(&on, caller, name, "open").await;
    }
    let open = send(&on, &alice, with(letter("one"), json!({ "thread_id": "T" }))).await;
    let hidden = send(&on, &alice, with(letter("two"), json!({ "thread_id": "T", "bcc": ["RedStone"] }))).await;
    assert_eq!(ids(&ok(&on, &bob, "get_thread", thread("T", json!({}))).await), [open, hidden]);
    assert_eq!(ids(&ok(&on, &carol, "get_thread", thread("T", json!({}))).await), [hidden]);
    assert_eq!(ids(&ok(&on, &on.admin, "get_thread", thread("T", json!({}))).await), [open, hidden]);
    for tool in ["get_thread", "summarize_thread"] {
        assert_eq!(refusal(&on, &dave, tool, thread("T", json!({}))).await, Code::NotFound);
        for caller in [&bob, &carol] {
            let answer = ok(&on, caller, tool, thread("T", json!({}))).await;
            assert!(!answer.to_string().contains("RedStone"), "{answer}");
        }
    }
    let own = ok(&on, &alice, "get_thread", thread("T", json!({}))).await;
    assert_eq!(own["messages"][1]["bcc"], json!(["RedStone"]), "its sender sees whom it hid");
}

async fn a_thread_is_summed_up_without_a_model(on: TestStore) {
    let (alice, bob) = two(&on).await;
    let body = "Plan:\n- split `src/api.rs`\n- [ ] write tests\nTODO: ask @BlueLake";
    let first = send(&on, &alice, with(letter("Plan"), json!({ "thread_id": "T", "body_md": body }))).await;
    let reply =
        json!({ "project_key": HOME, "message_id": first, "sender_name": "BlueLake", "body_md": "- [x] agreed" });
    ok(&on, &bob, "reply_message", reply).await;
    let input = thread("T", json!({ "include_examples": true, "llm_mode": true, "llm_model": null }));
    let told = ok(&on, &bob, "summarize_thread", input).await;
    let summary = &told["summary"];
    assert_eq!(summary["participants"], json!(["BlueLake", "GreenCastle"]));
    assert_eq!(summary["key_points"], json!(["split `src/api.rs`", "agreed"]));
    assert_eq!(summary["action_items"], json!(["write tests", "TODO: ask @BlueLake"]));
    assert_eq!(summary["mentions"], json!([{ "name": "BlueLake", "count": 1 }]));
    assert_eq!(
        (&summary["total_messages"], &summary["open_actions"], &summary["done_actions"]),
        (&json!(2), &json!(2), &json!(1))
    );
    assert_eq!(told["examples"].as_array().unwrap().len(), 2);
}

/// The newest of what the principal has may all be another agent's.
async fn the_thread_of_one_agent_is_found_behind_the_mail_of_others(on: TestStore) {
    let (alice, _) = two(&on).await;
    agent(&on, &alice, "RedFox").await;
    for (sender, count) in [("GreenCastle", 3), ("RedFox", 5), ("GreenCastle", 1), ("RedFox", 3)] {
        for _ in 0..count {
            let body = format!("- point of {sender}");
            let further = json!({ "thread_id": "T", "sender_name": sender, "body_md": body });
            send(&on, &alice, with(letter("x"), further)).await;
        }
    }
    for (limit, expected) in [(1, 1), (2, 2), (3, 3), (4, 4), (50, 4)] {
        let input = thread("T", json!({ "agent_name": "GreenCastle", "per_thread_limit": limit }));
        let summary = ok(&on, &alice, "summarize_thread", input).await["summary"].clone();
        assert_eq!(summary["total_messages"], expected, "{limit}: {summary}");
        assert_eq!(summary["key_points"], json!(["point of GreenCastle"]), "{limit}");
    }
    let all = ok(&on, &alice, "summarize_thread", thread("T", json!({ "per_thread_limit": 5 }))).await;
    assert_eq!(all["summary"]["total_messages"], 5);
}

async fn several_threads_make_a_digest(on: TestStore) {
    let (alice, bob) = two(&on).await;
    for id in ["A", "B"] {
        let body = format!("- point {id}\n@BlueLake @Other{id}");
        send(&on, &alice, with(letter("x"), json!({ "thread_id": id, "body_md": body }))).await;
    }
    let told = ok(&on, &bob, "summarize_thread", thread("A, B ,A,missing", json!({}))).await;
    let threads = told["threads"].as_array().unwrap();
    assert_eq!(threads.iter().map(|one| one["thread_id"].as_str().unwrap()).collect::<Vec<_>>(), ["A", "B"]);
    assert_eq!(told["aggregate"]["key_points"], json!(["point A", "point B"]));
    assert_eq!(told["aggregate"]["top_mentions"][0], json!({ "name": "BlueLake", "count": 2 }));
}

async fn what_is_asked_wrongly_is_refused(on: TestStore) {
    let (alice, _) = two(&on).await;
    let many: Vec<String> = (0..21).map(|n| n.to_string()).collect();
    for (tool, id, further, code) in [
        ("get_thread", "none".to_owned(), json!({}), Code::NotFound),
        ("get_thread", "none".to_owned(), json!({ "limit": 0 }), Code::InvalidRequest),
        ("get_thread", "none".to_owned(), json!({ "cursor": "x" }), Code::InvalidCursor),
        ("summarize_thread", "none".to_owned(), json!({}), Code::NotFound),
        ("summarize_thread", " , ".to_owned(), json!({}), Code::InvalidRequest),
        ("summarize_thread", many.join(","), json!({}), Code::InvalidRequest),
        ("summarize_thread", "none".to_owned(), json!({ "per_thread_limit": 0 }), Code::InvalidRequest),
    ] {
        assert_eq!(refusal(&on, &alice, tool, thread(&id, further.clone())).await, code, "{tool} {id} {further}");
    }
}
