//! Many claims at once, and many kinds of work: whoever asks gets the best there is for it, and nobody is sent away while
//! there is enough for all.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value as Json, json};
use waybill_kernel::Caller;
use waybill_testkit::stores::TestStore;

use crate::support::{claim, task, text, worker};

waybill_testkit::both! {
    two_claims_over_two_kinds_get_one_task_each,
    four_claims_of_twenty_over_four_kinds_get_twenty_each,
    claims_of_several_never_take_more_than_there_is_nor_leave_any,
    no_lower_priority_goes_before_a_higher_one_of_another_kind,
    no_lower_priority_goes_before_one_whose_time_has_come,
    many_whose_time_has_come_are_there_for_all_who_ask,
    workers_of_different_abilities_do_not_get_in_each_others_way,
    a_rare_kind_among_a_thousand_is_found_at_once,
    a_rare_ability_among_a_thousand_is_found_at_once,
    priority_holds_among_a_thousand_kinds,
    priority_holds_among_a_thousand_abilities,
}

/// Rounds of calls that really run at once: one alone may be lucky.
const ROUNDS: usize = 25;
/// More kinds than anybody would look at one by one.
const KINDS: usize = 1_050;
/// Tasks made at a time.
const MADE_AT_ONCE: usize = 16;

fn workers(on: &TestStore, count: usize) -> Vec<Caller> {
    (0..count).map(|number| worker(on, &format!("w{number}"))).collect()
}

/// One claim of each worker, all at once.
async fn claims(on: &TestStore, workers: &[Caller], input: &Json) -> Vec<Vec<Json>> {
    join_all(workers.iter().map(|worker| claim(on, worker, input.clone()))).await
}

fn ids(leased: &[Vec<Json>]) -> BTreeSet<String> {
    leased.iter().flatten().map(|task| text(task, "task_id")).collect()
}

async fn make(on: &TestStore, inputs: Vec<Json>) -> Vec<String> {
    let mut made = Vec::new();
    for some in inputs.chunks(MADE_AT_ONCE) {
        made.extend(join_all(some.iter().map(|input| task(on, &on.admin, input.clone()))).await);
    }
    made
}

/// A kind with a priority.
fn kind(name: &str, priority: i64) -> Json {
    json!({ "type": name, "priority": priority, "payload": priority })
}

fn able(capabilities: &[&str], priority: i64) -> Json {
    json!({ "type": "work", "priority": priority, "payload": priority,
            "requirements": { "capabilities": capabilities } })
}

/// The priorities of what was leased, which the tasks have as their payload.
fn priorities(leased: &[Vec<Json>]) -> Vec<i64> {
    let mut all: Vec<i64> = leased.iter().flatten().map(|task| task["payload"].as_i64().unwrap()).collect();
    all.sort_unstable();
    all
}

async fn two_claims_over_two_kinds_get_one_task_each(on: TestStore) {
    let two = workers(&on, 2);
    for round in 0..ROUNDS {
        make(&on, vec![kind("a", 0), kind("b", 0)]).await;
        let leased = claims(&on, &two, &json!({})).await;
        assert!(leased.iter().all(|tasks| tasks.len() == 1), "round {round}: {leased:?}");
        assert_eq!(ids(&leased).len(), 2);
    }
}

async fn four_claims_of_twenty_over_four_kinds_get_twenty_each(on: TestStore) {
    let four = workers(&on, 4);
    let named = json!({ "max_tasks": 20, "accept_types": ["k0", "k1", "k2", "k3"] });
    for input in [json!({ "max_tasks": 20 }), named] {
        make(&on, (0..80).map(|number| kind(&format!("k{}", number % 4), 0)).collect()).await;
        let leased = claims(&on, &four, &input).await;
        assert_eq!(leased.iter().map(Vec::len).collect::<Vec<_>>(), [20; 4], "{input}");
        assert_eq!(ids(&leased).len(), 80, "a task was leased twice");
    }
}

async fn claims_of_several_never_take_more_than_there_is_nor_leave_any(on: TestStore) {
    let six = workers(&on, 6);
    for round in 0..ROUNDS {
        make(&on, (0..9).map(|number| kind(&format!("k{}", number % 3), number % 2)).collect()).await;
        let leased = claims(&on, &six, &json!({ "max_tasks": 2 })).await;
        let count: usize = leased.iter().map(Vec::len).sum();
        assert_eq!((count, ids(&leased).len()), (9, 9), "round {round}: {leased:?}");
    }
}

async fn no_lower_priority_goes_before_a_higher_one_of_another_kind(on: TestStore) {
    let four = workers(&on, 4);
    let named = json!({ "accept_types": ["k0", "k1", "k2", "k3"] });
    for round in 0..ROUNDS {
        // Each kind has both, and not in the same order.
        let high = (0..4).map(|number| kind(&format!("k{}", number / 2), 9));
        let low = (0..8).map(|number| kind(&format!("k{}", number % 4), 1));
        make(&on, if round % 2 == 0 { high.chain(low).collect() } else { low.chain(high).collect() }).await;
        let input = if round % 3 == 0 { json!({}) } else { named.clone() };
        let leased = claims(&on, &four, &input).await;
        assert_eq!(priorities(&leased), [9; 4], "round {round}");
        let rest = claims(&on, &four[..1], &json!({ "max_tasks": 100 })).await;
        assert_eq!(priorities(&rest), [1; 8], "round {round}");
    }
}

async fn no_lower_priority_goes_before_one_whose_time_has_come(on: TestStore) {
    let two = workers(&on, 2);
    for round in 0..ROUNDS {
        let late = |name: &str| json!({ "type": name, "priority": 9, "payload": 9, "delay_seconds": 1 });
        make(&on, vec![late("a"), late("b"), kind("a", 1), kind("b", 1)]).await;
        on.time.pass(Duration::from_secs(2));
        let leased = claims(&on, &two, &json!({})).await;
        assert_eq!(priorities(&leased), [9, 9], "round {round}");
        let rest = claims(&on, &two, &json!({})).await;
        assert_eq!(priorities(&rest), [1, 1], "round {round}");
    }
}

async fn many_whose_time_has_come_are_there_for_all_who_ask(on: TestStore) {
    let eight = workers(&on, 8);
    for round in 0..ROUNDS {
        make(&on, vec![json!({ "type": "later", "delay_seconds": 1 }); 8]).await;
        on.time.pass(Duration::from_secs(2));
        let leased = claims(&on, &eight, &json!({})).await;
        assert!(leased.iter().all(|tasks| tasks.len() == 1), "round {round}: {leased:?}");
        assert_eq!(ids(&leased).len(), 8);
    }
}

async fn workers_of_different_abilities_do_not_get_in_each_others_way(on: TestStore) {
    let four = workers(&on, 4);
    for round in 0..ROUNDS {
        make(&on, vec![able(&["gpu"], 9), able(&["gpu", "net"], 5), able(&["net"], 3), able(&[], 1)]).await;
        let input = |abilities: Json| json!({ "capabilities": abilities });
        let inputs =
            [input(json!(["gpu"])), input(json!(["net", "gpu"])), input(json!(["net"])), input(json!(["net", "gpu"]))];
        let leased = join_all(four.iter().zip(inputs).map(|(worker, input)| claim(&on, worker, input))).await;
        assert!(leased.iter().all(|tasks| tasks.len() == 1), "round {round}: {leased:?}");
        assert_eq!(ids(&leased).len(), 4);
    }
}

async fn a_rare_kind_among_a_thousand_is_found_at_once(on: TestStore) {
    let mut inputs: Vec<Json> = (0..KINDS).map(|number| kind(&format!("kind {number}"), 5)).collect();
    inputs.insert(KINDS / 2, kind("rare", 0));
    make(&on, inputs).await;
    let w = worker(&on, "w");
    for expected in [1, 0] {
        assert_eq!(claim(&on, &w, json!({ "accept_types": ["unknown", "rare"] })).await.len(), expected);
    }
    assert_eq!(claim(&on, &w, json!({ "accept_types": ["kind 7", "kind 1000"], "max_tasks": 5 })).await.len(), 2);
}

async fn a_rare_ability_among_a_thousand_is_found_at_once(on: TestStore) {
    let own = |number: usize| format!("session {number}");
    let mut inputs: Vec<Json> = (0..KINDS).map(|number| able(&["net", &own(number)], 5)).collect();
    inputs.push(able(&["net", "gpu", "rare"], 0));
    make(&on, inputs).await;
    let w = worker(&on, "w");
    for (abilities, expected) in [
        (json!(["rare", "gpu"]), 0),
        (json!(["rare", "gpu", "net"]), 1),
        (json!(["net"]), 0),
        (json!(["net", own(3), own(KINDS - 1), own(KINDS)]), 2),
    ] {
        for types in [json!([]), json!(["work"])] {
            let input = json!({ "capabilities": abilities, "accept_types": types, "max_tasks": expected.max(1) });
            let leased = claim(&on, &w, input).await;
            let left = if types == json!([]) { expected } else { 0 };
            assert_eq!(leased.len(), left, "{abilities} {types}");
        }
    }
}

async fn priority_holds_among_a_thousand_kinds(on: TestStore) {
    let mut inputs: Vec<Json> = (0..KINDS).map(|number| kind(&format!("kind {number}"), 1)).collect();
    inputs.extend((0..4).map(|number| kind(&format!("urgent {number}"), 9)));
    make(&on, inputs).await;
    let leased = claims(&on, &workers(&on, 4), &json!({})).await;
    assert_eq!(priorities(&leased), [9; 4]);
}

async fn priority_holds_among_a_thousand_abilities(on: TestStore) {
    let mut inputs: Vec<Json> = (0..KINDS).map(|number| able(&[&format!("session {number}")], 9)).collect();
    inputs.extend([able(&[], 1), able(&["gpu"], 3), able(&["net"], 5), able(&["gpu", "net"], 7)]);
    make(&on, inputs).await;
    let w = worker(&on, "w");
    for expected in [7, 5, 3, 1] {
        let leased = claim(&on, &w, json!({ "capabilities": ["gpu", "net", "disk"] })).await;
        assert_eq!(priorities(&[leased]), [expected]);
    }
}
