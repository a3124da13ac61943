//! Who may write to whom.

use serde_json::{Value as Json, json};
use waybill_kernel::{Caller, Code};
use waybill_testkit::stores::TestStore;

use crate::support::*;

waybill_testkit::both! {
    rule_12_the_same_policy_again_is_a_success_and_an_unknown_one_leaves_the_old,
    rule_19_a_repeated_request_is_one_contact,
    rule_20_the_same_answer_again_leaves_everything_as_it_was,
    nobody_writes_to_a_stranger_until_it_is_approved,
    a_request_opens_nothing_and_a_refusal_stays,
    block_all_comes_before_everything,
    a_shared_thread_opens_and_a_foreign_one_does_not,
    nobody_joins_a_thread_by_writing_to_oneself,
    a_hidden_recipient_shares_no_thread_with_those_it_is_hidden_from,
    other_projects_need_an_approved_contact,
    a_name_of_another_project_is_never_taken_for_ones_own,
    who_is_of_another_project_is_asked_and_answered_by_the_name_that_is_shown,
    blocked_sends_may_file_requests_and_send_nothing,
    whoever_has_refused_is_not_asked_by_sending,
    a_key_under_which_nothing_was_sent_is_free_again,
    handshakes_are_for_those_who_act_for_both,
    wishes_for_acknowledgement_open_nothing,
}

/// As [`two`], with the policy that agents have at first.
async fn strangers(on: &TestStore) -> (Caller, Caller) {
    let (alice, bob) = (person(on, "alice"), person(on, "bob"));
    agent(on, &alice, "GreenCastle").await;
    agent(on, &bob, "BlueLake").await;
    (alice, bob)
}

fn ask() -> Json {
    json!({ "project_key": HOME, "from_agent": "GreenCastle", "to_agent": "BlueLake", "reason": "We share a page." })
}

fn answer(accept: bool) -> Json {
    json!({ "project_key": HOME, "to_agent": "BlueLake", "from_agent": "GreenCastle", "accept": accept })
}

async fn rule_12_the_same_policy_again_is_a_success_and_an_unknown_one_leaves_the_old(on: TestStore) {
    let (_, bob) = strangers(&on).await;
    for _ in 0..2 {
        policy(&on, &bob, "BlueLake", "contacts_only").await;
    }
    let unknown = with(of("BlueLake"), json!({ "policy": "friends" }));
    assert_eq!(refusal(&on, &bob, "set_contact_policy", unknown).await, Code::InvalidRequest);
    assert_eq!(ok(&on, &bob, "whois", of("BlueLake")).await["contact_policy"], "contacts_only");
}

async fn rule_19_a_repeated_request_is_one_contact(on: TestStore) {
    let (alice, bob) = strangers(&on).await;
    let first = ok(&on, &alice, "request_contact", ask()).await;
    assert_eq!(first["status"], "pending");
    pass(&on, 3600);
    let again = ok(&on, &alice, "request_contact", ask()).await;
    assert!(text(&again, "expires_ts") > text(&first, "expires_ts"), "prolonged");
    assert_eq!(on.count("SELECT count(*) FROM mail_contacts").await.unwrap(), 1);
    let got = inbox(&on, &bob, "BlueLake", json!({ "include_bodies": true })).await;
    assert_eq!((got.len(), &got[0]["id"], &got[0]["ack_required"]), (1, &first["intro_message_id"], &json!(true)));
    assert!(text(&got[0], "body_md").contains("We share a page."));
    let listed = ok(&on, &bob, "list_contacts", of("BlueLake")).await;
    assert_eq!(
        (&listed["incoming"][0]["agent"], &listed["incoming"][0]["status"]),
        (&json!("GreenCastle"), &json!("pending"))
    );
    assert_eq!(listed["outgoing"], json!([]));
    pass(&on, 8 * 86_400);
    let listed = ok(&on, &alice, "list_contacts", of("GreenCastle")).await;
    assert_eq!(listed["outgoing"][0]["status"], "expired");
    assert!(ok(&on, &alice, "request_contact", ask()).await.get("intro_message_id").is_some(), "it begins anew");
}

async fn rule_20_the_same_answer_again_leaves_everything_as_it_was(on: TestStore) {
    let (alice, bob) = strangers(&on).await;
    assert_eq!(refusal(&on, &bob, "respond_contact", answer(true)).await, Code::NotFound, "nobody has asked");
    ok(&on, &alice, "request_contact", ask()).await;
    for accept in [true, false] {
        let first = ok(&on, &bob, "respond_contact", answer(accept)).await;
        let rows = on.rows("SELECT * FROM mail_contacts").await.unwrap();
        pass(&on, 60);
        let again = ok(&on, &bob, "respond_contact", answer(accept)).await;
        assert_eq!((&first["updated"], &again["updated"]), (&json!(1), &json!(0)));
        assert_eq!((&again["status"], again.get("expires_ts")), (&first["status"], first.get("expires_ts")));
        assert_eq!(on.rows("SELECT * FROM mail_contacts").await.unwrap(), rows);
    }
    assert_eq!(
        refusal(&on, &alice, "respond_contact", answer(true)).await,
        Code::Forbidden,
        "only whoever was asked answers"
    );
}

async fn nobody_writes_to_a_stranger_until_it_is_approved(on: TestStore) {
    let (alice, bob) = strangers(&on).await;
    let carol = person(&on, "carol");
    agent(&on, &carol, "RedFox").await;
    policy(&on, &carol, "RedFox", "open").await;
    let both = with(letter("a"), json!({ "to": ["RedFox", "BlueLake"] }));
    let error = refused(&on, &alice, "send_message", both).await;
    assert_eq!((error.code(), error.detail("blocked")), (Code::ContactRequired, Some(&json!(["BlueLake"]))));
    let call = error.detail("suggested_calls").unwrap()[0].clone();
    assert_eq!(on.count("SELECT count(*) FROM mail_messages").await.unwrap(), 0, "nobody gets it");
    ok(&on, &alice, &text(&call, "tool"), call["arguments"].clone()).await;
    assert_eq!(
        refusal(&on, &alice, "send_message", letter("a")).await,
        Code::ContactRequired,
        "a request opens nothing"
    );
    ok(&on, &bob, "respond_contact", with(answer(true), json!({ "ttl_seconds": 3600 }))).await;
    send(&on, &alice, letter("a")).await;
    // Whoever was written to lately may write back, and whoever asked for contact takes answers.
    send(&on, &bob, with(letter("b"), json!({ "sender_name": "BlueLake", "to": ["GreenCastle"] }))).await;
    pass(&on, 4_000);
    send(&on, &alice, letter("within a day")).await;
    pass(&on, 90_000);
    assert_eq!(refusal(&on, &alice, "send_message", letter("c")).await, Code::ContactRequired);
}

async fn a_request_opens_nothing_and_a_refusal_stays(on: TestStore) {
    let (alice, bob) = strangers(&on).await;
    let intro = number(&ok(&on, &alice, "request_contact", ask()).await, "intro_message_id");
    let into = json!({ "project_key": HOME, "message_id": intro, "sender_name": "GreenCastle", "body_md": "Please?" });
    assert_eq!(
        refusal(&on, &alice, "reply_message", into).await,
        Code::ContactRequired,
        "one's own request is no thread"
    );
    ok(&on, &bob, "respond_contact", answer(false)).await;
    assert_eq!(refusal(&on, &alice, "send_message", letter("a")).await, Code::ContactRequired);
    let again = ok(&on, &alice, "request_contact", ask()).await;
    assert_eq!((&again["status"], again.get("intro_message_id")), (&json!("blocked"), None));
    assert_eq!(inbox(&on, &bob, "BlueLake", json!({})).await.len(), 1, "it is not asked again");
    ok(&on, &bob, "respond_contact", answer(true)).await;
    send(&on, &alice, letter("a")).await;
}

async fn block_all_comes_before_everything(on: TestStore) {
    let (alice, bob) = strangers(&on).await;
    ok(&on, &alice, "request_contact", ask()).await;
    ok(&on, &bob, "respond_contact", answer(true)).await;
    send(&on, &alice, letter("a")).await;
    policy(&on, &bob, "BlueLake", "block_all").await;
    let error = refused(&on, &alice, "send_message", letter("b")).await;
    assert_eq!((error.code(), error.detail("blocked")), (Code::ContactBlocked, Some(&json!(["BlueLake"]))));
    let asking = with(letter("b"), json!({ "auto_contact_if_blocked": true }));
    assert_eq!(refusal(&on, &alice, "send_message", asking).await, Code::ContactBlocked);
    assert_eq!(refusal(&on, &alice, "request_contact", ask()).await, Code::ContactBlocked);
    let own = with(letter("c"), json!({ "sender_name": "BlueLake", "to": ["BlueLake"] }));
    send(&on, &bob, own).await;
}

async fn a_shared_thread_opens_and_a_foreign_one_does_not(on: TestStore) {
    let (alice, bob) = strangers(&on).await;
    let carol = person(&on, "carol");
    agent(&on, &carol, "RedFox").await;
    policy(&on, &carol, "RedFox", "open").await;
    // Both write to RedFox in one thread, and so share it.
    for (caller, name) in [(&alice, "GreenCastle"), (&bob, "BlueLake")] {
        let input = with(letter("a"), json!({ "sender_name": name, "to": ["RedFox"], "thread_id": "FEAT-1" }));
        send(&on, caller, input).await;
    }
    pass(&on, 2 * 86_400);
    let foreign = with(letter("b"), json!({ "thread_id": "FEAT-2" }));
    assert_eq!(refusal(&on, &alice, "send_message", foreign).await, Code::ContactRequired);
    assert_eq!(refusal(&on, &alice, "send_message", letter("b")).await, Code::ContactRequired);
    send(&on, &alice, with(letter("b"), json!({ "thread_id": "FEAT-1" }))).await;
    pass(&on, 2 * 86_400);
    let dave = person(&on, "dave");
    agent(&on, &dave, "CalmRiver").await;
    let intruder = with(letter("c"), json!({ "sender_name": "CalmRiver", "thread_id": "FEAT-1" }));
    assert_eq!(
        refusal(&on, &dave, "send_message", intruder).await,
        Code::ContactRequired,
        "the sender has no part in it"
    );
}

async fn nobody_joins_a_thread_by_writing_to_oneself(on: TestStore) {
    let (_, bob) = strangers(&on).await;
    let carol = person(&on, "carol");
    agent(&on, &carol, "RedFox").await;
    policy(&on, &carol, "RedFox", "open").await;
    let into = json!({ "sender_name": "BlueLake", "to": ["RedFox"], "thread_id": "FEAT-1" });
    send(&on, &bob, with(letter("a"), into)).await;
    pass(&on, 2 * 86_400);
    let dave = person(&on, "dave");
    for name in ["CalmRiver", "GoldenOwl"] {
        agent(&on, &dave, name).await;
        policy(&on, &dave, name, "open").await;
    }
    let to = |name: &str| with(letter("b"), json!({ "sender_name": "CalmRiver", "to": [name], "thread_id": "FEAT-1" }));
    let intruder = || refusal(&on, &dave, "send_message", to("BlueLake"));
    assert_eq!(intruder().await, Code::ContactRequired);
    send(&on, &dave, to("CalmRiver")).await;
    assert_eq!(intruder().await, Code::ContactRequired, "by a message to oneself");
    send(&on, &dave, to("GoldenOwl")).await;
    assert_eq!(intruder().await, Code::ContactRequired, "by a message to another agent of one's own");
    let back = json!({ "sender_name": "GoldenOwl", "to": ["CalmRiver"], "thread_id": "FEAT-1" });
    send(&on, &dave, with(letter("c"), back)).await;
    assert_eq!(intruder().await, Code::ContactRequired, "by one from another agent of one's own");
    // Agents of one principal need nobody else to share a thread.
    policy(&on, &dave, "GoldenOwl", "auto").await;
    pass(&on, 2 * 86_400);
    send(&on, &dave, to("GoldenOwl")).await;
    // Whoever was written to in the thread takes part in it.
    let asked = json!({ "sender_name": "RedFox", "to": ["CalmRiver"], "thread_id": "FEAT-1" });
    send(&on, &carol, with(letter("d"), asked)).await;
    send(&on, &dave, to("BlueLake")).await;
}

async fn a_hidden_recipient_shares_no_thread_with_those_it_is_hidden_from(on: TestStore) {
    let (alice, bob) = strangers(&on).await;
    let carol = person(&on, "carol");
    agent(&on, &carol, "RedFox").await;
    for (caller, name) in [(&alice, "GreenCastle"), (&bob, "BlueLake")] {
        policy(&on, caller, name, "open").await;
    }
    let hidden = json!({ "sender_name": "RedFox", "to": ["GreenCastle"], "bcc": ["BlueLake"], "thread_id": "FEAT-1" });
    send(&on, &carol, with(letter("a"), hidden)).await;
    for (caller, name) in [(&alice, "GreenCastle"), (&bob, "BlueLake")] {
        policy(&on, caller, name, "auto").await;
    }
    let within = with(letter("b"), json!({ "thread_id": "FEAT-1" }));
    assert_eq!(
        refusal(&on, &alice, "send_message", within).await,
        Code::ContactRequired,
        "it would tell who was hidden"
    );
    // Who was hidden knows the others, and may show itself.
    let shown = json!({ "sender_name": "BlueLake", "to": ["GreenCastle"], "thread_id": "FEAT-1" });
    send(&on, &bob, with(letter("c"), shown)).await;
}

async fn other_projects_need_an_approved_contact(on: TestStore) {
    let (alice, bob) = (person(&on, "alice"), person(&on, "bob"));
    agent(&on, &alice, "GreenCastle").await;
    agent_in(&on, &bob, "/data/other", "BlueLake").await;
    let open = json!({ "project_key": "/data/other", "agent_name": "BlueLake", "policy": "open" });
    ok(&on, &bob, "set_contact_policy", open).await;
    let across = with(letter("a"), json!({ "to": ["project:/data/other#bluelake"] }));
    let error = refused(&on, &alice, "send_message", across.clone()).await;
    assert_eq!(
        (error.code(), error.detail("blocked")),
        (Code::ContactRequired, Some(&json!(["project:data-other#BlueLake"])))
    );
    let call = error.detail("suggested_calls").unwrap()[0]["arguments"].clone();
    ok(&on, &alice, "request_contact", call).await;
    let accept = json!({ "project_key": "/data/other", "to_agent": "BlueLake", "from_agent": "GreenCastle",
        "from_project": HOME, "accept": true });
    ok(&on, &bob, "respond_contact", accept).await;
    let sent = ok(&on, &alice, "send_message", across).await;
    assert_eq!((&sent["deliveries"][0]["project"], &sent["count"]), (&json!("/data/other"), &json!(1)));
    let payload = &sent["deliveries"][0]["payload"];
    let theirs = json!({ "project_key": "data-other", "agent_name": "BlueLake" });
    let got = ok(&on, &bob, "fetch_inbox", theirs).await["result"][0].clone();
    assert_eq!((&got["id"], &got["from"]), (&payload["id"], &json!("project:data-projects-backend#GreenCastle")));
    let reply = json!({ "project_key": "/data/other", "message_id": payload["id"], "sender_name": "BlueLake", "body_md": "Hi." });
    let reply = ok(&on, &bob, "reply_message", reply).await;
    assert_eq!(reply["to"], json!(["project:data-projects-backend#GreenCastle"]));
    assert_eq!(subjects(&inbox(&on, &alice, "GreenCastle", json!({})).await), ["Re: a"]);
    let noted = on
        .rows(
            "SELECT project FROM mail_archive_rows WHERE kind = 'message' AND ref = \
        (SELECT max(message) FROM mail_messages)",
        )
        .await
        .unwrap();
    assert_eq!(noted.len(), 2, "both projects archive it");
}

async fn a_name_of_another_project_is_never_taken_for_ones_own(on: TestStore) {
    const THERE: &str = "/data/other";
    let (alice, bob, carol) = (person(&on, "alice"), person(&on, "bob"), person(&on, "carol"));
    for name in ["GreenCastle", "RedFox"] {
        agent(&on, &alice, name).await;
    }
    // There are others of these names where the message goes.
    agent_in(&on, &bob, THERE, "BlueLake").await;
    for name in ["GreenCastle", "RedFox"] {
        agent_in(&on, &carol, THERE, name).await;
    }
    let open = json!({ "project_key": THERE, "agent_name": "GreenCastle", "policy": "open" });
    ok(&on, &carol, "set_contact_policy", open).await;
    ok(&on, &alice, "request_contact", with(ask(), json!({ "to_project": THERE }))).await;
    let accept = with(answer(true), json!({ "project_key": THERE, "from_project": HOME }));
    ok(&on, &bob, "respond_contact", accept).await;
    policy(&on, &alice, "RedFox", "open").await;
    let across = json!({ "to": ["project:data-other#BlueLake"], "cc": ["RedFox"], "thread_id": "FEAT-1" });
    let id = send(&on, &alice, with(letter("across"), across)).await;

    let from = json!("project:data-projects-backend#GreenCastle");
    let theirs = json!({ "project_key": THERE, "agent_name": "BlueLake" });
    let got = ok(&on, &bob, "fetch_inbox", theirs.clone()).await["result"][0].clone();
    assert_eq!((&got["id"], &got["from"], &got["to"]), (&json!(id), &from, &json!(["BlueLake"])));
    assert_eq!(got["cc"], json!(["project:data-projects-backend#RedFox"]));
    let events = ok(&on, &bob, "fetch_inbox_events", theirs.clone()).await;
    assert_eq!(events["events"].as_array().unwrap().last().unwrap()["from"], from);
    for key in [THERE, "data-other"] {
        let one = ok(&on, &bob, "get_message", json!({ "project_key": key, "message_id": id })).await;
        assert_eq!((&one["from"], &one["to"]), (&from, &json!(["BlueLake"])));
    }
    let found = ok(&on, &bob, "search_messages", json!({ "project_key": THERE, "query": "across" })).await;
    assert_eq!((&found["result"][0]["from"], &found["result"][0]["to"]), (&from, &json!(["BlueLake"])));
    let thread = json!({ "project_key": THERE, "thread_id": "FEAT-1" });
    assert_eq!(ok(&on, &bob, "get_thread", thread.clone()).await["messages"][0]["from"], from);
    assert_eq!(ok(&on, &bob, "summarize_thread", thread).await["summary"]["participants"], json!([from]));
    // At home it reads as it was written.
    let sent = ok(&on, &alice, "get_message", message("GreenCastle", id)).await;
    assert_eq!((&sent["from"], &sent["cc"]), (&json!("GreenCastle"), &json!(["RedFox"])));
    assert_eq!(sent["to"], json!(["project:data-other#BlueLake"]));
    // It can be written to as it stands.
    let back =
        json!({ "project_key": THERE, "sender_name": "BlueLake", "to": [from], "subject": "back", "body_md": "Hi." });
    send(&on, &bob, back).await;
    assert_eq!(subjects(&inbox(&on, &alice, "GreenCastle", json!({})).await), ["back"]);
    let namesake = json!({ "project_key": THERE, "agent_name": "GreenCastle" });
    assert_eq!(ok(&on, &carol, "fetch_inbox", namesake).await["result"], json!([]));
}

async fn who_is_of_another_project_is_asked_and_answered_by_the_name_that_is_shown(on: TestStore) {
    const THERE: &str = "/data/other";
    let (alice, bob) = (person(&on, "alice"), person(&on, "bob"));
    agent(&on, &alice, "GreenCastle").await;
    agent_in(&on, &bob, THERE, "BlueLake").await;
    let across = with(ask(), json!({ "to_agent": "project:data-other#BlueLake" }));
    let asked = ok(&on, &alice, "request_contact", across.clone()).await;
    assert_eq!((&asked["to"], &asked["to_project"]), (&json!("BlueLake"), &json!(THERE)));
    let theirs = json!({ "project_key": THERE, "agent_name": "BlueLake" });
    let intro = ok(&on, &bob, "fetch_inbox", theirs).await["result"][0].clone();
    assert_eq!(text(&intro, "subject"), "Contact request from project:data-projects-backend#GreenCastle");
    let accept = with(answer(true), json!({ "project_key": THERE, "from_agent": intro["from"] }));
    // Two projects that are one may stand in the name and beside it; two that are not may not.
    let elsewhere = with(accept.clone(), json!({ "from_project": THERE }));
    let error = refused(&on, &bob, "respond_contact", elsewhere).await;
    assert_eq!(error.code(), Code::InvalidRequest);
    for slug in ["data-projects-backend", "data-other"] {
        assert!(error.message().contains(slug), "{error}");
    }
    for further in [json!({}), json!({ "from_project": HOME })] {
        let answered = ok(&on, &bob, "respond_contact", with(accept.clone(), further.clone())).await;
        assert_eq!((&answered["from"], &answered["approved"]), (&json!("GreenCastle"), &json!(true)), "{further}");
    }
    let hands = json!({ "project_key": HOME, "requester": "GreenCastle", "target": "project:/data/other#BlueLake" });
    let shaken = ok(&on, &alice, "macro_contact_handshake", hands.clone()).await;
    assert_eq!((&shaken["status"], &shaken["to_project"]), (&json!("approved"), &json!(THERE)));
    for (tool, input) in [("macro_contact_handshake", hands), ("request_contact", across)] {
        let elsewhere = with(input.clone(), json!({ "to_project": HOME }));
        assert_eq!(refusal(&on, &alice, tool, elsewhere).await, Code::InvalidRequest, "{tool}");
        ok(&on, &alice, tool, with(input, json!({ "to_project": THERE }))).await;
    }
    for nobody in ["project:data-other#RedFox", "project:nowhere#BlueLake"] {
        let asking = with(ask(), json!({ "to_agent": nobody }));
        assert_eq!(refusal(&on, &alice, "request_contact", asking).await, Code::NotFound, "{nobody}");
    }
}

async fn blocked_sends_may_file_requests_and_send_nothing(on: TestStore) {
    let (alice, bob) = strangers(&on).await;
    let asking = with(letter("a"), json!({ "auto_contact_if_blocked": true }));
    let answered = ok(&on, &alice, "send_message", asking).await;
    assert_eq!((&answered["count"], &answered["contacts_requested"]), (&json!(0), &json!(["BlueLake"])));
    assert_eq!(subjects(&inbox(&on, &bob, "BlueLake", json!({})).await), ["Contact request from GreenCastle"]);
    assert_eq!(on.count("SELECT count(*) FROM mail_contacts WHERE status = 'pending'").await.unwrap(), 1);
}

async fn whoever_has_refused_is_not_asked_by_sending(on: TestStore) {
    let (alice, bob) = strangers(&on).await;
    agent(&on, &bob, "RedFox").await;
    ok(&on, &alice, "request_contact", ask()).await;
    ok(&on, &bob, "respond_contact", answer(false)).await;
    for to in [json!(["BlueLake"]), json!(["RedFox", "BlueLake"])] {
        let asking = with(letter("a"), json!({ "to": to, "auto_contact_if_blocked": true, "idempotency_key": "k" }));
        let plain = with(asking.clone(), json!({ "auto_contact_if_blocked": false }));
        let (error, usual) =
            (refused(&on, &alice, "send_message", asking).await, refused(&on, &alice, "send_message", plain).await);
        assert_eq!((error.code(), error.detail("blocked")), (Code::ContactRequired, usual.detail("blocked")), "{to}");
    }
    assert!(inbox(&on, &bob, "RedFox", json!({})).await.is_empty(), "nobody else was asked");
    assert_eq!(on.count("SELECT count(*) FROM mail_contacts").await.unwrap(), 1);
    let other = with(letter("a"), json!({ "to": ["RedFox"], "auto_contact_if_blocked": true, "idempotency_key": "k" }));
    assert_eq!(ok(&on, &alice, "send_message", other).await["contacts_requested"], json!(["RedFox"]));
}

async fn a_key_under_which_nothing_was_sent_is_free_again(on: TestStore) {
    let (alice, bob) = strangers(&on).await;
    let asking = with(letter("a"), json!({ "auto_contact_if_blocked": true, "idempotency_key": "k" }));
    for _ in 0..2 {
        let answered = call(&on, &alice, "send_message", asking.clone()).await;
        assert!(!answered.replay);
        assert_eq!((&answered.json["count"], &answered.json["contacts_requested"]), (&json!(0), &json!(["BlueLake"])));
    }
    ok(&on, &bob, "respond_contact", answer(true)).await;
    for replay in [false, true] {
        let sent = call(&on, &alice, "send_message", asking.clone()).await;
        assert_eq!((sent.replay, &sent.json["count"]), (replay, &json!(1)));
    }
    let got = subjects(&inbox(&on, &bob, "BlueLake", json!({})).await);
    assert_eq!(got, ["a", "Contact request from GreenCastle"], "asked once, sent once");
}

async fn handshakes_are_for_those_who_act_for_both(on: TestStore) {
    let (alice, _) = strangers(&on).await;
    agent(&on, &alice, "RedFox").await;
    let hands = |target: &str| {
        json!({ "project_key": HOME, "requester": "GreenCastle", "target": target,
        "auto_accept": true, "welcome_subject": "Hello", "welcome_body": "Let us begin." })
    };
    assert_eq!(refusal(&on, &alice, "macro_contact_handshake", hands("BlueLake")).await, Code::Forbidden);
    assert_eq!(on.count("SELECT count(*) FROM mail_contacts").await.unwrap(), 0, "nothing half-done");
    let shaken = ok(&on, &alice, "macro_contact_handshake", hands("RedFox")).await;
    assert_eq!((&shaken["status"], &shaken["welcome_message"]["subject"]), (&json!("approved"), &json!("Hello")));
    assert_eq!(subjects(&inbox(&on, &alice, "RedFox", json!({})).await), ["Hello", "Contact request from GreenCastle"]);
    let waiting = with(hands("BlueLake"), json!({ "auto_accept": false }));
    let waiting = ok(&on, &alice, "macro_contact_handshake", waiting).await;
    assert_eq!((&waiting["status"], waiting.get("welcome_message")), (&json!("pending"), None));
}

async fn wishes_for_acknowledgement_open_nothing(on: TestStore) {
    let (alice, _) = strangers(&on).await;
    let wish = with(letter("a"), json!({ "ack_required": true, "importance": "urgent" }));
    assert_eq!(refusal(&on, &alice, "send_message", wish).await, Code::ContactRequired);
}
