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
    other_names_of_a_field_mean_the_same,
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

/// A tool, a call of it, values of further fields, and the fields that the known servers have for it besides. One that is
/// not given may be sent as null.
type Known = (&'static str, Json, Json, &'static [&'static str]);

/// Everybody's call about messages.
fn of_messages(id: i64) -> Vec<Known> {
    let reply = json!({ "project_key": HOME, "message_id": id, "sender_name": "GreenCastle", "body_md": "x" });
    vec![
        (
            "send_message",
            letter("b"),
            json!({ "convert_images": false, "auto_contact_if_blocked": true }),
            &[
                "cc",
                "bcc",
                "attachment_paths",
                "convert_images",
                "importance",
                "ack_required",
                "thread_id",
                "topic",
                "broadcast",
                "auto_contact_if_blocked",
                "sender_token",
                "idempotency_key",
            ],
        ),
        (
            "reply_message",
            reply,
            json!({}),
            &[
                "to",
                "cc",
                "bcc",
                "subject_prefix",
                "importance",
                "ack_required",
                "attachments",
                "sender_token",
                "idempotency_key",
            ],
        ),
        (
            "fetch_inbox",
            of("GreenCastle"),
            json!({ "topic": "" }),
            &[
                "urgent_only",
                "since_ts",
                "limit",
                "include_bodies",
                "unread_only",
                "ack_overdue_only",
                "mark_read",
                "topic",
                "registration_token",
            ],
        ),
        ("fetch_inbox_events", of("GreenCastle"), json!({}), &["after", "limit", "position_now", "registration_token"]),
        ("mark_message_read", message("BlueLake", id), json!({}), &["registration_token"]),
        ("acknowledge_message", message("BlueLake", id), json!({}), &["registration_token", "idempotency_key"]),
        (
            "search_messages",
            json!({ "project_key": HOME, "query": "a" }),
            json!({ "agent_name": "GreenCastle" }),
            &[
                "limit",
                "offset",
                "cursor",
                "ranking",
                "sender",
                "from_agent",
                "sender_name",
                "importance",
                "thread_id",
                "date_start",
                "date_end",
                "date_from",
                "date_to",
                "after",
                "before",
                "since",
                "until",
                "explain",
                "include_body_md",
                "agent_name",
                "registration_token",
            ],
        ),
        (
            "summarize_thread",
            json!({ "project_key": HOME, "thread_id": "T" }),
            json!({ "llm_mode": true, "llm_model": "m", "agent_name": "GreenCastle" }),
            &["include_examples", "llm_mode", "llm_model", "per_thread_limit", "agent_name", "registration_token"],
        ),
        ("health_check", json!({}), json!({}), &[]),
    ]
}

fn of_agents() -> Vec<Known> {
    let profile = json!({ "project_key": HOME, "program": "p", "model": "m" });
    let pair = json!({ "project_key": HOME, "from_agent": "GreenCastle", "to_agent": "BlueLake" });
    let answer = json!({ "project_key": HOME, "to_agent": "BlueLake", "from_agent": "GreenCastle", "accept": true });
    let wanted = json!({ "register_if_missing": true, "program": "p", "model": "m", "task_description": "t" });
    vec![
        ("ensure_project", json!({ "human_key": HOME }), json!({ "identity_mode": "git-remote" }), &["identity_mode"]),
        (
            "register_agent",
            with(profile.clone(), json!({ "name": "GreenCastle" })),
            json!({ "pane_id": "%1", "registration_proof": { "nonce": [1] } }),
            &[
                "task_description",
                "attachments_policy",
                "reaper_exempt",
                "pane_id",
                "registration_proof",
                "registration_token",
            ],
        ),
        (
            "create_agent_identity",
            profile,
            json!({ "reaper_exempt": true, "pane_id": "%1", "registration_proof": "x" }),
            &["name_hint", "task_description", "attachments_policy", "reaper_exempt", "pane_id", "registration_proof"],
        ),
        (
            "whois",
            of("BlueLake"),
            json!({ "include_recent_commits": true, "commit_limit": 5 }),
            &["include_recent_commits", "commit_limit"],
        ),
        ("list_agents", json!({ "project_key": HOME }), json!({}), &["limit", "active_within_days"]),
        ("retire_agent", of("RedFox"), json!({}), &["registration_token"]),
        ("unretire_agent", of("RedFox"), json!({}), &["registration_token"]),
        (
            "request_contact",
            pair,
            wanted,
            &[
                "to_project",
                "reason",
                "ttl_seconds",
                "register_if_missing",
                "program",
                "model",
                "task_description",
                "registration_token",
            ],
        ),
        ("respond_contact", answer, json!({}), &["from_project", "ttl_seconds", "registration_token"]),
        ("list_contacts", of("GreenCastle"), json!({}), &["registration_token"]),
        (
            "set_contact_policy",
            with(of("GreenCastle"), json!({ "policy": "open" })),
            json!({}),
            &["registration_token"],
        ),
    ]
}

fn of_files() -> Vec<Known> {
    let slot = with(of("GreenCastle"), json!({ "slot": "build" }));
    let src = with(of("GreenCastle"), json!({ "paths": ["src"] }));
    vec![
        (
            "file_reservation_paths",
            src.clone(),
            json!({}),
            &["ttl_seconds", "exclusive", "reason", "idempotency_key", "registration_token"],
        ),
        ("check_file_reservation_conflicts", src.clone(), json!({}), &["exclusive"]),
        (
            "renew_file_reservations",
            of("GreenCastle"),
            json!({}),
            &["extend_seconds", "paths", "file_reservation_ids", "registration_token"],
        ),
        (
            "macro_file_reservation_cycle",
            src,
            json!({ "auto_release": true }),
            &["ttl_seconds", "exclusive", "reason", "auto_release", "registration_token"],
        ),
        (
            "release_file_reservations",
            of("GreenCastle"),
            json!({}),
            &["paths", "file_reservation_ids", "registration_token"],
        ),
        (
            "acquire_build_slot",
            slot.clone(),
            json!({ "branch": "main" }),
            &["ttl_seconds", "exclusive", "branch", "registration_token"],
        ),
        (
            "renew_build_slot",
            slot.clone(),
            json!({ "branch": "main" }),
            &["extend_seconds", "branch", "registration_token"],
        ),
        ("release_build_slot", slot, json!({ "branch": "main" }), &["branch", "registration_token"]),
    ]
}

fn of_macros_and_products() -> Vec<Known> {
    let session = json!({ "human_key": HOME, "program": "p", "model": "m", "agent_name": "GreenCastle" });
    let thread = json!({ "project_key": HOME, "thread_id": "T", "program": "p", "model": "m",
        "agent_name": "GreenCastle" });
    let hello = json!({ "project_key": HOME, "requester": "GreenCastle", "target": "BlueLake" });
    let shop = |further: Json| with(json!({ "product_key": "shop" }), further);
    let wanted = json!({ "register_if_missing": true, "program": "p", "model": "m", "task_description": "t",
        "thread_id": "T" });
    vec![
        (
            "macro_start_session",
            session,
            json!({ "reaper_exempt": true, "pane_id": "%1", "registration_proof": "x" }),
            &[
                "task_description",
                "file_reservation_paths",
                "file_reservation_reason",
                "file_reservation_ttl_seconds",
                "inbox_limit",
                "reaper_exempt",
                "pane_id",
                "registration_proof",
                "registration_token",
            ],
        ),
        (
            "macro_prepare_thread",
            thread,
            json!({ "register_if_missing": false, "llm_mode": true, "llm_model": "m", "registration_proof": "x" }),
            &[
                "task_description",
                "register_if_missing",
                "include_examples",
                "inbox_limit",
                "include_inbox_bodies",
                "llm_mode",
                "llm_model",
                "registration_proof",
                "registration_token",
            ],
        ),
        (
            "macro_contact_handshake",
            hello,
            wanted,
            &[
                "agent_name",
                "to_agent",
                "to_project",
                "reason",
                "ttl_seconds",
                "auto_accept",
                "welcome_subject",
                "welcome_body",
                "thread_id",
                "register_if_missing",
                "program",
                "model",
                "task_description",
                "sender_token",
                "requester_registration_token",
                "target_registration_token",
            ],
        ),
        ("ensure_product", shop(json!({})), json!({}), &["name"]),
        ("products_link", shop(json!({ "project_key": HOME })), json!({}), &[]),
        (
            "search_messages_product",
            shop(json!({ "query": "a" })),
            json!({ "agent_name": "GreenCastle", "project": HOME, "ranking": "recency" }),
            &[
                "limit",
                "cursor",
                "project",
                "project_key_filter",
                "project_slug",
                "proj",
                "sender",
                "from_agent",
                "sender_name",
                "importance",
                "thread_id",
                "ranking",
                "date_start",
                "date_end",
                "date_from",
                "date_to",
                "after",
                "before",
                "since",
                "until",
                "include_body_md",
                "agent_name",
                "registration_token",
            ],
        ),
        (
            "fetch_inbox_product",
            shop(json!({ "agent_name": "GreenCastle" })),
            json!({ "include_bodies": true }),
            &["limit", "urgent_only", "include_bodies", "since_ts", "registration_token"],
        ),
        (
            "summarize_thread_product",
            shop(json!({ "thread_id": "T" })),
            json!({ "include_examples": true, "llm_mode": true, "llm_model": "m", "agent_name": "GreenCastle" }),
            &["include_examples", "llm_mode", "llm_model", "per_thread_limit", "agent_name", "registration_token"],
        ),
    ]
}

/// Tools that no field of another server is for, or that other cases are about: their calls have more to say.
const APART: &[&str] =
    &["force_release_file_reservation", "get_attachment", "install_precommit_guard", "uninstall_precommit_guard"];

/// As the known servers name them.
async fn every_field_that_clients_of_other_servers_send_is_taken(on: TestStore) {
    let (alice, _) = two(&on).await;
    agent(&on, &alice, "RedFox").await;
    let id = send(&on, &alice, with(letter("a"), json!({ "thread_id": "T" }))).await;
    let calls = [of_messages(id), of_agents(), of_files(), of_macros_and_products()].concat();
    let directory = ok(&on, &alice, "list_tools", json!({})).await;
    for tool in directory["tools"].as_array().unwrap() {
        let name = text(tool, "name");
        assert!(APART.contains(&&*name) || calls.iter().any(|(known, ..)| *known == name), "{name} is in no table");
    }
    for (name, input, values, fields) in calls {
        // An admin may act for both agents.
        let caller = &on.admin;
        let unknown = with(input.clone(), json!({ "colour": null }));
        assert_eq!(refusal(&on, caller, name, unknown).await, Code::InvalidRequest, "{name}");
        ok(&on, caller, name, with(input.clone(), values)).await;
        for field in fields {
            let mut nothing = input.clone();
            nothing[*field] = Json::Null;
            ok(&on, caller, name, nothing).await;
        }
    }
    let nobody = json!({ "project_key": HOME, "from_agent": "GreenCastle", "to_agent": "NobodyHere",
        "register_if_missing": true });
    assert_eq!(refusal(&on, &alice, "request_contact", nobody).await, Code::NotFound, "nobody is made by being asked");
    let topic = with(of("GreenCastle"), json!({ "topic": "builds" }));
    assert_eq!(refusal(&on, &alice, "fetch_inbox", topic).await, Code::FeatureDisabled);
}

async fn other_names_of_a_field_mean_the_same(on: TestStore) {
    let (alice, bob) = two(&on).await;
    policy(&on, &bob, "BlueLake", "contacts_only").await;
    let hello = json!({ "project_key": HOME, "agent_name": "GreenCastle", "to_agent": "BlueLake" });
    let asked = ok(&on, &alice, "macro_contact_handshake", hello).await;
    assert_eq!((&asked["from"], &asked["to"]), (&json!("GreenCastle"), &json!("BlueLake")), "{asked}");
    let wrong = json!({ "project_key": HOME, "requester": "GreenCastle", "target": "BlueLake", "sender_token": "x" });
    assert_eq!(refusal(&on, &alice, "macro_contact_handshake", wrong).await, Code::SenderTokenMismatch);
    // An agent that is not there is made, unless that is not wanted.
    let join = json!({ "project_key": HOME, "thread_id": "T", "program": "p", "model": "m", "agent_name": "RedFox" });
    let alone = with(join.clone(), json!({ "register_if_missing": false }));
    assert_eq!(refusal(&on, &alice, "macro_prepare_thread", alone.clone()).await, Code::NotFound);
    ok(&on, &alice, "macro_prepare_thread", join).await;
    let same = ok(&on, &alice, "macro_prepare_thread", with(alone, json!({ "program": "other" }))).await;
    assert_eq!((&same["agent"]["name"], &same["agent"]["program"]), (&json!("RedFox"), &json!("p")), "{same}");
    let named = ok(&on, &alice, "ensure_product", json!({ "name": "The shop" })).await;
    assert_eq!((&named["product_key"], &named["name"]), (&json!("the-shop"), &json!("The shop")));
    assert_eq!(refusal(&on, &alice, "ensure_product", json!({})).await, Code::InvalidRequest);
}
