//! The database decides: what failed has left nothing, and nobody who reads waits for who writes.

use std::time::{Duration, Instant};

use serde_json::{Value as Json, json};
use waybill_kernel::{Caller, Code, Mode, Result};
use waybill_store::{Ctx, Tx, Work};
use waybill_testkit::stores::TestStore;

use crate::support::*;

waybill_testkit::both! {
    rule_01_a_call_that_could_not_be_written_is_an_error_and_left_nothing,
    rule_02_what_failed_gives_the_archive_nothing_to_do,
    rule_03_what_failed_can_be_repeated_and_is_done_once,
    rule_06_reads_go_on_while_somebody_writes,
    every_field_that_clients_of_other_servers_send_is_taken,
}

/// Everything that a send writes.
const WRITTEN: &[&str] =
    &["mail_messages", "mail_recipients", "mail_inbox_events", "mail_archive_rows", "mail_attachments", "mail_keys"];

async fn counts(on: &TestStore) -> Vec<i64> {
    let mut counts = Vec::new();
    for table in WRITTEN {
        counts.push(on.count(&format!("SELECT count(*) FROM {table}")).await.unwrap());
    }
    counts
}

/// Rows under the numbers that the next messages get, which keep those from being written.
const PLANTED: &[(&str, &str, &str)] = &[
    (
        "mail_recipients",
        "INSERT INTO mail_recipients (tenant, message, agent, kind, sender, urgent, ack_required, intro, created_at) \
         WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20) \
         SELECT a.tenant, (SELECT coalesce(max(message), 0) FROM mail_messages) + n.i, a.agent, 'to', 0, 0, 0, 0, 0 \
         FROM mail_agents a, n WHERE a.name = 'BlueLake'",
        "DELETE FROM mail_recipients WHERE sender = 0",
    ),
    (
        "mail_attachments",
        "INSERT INTO mail_attachments (tenant, message, position, name, media_type, sha256, content) \
         WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20) \
         SELECT a.tenant, (SELECT coalesce(max(message), 0) FROM mail_messages) + n.i, 0, 'planted', 'x', a.token, a.token \
         FROM mail_agents a, n WHERE a.name = 'BlueLake'",
        "DELETE FROM mail_attachments WHERE name = 'planted'",
    ),
];

/// A send that fails at this table, after it has written to others.
async fn fails(on: &TestStore, caller: &Caller, (table, plant, weed): (&str, &str, &str)) {
    on.write(plant).await.unwrap();
    let outcome = on.call(caller, "send_message", full()).await;
    assert!(outcome.is_err(), "{table}: {outcome:?}");
    on.write(weed).await.unwrap();
}

fn full() -> serde_json::Value {
    let file = json!([{ "name": "a.txt", "content_base64": "aGk=" }]);
    with(letter("a"), json!({ "idempotency_key": "k", "attachments": file }))
}

async fn rule_01_a_call_that_could_not_be_written_is_an_error_and_left_nothing(on: TestStore) {
    let (alice, _) = two(&on).await;
    let before = counts(&on).await;
    for planted in PLANTED {
        fails(&on, &alice, *planted).await;
        assert_eq!(counts(&on).await, before, "{}", planted.0);
    }
}

async fn rule_02_what_failed_gives_the_archive_nothing_to_do(on: TestStore) {
    let (alice, bob) = two(&on).await;
    let id = send(&on, &alice, letter("a")).await;
    let before = archive(&on).await;
    for planted in PLANTED {
        fails(&on, &alice, *planted).await;
    }
    assert_eq!(archive(&on).await, before);
    // One more change than a number can count.
    on.write(&format!("UPDATE mail_changes SET changes = {}", i64::MAX)).await.unwrap();
    on.call(&bob, "mark_message_read", message("BlueLake", id)).await.unwrap_err();
    assert_eq!(inbox(&on, &bob, "BlueLake", json!({ "unread_only": true })).await.len(), 1, "it is not read either");
}

async fn rule_03_what_failed_can_be_repeated_and_is_done_once(on: TestStore) {
    let (alice, _) = two(&on).await;
    let before = counts(&on).await;
    fails(&on, &alice, PLANTED[0]).await;
    assert!(!call(&on, &alice, "send_message", full()).await.replay, "the key was not used up");
    assert!(call(&on, &alice, "send_message", full()).await.replay);
    let after: Vec<i64> = counts(&on).await.iter().zip(before).map(|(after, before)| after - before).collect();
    assert_eq!(after, [1, 1, 1, 1, 1, 1]);
}

/// A transaction that has written and does not end for a while.
struct Hold;

const HELD_FOR: Duration = Duration::from_secs(2);

impl Work for Hold {
    type Output = ();

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<()> {
        tx.execute("UPDATE mail_agents SET task = 'held'", &[]).await?;
        tx.execute("UPDATE mail_recipients SET kind = kind", &[]).await?;
        std::thread::sleep(HELD_FOR);
        Ok(())
    }
}

async fn rule_06_reads_go_on_while_somebody_writes(on: TestStore) {
    let (alice, bob) = two(&on).await;
    send(&on, &alice, letter("a")).await;
    let store = on.store.clone();
    // On a thread of its own: it stands still with the transaction open.
    let (began, held) = std::sync::mpsc::channel();
    let writer = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        began.send(()).unwrap();
        runtime.block_on(store.system().run(Hold))
    });
    held.recv().unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    let asked = Instant::now();
    assert_eq!(subjects(&inbox(&on, &bob, "BlueLake", json!({})).await), ["a"]);
    let took = asked.elapsed();
    let still_held = !writer.is_finished();
    tokio::task::spawn_blocking(move || writer.join().unwrap()).await.unwrap().unwrap();
    assert!(took < HELD_FOR && still_held, "the read took {took:?}");
}

/// As the known servers name them; one that is not given may be sent as null.
async fn every_field_that_clients_of_other_servers_send_is_taken(on: TestStore) {
    let (alice, _) = two(&on).await;
    let id = send(&on, &alice, letter("a")).await;
    let profile = json!({ "project_key": HOME, "program": "p", "model": "m" });
    let pair = json!({ "project_key": HOME, "from_agent": "GreenCastle", "to_agent": "BlueLake" });
    let calls: [(&str, Json, Json, &[&str]); 12] = [
        ("ensure_project", json!({ "human_key": HOME }), json!({}), &["identity_mode"]),
        (
            "register_agent",
            with(profile.clone(), json!({ "name": "GreenCastle" })),
            json!({ "pane_id": "%1", "registration_proof": { "nonce": [1] } }),
            &["task_description", "attachments_policy", "reaper_exempt", "pane_id", "registration_proof"],
        ),
        ("create_agent_identity", profile, json!({}), &["name_hint", "task_description", "attachments_policy"]),
        (
            "whois",
            of("BlueLake"),
            json!({ "include_recent_commits": true, "commit_limit": 5 }),
            &["include_recent_commits", "commit_limit"],
        ),
        ("list_agents", json!({ "project_key": HOME }), json!({}), &["limit", "active_within_days"]),
        (
            "fetch_inbox",
            of("GreenCastle"),
            json!({}),
            &["urgent_only", "since_ts", "limit", "include_bodies", "unread_only", "ack_overdue_only", "mark_read"],
        ),
        ("fetch_inbox_events", of("GreenCastle"), json!({}), &["after", "limit", "position_now"]),
        (
            "reply_message",
            json!({ "project_key": HOME, "message_id": id, "sender_name": "GreenCastle", "body_md": "x" }),
            json!({}),
            &["to", "cc", "bcc", "subject_prefix", "importance", "ack_required", "attachments", "idempotency_key"],
        ),
        (
            "request_contact",
            pair,
            json!({ "register_if_missing": true }),
            &["to_project", "reason", "ttl_seconds", "register_if_missing"],
        ),
        (
            "file_reservation_paths",
            with(of("GreenCastle"), json!({ "paths": ["src"] })),
            json!({}),
            &["ttl_seconds", "exclusive", "reason", "idempotency_key"],
        ),
        (
            "search_messages",
            json!({ "project_key": HOME, "query": "a" }),
            json!({}),
            &[
                "limit",
                "offset",
                "cursor",
                "ranking",
                "sender",
                "importance",
                "thread_id",
                "date_start",
                "date_end",
                "explain",
                "include_body_md",
            ],
        ),
        (
            "summarize_thread",
            json!({ "project_key": HOME, "thread_id": id.to_string() }),
            json!({}),
            &["include_examples", "llm_mode", "llm_model"],
        ),
    ];
    for (name, input, values, fields) in calls {
        let unknown = with(input.clone(), json!({ "colour": null }));
        assert_eq!(refusal(&on, &alice, name, unknown).await, Code::InvalidRequest, "{name}");
        ok(&on, &alice, name, with(input.clone(), values)).await;
        for field in fields {
            let mut nothing = input.clone();
            nothing[*field] = Json::Null;
            ok(&on, &alice, name, nothing).await;
        }
    }
    let nobody = json!({ "project_key": HOME, "from_agent": "GreenCastle", "to_agent": "NobodyHere",
        "register_if_missing": true });
    assert_eq!(refusal(&on, &alice, "request_contact", nobody).await, Code::NotFound, "nobody is made by being asked");
}
