//! Mail as every door calls it: by name, with JSON. What it promises beyond that is in the tests of mail.

use serde_json::{Value as Json, json};
use waybill_kernel::Code;
use waybill_testkit::stores::TestStore;

use crate::support::{ok, refusal, with};

waybill_testkit::both! {
    a_message_goes_there_and_back,
    contacts_are_asked_for_and_answered,
    sessions_begin_and_agents_come_and_go,
    mail_tells_of_itself_and_the_overseer_writes,
    what_is_not_there_is_refused,
    what_is_not_understood_is_refused,
}

const PROJECT: &str = "/data/projects/backend";

fn of(name: &str, more: Json) -> Json {
    with(&json!({ "project_key": PROJECT, "agent_name": name }), more)
}

fn profile(more: Json) -> Json {
    with(&json!({ "project_key": PROJECT, "program": "p", "model": "m" }), more)
}

fn letter() -> Json {
    json!({ "project_key": PROJECT, "sender_name": "GreenCastle", "to": ["BlueLake"], "subject": "Plan", "body_md": "Go." })
}

async fn two_agents(on: &TestStore) {
    ok(on, &on.admin, "ensure_project", json!({ "human_key": PROJECT })).await;
    for name in ["GreenCastle", "BlueLake"] {
        ok(on, &on.admin, "register_agent", profile(json!({ "name": name }))).await;
        ok(on, &on.admin, "set_contact_policy", of(name, json!({ "policy": "open" }))).await;
    }
}

async fn a_message_goes_there_and_back(on: TestStore) {
    two_agents(&on).await;
    let file = json!({ "attachments": [{ "name": "a.txt", "content_base64": "aGk=" }] });
    let sent = ok(&on, &on.admin, "send_message", with(&letter(), file)).await;
    let id = sent["deliveries"][0]["payload"]["id"].clone();
    let followed = ok(&on, &on.admin, "fetch_inbox_events", of("BlueLake", json!({}))).await;
    let got = ok(&on, &on.admin, "fetch_inbox", of("BlueLake", json!({ "mark_read": true }))).await;
    assert_eq!((&followed["events"][0]["message_id"], &got["result"][0]["id"]), (&id, &id));
    let shown = ok(&on, &on.admin, "get_message", json!({ "project_key": PROJECT, "message_id": id })).await;
    assert_eq!(shown["body_md"], "Go.");
    let file = json!({ "project_key": PROJECT, "message_id": id, "position": 0 });
    assert_eq!(ok(&on, &on.admin, "get_attachment", file).await["content_base64"], "aGk=");
    let read = ok(&on, &on.admin, "mark_message_read", of("BlueLake", json!({ "message_id": id }))).await;
    assert_eq!(read["read_at"], got["result"][0]["read_ts"]);
    let acked = ok(&on, &on.admin, "acknowledge_message", of("BlueLake", json!({ "message_id": id }))).await;
    assert_eq!(acked["acknowledged"], true);
    let reply = json!({ "project_key": PROJECT, "message_id": id, "sender_name": "BlueLake", "body_md": "Gone." });
    assert_eq!(ok(&on, &on.admin, "reply_message", reply).await["subject"], "Re: Plan");
    let mailbox = ok(&on, &on.admin, "read_mailbox", of("GreenCastle", json!({ "view": "mailbox" }))).await;
    assert_eq!((mailbox["messages"].as_array().map(Vec::len), &mailbox["counts"]["unread"]), (Some(2), &json!(1)));
    assert_eq!(ok(&on, &on.admin, "health_check", json!({})).await["status"], "ok");
}

async fn contacts_are_asked_for_and_answered(on: TestStore) {
    two_agents(&on).await;
    let ask = json!({ "project_key": PROJECT, "from_agent": "GreenCastle", "to_agent": "BlueLake" });
    assert_eq!(ok(&on, &on.admin, "request_contact", ask.clone()).await["status"], "pending");
    assert_eq!(ok(&on, &on.admin, "respond_contact", with(&ask, json!({ "accept": true }))).await["approved"], true);
    let listed = ok(&on, &on.admin, "list_contacts", of("BlueLake", json!({}))).await;
    assert_eq!(listed["incoming"][0]["status"], "approved");
    let hands =
        json!({ "project_key": PROJECT, "requester": "BlueLake", "target": "GreenCastle", "auto_accept": true });
    assert_eq!(ok(&on, &on.admin, "macro_contact_handshake", hands).await["status"], "approved");
}

async fn sessions_begin_and_agents_come_and_go(on: TestStore) {
    let begin = json!({ "human_key": PROJECT, "program": "p", "model": "m", "agent_name": "GreenCastle" });
    let session = ok(&on, &on.admin, "macro_start_session", begin).await;
    assert_eq!(session["agent"]["name"], "GreenCastle");
    let joined = profile(json!({ "thread_id": "T-1", "agent_name": "GreenCastle" }));
    assert_eq!(ok(&on, &on.admin, "macro_prepare_thread", joined).await["agent"]["id"], session["agent"]["id"]);
    let cycle = of("GreenCastle", json!({ "paths": ["src"], "auto_release": true }));
    assert_eq!(ok(&on, &on.admin, "macro_file_reservation_cycle", cycle).await["released"]["released"], 1);
    ok(&on, &on.admin, "create_agent_identity", profile(json!({ "name_hint": "BlueLake" }))).await;
    assert_eq!(ok(&on, &on.admin, "whois", of("bluelake", json!({}))).await["name"], "BlueLake");
    assert!(ok(&on, &on.admin, "retire_agent", of("BlueLake", json!({}))).await["retired_ts"].is_string());
    let listed = ok(&on, &on.admin, "list_agents", json!({ "project_key": PROJECT })).await;
    assert_eq!(listed["agents"].as_array().map(Vec::len), Some(1));
    assert_eq!(ok(&on, &on.admin, "unretire_agent", of("BlueLake", json!({}))).await.get("retired_ts"), None);
    assert_eq!(ok(&on, &on.admin, "list_projects", json!({})).await["projects"][0], session["project"]);
    assert_eq!(ok(&on, &on.admin, "get_project", json!({ "project_key": PROJECT })).await["agents"], 2);
}

async fn mail_tells_of_itself_and_the_overseer_writes(on: TestStore) {
    two_agents(&on).await;
    let order = json!({ "project_key": PROJECT, "to": ["BlueLake"], "subject": "Stop", "body_md": "Now." });
    assert_eq!(ok(&on, &on.admin, "send_overseer_message", order).await["from"], "HumanOverseer");
    assert_eq!(ok(&on, &on.admin, "get_environment", json!({})).await["limits"]["attachments_max"], 16);
    let tools = ok(&on, &on.admin, "list_tools", json!({})).await;
    let schemas = ok(&on, &on.admin, "get_tool_schemas", json!({})).await;
    let listed = tools["tools"].as_array().map(Vec::len);
    assert_eq!(listed, schemas["schemas"].as_object().map(serde_json::Map::len));
    let metrics = ok(&on, &on.admin, "get_tool_metrics", json!({})).await;
    assert!(metrics["tools"].as_array().is_some_and(|tools| !tools.is_empty()), "{metrics}");
    assert_eq!(ok(&on, &on.admin, "get_locks", json!({})).await["projects_failing"], 0);
    for (name, input) in [
        ("install_precommit_guard", json!({ "project_key": PROJECT, "code_repo_path": PROJECT })),
        ("uninstall_precommit_guard", json!({ "code_repo_path": PROJECT })),
    ] {
        assert_eq!(refusal(&on, &on.admin, name, input).await, Code::FeatureDisabled, "{name}");
    }
}

/// Every operation that names a project, with what it needs besides.
fn everything() -> Vec<(&'static str, Json)> {
    vec![
        ("get_project", json!({ "project_key": PROJECT })),
        ("register_agent", profile(json!({ "name": "RedFox" }))),
        ("create_agent_identity", profile(json!({ "name_hint": "CalmRiver" }))),
        ("whois", of("BlueLake", json!({}))),
        ("list_agents", json!({ "project_key": PROJECT })),
        ("retire_agent", of("BlueLake", json!({}))),
        ("unretire_agent", of("BlueLake", json!({}))),
        ("send_message", letter()),
        (
            "reply_message",
            json!({ "project_key": PROJECT, "message_id": 1, "sender_name": "BlueLake", "body_md": "x" }),
        ),
        ("fetch_inbox", of("BlueLake", json!({}))),
        ("fetch_inbox_events", of("BlueLake", json!({}))),
        ("get_message", json!({ "project_key": PROJECT, "message_id": 1 })),
        ("get_attachment", json!({ "project_key": PROJECT, "message_id": 1, "position": 0 })),
        ("read_mailbox", of("BlueLake", json!({ "view": "inbox" }))),
        ("mark_message_read", of("BlueLake", json!({ "message_id": 1 }))),
        ("acknowledge_message", of("BlueLake", json!({ "message_id": 1 }))),
        ("request_contact", json!({ "project_key": PROJECT, "from_agent": "GreenCastle", "to_agent": "BlueLake" })),
        (
            "respond_contact",
            json!({ "project_key": PROJECT, "from_agent": "GreenCastle", "to_agent": "BlueLake", "accept": true }),
        ),
        ("list_contacts", of("BlueLake", json!({}))),
        ("set_contact_policy", of("BlueLake", json!({ "policy": "open" }))),
        (
            "macro_contact_handshake",
            json!({ "project_key": PROJECT, "requester": "GreenCastle", "target": "BlueLake" }),
        ),
        (
            "send_overseer_message",
            json!({ "project_key": PROJECT, "to": ["BlueLake"], "subject": "Stop", "body_md": "Now." }),
        ),
        ("install_precommit_guard", json!({ "project_key": PROJECT, "code_repo_path": PROJECT })),
        ("macro_prepare_thread", profile(json!({ "thread_id": "T-1" }))),
        ("macro_file_reservation_cycle", of("BlueLake", json!({ "paths": ["src"] }))),
    ]
}

async fn what_is_not_there_is_refused(on: TestStore) {
    two_agents(&on).await;
    ok(&on, &on.admin, "send_message", letter()).await;
    let stranger = on.tenant("other").await.unwrap();
    for (name, input) in everything() {
        assert_eq!(refusal(&on, &stranger, name, input.clone()).await, Code::NotFound, "{name}: another tenant's");
        let nowhere = with(&input, json!({ "project_key": "/no/such/project" }));
        assert_eq!(refusal(&on, &on.admin, name, nowhere).await, Code::NotFound, "{name}");
    }
}

async fn what_is_not_understood_is_refused(on: TestStore) {
    two_agents(&on).await;
    for (name, input) in everything() {
        let unknown = with(&input, json!({ "colour": "red" }));
        assert_eq!(refusal(&on, &on.admin, name, unknown).await, Code::InvalidRequest, "{name}");
        let no_text = with(&input, json!({ "project_key": 7 }));
        assert_eq!(refusal(&on, &on.admin, name, no_text).await, Code::InvalidRequest, "{name}");
    }
}
