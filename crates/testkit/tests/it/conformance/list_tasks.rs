use serde_json::{Value as Json, json};
use waybill_kernel::{Caller, Code};
use waybill_testkit::stores::TestStore;

use crate::support::{ok, pages, plain_task, refusal, task, text, texts};

waybill_testkit::both! {
    pages_are_disjoint_newest_first_and_true_while_tasks_come,
    an_agent_sees_its_own_tasks_and_an_admin_those_of_all,
    filters_choose_by_status_type_and_owner,
    an_agent_may_not_ask_for_another_owner,
    a_cursor_is_good_for_its_own_list_only,
    a_page_has_at_least_one_and_at_most_two_hundred_tasks,
    another_tenants_tasks_are_not_listed,
}

async fn tasks(on: &TestStore, caller: &Caller, count: usize) -> Vec<String> {
    let mut ids = Vec::new();
    for _ in 0..count {
        ids.insert(0, plain_task(on, caller).await);
    }
    ids
}

async fn listed(on: &TestStore, caller: &Caller, input: Json) -> Vec<String> {
    texts(&ok(on, caller, "list_tasks", input).await["tasks"], "task_id")
}

async fn pages_are_disjoint_newest_first_and_true_while_tasks_come(on: TestStore) {
    let alice = on.agent("alice").unwrap();
    for (caller, filter) in [(&alice, json!({})), (&on.admin, json!({})), (&alice, json!({ "status": "queued" }))] {
        let before = listed(&on, caller, filter.clone()).await;
        let mut expected = tasks(&on, &alice, 5).await;
        expected.extend(before);
        let mut input = filter.clone();
        input["limit"] = json!(2);
        let mut seen = Vec::new();
        loop {
            let page = ok(&on, caller, "list_tasks", input.clone()).await;
            let ids = texts(&page["tasks"], "task_id");
            assert!(!ids.is_empty() && ids.len() <= 2, "{ids:?}");
            seen.extend(ids);
            // Newer than the cursor: no later page may show it.
            plain_task(&on, &alice).await;
            let Some(cursor) = page.get("next_cursor") else { break };
            input["cursor"] = cursor.clone();
        }
        assert_eq!(seen, expected, "{filter}");
    }
}

async fn an_agent_sees_its_own_tasks_and_an_admin_those_of_all(on: TestStore) {
    let (alice, bob) = (on.agent("alice").unwrap(), on.agent("bob").unwrap());
    let hers = tasks(&on, &alice, 2).await;
    let his = tasks(&on, &bob, 1).await;
    assert_eq!(listed(&on, &alice, json!({})).await, hers);
    assert_eq!(listed(&on, &bob, json!({ "created_by": "agent:bob" })).await, his);
    assert_eq!(listed(&on, &on.admin, json!({})).await, [his.clone(), hers.clone()].concat());
    assert_eq!(listed(&on, &on.admin, json!({ "created_by": "agent:alice" })).await, hers);
    assert_eq!(listed(&on, &on.admin, json!({ "created_by": "agent:carol" })).await, Vec::<String>::new());
}

async fn filters_choose_by_status_type_and_owner(on: TestStore) {
    let (alice, bob) = (on.agent("alice").unwrap(), on.agent("bob").unwrap());
    let (a1, a2) = (task(&on, &alice, json!({ "type": "a" })).await, task(&on, &alice, json!({ "type": "b" })).await);
    let (b1, b2) = (task(&on, &bob, json!({ "type": "a" })).await, task(&on, &bob, json!({ "type": "b" })).await);
    for id in [&a1, &b2] {
        ok(&on, &on.admin, "cancel_task", json!({ "task_id": id })).await;
    }
    for (caller, filter, expected) in [
        (&on.admin, json!({ "status": "canceled" }), vec![&b2, &a1]),
        (&on.admin, json!({ "status": "queued" }), vec![&b1, &a2]),
        (&on.admin, json!({ "type": "a" }), vec![&b1, &a1]),
        (&on.admin, json!({ "type": "a", "status": "queued" }), vec![&b1]),
        (&on.admin, json!({ "type": "a", "created_by": "agent:alice" }), vec![&a1]),
        (&on.admin, json!({ "status": "canceled", "created_by": "agent:alice" }), vec![&a1]),
        (&alice, json!({}), vec![&a2, &a1]),
        (&alice, json!({ "status": "canceled", "type": "a" }), vec![&a1]),
        (&alice, json!({ "status": "canceled", "type": "b" }), vec![]),
        (&alice, json!({ "type": "A" }), vec![]),
        (&bob, json!({ "status": "running" }), vec![]),
    ] {
        let found = listed(&on, caller, filter.clone()).await;
        assert_eq!(found.iter().collect::<Vec<_>>(), expected, "{} {filter}", caller.principal);
    }
    assert_eq!(refusal(&on, &alice, "list_tasks", json!({ "status": "lost" })).await, Code::InvalidRequest);
}

async fn an_agent_may_not_ask_for_another_owner(on: TestStore) {
    let alice = on.agent("alice").unwrap();
    assert_eq!(refusal(&on, &alice, "list_tasks", json!({ "created_by": "agent:bob" })).await, Code::Forbidden);
}

async fn a_cursor_is_good_for_its_own_list_only(on: TestStore) {
    let alice = on.agent("alice").unwrap();
    let other = on.tenant("other").await.unwrap();
    tasks(&on, &alice, 3).await;
    tasks(&on, &other, 3).await;
    let cursor = text(&ok(&on, &alice, "list_tasks", json!({ "limit": 1 })).await, "next_cursor");
    let foreign = text(&ok(&on, &other, "list_tasks", json!({ "limit": 1 })).await, "next_cursor");
    assert_eq!(listed(&on, &alice, json!({ "cursor": cursor })).await.len(), 2);
    // The admin's list of the same owner is the same list.
    assert_eq!(listed(&on, &on.admin, json!({ "created_by": "agent:alice", "cursor": cursor })).await.len(), 2);
    for (caller, wrong) in [
        (&alice, json!({ "cursor": "" })),
        (&alice, json!({ "cursor": "zz" })),
        (&alice, json!({ "cursor": format!("{cursor}00") })),
        (&alice, json!({ "cursor": cursor[2..] })),
        (&alice, json!({ "cursor": foreign })),
        (&alice, json!({ "cursor": cursor, "status": "queued" })),
        (&alice, json!({ "cursor": cursor, "type": "work" })),
        (&on.admin, json!({ "cursor": cursor })),
        (&on.admin, json!({ "cursor": foreign })),
        (&other, json!({ "cursor": cursor })),
    ] {
        assert_eq!(refusal(&on, caller, "list_tasks", wrong.clone()).await, Code::InvalidCursor, "{wrong}");
    }
    let keys = refusal(&on, &on.admin, "list_keys", json!({ "cursor": cursor })).await;
    assert_eq!(keys, Code::InvalidCursor);
}

async fn a_page_has_at_least_one_and_at_most_two_hundred_tasks(on: TestStore) {
    for wrong in [json!(0), json!(-1)] {
        assert_eq!(refusal(&on, &on.admin, "list_tasks", json!({ "limit": wrong })).await, Code::InvalidRequest);
    }
    let made = (0..201).map(|_| plain_task(&on, &on.admin));
    futures_util::future::join_all(made).await;
    let sizes = |pages: Vec<Vec<String>>| pages.iter().map(Vec::len).collect::<Vec<_>>();
    let large = pages(&on, &on.admin, "list_tasks", json!({ "limit": 1_000_000 }), "tasks", "task_id").await;
    assert_eq!(sizes(large), [200, 1]);
    let usual = pages(&on, &on.admin, "list_tasks", json!({}), "tasks", "task_id").await;
    assert_eq!(sizes(usual), [50, 50, 50, 50, 1]);
    // A list that ends with a full page has no cursor to an empty one.
    let exact = ok(&on, &on.admin, "list_tasks", json!({ "limit": 200, "type": "none" })).await;
    assert_eq!(exact, json!({ "tasks": [] }));
}

async fn another_tenants_tasks_are_not_listed(on: TestStore) {
    let other = on.tenant("other").await.unwrap();
    tasks(&on, &on.admin, 2).await;
    assert_eq!(listed(&on, &other, json!({})).await, Vec::<String>::new());
    assert_eq!(listed(&on, &other, json!({ "created_by": "human:admin" })).await, Vec::<String>::new());
    let theirs = tasks(&on, &other, 1).await;
    assert_eq!(listed(&on, &other, json!({ "status": "queued" })).await, theirs);
}
