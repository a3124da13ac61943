//! How many there may be, and sessions that begin with one call.

use std::sync::Arc;

use serde_json::json;
use waybill_kernel::Code;
use waybill_mail::Settings;
use waybill_testkit::stores::TestStore;

use crate::support::*;

fn few() -> Settings {
    Settings { projects_max: 2, agents_max: 3, contacts_max: 1, recipients_max: 2, ..Settings::default() }
}

waybill_testkit::both! {
    super::few() =>
    a_tenant_has_so_many_projects_and_agents_and_no_more,
    many_at_once_find_room_for_as_many_as_there_is,
    an_agent_asks_for_so_many_contacts,
    a_session_begins_with_one_call_or_not_at_all,
}

mod capped {
    use super::*;

    waybill_testkit::both! {
        waybill_store::StoredCaps { rows: 0, blobs: 8 } => what_comes_with_mail_has_room_for_so_many_bytes
    }
}

async fn what_comes_with_mail_has_room_for_so_many_bytes(on: TestStore) {
    let (alice, _) = two(&on).await;
    let five = || with(letter("a"), json!({ "attachments": [{ "name": "a.txt", "content_base64": "aGVsbG8=" }] }));
    send(&on, &alice, five()).await;
    let error = refused(&on, &alice, "send_message", five()).await;
    assert_eq!((error.code(), error.detail("used")), (Code::TooManyStoredBytes, Some(&json!(5))));
    on.check_stored_bytes().await;
    // Words need no room among files.
    send(&on, &alice, letter("b")).await;
    on.check_stored_bytes().await;
}

async fn a_tenant_has_so_many_projects_and_agents_and_no_more(on: TestStore) {
    let alice = person(&on, "alice");
    for path in ["/a", "/b"] {
        project(&on, &alice, path).await;
    }
    let error = refused(&on, &alice, "ensure_project", json!({ "human_key": "/c" })).await;
    assert_eq!((error.code(), error.detail("limit")), (Code::TooManyProjects, Some(&json!(2))));
    project(&on, &alice, "/a").await;
    let input = |name: &str| json!({ "project_key": "/a", "program": "p", "model": "m", "name": name });
    for name in ["GreenCastle", "BlueLake", "RedFox"] {
        ok(&on, &alice, "register_agent", input(name)).await;
    }
    assert_eq!(refusal(&on, &alice, "register_agent", input("CalmRiver")).await, Code::TooManyAgents);
    let unnamed = json!({ "project_key": "/b", "program": "p", "model": "m" });
    assert_eq!(refusal(&on, &alice, "create_agent_identity", unnamed).await, Code::TooManyAgents);
    ok(&on, &alice, "register_agent", input("RedFox")).await;
    let stranger = on.tenant("other").await.unwrap();
    project(&on, &stranger, "/c").await;
}

async fn many_at_once_find_room_for_as_many_as_there_is(on: TestStore) {
    let alice = person(&on, "alice");
    project(&on, &alice, "/a").await;
    let on = Arc::new(on);
    let calls = (0..20)
        .map(|_| (alice.clone(), "register_agent", json!({ "project_key": "/a", "program": "p", "model": "m" })));
    let answers = together(&on, calls.collect()).await;
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 3);
    assert_eq!(on.count("SELECT count(*) FROM mail_agents").await.unwrap(), 3);
}

async fn an_agent_asks_for_so_many_contacts(on: TestStore) {
    let alice = person(&on, "alice");
    for name in ["GreenCastle", "BlueLake", "RedFox"] {
        agent(&on, &alice, name).await;
    }
    let ask = |to: &str| json!({ "project_key": HOME, "from_agent": "GreenCastle", "to_agent": to });
    ok(&on, &alice, "request_contact", ask("BlueLake")).await;
    ok(&on, &alice, "request_contact", ask("BlueLake")).await;
    assert_eq!(refusal(&on, &alice, "request_contact", ask("RedFox")).await, Code::TooManyContacts);
    assert_eq!(refusal(&on, &alice, "request_contact", ask("GreenCastle")).await, Code::InvalidRequest);
    let three = with(letter("a"), json!({ "to": ["BlueLake", "RedFox", "GreenCastle"] }));
    assert_eq!(refusal(&on, &alice, "send_message", three).await, Code::InvalidRequest, "two recipients at most");
}

async fn a_session_begins_with_one_call_or_not_at_all(on: TestStore) {
    let alice = person(&on, "alice");
    let begin = json!({ "human_key": HOME, "program": "claude-code", "model": "opus", "agent_name": "GreenCastle",
        "file_reservation_paths": ["src/api/*.rs"], "file_reservation_reason": "FEAT-1" });
    let bad = with(begin.clone(), json!({ "file_reservation_paths": ["/etc/**"] }));
    on.call(&alice, "macro_start_session", bad).await.unwrap_err();
    let bad = with(begin.clone(), json!({ "agent_name": "Claude" }));
    assert_eq!(refusal(&on, &alice, "macro_start_session", bad).await, Code::InvalidAgentName);
    assert_eq!(on.count("SELECT count(*) FROM mail_projects").await.unwrap(), 0, "nothing is half-done");
    let session = ok(&on, &alice, "macro_start_session", begin.clone()).await;
    assert_eq!((&session["project"]["human_key"], &session["agent"]["name"]), (&json!(HOME), &json!("GreenCastle")));
    assert_eq!(session["file_reservations"]["granted"][0]["path_pattern"], "src/api/*.rs");
    assert!(session["agent"].get("registration_token").is_some());
    let again = ok(&on, &alice, "macro_start_session", with(begin, json!({ "file_reservation_paths": null }))).await;
    assert_eq!((&again["agent"]["id"], again.get("file_reservations")), (&session["agent"]["id"], None));
    let own = with(letter("to myself"), json!({ "to": ["GreenCastle"] }));
    send(&on, &alice, own).await;
    let begin = json!({ "human_key": HOME, "program": "p", "model": "m", "agent_name": "GreenCastle" });
    assert_eq!(ok(&on, &alice, "macro_start_session", begin).await["inbox"][0]["subject"], "to myself");
    let cycle = json!({ "project_key": HOME, "agent_name": "GreenCastle", "paths": ["docs"], "auto_release": true });
    let cycle = ok(&on, &alice, "macro_file_reservation_cycle", cycle).await;
    assert_eq!(
        (&cycle["file_reservations"]["granted"][0]["path_pattern"], &cycle["released"]["released"]),
        (&json!("docs"), &json!(1))
    );
    let held = on.count("SELECT count(*) FROM mail_reservations WHERE released_at IS NULL").await.unwrap();
    assert_eq!(held, 1, "what was held before stays");
}
