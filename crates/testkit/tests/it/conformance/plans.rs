//! No statement of any operation reads a tenant's table from end to end.
//!
//! The statements are private to their operations; PostgreSQL remembers what it was asked to prepare, so the texts are
//! taken from there, after every operation has run, and explained by SQLite, whose planner has no reason to prefer a
//! scan of a small table.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use waybill_mail::sweeps::{InactiveAgents, OverdueAcks};
use waybill_store::effects::{Holder, reach_once, sweep_once};
use waybill_tasks::Settings;
use waybill_tasks::sweeps::Archive;
use waybill_testkit::stores::{self, TestStore};
use waybill_webhooks::{Deliver, Lines, Over};

use crate::support::{held, ok, plain_task, refusal, text, with, worker};

/// Every operation at least once, through each of the ways that have statements of their own.
async fn run_everything(on: &TestStore) {
    let alice = on.agent("alice").unwrap();
    let keyed = json!({ "type": "work", "idempotency_key": "k" });
    ok(on, &alice, "create_task", keyed.clone()).await;
    ok(on, &alice, "create_task", keyed).await;
    let task_id = plain_task(on, &alice).await;
    ok(on, &alice, "get_task", json!({ "task_id": task_id })).await;
    for _ in 0..2 {
        ok(on, &alice, "cancel_task", json!({ "task_id": task_id })).await;
    }
    let w = worker(on, "w");
    for end in ["complete", "fail", "fail"] {
        let lease = held(on, &w, json!({ "type": "work", "priority": 9 })).await;
        ok(on, &w, "renew_lease", lease.clone()).await;
        ok(on, &w, "report_progress", with(&lease, json!({ "progress": 1 }))).await;
        let input = if end == "fail" { with(&lease, json!({ "error": 1, "retryable": true })) } else { lease.clone() };
        ok(on, &w, end, input.clone()).await;
        ok(on, &w, end, input).await;
        refusal(on, &w, "renew_lease", lease.clone()).await;
        if end == "complete" {
            ok(on, &w, end, with(&lease, json!({ "artifacts": { "p": 1 } }))).await;
            ok(on, &w, "get_task", json!({ "task_id": lease["task_id"] })).await;
        }
    }
    claim_in_every_way(on).await;
    for caller in [&alice, &on.admin] {
        for filter in [json!({}), json!({ "status": "queued" })] {
            ok(on, caller, "list_tasks", filter).await;
        }
    }
    let listed = ok(on, &alice, "list_receipts", json!({ "task_id": task_id })).await;
    let since = json!({ "since_receipt_id": listed["receipts"][0]["receipt_id"] });
    for name in ["list_receipts", "list_open_obligations", "bootstrap"] {
        ok(on, &alice, name, since.clone()).await;
    }
    for name in ["get_receipt", "ack_receipt"] {
        ok(on, &alice, name, json!({ "receipt_id": since["since_receipt_id"] })).await;
    }
    let archive =
        Arc::new(Archive::new(&Settings { archive_after_s: 0, archive_after_s_max: 0, ..Settings::default() }));
    crate::tasks::chain::seal(on).await;
    sweep_once(&on.store, &archive, Holder::new(&on.store)).await.unwrap();
    ok(on, &alice, "get_receipt", json!({ "receipt_id": since["since_receipt_id"] })).await;
    for filter in [json!({}), json!({ "task_id": task_id }), json!({ "to_id": "alice" })] {
        ok(on, &on.admin, "list_archived_receipts", filter).await;
    }
    ok(on, &on.admin, "export_chain", json!({})).await;
    on.tenant("other").await.unwrap();
    ok(on, &on.admin, "list_tenants", json!({})).await;
    for tenant in ["other", "0198c0de-0000-7000-8000-000000000000"] {
        let _ = on.call(&on.admin, "create_key", json!({ "principal": "agent:a", "tenant": tenant })).await;
    }
    let key_id = text(&ok(on, &on.admin, "create_key", json!({ "principal": "agent:a" })).await, "key_id");
    ok(on, &on.admin, "rotate_key", json!({ "key_id": key_id })).await;
    for _ in 0..2 {
        ok(on, &on.admin, "revoke_key", json!({ "key_id": key_id })).await;
    }
    ok(on, &on.admin, "list_keys", json!({})).await;
    webhooks(on).await;
    mail(on).await;
    refusal(on, &on.admin, "rotate_key", json!({ "key_id": key_id })).await;
}

/// From the webhook to a delivery that nobody takes, and all that sweeps do about it.
async fn webhooks(on: &TestStore) {
    let made = ok(on, &on.admin, "create_webhook", json!({ "url": "http://localhost:8009/" })).await;
    let (webhook_id, delivery_id) = super::list_webhook_deliveries::one_delivery(on, &made).await;
    ok(on, &on.admin, "list_webhooks", json!({})).await;
    let settings = waybill_webhooks::Settings::default();
    for lines in [Lines::Healthy, Lines::Ailing] {
        reach_once(&on.store, &Arc::new(Deliver::new(lines, &settings))).await.unwrap();
        on.time.pass(Duration::from_secs(60));
    }
    let delivery = json!({ "webhook_id": webhook_id, "delivery_id": delivery_id });
    ok(on, &on.admin, "redeliver_webhook", delivery.clone()).await;
    on.write("UPDATE webhooks SET disabled_at = 1").await.unwrap();
    for _ in 0..2 {
        ok(on, &on.admin, "enable_webhook", json!({ "webhook_id": webhook_id })).await;
    }
    sweep_once(&on.store, &Arc::new(Over::new(&settings)), Holder::new(&on.store)).await.unwrap();
    ok(on, &on.admin, "delete_webhook", json!({ "webhook_id": webhook_id })).await;
    refusal(on, &on.admin, "redeliver_webhook", delivery).await;
}

/// Every list of an inbox, the looks before a message is written, and what follows it.
async fn mail(on: &TestStore) {
    let call = async |name: &str, input| ok(on, &on.admin, name, input).await;
    let project = json!({ "project_key": "/data/p" });
    let of = |name: &str, more| with(&with(&project, json!({ "agent_name": name })), more);
    call("ensure_project", json!({ "human_key": "/data/p" })).await;
    for name in ["GreenCastle", "BlueLake", "GreenCastle"] {
        call("register_agent", with(&project, json!({ "program": "p", "model": "m", "name": name }))).await;
    }
    let pair = with(&project, json!({ "from_agent": "GreenCastle", "to_agent": "BlueLake" }));
    call("request_contact", pair.clone()).await;
    call("respond_contact", with(&pair, json!({ "accept": true }))).await;
    let letter = with(
        &project,
        json!({ "sender_name": "GreenCastle", "to": ["BlueLake"], "subject": "a", "body_md": "b",
        "thread_id": "T-1", "idempotency_key": "k", "attachments": [{ "name": "a", "content_base64": "" }] }),
    );
    for _ in 0..2 {
        call("send_message", letter.clone()).await;
    }
    let stranger = with(&letter, json!({ "sender_name": "BlueLake", "to": ["Nobody"], "idempotency_key": null }));
    refusal(on, &on.admin, "send_message", stranger).await;
    let unknown = with(&project, json!({ "program": "p", "model": "m", "name": "RedFox" }));
    call("register_agent", unknown).await;
    let uninvited = with(&letter, json!({ "sender_name": "RedFox", "idempotency_key": null }));
    refusal(on, &on.admin, "send_message", uninvited).await;
    for more in [
        json!({}),
        json!({ "include_bodies": true }),
        json!({ "unread_only": true }),
        json!({ "urgent_only": true }),
        json!({ "urgent_only": true, "unread_only": true }),
        json!({ "ack_overdue_only": true }),
        json!({ "mark_read": true }),
    ] {
        call("fetch_inbox", of("BlueLake", more)).await;
    }
    let id = call("fetch_inbox", of("BlueLake", json!({ "limit": 1 }))).await["result"][0]["id"].clone();
    for name in ["mark_message_read", "acknowledge_message"] {
        call(name, of("BlueLake", json!({ "message_id": id }))).await;
    }
    call("reply_message", with(&project, json!({ "sender_name": "BlueLake", "message_id": id, "body_md": "c" }))).await;
    call("get_message", with(&project, json!({ "message_id": id }))).await;
    call("get_attachment", with(&project, json!({ "message_id": id, "position": 0 }))).await;
    call("fetch_inbox_events", of("BlueLake", json!({}))).await;
    for view in ["outbox", "mailbox"] {
        call("read_mailbox", of("GreenCastle", json!({ "view": view }))).await;
    }
    for name in ["list_contacts", "whois", "retire_agent", "unretire_agent"] {
        call(name, of("BlueLake", json!({}))).await;
    }
    call("list_agents", project.clone()).await;
    call("list_projects", json!({})).await;
    call("get_project", project).await;
    call("health_check", json!({})).await;
    // What is overdue by then, and who is idle by then: nobody that another call is about.
    on.time.pass(Duration::from_secs(31 * 86_400));
    let escalating = waybill_mail::AckEscalation::FileReservation;
    let settings = waybill_mail::Settings { ack_escalation: escalating, ..waybill_mail::Settings::default() };
    let overdue = Arc::new(OverdueAcks::new(&settings).unwrap());
    assert_eq!(
        sweep_once(&on.store, &overdue, Holder::new(&on.store)).await.unwrap().rows,
        1,
        "the request for contact"
    );
    let inactive = Arc::new(InactiveAgents::new(&settings).unwrap());
    assert!(sweep_once(&on.store, &inactive, Holder::new(&on.store)).await.unwrap().rows > 0);
}

/// From one line and from several, of any type and of some, those that had to wait and those from before there were lines.
async fn claim_in_every_way(on: &TestStore) {
    let w = worker(on, "w");
    let kinds = json!(["a", "b"]);
    for input in [
        json!({}),
        json!({ "accept_types": ["a"] }),
        json!({ "accept_types": kinds }),
        json!({ "capabilities": ["x"] }),
        json!({ "capabilities": ["x"], "accept_types": kinds, "max_tasks": 2 }),
    ] {
        for kind in ["a", "b"] {
            for capabilities in [json!([]), json!(["x"])] {
                let needed = json!({ "capabilities": capabilities });
                ok(on, &on.admin, "create_task", json!({ "type": kind, "requirements": needed })).await;
            }
        }
        ok(on, &on.admin, "create_task", json!({ "type": "a", "delay_seconds": 1 })).await;
        on.time.pass(Duration::from_secs(2));
        ok(on, &w, "lease_next", input).await;
    }
    on.write("UPDATE tasks SET needs = 'Lolder' WHERE status = 'queued' AND requirements <> '{}'").await.unwrap();
    ok(on, &w, "lease_next", json!({ "capabilities": ["x"] })).await;
}

/// One connection sees all of it: calls come one after another, and nothing else uses the pool.
async fn statements() -> BTreeSet<String> {
    let never = Duration::from_secs(3600);
    let on = stores::open_postgres_with(|options| (options.notify_interval, options.clock_interval) = (never, never));
    let on = on.await.unwrap();
    run_everything(&on).await;
    let rows = on.rows("SELECT statement FROM pg_prepared_statements").await.unwrap();
    rows.iter().flat_map(|row| parts(row.text(0).unwrap())).collect()
}

/// Those that were sent as one, apart again.
fn parts(sql: &str) -> Vec<String> {
    let Some(combined) = sql.strip_prefix("WITH part0 AS (") else { return vec![sql.to_owned()] };
    let parts = combined.split(" RETURNING 1)").filter(|part| !part.starts_with(" SELECT (SELECT count(*)"));
    parts.map(|part| part.split_once(" AS (").map_or(part, |(_, part)| part).to_owned()).collect()
}

#[test]
fn what_was_sent_as_one_is_looked_at_apart() {
    let sql = "WITH part0 AS (DELETE FROM a WHERE x = $1 RETURNING 1), part1 AS (UPDATE b SET x = $2 RETURNING 1) \
               SELECT (SELECT count(*) FROM part0), (SELECT count(*) FROM part1)";
    assert_eq!(parts(sql), ["DELETE FROM a WHERE x = $1", "UPDATE b SET x = $2"]);
}

#[tokio::test]
async fn every_statement_finds_its_rows_by_an_index() {
    let on = stores::open_sqlite().await.unwrap();
    let statements = statements().await;
    for (what, marks) in [
        ("the list of all", "t.task_id >= $5 AND ($3 IS NULL OR t.type = $3) ORDER BY"),
        ("the list of a status", "AND t.status = $6 ORDER BY"),
        ("the list of an owner", "UNION ALL"),
        ("the list of an owner and a status", "AND t.owner = $6 AND t.status = $7"),
        ("the inbox", "r.addressee = $6 AND r.xact = $2 AND r.seq > $3"),
        ("open obligations", "r.addressee = $6 AND r.open = 1 AND r.xact = $2"),
        ("the receipts of a task", "WITH RECURSIVE linked"),
        ("the walk of the archive", "(SELECT s.completed_at FROM results s"),
        ("the archive of a task", "r.task_id = $6 AND ($7 IS NULL OR r.addressee = $7) AND (r.xact, r.seq)"),
        ("the first of a line", "t.needs = $6 AND NOT EXISTS"),
        ("the first of a line of a type", "t.needs = $6 AND t.type = $8 AND NOT EXISTS"),
        ("the first of several that is free", "t.task_id IN ($6, "),
        ("the keys of lines", "AND t.needs >= $2 ORDER BY t.needs LIMIT 1"),
        ("the keys of lines of a type", "AND t.needs >= $2 AND t.type = $4 ORDER BY t.needs LIMIT 1"),
        ("the places of a line", "t.needs = $2 ORDER BY t.priority DESC, t.created_at, t.task_id LIMIT $3"),
        ("the places of a line of a type", "t.needs = $2 AND t.type = $4 ORDER BY t.priority DESC"),
        ("what an older line needs", "SELECT t.requirements FROM tasks t"),
        ("whose time has come", "UPDATE tasks SET held = 0"),
        ("the look at a key", "tenant = $1 AND owner = $2 AND idempotency_key = $3"),
        ("the look at a relationship", "SELECT first_seen_at, last_seen_at, sessions_count, instances"),
        ("the end of an obligation", "UPDATE receipts SET open = 0"),
        ("the lines that are due", "UPDATE webhooks SET held = 1"),
        ("what is due in a line", "next_at <= $3 ORDER BY next_at LIMIT $4"),
        ("deliveries that are over", "DELETE FROM webhook_deliveries"),
        ("what is overdue", "UPDATE mail_recipients SET escalated_at"),
        ("who is idle", "UPDATE mail_agents SET retired_at = $1"),
        ("the inbox of an agent", "FROM mail_recipients r JOIN mail_messages m"),
        ("who shares a thread", "AS newest WHERE intro = 0"),
        ("what came for an agent", "FROM mail_inbox_events e JOIN mail_messages m"),
    ] {
        assert!(statements.iter().any(|sql| sql.contains(marks)), "{what} was not seen among {statements:#?}");
    }
    // Each list of an inbox walks over what it shows and nothing else.
    for (filter, index) in [
        ("r.read_at IS NULL ORDER BY", "mail_inbox_unread"),
        ("r.urgent = 1 ORDER BY", "mail_inbox_urgent"),
        ("r.urgent = 1 AND r.read_at IS NULL ORDER BY", "mail_inbox_urgent_unread"),
        ("r.ack_at IS NULL ORDER BY", "mail_inbox_ack"),
        ("m.sender = $2 AND m.created_at > $3", "mail_outbox"),
    ] {
        let lists: Vec<_> = statements.iter().filter(|sql| sql.contains(filter)).collect();
        assert!(!lists.is_empty(), "no list has {filter}");
        for sql in lists.iter().filter(|sql| filter.contains("urgent") || !sql.contains("r.urgent")) {
            let rows = on.rows(&format!("EXPLAIN QUERY PLAN {sql}")).await.unwrap();
            let plan: Vec<_> = rows.iter().map(|row| row.text(3).unwrap().to_owned()).collect();
            assert!(plan.iter().any(|step| step.contains(&format!("{index} "))), "{sql}\n{plan:#?}");
        }
    }
    let finds_rows = |sql: &&String| ["SELECT", "UPDATE", "DELETE", "WITH"].iter().any(|verb| sql.starts_with(verb));
    // What a test counts or arranges by is no statement of the product.
    let of_tests = |sql: &&String| {
        ["pg_", "(SELECT count(*) FROM chain)", "'Lolder'", "SET disabled_at = 1"].iter().any(|own| sql.contains(own))
    };
    // SQLite is asked for the newest receipt in other words: its rows are in the order of their seq as they are.
    let of_postgres = |sql: &&String| sql.contains("FROM receipts ORDER BY xact DESC, seq DESC LIMIT 1");
    for sql in statements.iter().filter(finds_rows).filter(|sql| !of_tests(sql) && !of_postgres(sql)) {
        assert_eq!(faults(&on, sql).await, Vec::<String>::new(), "{sql}");
    }
}

/// The steps of SQLite's plan that cost more than what they find.
async fn faults(on: &TestStore, sql: &str) -> Vec<String> {
    // By name and by the alias our statements give it; a scan of a subquery is what a merge of lists is made of.
    let tables = "t d r k a p s m e tasks results receipts receipt_parents leases relationships api_keys archived_receipts receipt_archive chain webhooks \
                  webhook_deliveries mail_projects mail_agents mail_messages mail_recipients mail_contacts mail_inbox_events mail_keys mail_reservations";
    let tables: Vec<&str> = tables.split(' ').collect();
    let plain = sql.replace(" FOR NO KEY UPDATE", "");
    let plain = plain.trim_end_matches(" FOR UPDATE");
    let rows = on.rows(&format!("EXPLAIN QUERY PLAN {plain}")).await.unwrap();
    let steps = rows.iter().map(|row| row.text(3).unwrap().to_owned());
    let is_fault = |step: &String| {
        // A tenant's tasks from the first on, in search of one that fits, are a scan by another name.
        let walked = step.strip_suffix(" USING PRIMARY KEY (tenant=?)").and_then(|rest| rest.strip_prefix("SEARCH "));
        let walked = walked.filter(|table| ["t", "tasks"].contains(table));
        let scanned = step.strip_prefix("SCAN ").or(walked).and_then(|rest| rest.split(' ').next());
        // A few that are named one by one are sorted.
        // … and so is what there may be only some hundreds of: active reservations, build slots, projects of a product.
        let few =
            ["FROM mail_reservations r", "FROM mail_build_slots", "mail_product"].iter().any(|of| sql.contains(of));
        let merges = few || sql.contains("UNION ALL") || sql.contains("t.task_id IN ($6, ");
        let sorts = step.contains("TEMP B-TREE FOR ORDER BY") && !merges;
        sorts || scanned.is_some_and(|table| tables.contains(&table))
    };
    steps.filter(is_fault).collect()
}

#[tokio::test]
async fn a_scan_and_a_sort_would_be_seen() {
    let on = stores::open_sqlite().await.unwrap();
    for sql in [
        "SELECT task_id FROM tasks WHERE type = $1",
        "SELECT t.task_id FROM tasks t WHERE t.priority > $1",
        "SELECT task_id FROM tasks WHERE tenant = $1 AND type = $2 LIMIT 1",
        "SELECT task_id FROM tasks WHERE tenant = $1 AND owner = $2 ORDER BY priority",
        "UPDATE receipts SET open = 0 WHERE task_id = $1",
    ] {
        assert!(!faults(&on, sql).await.is_empty(), "{sql}");
    }
}
