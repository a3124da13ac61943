//! Agents, messages and contacts.

use serde_json::{Value as Json, json};
use waybill_kernel::Code;

use super::Row;
use super::scenarios::Scenario;

const PROJECT: &str = "/data/projects/backend";

pub fn of(operation: &'static str) -> Option<Scenario> {
    let row = |what: &str, args: Json| Row::new(what, "admin", operation, args);
    let scenario = |good: Json, rows: Vec<Row>| Some(Scenario { good, rows });
    let named = |name: &str, more: Json| with(json!({ "project_key": PROJECT, "agent_name": name }), more);
    let profile = |more: Json| with(json!({ "project_key": PROJECT, "program": "p", "model": "m" }), more);
    let pair =
        |more: Json| with(json!({ "project_key": PROJECT, "from_agent": "RedFox", "to_agent": "CalmRiver" }), more);
    let simple = |good: Json| scenario(good.clone(), vec![row("as it is meant", good)]);
    match operation {
        "health_check" => simple(json!({})),
        "ensure_project" => {
            let good = json!({ "human_key": PROJECT });
            let rows = vec![
                row("a new one", good.clone()),
                row("one that is there", json!({ "human_key": "/data/projects/backend/", "identity_mode": null })),
                row("no absolute path", json!({ "human_key": "backend" })).refused(Code::InvalidRequest),
            ];
            scenario(good, rows)
        }
        "register_agent" => {
            let good = profile(json!({ "name": "GreenCastle" }));
            let mut rows = vec![
                row("a new one", good.clone()),
                row("again", profile(json!({ "name": "greencastle", "task_description": "t" }))),
                row("a program's name", profile(json!({ "name": "codex" }))).refused(Code::InvalidAgentName),
                row("no program", profile(json!({ "program": " " }))).refused(Code::EmptyProgram),
            ];
            rows.extend(["RedFox", "CalmRiver"].map(|name| row(name, profile(json!({ "name": name })))));
            scenario(good, rows)
        }
        "create_agent_identity" => {
            let rows = vec![
                row("a new one", profile(json!({ "name_hint": "BlueLake" }))),
                row("a taken name", profile(json!({ "name_hint": "BlueLake" }))).refused(Code::AgentNameTaken),
            ];
            scenario(profile(json!({ "name_hint": "GoldenOwl" })), rows)
        }
        "whois" | "retire_agent" | "unretire_agent" => simple(named("BlueLake", json!({}))),
        "list_agents" => simple(json!({ "project_key": PROJECT, "limit": 10 })),
        "set_contact_policy" => simple(named("BlueLake", json!({ "policy": "open" }))),
        "send_message" => Some(send_message()),
        "reply_message" => {
            let good = json!({ "project_key": PROJECT, "message_id": 1, "sender_name": "BlueLake", "body_md": "Yes." });
            let keyed = with(good.clone(), json!({ "idempotency_key": "k" }));
            let rows =
                vec![row("an answer", good.clone()), row("under a key", keyed.clone()), row("again", keyed).replay()];
            scenario(good, rows)
        }
        "fetch_inbox" => {
            let rows = vec![
                row("all of it", named("BlueLake", json!({ "include_bodies": true }))),
                row("and mark it", named("BlueLake", json!({ "mark_read": true, "limit": 1 }))),
                row("of nobody", named("SilverBear", json!({}))).refused(Code::NotFound),
            ];
            scenario(named("BlueLake", json!({})), rows)
        }
        "fetch_inbox_events" => {
            let rows = vec![
                row("from the beginning", named("BlueLake", json!({ "limit": 1 }))).keep("mail_place", "next_cursor"),
                row("from there", named("BlueLake", json!({ "after": "$mail_place" }))),
                row("from now on", named("BlueLake", json!({ "position_now": true }))),
                row("of another inbox", named("GreenCastle", json!({ "after": "$mail_place" })))
                    .refused(Code::InvalidCursor),
            ];
            scenario(named("BlueLake", json!({})), rows)
        }
        "get_attachment" => {
            let good = json!({ "project_key": PROJECT, "message_id": 3, "position": 0 });
            let rows = vec![
                row("the file", good.clone()),
                row("one that is not there", with(good.clone(), json!({ "position": 1 }))).refused(Code::NotFound),
            ];
            scenario(good, rows)
        }
        "mark_message_read" => simple(named("BlueLake", json!({ "message_id": 1 }))),
        "acknowledge_message" => {
            let keyed = named("BlueLake", json!({ "message_id": 1, "idempotency_key": "k" }));
            let rows = vec![row("under a key", keyed.clone()), row("again", keyed).replay()];
            scenario(named("BlueLake", json!({ "message_id": 1 })), rows)
        }
        "request_contact" => simple(pair(json!({ "reason": "r" }))),
        "respond_contact" => simple(pair(json!({ "accept": true }))),
        "list_contacts" => simple(named("CalmRiver", json!({}))),
        "macro_start_session" => {
            simple(json!({ "human_key": PROJECT, "program": "p", "model": "m", "agent_name": "GreenCastle" }))
        }
        "macro_prepare_thread" => simple(profile(json!({ "thread_id": "T-1", "agent_name": "GreenCastle" }))),
        "macro_file_reservation_cycle" => {
            simple(named("GreenCastle", json!({ "paths": ["cycle"], "auto_release": true })))
        }
        "macro_contact_handshake" => {
            simple(json!({ "project_key": PROJECT, "requester": "CalmRiver", "target": "RedFox", "auto_accept": true }))
        }
        _ => None,
    }
}

fn send_message() -> Scenario {
    let row = |what: &str, args: Json| Row::new(what, "admin", "send_message", args);
    let good = json!({ "project_key": PROJECT, "sender_name": "GreenCastle", "to": ["BlueLake"], "subject": "Plan",
        "body_md": "Go.", "thread_id": "T-1" });
    let open = json!({ "project_key": PROJECT, "agent_name": "BlueLake", "policy": "open" });
    let back = json!({ "project_key": PROJECT, "agent_name": "GreenCastle", "policy": "open" });
    let keyed = with(good.clone(), json!({ "idempotency_key": "k", "cc": ["GreenCastle"], "ack_required": true }));
    let file = json!({ "attachments": [{ "name": "a.txt", "content_base64": "aGk=", "media_type": "text/plain" }] });
    let rows = vec![
        row("to a stranger", good.clone()).refused(Code::ContactRequired),
        Row::new("open to all", "admin", "set_contact_policy", open),
        Row::new("so is the other", "admin", "set_contact_policy", back),
        row("to one", good.clone()),
        row("under a key", keyed.clone()),
        row("again", keyed.clone()).replay(),
        row("the key for something else", with(keyed, json!({ "subject": "x" }))).refused(Code::IdempotencyKeyConflict),
        row("with a file", with(good.clone(), file)),
        row("to nobody", with(good.clone(), json!({ "to": [] }))).refused(Code::InvalidRequest),
        row("to a stranger's name", with(good.clone(), json!({ "to": ["BlueLak"] }))).refused(Code::RecipientNotFound),
        row("to all", with(good.clone(), json!({ "broadcast": true }))).refused(Code::BroadcastDisabled),
        row("a bad thread", with(good.clone(), json!({ "thread_id": "a b" }))).refused(Code::InvalidThreadId),
    ];
    Scenario { good, rows }
}

fn with(mut base: Json, more: Json) -> Json {
    base.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    base
}
