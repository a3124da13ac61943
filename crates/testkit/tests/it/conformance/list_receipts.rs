use serde_json::{Value as Json, json};
use waybill_kernel::{Caller, Code};
use waybill_testkit::stores::TestStore;

use super::ledger::{claimed, types, with, worker};
use crate::support::{NOBODY, ok, plain_task, refusal, task, text, texts};

waybill_testkit::both! {
    an_inbox_is_read_in_order_by_pages_that_go_on_where_the_last_ended,
    a_caller_reads_its_own_inbox_and_an_admin_anybodys,
    the_receipts_of_a_task_are_for_its_owner_and_those_who_held_it,
    a_receipt_of_another_task_is_not_this_ones_though_it_refers_to_it,
    what_a_task_says_of_a_schedule_is_among_its_receipts,
    a_receipt_is_shown_with_everything_it_says,
    a_cursor_must_be_a_receipt_of_the_same_list,
    a_page_has_at_least_one_and_at_most_two_hundred_receipts,
}

async fn ids(on: &TestStore, caller: &Caller, input: Json) -> Vec<String> {
    texts(&ok(on, caller, "list_receipts", input).await["receipts"], "receipt_id")
}

async fn an_inbox_is_read_in_order_by_pages_that_go_on_where_the_last_ended(on: TestStore) {
    let alice = on.agent("alice").unwrap();
    let empty = ok(&on, &alice, "list_receipts", json!({})).await;
    assert_eq!(empty, json!({ "receipts": [] }), "no cursor where there is nothing to go on from");
    let mut tasks = Vec::new();
    for _ in 0..5 {
        tasks.push(plain_task(&on, &alice).await);
    }
    let (mut seen, mut input) = (Vec::new(), json!({ "limit": 2 }));
    for length in [2, 2, 1, 0] {
        let page = ok(&on, &alice, "list_receipts", input.clone()).await;
        assert_eq!(page["receipts"].as_array().unwrap().len(), length);
        seen.extend(texts(&page["receipts"], "task_id"));
        let last = page["receipts"].as_array().unwrap().last().map(|receipt| &receipt["receipt_id"]);
        assert_eq!((page.get("next_cursor"), page.get("cursor")), (last, last));
        if let Some(last) = last {
            input["since_receipt_id"] = last.clone();
        }
    }
    assert_eq!(seen, tasks);
    let later = plain_task(&on, &alice).await;
    let page = ok(&on, &alice, "list_receipts", input).await;
    assert_eq!(texts(&page["receipts"], "task_id"), [later]);
}

async fn a_caller_reads_its_own_inbox_and_an_admin_anybodys(on: TestStore) {
    let (alice, bob) = (on.agent("alice").unwrap(), on.agent("bob").unwrap());
    plain_task(&on, &alice).await;
    let hers = ids(&on, &alice, json!({})).await;
    assert_eq!(hers.len(), 1);
    let named = json!({ "to_kind": "agent", "to_id": "alice" });
    for (caller, input) in [(&alice, named.clone()), (&alice, json!({ "to_id": "alice" })), (&on.admin, named.clone())]
    {
        assert_eq!(ids(&on, caller, input).await, hers);
    }
    assert!(ids(&on, &bob, json!({})).await.is_empty());
    assert_eq!(refusal(&on, &bob, "list_receipts", named.clone()).await, Code::Forbidden);
    let other_kind = json!({ "to_kind": "worker", "to_id": "alice" });
    assert_eq!(refusal(&on, &alice, "list_receipts", other_kind).await, Code::Forbidden);
    let half = json!({ "to_kind": "agent" });
    assert_eq!(refusal(&on, &alice, "list_receipts", half).await, Code::InvalidRequest);
    let stranger = on.tenant("other").await.unwrap();
    assert!(ids(&on, &stranger, named).await.is_empty(), "another tenant's alice is another");
}

async fn the_receipts_of_a_task_are_for_its_owner_and_those_who_held_it(on: TestStore) {
    let (alice, bob, first, second) =
        (on.agent("alice").unwrap(), on.agent("bob").unwrap(), worker(&on, "first"), worker(&on, "second"));
    let task_id = plain_task(&on, &alice).await;
    let hold = claimed(&on, &first).await;
    ok(&on, &first, "report_progress", with(hold, json!({ "progress": 1 }))).await;
    let expected = ["task.assigned", "task.accepted", "task.progress"];
    for caller in [&alice, &first, &on.admin] {
        assert_eq!(types(&on, caller, &task_id).await, expected);
    }
    for caller in [&bob, &second] {
        assert_eq!(refusal(&on, caller, "list_receipts", json!({ "task_id": task_id })).await, Code::Forbidden);
    }
    let stranger = on.tenant("other").await.unwrap();
    for (caller, id) in [(&stranger, task_id.as_str()), (&alice, NOBODY)] {
        assert_eq!(refusal(&on, caller, "list_receipts", json!({ "task_id": id })).await, Code::NotFound);
    }
    ok(&on, &alice, "cancel_task", json!({ "task_id": task_id })).await;
    // It held the task; that it no longer does changes nothing.
    assert_eq!(types(&on, &first, &task_id).await[3..], ["task.canceled", "task.result_ready"]);
    let to_her = json!({ "task_id": task_id, "to_id": "alice" });
    let own = ok(&on, &alice, "list_receipts", to_her).await;
    let expected = ["task.assigned", "task.canceled", "task.result_ready"];
    assert_eq!(texts(&own["receipts"], "receipt_type"), expected);
    let mut input = json!({ "task_id": task_id, "limit": 2 });
    let page = ok(&on, &alice, "list_receipts", input.clone()).await;
    input["since_receipt_id"] = page["next_cursor"].clone();
    let page = ok(&on, &alice, "list_receipts", input).await;
    assert_eq!(texts(&page["receipts"], "receipt_type"), ["task.progress", "task.canceled"]);
}

async fn a_receipt_of_another_task_is_not_this_ones_though_it_refers_to_it(on: TestStore) {
    let alice = on.agent("alice").unwrap();
    let (task_id, other) = (plain_task(&on, &alice).await, plain_task(&on, &alice).await);
    on.write(
        "INSERT INTO receipt_parents (tenant, parent_id, child_id, child_type) \
         SELECT p.tenant, p.receipt_id, c.receipt_id, c.receipt_type FROM receipts p JOIN receipts c ON c.seq > p.seq",
    )
    .await
    .unwrap();
    for (task_id, index) in [(task_id, 0), (other, 1)] {
        let own = ids(&on, &alice, json!({ "task_id": task_id })).await;
        assert_eq!(own, ids(&on, &alice, json!({})).await[index..=index]);
    }
}

async fn what_a_task_says_of_a_schedule_is_among_its_receipts(on: TestStore) {
    let (alice, scheduler) = (on.agent("alice").unwrap(), worker(&on, "scheduler"));
    let asked = async |kind: &str, payload: Json, result: Json| {
        let task_id = task(&on, &alice, json!({ "type": kind, "payload": payload })).await;
        let done = with(claimed(&on, &scheduler).await, json!({ "result": result, "artifacts": { "url": "x" } }));
        ok(&on, &scheduler, "complete", done).await;
        task_id
    };
    let created = asked("schedule.create", json!({ "interval_seconds": 60 }), json!({ "schedule_id": "s1" })).await;
    let paused = asked("schedule.pause", json!({ "schedule_id": "s1" }), json!({ "ok": true })).await;
    let deleted = asked("schedule.delete", json!({ "schedule_id": "s1" }), json!({ "ok": true })).await;
    let ended = ["task.assigned", "task.accepted", "task.completed", "task.result_ready"];
    for (task_id, said) in [(&created, Some("schedule.created")), (&paused, None), (&deleted, Some("schedule.deleted"))]
    {
        let expected: Vec<&str> = ended.into_iter().chain(said).collect();
        for caller in [&alice, &scheduler] {
            assert_eq!(types(&on, caller, task_id).await, expected);
        }
    }
    // What somebody says about it is found from there on, and pages go through it.
    let last = ids(&on, &alice, json!({ "task_id": created })).await.pop().unwrap();
    ok(&on, &alice, "ack_receipt", json!({ "receipt_id": last })).await;
    assert_eq!(types(&on, &alice, &created).await[4..], ["schedule.created", "receipt.acknowledged"]);
    let after = json!({ "task_id": created, "since_receipt_id": last });
    let after = ok(&on, &alice, "list_receipts", after).await;
    assert_eq!(texts(&after["receipts"], "receipt_type"), ["receipt.acknowledged"]);
}

async fn a_receipt_is_shown_with_everything_it_says(on: TestStore) {
    let alice = on.agent("alice").unwrap();
    let task_id = plain_task(&on, &alice).await;
    ok(&on, &alice, "cancel_task", json!({ "task_id": task_id, "reason": "done" })).await;
    let listed = ok(&on, &alice, "list_receipts", json!({})).await;
    let receipts = listed["receipts"].as_array().unwrap();
    let (assigned, canceled) = (&receipts[0], &receipts[1]);
    assert_eq!(canceled["parents"], json!([assigned["receipt_id"]]));
    let party = json!({ "kind": "agent", "id": "alice" });
    assert_eq!((&canceled["from"], &canceled["to"], &canceled["task_id"]), (&party, &party, &json!(task_id)));
    assert_eq!(canceled["body"]["reason"], "done");
    assert_eq!(canceled["asyncgate_instance"], "");
    assert_eq!(text(canceled, "hash").len(), 64);
    assert_ne!(canceled["hash"], assigned["hash"]);
    let one = ok(&on, &alice, "get_receipt", json!({ "receipt_id": canceled["receipt_id"] })).await;
    assert_eq!(&one, canceled);
}

async fn a_cursor_must_be_a_receipt_of_the_same_list(on: TestStore) {
    let (alice, bob) = (on.agent("alice").unwrap(), on.agent("bob").unwrap());
    let (task_id, other_task) = (plain_task(&on, &alice).await, plain_task(&on, &alice).await);
    plain_task(&on, &bob).await;
    let stranger = on.tenant("other").await.unwrap();
    plain_task(&on, &stranger).await;
    let (hers, his, theirs) =
        (ids(&on, &alice, json!({})).await, ids(&on, &bob, json!({})).await, ids(&on, &stranger, json!({})).await);
    for foreign in [NOBODY, &his[0], &theirs[0]] {
        let input = json!({ "since_receipt_id": foreign });
        assert_eq!(refusal(&on, &alice, "list_receipts", input).await, Code::InvalidCursor, "{foreign}");
    }
    let of_other_task = json!({ "task_id": task_id, "since_receipt_id": hers[1] });
    assert_eq!(refusal(&on, &alice, "list_receipts", of_other_task).await, Code::InvalidCursor);
    let of_its_own = json!({ "task_id": other_task, "since_receipt_id": hers[1] });
    assert!(ids(&on, &alice, of_its_own).await.is_empty());
}

async fn a_page_has_at_least_one_and_at_most_two_hundred_receipts(on: TestStore) {
    let alice = on.agent("alice").unwrap();
    for _ in 0..201 {
        plain_task(&on, &alice).await;
    }
    for (input, length) in [(json!({}), 50), (json!({ "limit": 1 }), 1), (json!({ "limit": 100_000 }), 200)] {
        assert_eq!(ids(&on, &alice, input).await.len(), length);
    }
    for limit in [0, -1] {
        assert_eq!(refusal(&on, &alice, "list_receipts", json!({ "limit": limit })).await, Code::InvalidRequest);
    }
}
