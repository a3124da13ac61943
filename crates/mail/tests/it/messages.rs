//! Sending and answering.

use std::collections::BTreeSet;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value as Json, json};
use waybill_kernel::{Caller, Code};
use waybill_testkit::stores::TestStore;

use crate::support::*;

waybill_testkit::both! {
    rule_05_a_message_and_its_recipients_are_seen_together,
    rule_16_two_sends_without_a_key_are_two_messages,
    rule_22_archive_rows_are_written_by_those_that_have_something_to_archive,
    a_key_makes_a_call_safe_to_repeat_for_a_day,
    fifty_calls_under_one_key_send_once,
    an_answer_has_the_text_once_however_many_projects_get_it,
    every_list_counts_once_and_hidden_ones_stay_hidden,
    who_is_missing_is_told_at_once_and_nobody_gets_it,
    what_is_told_of_the_missing_does_not_grow_with_their_names,
    a_reply_keeps_thread_subject_importance_and_goes_to_who_wrote,
    a_reply_to_ones_own_message_reaches_those_who_got_it,
    threads_have_names_and_numbers_are_for_replies,
    files_come_as_bytes_and_paths_are_refused,
    files_are_given_back_to_the_parties_of_the_message,
    small_files_are_shown_with_the_text_as_their_sender_wants,
    what_is_not_understood_is_refused_and_null_is_absent,
    a_message_is_for_its_parties,
    a_token_proves_the_sender,
}

async fn rule_05_a_message_and_its_recipients_are_seen_together(on: TestStore) {
    let (alice, _) = two(&on).await;
    let on = Arc::new(on);
    for name in ["RedFox", "GoldenOwl", "SilverBear"] {
        agent(&on, &alice, name).await;
        policy(&on, &alice, name, "open").await;
    }
    let input = with(letter("x"), json!({ "to": ["BlueLake", "RedFox"], "cc": ["GoldenOwl"], "bcc": ["SilverBear"] }));
    let mut writers = Vec::new();
    for _ in 0..20 {
        let (on, alice, input) = (Arc::clone(&on), alice.clone(), input.clone());
        writers.push(tokio::spawn(async move { on.call(&alice, "send_message", input).await.unwrap() }));
    }
    let short = "SELECT count(*) FROM mail_messages m WHERE \
                 (SELECT count(*) FROM mail_recipients r WHERE r.message = m.message) <> 4 \
                 OR (SELECT count(*) FROM mail_inbox_events e WHERE e.message = m.message) <> 4";
    while writers.iter().any(|writer| !writer.is_finished()) {
        assert_eq!(on.count(short).await.unwrap(), 0, "a message with some recipients missing was seen");
    }
    for writer in writers {
        writer.await.unwrap();
    }
    assert_eq!(
        (on.count("SELECT count(*) FROM mail_messages").await.unwrap(), on.count(short).await.unwrap()),
        (20, 0)
    );
}

async fn rule_16_two_sends_without_a_key_are_two_messages(on: TestStore) {
    let (alice, bob) = two(&on).await;
    let (one, two) = (send(&on, &alice, letter("a")).await, send(&on, &alice, letter("a")).await);
    assert!(one < two);
    let reply = json!({ "project_key": HOME, "message_id": one, "sender_name": "BlueLake", "body_md": "Yes." });
    let three = number(&ok(&on, &bob, "reply_message", reply.clone()).await, "id");
    assert!(three < number(&ok(&on, &bob, "reply_message", reply).await, "id"));
    assert_eq!(subjects(&inbox(&on, &bob, "BlueLake", json!({})).await), ["a", "a"]);
}

async fn rule_22_archive_rows_are_written_by_those_that_have_something_to_archive(on: TestStore) {
    let alice = person(&on, "alice");
    let count = async || archive(&on).await.0;
    project(&on, &alice, HOME).await;
    assert_eq!(count().await, 1, "ensure_project");
    agent(&on, &alice, "GreenCastle").await;
    assert_eq!(count().await, 2, "register_agent");
    agent(&on, &alice, "BlueLake").await;
    policy(&on, &alice, "BlueLake", "contacts_only").await;
    assert_eq!(count().await, 3, "set_contact_policy writes none");
    let ask = json!({ "project_key": HOME, "from_agent": "GreenCastle", "to_agent": "BlueLake" });
    ok(&on, &alice, "request_contact", ask).await;
    assert_eq!(count().await, 4, "the message that tells of a request");
    let answer = json!({ "project_key": HOME, "from_agent": "GreenCastle", "to_agent": "BlueLake", "accept": true });
    ok(&on, &alice, "respond_contact", answer).await;
    assert_eq!(count().await, 4, "respond_contact writes none");
    send(&on, &alice, letter("x")).await;
    assert_eq!(count().await, 5, "send_message");
    let kinds = on.rows("SELECT kind, ref, state, attempts FROM mail_archive_rows ORDER BY row").await.unwrap();
    let kinds: Vec<_> = kinds.iter().map(|row| row.text(0).unwrap()).collect();
    assert_eq!(kinds, ["project", "agent", "agent", "message", "message"]);
}

async fn a_key_makes_a_call_safe_to_repeat_for_a_day(on: TestStore) {
    let (alice, bob) = two(&on).await;
    let keyed = with(letter("a"), json!({ "idempotency_key": "k1", "bcc": ["GreenCastle"] }));
    let first = call(&on, &alice, "send_message", keyed.clone()).await;
    let again = call(&on, &alice, "send_message", keyed.clone()).await;
    assert_eq!(
        (again.replay, &again.json["deliveries"], &again.json["count"]),
        (true, &first.json["deliveries"], &json!(2))
    );
    let other = with(keyed.clone(), json!({ "subject": "b" }));
    assert_eq!(refusal(&on, &alice, "send_message", other).await, Code::IdempotencyKeyConflict);
    // The key is the sender's own.
    let bobs = with(keyed.clone(), json!({ "sender_name": "BlueLake" }));
    assert!(!call(&on, &bob, "send_message", bobs).await.replay);
    let refused = with(letter("a"), json!({ "idempotency_key": "k2", "to": ["NobodyThere"] }));
    assert_eq!(refusal(&on, &alice, "send_message", refused).await, Code::RecipientNotFound);
    let corrected = with(letter("a"), json!({ "idempotency_key": "k2" }));
    assert!(!call(&on, &alice, "send_message", corrected).await.replay, "a refused call consumes no key");
    let id = number(&first.json["deliveries"][0]["payload"], "id");
    let reply = json!({ "project_key": HOME, "message_id": id, "sender_name": "BlueLake", "body_md": "Yes.",
        "idempotency_key": "k1" });
    let replied = call(&on, &bob, "reply_message", reply.clone()).await;
    let once_more = call(&on, &bob, "reply_message", reply).await;
    assert_eq!((once_more.replay, &once_more.json), (true, &replied.json));
    let ack = with(message("BlueLake", id), json!({ "idempotency_key": "k1" }));
    let acked = call(&on, &bob, "acknowledge_message", ack.clone()).await;
    assert_eq!(call(&on, &bob, "acknowledge_message", ack).await.json, acked.json);
    let long = with(letter("a"), json!({ "idempotency_key": "x".repeat(256) }));
    assert_eq!(refusal(&on, &alice, "send_message", long).await, Code::InvalidRequest);
    pass(&on, 25 * 3600);
    assert!(!call(&on, &alice, "send_message", keyed).await.replay, "a key is remembered for a day");
    assert_eq!(sweep(&on, waybill_mail::sweeps::OldKeys::new(&waybill_mail::Settings::default())).await, 4);
    assert_eq!(on.count("SELECT count(*) FROM mail_keys").await.unwrap(), 1);
}

async fn fifty_calls_under_one_key_send_once(on: TestStore) {
    let (alice, _) = two(&on).await;
    let on = Arc::new(on);
    let keyed = with(letter("a"), json!({ "idempotency_key": "k" }));
    let calls = (0..50).map(|_| (alice.clone(), "send_message", keyed.clone())).collect();
    let ids: BTreeSet<i64> = together(&on, calls)
        .await
        .into_iter()
        .map(|answer| number(&answer.unwrap()["deliveries"][0]["payload"], "id"))
        .collect();
    assert_eq!((ids.len(), on.count("SELECT count(*) FROM mail_messages").await.unwrap()), (1, 1));
}

async fn an_answer_has_the_text_once_however_many_projects_get_it(on: TestStore) {
    let alice = person(&on, "alice");
    agent(&on, &alice, "GreenCastle").await;
    let mut to = Vec::new();
    for path in ["/data/a", "/data/b", "/data/c"] {
        agent_in(&on, &alice, path, "BlueLake").await;
        let hands = json!({ "project_key": HOME, "requester": "GreenCastle", "target": "BlueLake", "to_project": path,
            "auto_accept": true });
        ok(&on, &alice, "macro_contact_handshake", hands).await;
        to.push(format!("project:{path}#BlueLake"));
    }
    let body = "x".repeat(1 << 20);
    let input = with(letter("a"), json!({ "to": to, "body_md": body, "idempotency_key": "k" }));
    for replay in [false, true] {
        let answer = call(&on, &alice, "send_message", input.clone()).await;
        assert_eq!((answer.replay, &answer.json["count"]), (replay, &json!(3)));
        assert!(answer.json.to_string().len() < (1 << 20) + 4_096, "{}", answer.json.to_string().len());
        let deliveries = answer.json["deliveries"].as_array().unwrap();
        assert_eq!(deliveries[0]["payload"]["body_md"], json!(body));
        assert!(deliveries.iter().all(|one| one["payload"]["id"] == deliveries[0]["payload"]["id"]));
        let id = &deliveries[0]["payload"]["id"];
        let reply = json!({ "project_key": HOME, "message_id": id, "sender_name": "GreenCastle", "body_md": body,
            "idempotency_key": "r" });
        let reply = ok(&on, &alice, "reply_message", reply).await;
        assert!(reply.to_string().len() < (1 << 20) + 4_096 && reply["body_md"] == json!(body));
    }
}

async fn every_list_counts_once_and_hidden_ones_stay_hidden(on: TestStore) {
    let (alice, bob) = two(&on).await;
    let carol = person(&on, "carol");
    agent(&on, &carol, "RedFox").await;
    policy(&on, &carol, "RedFox", "open").await;
    let input =
        with(letter("a"), json!({ "to": ["BlueLake", "bluelake"], "cc": ["BLUELAKE"], "bcc": ["RedFox", "BlueLake"] }));
    let sent = ok(&on, &alice, "send_message", input).await;
    let payload = &sent["deliveries"][0]["payload"];
    assert_eq!(
        (&payload["to"], &payload["cc"], &payload["bcc"]),
        (&json!(["BlueLake"]), &json!([]), &json!(["RedFox"]))
    );
    assert_eq!((&sent["count"], on.count("SELECT count(*) FROM mail_recipients").await.unwrap()), (&json!(2), 2));
    for (caller, name, kind) in [(&bob, "BlueLake", "to"), (&carol, "RedFox", "bcc")] {
        let got = inbox(&on, caller, name, json!({ "include_bodies": true })).await;
        assert_eq!((got.len(), &got[0]["kind"], got[0].get("bcc")), (1, &json!(kind), None), "{got:?}");
        let shown = ok(&on, caller, "get_message", json!({ "message_id": payload["id"], "project_key": HOME })).await;
        assert!(!shown.to_string().contains("RedFox"), "{shown}");
    }
    let own = ok(&on, &alice, "read_mailbox", with(of("GreenCastle"), json!({ "view": "outbox" }))).await;
    assert_eq!(own["messages"][0]["bcc"], json!(["RedFox"]), "the sender knows");
}

async fn who_is_missing_is_told_at_once_and_nobody_gets_it(on: TestStore) {
    let (alice, _) = two(&on).await;
    let input = with(letter("a"), json!({ "to": ["BlueLake", "BlueLak"], "cc": ["Nobody", "project:nowhere#RedFox"] }));
    let error = refused(&on, &alice, "send_message", input).await;
    assert_eq!(error.code(), Code::RecipientNotFound);
    assert_eq!(error.detail("missing"), Some(&json!(["BlueLak", "Nobody", "project:nowhere#RedFox"])));
    assert_eq!(error.detail("suggestions"), Some(&json!({ "BlueLak": ["BlueLake"] })));
    assert_eq!(on.count("SELECT count(*) FROM mail_messages").await.unwrap(), 0);
    assert_eq!(
        on.count("SELECT count(*) FROM mail_agents").await.unwrap(),
        2,
        "nobody is registered by being written to"
    );
    let nobody = with(letter("a"), json!({ "to": [] }));
    assert_eq!(refusal(&on, &alice, "send_message", nobody).await, Code::InvalidRequest);
    let crowd: Vec<String> = (0..101).map(|n| format!("BlueLake{}", n + 2)).collect();
    let many = with(letter("a"), json!({ "to": crowd }));
    let code = refusal(&on, &alice, "send_message", many).await;
    assert!(matches!(code, Code::RecipientNotFound | Code::InvalidRequest), "{code}");
    let too_many: Vec<String> = (0..10_000).map(|n| format!("Agent{n}")).collect();
    assert_eq!(
        refusal(&on, &alice, "send_message", with(letter("a"), json!({ "to": too_many }))).await,
        Code::InvalidRequest
    );
}

async fn what_is_told_of_the_missing_does_not_grow_with_their_names(on: TestStore) {
    let (alice, _) = two(&on).await;
    let long: Vec<String> = (0..100).map(|n| format!("{n}{}", "GreenCastle".repeat(1_000))).collect();
    let near: Vec<String> = (0..100).map(|n| format!("BlueLak{n}")).collect();
    for (names, suggested) in [(long, 0), (near, 10)] {
        let error = refused(&on, &alice, "send_message", with(letter("a"), json!({ "to": names }))).await;
        assert_eq!(error.code(), Code::RecipientNotFound);
        assert_eq!(error.detail("missing").unwrap().as_array().unwrap().len(), 100, "all of them are told");
        assert_eq!(error.detail("suggestions").unwrap().as_object().unwrap().len(), suggested);
        assert!(error.message().len() < 16_384, "{}", error.message().len());
    }
}

async fn a_reply_keeps_thread_subject_importance_and_goes_to_who_wrote(on: TestStore) {
    let (alice, bob) = two(&on).await;
    let urgent = with(letter("Plan"), json!({ "importance": "urgent", "ack_required": true }));
    let id = send(&on, &alice, urgent).await;
    let reply =
        |id: i64, who: &str| json!({ "project_key": HOME, "message_id": id, "sender_name": who, "body_md": "Yes." });
    let answer = ok(&on, &bob, "reply_message", reply(id, "BlueLake")).await;
    let expected = json!([id.to_string(), "Re: Plan", "urgent", true, ["GreenCastle"], id]);
    let shown = json!([
        answer["thread_id"],
        answer["subject"],
        answer["importance"],
        answer["ack_required"],
        answer["to"],
        answer["reply_to"]
    ]);
    assert_eq!(shown, expected);
    let back = ok(&on, &alice, "reply_message", reply(number(&answer, "id"), "GreenCastle")).await;
    assert_eq!((&back["thread_id"], &back["subject"]), (&json!(id.to_string()), &json!("Re: Plan")), "the prefix once");
    let own = ok(&on, &alice, "reply_message", reply(id, "GreenCastle")).await;
    assert_eq!(own["to"], json!(["BlueLake"]), "to those who got one's own message");
    let other =
        with(reply(id, "BlueLake"), json!({ "subject_prefix": "FYI", "importance": "low", "ack_required": false }));
    let other = ok(&on, &bob, "reply_message", other).await;
    assert_eq!(
        (&other["subject"], &other["importance"], &other["ack_required"]),
        (&json!("FYI Plan"), &json!("low"), &json!(false))
    );
    assert_eq!(refusal(&on, &bob, "reply_message", reply(id + 1000, "BlueLake")).await, Code::NotFound);
    assert_eq!(refusal(&on, &bob, "reply_message", reply(0, "BlueLake")).await, Code::InvalidRequest);
    let named = with(letter("In a thread"), json!({ "thread_id": "FEAT-1" }));
    let id = send(&on, &alice, named).await;
    assert_eq!(ok(&on, &bob, "reply_message", reply(id, "BlueLake")).await["thread_id"], "FEAT-1");
    // A subject that leaves no room for the prefix keeps nobody from answering.
    let id = send(&on, &alice, with(letter("x"), json!({ "subject": "é".repeat(512) }))).await;
    let long = ok(&on, &bob, "reply_message", reply(id, "BlueLake")).await;
    assert_eq!(long["subject"], format!("Re: {}", "é".repeat(510)));
}

async fn a_reply_to_ones_own_message_reaches_those_who_got_it(on: TestStore) {
    let (alice, bob) = two(&on).await;
    for name in ["RedFox", "GoldenOwl"] {
        agent(&on, &bob, name).await;
        policy(&on, &bob, name, "open").await;
    }
    for (lists, to, cc, bcc) in [
        (json!({ "to": ["BlueLake"], "cc": ["RedFox"] }), json!(["BlueLake"]), json!([]), json!([])),
        (json!({ "to": [], "cc": ["RedFox"], "bcc": ["GoldenOwl"] }), json!([]), json!(["RedFox"]), json!([])),
        (json!({ "to": [], "bcc": ["GoldenOwl", "RedFox"] }), json!([]), json!([]), json!(["RedFox", "GoldenOwl"])),
    ] {
        let id = send(&on, &alice, with(letter("Plan"), lists.clone())).await;
        let reply = json!({ "project_key": HOME, "message_id": id, "sender_name": "GreenCastle", "body_md": "One thing more." });
        let own = ok(&on, &alice, "reply_message", reply).await;
        assert_eq!((&own["to"], &own["cc"], &own["bcc"]), (&to, &cc, &bcc), "{lists}");
    }
}

async fn threads_have_names_and_numbers_are_for_replies(on: TestStore) {
    let (alice, bob) = two(&on).await;
    for thread in ["", "a b", "../x", ".x", "7"] {
        let input = with(letter("a"), json!({ "thread_id": thread }));
        assert_eq!(refusal(&on, &alice, "send_message", input).await, Code::InvalidThreadId, "{thread:?}");
    }
    let id = send(&on, &alice, letter("a")).await;
    let into = with(letter("b"), json!({ "thread_id": id.to_string() }));
    assert_eq!(refusal(&on, &alice, "send_message", into.clone()).await, Code::InvalidThreadId, "no reply began it");
    let reply = json!({ "project_key": HOME, "message_id": id, "sender_name": "BlueLake", "body_md": "Yes." });
    ok(&on, &bob, "reply_message", reply).await;
    ok(&on, &alice, "send_message", into).await;
}

async fn files_come_as_bytes_and_paths_are_refused(on: TestStore) {
    let (alice, bob) = two(&on).await;
    let input = with(
        letter("a"),
        json!({ "attachments": [
        { "name": "a.txt", "content_base64": "aGVsbG8=", "media_type": "text/plain" },
        { "name": "b.bin", "content_base64": "AAE=" },
    ] }),
    );
    let sent = ok(&on, &alice, "send_message", input).await;
    assert_eq!(
        (&sent["attachments"][0]["bytes"], &sent["attachments"][1]["media_type"]),
        (&json!(5), &json!("application/octet-stream"))
    );
    let got = inbox(&on, &bob, "BlueLake", json!({})).await;
    assert_eq!(got[0]["attachments"], sent["attachments"]);
    assert_eq!(on.count("SELECT count(*) FROM mail_attachments").await.unwrap(), 2);
    let paths = with(letter("a"), json!({ "attachment_paths": ["/etc/passwd"] }));
    assert_eq!(refusal(&on, &alice, "send_message", paths).await, Code::FeatureDisabled);
    for file in [json!({ "name": "../x", "content_base64": "" }), json!({ "name": "x", "content_base64": "%" })] {
        let input = with(letter("a"), json!({ "attachments": [file] }));
        assert_eq!(refusal(&on, &alice, "send_message", input).await, Code::InvalidRequest);
    }
}

async fn files_are_given_back_to_the_parties_of_the_message(on: TestStore) {
    let (alice, bob) = two(&on).await;
    let (carol, dave) = (person(&on, "carol"), person(&on, "dave"));
    for (caller, name) in [(&carol, "RedFox"), (&dave, "CalmRiver")] {
        agent(&on, caller, name).await;
        policy(&on, caller, name, "open").await;
    }
    let large: Vec<u8> = (0..(2_usize << 20) + 7).map(|n| (n % 251) as u8).collect();
    let files = json!([
        { "name": "a.txt", "content_base64": STANDARD.encode(b"hello"), "media_type": "text/plain" },
        { "name": "large.bin", "content_base64": STANDARD.encode(&large) },
        { "name": "empty", "content_base64": "" },
    ]);
    let id = send(&on, &alice, with(letter("a"), json!({ "bcc": ["RedFox"], "attachments": files }))).await;
    let of_file = |position: i64| json!({ "project_key": HOME, "message_id": id, "position": position });
    for caller in [&alice, &bob, &carol, &on.admin] {
        let got = ok(&on, caller, "get_attachment", of_file(0)).await;
        let shown = ok(&on, caller, "get_message", json!({ "project_key": HOME, "message_id": id })).await;
        for field in ["name", "media_type", "bytes", "sha256"] {
            assert_eq!(got[field], shown["attachments"][0][field], "{field}");
        }
        assert_eq!((&got["content_base64"], got.get("next_offset")), (&json!(STANDARD.encode(b"hello")), None));
    }
    let mut whole = Vec::new();
    let mut input = of_file(1);
    loop {
        let piece = ok(&on, &bob, "get_attachment", input.clone()).await;
        whole.extend(STANDARD.decode(text(&piece, "content_base64")).unwrap());
        let Some(next) = piece.get("next_offset") else { break };
        assert_eq!(next, &json!(2 << 20));
        input["offset"] = next.clone();
    }
    assert_eq!(whole, large);
    assert_eq!(ok(&on, &bob, "get_attachment", of_file(2)).await["content_base64"], "");
    let beyond = with(of_file(0), json!({ "offset": 5 }));
    assert_eq!(ok(&on, &bob, "get_attachment", beyond).await["content_base64"], "");
    let as_red = with(of_file(0), json!({ "agent_name": "RedFox" }));
    assert_eq!(ok(&on, &carol, "get_attachment", as_red.clone()).await["name"], "a.txt");
    // Nobody else, and nothing else.
    assert_eq!(refusal(&on, &dave, "get_attachment", of_file(0)).await, Code::NotFound);
    assert_eq!(refusal(&on, &dave, "get_attachment", as_red).await, Code::Forbidden);
    assert_eq!(refusal(&on, &bob, "get_attachment", of_file(3)).await, Code::NotFound);
    let stranger = on.tenant("other").await.unwrap();
    assert_eq!(refusal(&on, &stranger, "get_attachment", of_file(0)).await, Code::NotFound);
    for bad in [json!({ "position": -1 }), json!({ "offset": -1 }), json!({ "offset": i64::MAX })] {
        assert_eq!(refusal(&on, &bob, "get_attachment", with(of_file(0), bad)).await, Code::InvalidRequest);
    }
}

/// Which of the first message's files come with their bytes.
async fn shown_files(on: &TestStore, caller: &Caller, further: Json) -> Vec<bool> {
    let page = inbox(on, caller, "BlueLake", with(json!({ "include_bodies": true }), further)).await;
    page[0]["attachments"].as_array().unwrap().iter().map(|file| file.get("content_base64").is_some()).collect()
}

async fn small_files_are_shown_with_the_text_as_their_sender_wants(on: TestStore) {
    let (alice, bob) = two(&on).await;
    let file = |bytes: usize| json!({ "name": "x", "content_base64": STANDARD.encode(vec![7; bytes]) });
    let sizes = [0, 5, 64 << 10, (64 << 10) + 1, 400_000, 1_400_000];
    let files: Vec<Json> = sizes.into_iter().map(file).collect();
    let id = send(&on, &alice, with(letter("a"), json!({ "attachments": files }))).await;
    for (policy, expected) in [
        ("auto", [true, true, true, false, false, false]),
        // 1,400,000 bytes are 1,866,668 characters, and there is no room for them beside the others.
        ("inline", [true, true, true, true, true, false]),
        ("file", [false; 6]),
    ] {
        let profile = json!({ "project_key": HOME, "program": "p", "model": "m", "name": "GreenCastle",
            "attachments_policy": policy });
        ok(&on, &alice, "register_agent", profile).await;
        assert_eq!(shown_files(&on, &bob, json!({})).await, expected, "{policy}");
        let message = ok(&on, &bob, "get_message", json!({ "project_key": HOME, "message_id": id })).await;
        for (position, shown) in expected.into_iter().enumerate() {
            let content = message["attachments"][position].get("content_base64");
            let whole = STANDARD.encode(vec![7; sizes[position]]);
            assert_eq!(content, shown.then(|| json!(whole)).as_ref(), "{policy} {position}");
        }
        assert!(message.to_string().len() <= 2 << 20, "a page has its bound");
        let resource = with(of("BlueLake"), json!({ "view": "inbox", "include_bodies": true }));
        let page = ok(&on, &bob, "read_mailbox", resource).await;
        assert_eq!(page["messages"][0]["attachments"], message["attachments"], "{policy}");
    }
    // Without the text there are no files either, and what is stored has none of it.
    assert!(inbox(&on, &bob, "BlueLake", json!({})).await[0]["attachments"][1].get("content_base64").is_none());
    assert_eq!(on.count("SELECT count(*) FROM mail_messages WHERE attachments LIKE '%base64%'").await.unwrap(), 0);
    // All messages of a page share its room.
    let profile = json!({ "project_key": HOME, "program": "p", "model": "m", "name": "GreenCastle",
        "attachments_policy": "inline" });
    ok(&on, &alice, "register_agent", profile).await;
    for _ in 0..2 {
        pass(&on, 1);
        send(&on, &alice, with(letter("b"), json!({ "attachments": [file(1_200_000)] }))).await;
    }
    let page = inbox(&on, &bob, "BlueLake", json!({ "include_bodies": true, "limit": 2 })).await;
    let shown: Vec<bool> =
        page.iter().map(|message| message["attachments"][0].get("content_base64").is_some()).collect();
    assert_eq!(shown, [true, false], "the newest first");
}

async fn what_is_not_understood_is_refused_and_null_is_absent(on: TestStore) {
    let (alice, _) = two(&on).await;
    for (further, code) in [
        (json!({ "importance": "extreme" }), Code::InvalidRequest),
        (json!({ "broadcast": true }), Code::BroadcastDisabled),
        (json!({ "topic": "x" }), Code::FeatureDisabled),
        (json!({ "colour": "red" }), Code::InvalidRequest),
        (json!({ "subject": "x".repeat(1025) }), Code::PayloadTooLarge),
        (json!({ "body_md": "x".repeat((1 << 20) + 1) }), Code::PayloadTooLarge),
        (json!({ "to": 7 }), Code::InvalidRequest),
        (json!({ "project_key": "/nowhere" }), Code::NotFound),
        (json!({ "sender_name": "NobodyHere" }), Code::NotFound),
    ] {
        assert_eq!(refusal(&on, &alice, "send_message", with(letter("a"), further.clone())).await, code, "{further}");
    }
    assert_eq!(on.count("SELECT count(*) FROM mail_messages").await.unwrap(), 0);
    let nulls = json!({ "cc": null, "bcc": null, "attachment_paths": null, "convert_images": null, "importance": null,
        "ack_required": null, "thread_id": null, "topic": null, "broadcast": null, "auto_contact_if_blocked": null,
        "sender_token": null, "idempotency_key": null, "attachments": null });
    ok(&on, &alice, "send_message", with(letter("a"), nulls)).await;
    ok(&on, &alice, "send_message", with(letter("a"), json!({ "to": "BlueLake" }))).await;
}

async fn a_message_is_for_its_parties(on: TestStore) {
    let (alice, bob) = two(&on).await;
    let carol = person(&on, "carol");
    agent(&on, &carol, "RedFox").await;
    let id = send(&on, &alice, letter("a")).await;
    let get = json!({ "message_id": id, "project_key": HOME });
    for caller in [&alice, &bob, &on.admin] {
        assert_eq!(ok(&on, caller, "get_message", get.clone()).await["body_md"], "Hello.");
    }
    assert_eq!(refusal(&on, &carol, "get_message", get.clone()).await, Code::NotFound);
    let as_fox = with(get.clone(), json!({ "agent_name": "RedFox" }));
    assert_eq!(refusal(&on, &carol, "get_message", as_fox).await, Code::NotFound);
    let reply = json!({ "project_key": HOME, "message_id": id, "sender_name": "RedFox", "body_md": "Me too." });
    assert_eq!(refusal(&on, &carol, "reply_message", reply).await, Code::NotFound);
    for name in ["mark_message_read", "acknowledge_message"] {
        assert_eq!(refusal(&on, &carol, name, message("RedFox", id)).await, Code::NotFound);
        assert_eq!(
            refusal(&on, &alice, name, message("GreenCastle", id)).await,
            Code::NotFound,
            "who sent it did not get it"
        );
    }
    let stranger = on.tenant("other").await.unwrap();
    project(&on, &stranger, HOME).await;
    assert_eq!(refusal(&on, &stranger, "get_message", get).await, Code::NotFound);
}

async fn a_token_proves_the_sender(on: TestStore) {
    let (alice, bob) = (person(&on, "alice"), person(&on, "bob"));
    let token = text(&agent(&on, &alice, "GreenCastle").await, "registration_token");
    agent(&on, &bob, "BlueLake").await;
    policy(&on, &bob, "BlueLake", "open").await;
    assert_eq!(ok(&on, &alice, "send_message", letter("a")).await["verified_sender"], false);
    let shown = with(letter("a"), json!({ "sender_token": token }));
    assert_eq!(ok(&on, &alice, "send_message", shown.clone()).await["verified_sender"], true);
    assert_eq!(
        ok(&on, &bob, "send_message", shown).await["verified_sender"],
        true,
        "whoever has it acts for the agent"
    );
    let wrong = with(letter("a"), json!({ "sender_token": "0".repeat(64) }));
    assert_eq!(refusal(&on, &alice, "send_message", wrong).await, Code::SenderTokenMismatch);
    assert_eq!(refusal(&on, &bob, "send_message", letter("a")).await, Code::Forbidden);
}
