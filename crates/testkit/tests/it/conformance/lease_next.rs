use std::collections::BTreeSet;
use std::pin::pin;
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::json;
use tokio::time::timeout;
use waybill_kernel::Code;
use waybill_testkit::stores::TestStore;

use crate::support::{claim, done, footprint, ledger, plain_task, refusal, task, task_status, text, worker};

const SETTLED: Duration = Duration::from_millis(200);
const FAILED: Duration = Duration::from_secs(15);

waybill_testkit::both! {
    a_claim_gives_the_task_for_a_time_and_leaves_a_receipt,
    higher_priority_goes_first_and_then_the_older_task,
    a12_4_no_task_is_leased_twice_by_many_workers,
    a12_4_a_task_that_does_not_fit_blocks_none_that_does,
    a_worker_gets_only_types_it_accepts,
    a_delayed_task_is_claimed_when_its_time_has_come,
    a_crowd_whose_time_has_come_hides_nobody_else,
    one_claim_takes_several_and_never_more_than_a_hundred,
    a_waiting_worker_is_woken_by_a_new_task,
    an_ended_task_is_never_claimed,
    a12_11_an_agent_cannot_lease_and_a_worker_cannot_create,
    a12_11_a_worker_of_another_tenant_sees_nothing,
    wrong_numbers_are_refused_and_large_ones_cut,
    nobody_acts_as_another_worker_but_an_admin,
}

async fn a_crowd_whose_time_has_come_hides_nobody_else(on: TestStore) {
    let (alice, w) = (on.agent("alice").unwrap(), worker(&on, "w"));
    for _ in 0..600 {
        task(&on, &alice, json!({ "type": "crowd", "delay_seconds": 1 })).await;
    }
    task(&on, &alice, json!({ "type": "rare", "delay_seconds": 2 })).await;
    on.time.pass(Duration::from_secs(5));
    let leased = claim(&on, &w, json!({ "accept_types": ["rare"] })).await;
    assert_eq!(leased.len(), 1, "it is behind all of them, and for this worker alone");
}

async fn a_claim_gives_the_task_for_a_time_and_leaves_a_receipt(on: TestStore) {
    let (alice, w) = (on.agent("alice").unwrap(), worker(&on, "w"));
    let task_id = task(&on, &alice, json!({ "type": "work", "payload": { "n": 1 } })).await;
    let leased = claim(&on, &w, json!({ "worker_id": "w", "lease_ttl_seconds": 60 })).await;
    assert_eq!(leased.len(), 1);
    assert_eq!((text(&leased[0], "task_id"), &leased[0]["payload"]), (task_id.clone(), &json!({ "n": 1 })));
    assert_eq!((&leased[0]["type"], &leased[0]["attempt"]), (&json!("work"), &json!(0)));
    assert_eq!(task_status(&on, &alice, &task_id).await, "leased");
    assert!(claim(&on, &w, json!({})).await.is_empty(), "it was given twice");
    let ttl = on.count("SELECT lease_expires_at - updated_at FROM tasks").await.unwrap();
    assert_eq!(ttl, 60_000_000);
    assert_eq!(
        ledger(&on).await,
        ["task.assigned agent:alice > agent:alice open", "task.accepted worker:w > system:asyncgate <- task.assigned",]
    );
    // Its worker may read it, and no other.
    assert_eq!(task_status(&on, &w, &task_id).await, "leased");
    assert_eq!(refusal(&on, &worker(&on, "v"), "get_task", json!({ "task_id": task_id })).await, Code::Forbidden);
}

async fn higher_priority_goes_first_and_then_the_older_task(on: TestStore) {
    let alice = on.agent("alice").unwrap();
    let mut made = Vec::new();
    for (kind, priority) in [("a", 0), ("b", 5), ("a", 5), ("a", -1), ("b", 0)] {
        on.time.pass(Duration::from_millis(2));
        made.push(task(&on, &alice, json!({ "type": kind, "priority": priority })).await);
    }
    let mut order = Vec::new();
    while let [leased] = &claim(&on, &worker(&on, "w"), json!({})).await[..] {
        order.push(made.iter().position(|task| *task == text(leased, "task_id")).unwrap());
    }
    assert_eq!(order, [1, 2, 0, 4, 3]);
}

async fn a12_4_no_task_is_leased_twice_by_many_workers(on: TestStore) {
    const TASKS: usize = 40;
    for _ in 0..TASKS {
        plain_task(&on, &on.admin).await;
    }
    let workers: Vec<_> = (0..8).map(|number| worker(&on, &format!("w{number}"))).collect();
    let all = join_all(workers.iter().map(async |w| {
        let mut mine = Vec::new();
        loop {
            let leased = claim(&on, w, json!({ "max_tasks": 3 })).await;
            if leased.is_empty() {
                return mine;
            }
            mine.extend(leased.iter().map(|task| text(task, "task_id")));
        }
    }))
    .await
    .concat();
    assert_eq!(all.len(), all.iter().collect::<BTreeSet<_>>().len(), "a task was leased twice");
    assert_eq!(all.len(), TASKS, "all were told that there is nothing while there was");
}

async fn a12_4_a_task_that_does_not_fit_blocks_none_that_does(on: TestStore) {
    let needs = |capabilities: &[&str], priority: i32| json!({ "type": "work", "priority": priority, "requirements": { "capabilities": capabilities } });
    for _ in 0..5 {
        task(&on, &on.admin, needs(&["gpu"], 100)).await;
    }
    let fits = task(&on, &on.admin, needs(&["cpu", "net"], 0)).await;
    let w = worker(&on, "w");
    let leased = claim(&on, &w, json!({ "capabilities": ["net", "disk", "cpu"] })).await;
    assert_eq!(text(&leased[0], "task_id"), fits);
    // Case matters, and so does every one of them.
    for capabilities in [json!(["GPU"]), json!([]), json!(["cpu", "net"])] {
        assert!(claim(&on, &w, json!({ "capabilities": capabilities })).await.is_empty());
    }
    assert_eq!(claim(&on, &w, json!({ "capabilities": ["gpu"], "max_tasks": 9 })).await.len(), 5);
}

async fn a_worker_gets_only_types_it_accepts(on: TestStore) {
    for kind in ["a", "b", "c"] {
        task(&on, &on.admin, json!({ "type": kind })).await;
    }
    let w = worker(&on, "w");
    let leased = claim(&on, &w, json!({ "accept_types": ["c", "b", "c"], "max_tasks": 5 })).await;
    assert_eq!(leased.len(), 2);
    let kinds: BTreeSet<_> = leased.iter().map(|task| text(task, "type")).collect();
    assert_eq!(kinds.into_iter().collect::<Vec<_>>(), ["b", "c"]);
    assert_eq!(claim(&on, &w, json!({ "accept_types": [] })).await.len(), 1, "an empty list accepts all");
}

async fn a_delayed_task_is_claimed_when_its_time_has_come(on: TestStore) {
    let w = worker(&on, "w");
    task(&on, &on.admin, json!({ "type": "work", "delay_seconds": 30 })).await;
    assert!(claim(&on, &w, json!({})).await.is_empty());
    on.time.pass(Duration::from_secs(29));
    assert!(claim(&on, &w, json!({})).await.is_empty());
    on.time.pass(Duration::from_secs(2));
    assert_eq!(claim(&on, &w, json!({})).await.len(), 1);
}

async fn one_claim_takes_several_and_never_more_than_a_hundred(on: TestStore) {
    for _ in 0..103 {
        plain_task(&on, &on.admin).await;
    }
    let w = worker(&on, "w");
    assert_eq!(claim(&on, &w, json!({ "max_tasks": 1000 })).await.len(), 100);
    assert_eq!(claim(&on, &w, json!({ "max_tasks": 2 })).await.len(), 2);
    assert_eq!(on.count("SELECT count(DISTINCT lease_id) FROM tasks").await.unwrap(), 102);
}

async fn a_waiting_worker_is_woken_by_a_new_task(on: TestStore) {
    let w = worker(&on, "w");
    let mut waiter = pin!(on.call(&w, "lease_next", json!({ "wait_seconds": 20 })));
    assert!(timeout(SETTLED, &mut waiter).await.is_err(), "it did not wait");
    let task_id = plain_task(&on, &on.admin).await;
    let answer = done(timeout(FAILED, waiter).await.unwrap());
    assert_eq!(text(&answer.json["tasks"][0], "task_id"), task_id);
}

async fn an_ended_task_is_never_claimed(on: TestStore) {
    let task_id = plain_task(&on, &on.admin).await;
    done(on.call(&on.admin, "cancel_task", json!({ "task_id": task_id })).await);
    assert!(claim(&on, &worker(&on, "w"), json!({})).await.is_empty());
}

async fn a12_11_an_agent_cannot_lease_and_a_worker_cannot_create(on: TestStore) {
    let forbidden = |caller: &waybill_kernel::Caller, name: &str| {
        let entry = on.registry.find(name).unwrap();
        entry.spec().authorise(caller).unwrap_err().code()
    };
    assert_eq!(forbidden(&on.agent("alice").unwrap(), "lease_next"), Code::Forbidden);
    for name in ["create_task", "list_tasks", "cancel_task"] {
        assert_eq!(forbidden(&worker(&on, "w"), name), Code::Forbidden, "{name}");
    }
}

async fn a12_11_a_worker_of_another_tenant_sees_nothing(on: TestStore) {
    let theirs = on.tenant("other").await.unwrap();
    plain_task(&on, &theirs).await;
    let before = footprint(&on).await;
    assert!(claim(&on, &worker(&on, "w"), json!({ "max_tasks": 10 })).await.is_empty());
    assert_eq!(footprint(&on).await, before);
    assert_eq!(claim(&on, &theirs, json!({})).await.len(), 1);
}

async fn wrong_numbers_are_refused_and_large_ones_cut(on: TestStore) {
    let w = worker(&on, "w");
    for input in [json!({ "max_tasks": 0 }), json!({ "lease_ttl_seconds": 0 }), json!({ "lease_ttl_seconds": -5 })] {
        assert_eq!(refusal(&on, &w, "lease_next", input).await, Code::InvalidRequest);
    }
    for input in [json!({ "capabilities": [""] }), json!({ "accept_types": vec!["t"; 65] })] {
        assert_eq!(refusal(&on, &w, "lease_next", input).await, Code::InvalidRequest);
    }
    plain_task(&on, &on.admin).await;
    assert_eq!(claim(&on, &w, json!({ "lease_ttl_seconds": 1_000_000 })).await.len(), 1);
    assert_eq!(on.count("SELECT lease_expires_at - updated_at FROM tasks").await.unwrap(), 1_800_000_000);
}

async fn nobody_acts_as_another_worker_but_an_admin(on: TestStore) {
    plain_task(&on, &on.admin).await;
    let w = worker(&on, "w");
    assert_eq!(refusal(&on, &w, "lease_next", json!({ "worker_id": "v" })).await, Code::Forbidden);
    assert_eq!(claim(&on, &on.admin, json!({ "worker_id": "v" })).await.len(), 1);
    assert_eq!(on.count("SELECT count(*) FROM leases WHERE worker = 'worker:v'").await.unwrap(), 1);
}
