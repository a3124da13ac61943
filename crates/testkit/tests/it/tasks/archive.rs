use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value as Json, json};
use waybill_kernel::{Caller, Code};
use waybill_store::effects::Holder;
use waybill_tasks::Settings;
use waybill_tasks::receipts::ReceiptType;
use waybill_tasks::receipts::chain::Fault;
use waybill_tasks::sweeps::Archive;
use waybill_testkit::stores::TestStore;

use super::chain::{faults, seal};
use super::{about, audit, lease, worker};
use crate::conformance::ledger;
use crate::support::{NOBODY, ok, plain_task, refusal, sweep_to_end, text, texts};

waybill_testkit::both! {
    r65_receipts_go_to_the_archive_when_their_task_is_over_and_its_obligation_has_ended,
    r65_what_is_no_open_obligation_goes_after_the_longest_time_and_an_open_one_never,
    the_newest_receipt_stays_so_that_no_number_is_given_twice,
    a_receipt_that_is_not_sealed_stays,
    a_walk_begins_anew_and_finds_what_has_ended_meanwhile,
    an_archived_receipt_is_found_by_its_id_and_in_no_usual_list,
    an_archived_receipt_can_be_read_up_to_and_acknowledged_once,
    an_archived_receipt_is_a_parent_like_any_other,
    the_chain_is_whole_after_receipts_were_moved_and_shows_a_change_in_the_archive,
    the_archive_is_listed_by_page_by_task_and_by_addressee,
    the_archive_is_for_admins_of_the_tenant,
}

const DAY: Duration = Duration::from_secs(86_400);

/// Runs the sweep to its end and says how many receipts have gone to the archive.
async fn sweep(on: &TestStore, batch: i64) -> i64 {
    let before = archived(on).await;
    let settings = Settings { archive_batch: batch, ..Settings::default() };
    sweep_to_end(on, &Arc::new(Archive::new(&settings)), Holder::new(&on.store)).await;
    let pointers = on.count("SELECT count(*) FROM receipt_archive").await.unwrap();
    let after = archived(on).await;
    assert_eq!(pointers, after, "each has its pointer");
    let twice =
        "SELECT count(*) FROM receipts r JOIN receipt_archive p ON p.tenant = r.tenant AND p.receipt_id = r.receipt_id";
    assert_eq!(on.count(twice).await.unwrap(), 0, "moved, not copied");
    let links = "SELECT count(*) FROM receipt_parents l JOIN receipt_archive p ON p.tenant = l.tenant AND p.receipt_id = l.child_id";
    assert_eq!(on.count(links).await.unwrap(), 0, "with its links");
    assert_eq!(audit::found(on).await, [], "what is left agrees with what has gone");
    after - before
}

async fn archived(on: &TestStore) -> i64 {
    on.count("SELECT count(*) FROM archived_receipts").await.unwrap()
}

/// A task that was canceled: three receipts.
async fn canceled(on: &TestStore, owner: &Caller) -> String {
    let task_id = plain_task(on, owner).await;
    ok(on, owner, "cancel_task", json!({ "task_id": task_id })).await;
    task_id
}

/// A task that was done: four receipts, and a fifth that reports it when nobody knows where the work is.
async fn done(on: &TestStore, owner: &Caller, artifacts: Json) -> String {
    let task_id = plain_task(on, owner).await;
    let leased = lease(on, &worker(on, "w")).await;
    ok(on, &worker(on, "w"), "complete", about(&leased, json!({ "result": 1, "artifacts": artifacts }))).await;
    task_id
}

/// The types of what is left in the ledger, in order.
async fn left(on: &TestStore) -> Vec<String> {
    let rows = on.rows("SELECT receipt_type FROM receipts ORDER BY seq").await.unwrap();
    rows.iter().map(|row| row.text(0).unwrap().to_owned()).collect()
}

async fn listed(on: &TestStore, caller: &Caller, name: &str, input: Json) -> Vec<String> {
    texts(&ok(on, caller, name, input).await["receipts"], "receipt_id")
}

async fn r65_receipts_go_to_the_archive_when_their_task_is_over_and_its_obligation_has_ended(on: TestStore) {
    let alice = on.agent("alice").unwrap();
    done(&on, &alice, json!({ "url": "x" })).await;
    canceled(&on, &alice).await;
    // Where its work is nobody has said: the obligation is open.
    done(&on, &alice, json!([])).await;
    plain_task(&on, &alice).await;
    let misused =
        "INSERT INTO lease_misuses (tenant, task_id, worker, uses) SELECT tenant, task_id, 'worker:x', 1 FROM tasks";
    on.write(misused).await.unwrap();
    let misuses = async || on.count("SELECT count(*) FROM lease_misuses").await.unwrap();
    seal(&on).await;
    on.time.pass(7 * DAY - Duration::from_secs(60));
    assert_eq!(sweep(&on, 3).await, 0);
    assert_eq!(misuses().await, 4);
    on.time.pass(Duration::from_secs(120));
    assert_eq!(sweep(&on, 3).await, 7);
    let expected = ["assigned", "accepted", "completed", "result_ready"].map(|kind| format!("task.{kind}"));
    let expected = [&expected[..], &["system.anomaly".to_owned(), "task.assigned".to_owned()]].concat();
    assert_eq!(left(&on).await, expected);
    assert_eq!(misuses().await, 2, "of the tasks that are over nobody counts them");
    assert_eq!(sweep(&on, 3).await, 0, "a second run has nothing to do");
    assert_eq!(left(&on).await, expected);
}

async fn r65_what_is_no_open_obligation_goes_after_the_longest_time_and_an_open_one_never(on: TestStore) {
    let alice = on.agent("alice").unwrap();
    let bare = done(&on, &alice, json!([])).await;
    plain_task(&on, &alice).await;
    // One that belongs to no task.
    let orphan = "UPDATE receipts SET task_id = NULL WHERE receipt_type = 'system.anomaly'";
    on.write(orphan).await.unwrap();
    seal(&on).await;
    on.time.pass(29 * DAY);
    assert_eq!(sweep(&on, 100).await, 0);
    on.time.pass(2 * DAY);
    assert_eq!(sweep(&on, 100).await, 4);
    assert_eq!(left(&on).await, ["task.assigned", "task.assigned"]);
    on.time.pass(1000 * DAY);
    assert_eq!(sweep(&on, 100).await, 0);
    let open = ok(&on, &alice, "list_open_obligations", json!({})).await;
    assert_eq!(open["open_obligations"].as_array().unwrap().len(), 2);
    // And it can still be ended: what it needs has stayed.
    let lease_id = on.rows("SELECT lease_id FROM leases").await.unwrap()[0].bytes(0).unwrap().to_vec();
    let lease_id = waybill_kernel::id::Uuid::from_slice(&lease_id).unwrap();
    let again = json!({ "task_id": bare, "lease_id": lease_id, "result": 1, "artifacts": { "url": "x" } });
    ok(&on, &worker(&on, "w"), "complete", again).await;
    assert_eq!(
        ok(&on, &alice, "list_open_obligations", json!({})).await["open_obligations"].as_array().unwrap().len(),
        1
    );
}

async fn the_newest_receipt_stays_so_that_no_number_is_given_twice(on: TestStore) {
    let other = on.tenant("other").await.unwrap();
    canceled(&on, &other).await;
    canceled(&on, &on.admin).await;
    seal(&on).await;
    on.time.pass(8 * DAY);
    let newest = on.count("SELECT max(seq) FROM receipts").await.unwrap();
    assert_eq!(sweep(&on, 100).await, 5, "all of the other tenant, and all but the newest");
    assert_eq!(left(&on).await, ["task.result_ready"]);
    plain_task(&on, &other).await;
    assert!(on.count("SELECT max(seq) FROM receipts").await.unwrap() > newest);
    // The sealer sees what came after, and the archive what was the newest before.
    seal(&on).await;
    assert_eq!(faults(&on).await, []);
    assert_eq!(sweep(&on, 100).await, 1);
}

async fn a_receipt_that_is_not_sealed_stays(on: TestStore) {
    canceled(&on, &on.admin).await;
    seal(&on).await;
    canceled(&on, &on.admin).await;
    on.time.pass(8 * DAY);
    assert_eq!(sweep(&on, 100).await, 3);
    seal(&on).await;
    assert_eq!(sweep(&on, 100).await, 2);
    assert_eq!(faults(&on).await, []);
}

async fn a_walk_begins_anew_and_finds_what_has_ended_meanwhile(on: TestStore) {
    let alice = on.agent("alice").unwrap();
    let mut waiting = Vec::new();
    for _ in 0..5 {
        waiting.push(plain_task(&on, &alice).await);
    }
    canceled(&on, &alice).await;
    plain_task(&on, &alice).await;
    seal(&on).await;
    on.time.pass(8 * DAY);
    // A batch of two passes over three that hold nothing for it.
    assert_eq!(sweep(&on, 2).await, 3);
    for task_id in &waiting {
        ok(&on, &alice, "cancel_task", json!({ "task_id": task_id })).await;
    }
    seal(&on).await;
    assert_eq!(sweep(&on, 2).await, 0, "they have only just ended");
    on.time.pass(8 * DAY);
    assert_eq!(sweep(&on, 2).await, 14, "all of the five but the newest receipt");
}

async fn an_archived_receipt_is_found_by_its_id_and_in_no_usual_list(on: TestStore) {
    let alice = on.agent("alice").unwrap();
    let task_id = canceled(&on, &alice).await;
    let of_task = json!({ "task_id": task_id });
    let before = ok(&on, &alice, "list_receipts", of_task.clone()).await;
    canceled(&on, &alice).await;
    seal(&on).await;
    on.time.pass(8 * DAY);
    let now = on.store.now();
    assert_eq!(sweep(&on, 100).await, 5);
    for receipt in before["receipts"].as_array().unwrap() {
        let mut found = ok(&on, &alice, "get_receipt", json!({ "receipt_id": receipt["receipt_id"] })).await;
        let archived_at = found.as_object_mut().unwrap().remove("archived_at").unwrap();
        assert!(archived_at.as_str().unwrap() >= now.to_string().as_str(), "{archived_at} after {now}");
        assert_eq!(&found, receipt, "nothing of it was rewritten");
        let bob = on.agent("bob").unwrap();
        let his = refusal(&on, &bob, "get_receipt", json!({ "receipt_id": receipt["receipt_id"] })).await;
        assert_eq!(his, Code::Forbidden);
    }
    let newest = listed(&on, &alice, "list_receipts", json!({})).await;
    assert_eq!(newest.len(), 1);
    assert!(listed(&on, &alice, "list_receipts", of_task).await.is_empty());
    let inbox = ok(&on, &alice, "bootstrap", json!({})).await;
    assert_eq!(texts(&inbox["attention"]["inbox_receipts"], "receipt_id"), newest);
    let gone = json!({ "receipt_id": before["receipts"][0]["receipt_id"] });
    let stranger = on.tenant("other").await.unwrap();
    assert_eq!(refusal(&on, &stranger, "get_receipt", gone).await, Code::NotFound);
}

async fn an_archived_receipt_can_be_read_up_to_and_acknowledged_once(on: TestStore) {
    let alice = on.agent("alice").unwrap();
    let task_id = canceled(&on, &alice).await;
    let all = listed(&on, &alice, "list_receipts", json!({})).await;
    let acked = json!({ "receipt_id": all[0] });
    ok(&on, &alice, "ack_receipt", acked.clone()).await;
    let later = canceled(&on, &alice).await;
    seal(&on).await;
    on.time.pass(8 * DAY);
    assert_eq!(sweep(&on, 100).await, 6);
    // The place of one that is gone is still a place.
    let page = ok(&on, &alice, "list_receipts", json!({ "since_receipt_id": all[0] })).await;
    assert_eq!(texts(&page["receipts"], "task_id"), [later.as_str()]);
    let count = || async { on.count("SELECT count(*) FROM receipts").await.unwrap() };
    let before = count().await;
    assert!(on.call(&alice, "ack_receipt", acked).await.unwrap().replay, "it was acknowledged before");
    assert_eq!(count().await, before);
    // A parent that is archived is a parent, and its child is one of its task's receipts.
    assert!(!on.call(&alice, "ack_receipt", json!({ "receipt_id": all[1] })).await.unwrap().replay);
    let of_task = ok(&on, &alice, "list_receipts", json!({ "task_id": task_id })).await;
    assert_eq!(texts(&of_task["receipts"], "receipt_type"), ["receipt.acknowledged"]);
    assert_eq!(of_task["receipts"][0]["parents"], json!([all[1]]));
    for name in ["list_open_obligations", "bootstrap"] {
        ok(&on, &alice, name, json!({ "since_receipt_id": all[2] })).await;
    }
}

async fn an_archived_receipt_is_a_parent_like_any_other(on: TestStore) {
    let alice = on.agent("alice").unwrap();
    canceled(&on, &alice).await;
    let old = listed(&on, &alice, "list_receipts", json!({})).await[0].clone();
    let own = ledger::assigned(&on, &alice).await;
    seal(&on).await;
    on.time.pass(8 * DAY);
    assert_eq!(sweep(&on, 100).await, 3);
    let parents = [own.clone(), old.clone()];
    assert_eq!(ledger::write(&on, &alice, ReceiptType::TaskCanceled, &parents, 0).await, None);
    // It ended long ago and ends nothing again.
    let alone = ledger::write(&on, &alice, ReceiptType::TaskCanceled, &[old], 0).await;
    assert_eq!(alone, Some(Code::ParentNotFound));
}

async fn the_chain_is_whole_after_receipts_were_moved_and_shows_a_change_in_the_archive(on: TestStore) {
    for _ in 0..3 {
        canceled(&on, &on.admin).await;
    }
    seal(&on).await;
    on.time.pass(8 * DAY);
    assert_eq!(sweep(&on, 4).await, 8);
    assert_eq!(faults(&on).await, []);
    let second = "receipt_id = (SELECT receipt_id FROM chain WHERE position = 2)";
    for (change, undo, fault) in [
        ("body = '{}' || body", "body = substr(body, 3)", Fault::AlteredContent),
        ("created_at = created_at + 1", "created_at = created_at - 1", Fault::ForeignLink),
        ("tenant = 99", "tenant = 1", Fault::MissingReceipt),
    ] {
        on.write(&format!("UPDATE archived_receipts SET {change} WHERE {second}")).await.unwrap();
        assert_eq!(faults(&on).await, [(2, fault)], "{change}");
        on.write(&format!("UPDATE archived_receipts SET {undo} WHERE {second}")).await.unwrap();
        assert_eq!(faults(&on).await, [], "{undo}");
    }
}

async fn the_archive_is_listed_by_page_by_task_and_by_addressee(on: TestStore) {
    let (alice, bob) = (on.agent("alice").unwrap(), on.agent("bob").unwrap());
    assert_eq!(ok(&on, &on.admin, "list_archived_receipts", json!({})).await, json!({ "receipts": [] }));
    let hers = canceled(&on, &alice).await;
    let his = done(&on, &bob, json!({ "url": "x" })).await;
    canceled(&on, &alice).await;
    let all = on.rows("SELECT receipt_id FROM receipts ORDER BY seq").await.unwrap();
    let all: Vec<String> = all
        .iter()
        .map(|row| waybill_kernel::id::Uuid::from_slice(row.bytes(0).unwrap()).unwrap().to_string())
        .collect();
    seal(&on).await;
    on.time.pass(8 * DAY);
    assert_eq!(sweep(&on, 100).await, 9);
    let (mut seen, mut input) = (Vec::new(), json!({ "limit": 4 }));
    for length in [4, 4, 1, 0] {
        let page = ok(&on, &on.admin, "list_archived_receipts", input.clone()).await;
        assert_eq!(page["receipts"].as_array().unwrap().len(), length);
        assert!(page["receipts"].as_array().unwrap().iter().all(|receipt| receipt["archived_at"].is_string()));
        seen.extend(texts(&page["receipts"], "receipt_id"));
        if length > 0 {
            input["since_receipt_id"] = page["next_cursor"].clone();
        }
    }
    assert_eq!(seen, all[..9]);
    for (input, expected) in [
        (json!({ "task_id": hers }), &all[..3]),
        (json!({ "task_id": his }), &all[3..7]),
        (json!({ "task_id": his, "to_id": "bob" }), &[all[3].clone(), all[5].clone(), all[6].clone()]),
        (json!({ "to_kind": "agent", "to_id": "bob" }), &[all[3].clone(), all[5].clone(), all[6].clone()]),
        (json!({ "to_id": "carol" }), &[]),
        (json!({ "task_id": NOBODY }), &[]),
    ] {
        assert_eq!(listed(&on, &on.admin, "list_archived_receipts", input.clone()).await, expected, "{input}");
    }
    for (input, code) in [
        (json!({ "since_receipt_id": NOBODY }), Code::InvalidCursor),
        (json!({ "limit": 0 }), Code::InvalidRequest),
        (json!({ "to_kind": "agent" }), Code::InvalidRequest),
    ] {
        assert_eq!(refusal(&on, &on.admin, "list_archived_receipts", input).await, code);
    }
}

async fn the_archive_is_for_admins_of_the_tenant(on: TestStore) {
    canceled(&on, &on.admin).await;
    canceled(&on, &on.admin).await;
    seal(&on).await;
    on.time.pass(8 * DAY);
    assert_eq!(sweep(&on, 100).await, 5);
    let other = on.tenant("other").await.unwrap();
    assert_eq!(ok(&on, &other, "list_archived_receipts", json!({})).await, json!({ "receipts": [] }));
    let first = text(&ok(&on, &on.admin, "list_archived_receipts", json!({ "limit": 1 })).await, "next_cursor");
    let theirs = json!({ "since_receipt_id": first });
    assert_eq!(refusal(&on, &other, "list_archived_receipts", theirs).await, Code::InvalidCursor);
    let spec = on.registry.find("list_archived_receipts").unwrap().spec();
    assert!(spec.roles == [waybill_kernel::Role::Admin] && !spec.tool);
}
