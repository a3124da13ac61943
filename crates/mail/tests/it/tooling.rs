//! What mail tells about itself, the overseer, and how it does with few connections.

use std::sync::Arc;

use serde_json::json;
use waybill_kernel::{Caller, Code, Role, Scope, Scopes};
use waybill_mail::Settings;
use waybill_mail::sweeps::OldReservations;
use waybill_testkit::stores::{self, TestStore};

use crate::support::*;

/// Waits of any length are red here.
fn impatient() -> Settings {
    Settings { pool_yellow_ms: 0, pool_red_ms: 0, ..Settings::default() }
}

waybill_testkit::both! {
    super::impatient() =>
    rule_48_waits_for_the_database_are_told_and_judged,
    tools_resources_and_settings_are_told_without_secrets,
    the_overseer_reaches_everybody_and_is_an_admin,
    the_overseer_begins_no_thread_that_is_named_by_a_number,
    an_overseer_that_nobody_could_answer_can_be_answered_after_the_next_message,
    reservations_that_are_long_over_are_forgotten,
    files_are_not_read_where_no_folder_is_named,
}

async fn rule_48_waits_for_the_database_are_told_and_judged(on: TestStore) {
    let (_, bob) = two(&on).await;
    for _ in 0..30 {
        inbox(&on, &bob, "BlueLake", json!({})).await;
    }
    let health = ok(&on, &bob, "health_check", json!({})).await;
    let pool = &health["pool"];
    assert!(number(pool, "pool_acquires_total") > 30, "{health}");
    assert_eq!((&pool["health_level"], &health["health_level"]), (&json!("red"), &json!("red")), "{health}");
    assert_eq!((&health["status"], &pool["pool_acquire_errors_total"]), (&json!("degraded"), &json!(0)), "{health}");
}

async fn tools_resources_and_settings_are_told_without_secrets(on: TestStore) {
    let (alice, _) = two(&on).await;
    let directory = ok(&on, &alice, "list_tools", json!({})).await;
    let tools: Vec<String> = directory["tools"].as_array().unwrap().iter().map(|tool| text(tool, "name")).collect();
    assert!(tools.contains(&"send_message".to_owned()) && !tools.contains(&"send_overseer_message".to_owned()));
    assert!(directory["resources"].to_string().contains("resource://tooling/locks"));
    let schemas = ok(&on, &alice, "get_tool_schemas", json!({ "tool": "whois" })).await;
    assert_eq!(schemas["schemas"]["whois"]["required"], json!(["project_key", "agent_name"]));
    assert_eq!(refusal(&on, &alice, "get_tool_schemas", json!({ "tool": "no_such" })).await, Code::NotFound);
    let environment = ok(&on, &alice, "get_environment", json!({})).await;
    assert_eq!(environment["limits"]["recipients_max"], 100);
    let engine = if on.store.is_postgres() { "postgres" } else { "sqlite" };
    assert_eq!((&environment["database"], &environment["touches_project_files"]), (&json!(engine), &json!(false)));
    let locks = ok(&on, &alice, "get_locks", json!({})).await;
    assert_eq!(locks["waiting"][0]["slug"], "data-projects-backend", "{locks}");
    refused(&on, &alice, "whois", of("NobodyHere")).await;
    let metrics = ok(&on, &alice, "get_tool_metrics", json!({})).await;
    let of_tool = |name: &str| metrics["tools"].as_array().unwrap().iter().find(|tool| tool["name"] == name).cloned();
    let whois = of_tool("whois").unwrap();
    assert_eq!((&whois["tool_calls_total"], &whois["tool_errors_total"]), (&json!(1), &json!(1)), "{metrics}");
    assert!(of_tool("register_agent").is_some_and(|tool| tool["tool_errors_total"] == 0));
}

fn admin(on: &TestStore) -> Caller {
    let scopes = Scopes::new([Scope::MailRead, Scope::MailWrite]);
    Caller { scopes, ..stores::caller(&on.admin, "human:boss", &[Role::Admin]).unwrap() }
}

async fn the_overseer_reaches_everybody_and_is_an_admin(on: TestStore) {
    let (alice, bob) = two(&on).await;
    policy(&on, &bob, "BlueLake", "block_all").await;
    let order =
        json!({ "project_key": HOME, "to": ["BlueLake"], "subject": "Stop", "body_md": "Leave the login page." });
    let boss = admin(&on);
    let sent = ok(&on, &boss, "send_overseer_message", order.clone()).await;
    assert_eq!(
        (&sent["from"], &sent["importance"], &sent["count"]),
        (&json!("HumanOverseer"), &json!("high"), &json!(1))
    );
    ok(&on, &boss, "send_overseer_message", order.clone()).await;
    assert_eq!(on.count("SELECT count(*) FROM mail_agents WHERE name = 'HumanOverseer'").await.unwrap(), 1);
    let got = inbox(&on, &bob, "BlueLake", json!({ "include_bodies": true, "urgent_only": true })).await;
    assert_eq!(got.len(), 2);
    let body = text(&got[0], "body_md");
    assert!(body.starts_with("This message is from the person") && body.ends_with("Leave the login page."), "{body}");
    // It can be answered, and nobody else writes as it.
    let answer = json!({
        "project_key": HOME, "sender_name": "BlueLake", "message_id": sent["id"], "body_md": "Done.",
    });
    assert_eq!(ok(&on, &bob, "reply_message", answer).await["to"], json!(["HumanOverseer"]));
    let entry = on.registry.find("mail.send_overseer_message").unwrap();
    assert!(entry.spec().allows(&boss) && !entry.spec().allows(&alice));
    let posing = with(letter("x"), json!({ "sender_name": "HumanOverseer" }));
    assert_eq!(refusal(&on, &alice, "send_message", posing).await, Code::Forbidden);
    let named = json!({ "project_key": "/data/projects/other", "program": "p", "model": "m", "name": "HumanOverseer" });
    project(&on, &alice, "/data/projects/other").await;
    assert_eq!(refusal(&on, &alice, "register_agent", named).await, Code::InvalidAgentName);
    let unknown = with(order, json!({ "to": ["RedFox"] }));
    assert_eq!(refusal(&on, &boss, "send_overseer_message", unknown).await, Code::RecipientNotFound);
}

async fn the_overseer_begins_no_thread_that_is_named_by_a_number(on: TestStore) {
    let (_, bob) = two(&on).await;
    let boss = admin(&on);
    let order = |thread: &str| {
        json!({
            "project_key": HOME, "to": ["BlueLake"], "subject": "Stop", "body_md": "x", "thread_id": thread,
        })
    };
    for thread in ["1", "7", "007", "99999999999999999999"] {
        assert_eq!(
            refusal(&on, &boss, "send_overseer_message", order(thread)).await,
            Code::InvalidThreadId,
            "{thread}"
        );
    }
    assert_eq!(on.count("SELECT count(*) FROM mail_messages").await.unwrap(), 0);
    ok(&on, &boss, "send_overseer_message", order("STOP-1")).await;
    let first = with(order("x"), json!({ "thread_id": null }));
    let first = ok(&on, &boss, "send_overseer_message", first).await["id"].clone();
    let answer = json!({ "project_key": HOME, "sender_name": "BlueLake", "message_id": first, "body_md": "Done." });
    ok(&on, &bob, "reply_message", answer).await;
    let sent = ok(&on, &boss, "send_overseer_message", order(&first.to_string())).await;
    assert_eq!(sent["thread_id"], first.to_string());
}

async fn an_overseer_that_nobody_could_answer_can_be_answered_after_the_next_message(on: TestStore) {
    let (_, bob) = two(&on).await;
    let boss = admin(&on);
    let order = json!({ "project_key": HOME, "to": ["BlueLake"], "subject": "Stop", "body_md": "x" });
    let told = async || {
        let sql = "SELECT count(*) FROM mail_archive_rows r JOIN mail_agents a ON a.agent = r.ref \
                   WHERE r.kind = 'agent' AND a.name = 'HumanOverseer'";
        on.count(sql).await.unwrap()
    };
    ok(&on, &boss, "send_overseer_message", order.clone()).await;
    assert_eq!(told().await, 1);
    // As an import left it that knew nothing of overseers.
    let shut = "UPDATE mail_agents SET policy = 'auto', reaper_exempt = 0, retired_at = 1 WHERE name = 'HumanOverseer'";
    on.write(shut).await.unwrap();
    let sent = ok(&on, &boss, "send_overseer_message", order.clone()).await;
    assert_eq!(told().await, 2, "the archive learns of it");
    let answer = json!({
        "project_key": HOME, "sender_name": "BlueLake", "message_id": sent["id"], "body_md": "Done.",
    });
    assert_eq!(ok(&on, &bob, "reply_message", answer).await["to"], json!(["HumanOverseer"]));
    let state = "SELECT policy, reaper_exempt, retired_at FROM mail_agents WHERE name = 'HumanOverseer'";
    let state = on.rows(state).await.unwrap();
    assert_eq!(state.len(), 1);
    assert_eq!((state[0].text(0).unwrap(), state[0].bool(1).unwrap()), ("open", true));
    assert_eq!(state[0].int_opt(2).unwrap(), None);
    ok(&on, &boss, "send_overseer_message", order).await;
    assert_eq!(told().await, 2, "one that is as it should be stays as it is");
}

async fn reservations_that_are_long_over_are_forgotten(on: TestStore) {
    let (alice, _) = two(&on).await;
    let reserve = |path: &str| with(of("GreenCastle"), json!({ "paths": [path], "ttl_seconds": 3_600 }));
    for path in ["a", "b", "c"] {
        ok(&on, &alice, "file_reservation_paths", reserve(path)).await;
    }
    let settings = Settings::default();
    assert_eq!(sweep(&on, OldReservations::new(&settings)).await, 0);
    pass(&on, 3_600 + 30 * 86_400 + 1);
    ok(&on, &alice, "file_reservation_paths", reserve("d")).await;
    let (rows, _) = archive(&on).await;
    assert_eq!(sweep(&on, OldReservations::new(&settings)).await, 3);
    assert_eq!(archive(&on).await.0, rows + 3, "the archive is told of each");
    assert_eq!(on.count("SELECT count(*) FROM mail_reservations").await.unwrap(), 1);
}

async fn files_are_not_read_where_no_folder_is_named(on: TestStore) {
    let (alice, _) = two(&on).await;
    let input = with(letter("x"), json!({ "attachment_paths": ["/etc/hostname"] }));
    assert_eq!(refusal(&on, &alice, "send_message", input).await, Code::FeatureDisabled);
    let install = json!({ "project_key": HOME, "code_repo_path": HOME });
    let error = refused(&on, &alice, "install_precommit_guard", install).await;
    assert_eq!(error.code(), Code::FeatureDisabled);
    assert!(error.cure().contains("waybill guard install"), "{}", error.cure());
}

/// On SQLite those of the readers, on PostgreSQL reads and writes alike.
const CONNECTIONS: usize = 15;
const CALLERS: usize = 60;

async fn all_are_served(on: TestStore) {
    let (alice, bob) = two(&on).await;
    let on = Arc::new(on);
    let call = |n: usize| match n % 2 {
        0 => (alice.clone(), "send_message", letter(&format!("note {n}"))),
        _ => (bob.clone(), "fetch_inbox", of("BlueLake")),
    };
    for answer in together(&on, (0..10 * CALLERS).map(call).collect()).await {
        answer.unwrap();
    }
    assert_eq!(inbox(&on, &bob, "BlueLake", json!({ "limit": 1000 })).await.len(), 5 * CALLERS);
    let pool = on.store.pool();
    assert_eq!((pool.errors, pool.active), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn rule_45_sixty_callers_share_fifteen_connections_of_sqlite() {
    all_are_served(stores::open_sqlite_with(|options| options.readers = CONNECTIONS).await.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn rule_45_sixty_callers_share_fifteen_connections_of_postgres() {
    let few = stores::open_postgres_with(|options| (options.lanes, options.readers) = (8, CONNECTIONS - 8));
    all_are_served(few.await.unwrap()).await;
}
