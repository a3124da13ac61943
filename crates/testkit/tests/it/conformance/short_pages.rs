//! Pages that are bounded by the size of their tasks and by how many are looked at.

use std::sync::Arc;

use serde_json::{Value as Json, json};
use waybill_kernel::Caller;
use waybill_store::{Gate, Reply};
use waybill_tasks::Settings;
use waybill_tasks::ops::list_tasks::ListTasks;
use waybill_testkit::stores::{self, TestStore};

use crate::support::{ok, plain_task, task, texts};
use crate::tasks::chain::seal;

fn settings() -> Settings {
    Settings { list_bytes_max: 2_500, list_scan_max: 4, ..Settings::default() }
}

waybill_testkit::both! {
    super::settings() =>
    a_page_ends_before_it_is_too_large_and_always_has_one,
    what_no_index_knows_is_looked_for_among_so_many_at_a_time,
    a_claim_of_many_ends_before_its_answer_is_too_large,
    an_export_ends_before_its_answer_is_too_large,
}

/// Every page of the list, as it came.
async fn walked(on: &TestStore, caller: &Caller, filter: Json) -> Vec<Vec<String>> {
    let mut input = filter;
    let mut pages = Vec::new();
    loop {
        let page = ok(on, caller, "list_tasks", input.clone()).await;
        pages.push(texts(&page["tasks"], "task_id"));
        let Some(cursor) = page.get("next_cursor") else { return pages };
        input["cursor"] = cursor.clone();
        assert!(pages.len() < 50, "{pages:?}");
    }
}

async fn a_page_ends_before_it_is_too_large_and_always_has_one(on: TestStore) {
    let alice = on.agent("alice").unwrap();
    let mut ids = Vec::new();
    for bytes in [1_000, 1_000, 1_000, 9_000, 1_000, 10] {
        ids.insert(0, task(&on, &alice, json!({ "type": "work", "payload": "x".repeat(bytes) })).await);
    }
    for (caller, filter) in [(&alice, json!({})), (&on.admin, json!({})), (&alice, json!({ "status": "queued" }))] {
        let sizes: Vec<usize> = walked(&on, caller, filter.clone()).await.iter().map(Vec::len).collect();
        assert_eq!(sizes, [2, 1, 2, 1], "{filter}");
        assert_eq!(walked(&on, caller, filter).await.concat(), ids);
    }
}

async fn what_no_index_knows_is_looked_for_among_so_many_at_a_time(on: TestStore) {
    let alice = on.agent("alice").unwrap();
    let mut rare = Vec::new();
    for number in 0..11 {
        let kind = if number % 5 == 0 { "rare" } else { "common" };
        let id = task(&on, &alice, json!({ "type": kind })).await;
        if kind == "rare" {
            rare.insert(0, id);
        }
    }
    for (caller, filter) in [
        (&alice, json!({ "type": "rare" })),
        (&on.admin, json!({ "type": "rare" })),
        (&alice, json!({ "type": "rare", "status": "queued" })),
        (&on.admin, json!({ "type": "rare", "status": "queued" })),
    ] {
        let pages = walked(&on, caller, filter.clone()).await;
        assert_eq!(pages.concat(), rare, "{filter}");
        assert!(pages.len() >= 3, "four at a time: {pages:?}");
        // A page of one of them goes on behind it.
        let one = json!({ "limit": 1, "type": filter["type"], "status": filter["status"] });
        assert_eq!(walked(&on, caller, one).await.concat(), rare, "{filter}");
    }
    let none = walked(&on, &on.admin, json!({ "status": "failed" })).await;
    assert!(none.concat().is_empty() && none.len() >= 3, "{none:?}");
}

async fn a_claim_of_many_ends_before_its_answer_is_too_large(on: TestStore) {
    let alice = on.agent("alice").unwrap();
    for _ in 0..5 {
        task(&on, &alice, json!({ "type": "work", "payload": "x".repeat(2_000) })).await;
    }
    let worker = crate::support::worker(&on, "w");
    for expected in [2, 2, 1, 0] {
        let leased = crate::support::claim(&on, &worker, json!({ "max_tasks": 100 })).await;
        assert_eq!(leased.len(), expected);
    }
}

async fn an_export_ends_before_its_answer_is_too_large(on: TestStore) {
    let alice = on.agent("alice").unwrap();
    for _ in 0..60 {
        plain_task(&on, &alice).await;
    }
    seal(&on).await;
    let (mut sizes, mut after) = (Vec::new(), 0);
    loop {
        let page = ok(&on, &on.admin, "export_chain", json!({ "after": after, "limit": 500 })).await;
        let receipts = page["receipts"].as_array().unwrap();
        let Some(last) = receipts.last() else { break };
        after = last["position"].as_i64().unwrap();
        sizes.push(receipts.len());
    }
    assert_eq!((sizes.iter().sum::<usize>(), after), (60, 60), "{sizes:?}");
    assert!(sizes.len() > 1, "all of it at once");
}

/// On PostgreSQL a page is counted by one statement and read by another, and the world goes on in between.
#[tokio::test]
async fn a_task_that_changes_while_it_is_listed_hides_no_other() {
    let on = stores::open_postgres_set(settings()).await.unwrap();
    let alice = on.agent("alice").unwrap();
    let mut rare = Vec::new();
    for kind in ["rare", "common", "common", "common", "common", "rare"] {
        let id = task(&on, &alice, json!({ "type": kind })).await;
        rare.extend((kind == "rare").then_some(id));
    }
    let (gate, mut arrivals) = Gate::new();
    let gate = Arc::new(gate);
    let filter = json!({ "status": "queued", "type": "rare" });
    let list: ListTasks = serde_json::from_value(filter.clone()).unwrap();
    let (store, caller, at_gate) = (on.store.clone(), alice.clone(), Arc::clone(&gate));
    let listing = tokio::spawn(async move { store.run_gated(list, caller, Some(at_gate)).await });
    // How far to look, and what is there; what is read last is another thing.
    for _ in 0..2 {
        arrivals.recv().await.unwrap();
        gate.step();
    }
    arrivals.recv().await.unwrap();
    ok(&on, &alice, "cancel_task", json!({ "task_id": rare[1] })).await;
    gate.open();
    let Reply::Done(page) = listing.await.unwrap().unwrap() else { panic!("a list is no replay") };
    let page = serde_json::to_value(page).unwrap();
    assert_eq!(texts(&page["tasks"], "task_id"), Vec::<String>::new());
    let rest = json!({ "status": "queued", "type": "rare", "cursor": page["next_cursor"] });
    assert_eq!(walked(&on, &alice, rest).await.concat(), rare[..1]);
}
