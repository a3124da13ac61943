//! The head follows what was received, and on PostgreSQL never passes a message that is committed late.

use std::sync::Arc;

use tokio::time::timeout;
use waybill_store::Gate;
use waybill_testkit::both;
use waybill_testkit::stores::{self, TestStore};

use crate::support::{FAILED, body, delete, jobs, ok, receive, send};

both! {
    the_head_follows_what_was_received,
    the_head_passes_what_is_delayed,
}

async fn head(on: &TestStore) -> i64 {
    on.count("SELECT head FROM parts").await.unwrap()
}

async fn send_and_receive(on: &TestStore, rounds: usize) {
    for round in 0..rounds {
        for number in 0..10 {
            send(on, &format!("{round}.{number}")).await;
        }
        assert_eq!(receive(on, 10).await.len(), 10, "round {round}");
    }
}

async fn the_head_follows_what_was_received(on: TestStore) {
    jobs(&on, &[]).await;
    send_and_receive(&on, 60).await;
    assert!(head(&on).await > 100, "the head is at {}", head(&on).await);
    // Whoever begins there finds what follows.
    send(&on, "last").await;
    assert_eq!(receive(&on, 10).await[0].body, "last");
}

async fn the_head_passes_what_is_delayed(on: TestStore) {
    jobs(&on, &[("DelaySeconds", "900")]).await;
    for number in 0..100 {
        send(&on, &format!("m{number}")).await;
    }
    for _ in 0..400 {
        assert!(receive(&on, 10).await.is_empty());
        if head(&on).await >= 100 {
            break;
        }
    }
    assert!(head(&on).await >= 100, "the head is at {}", head(&on).await);
    crate::support::pass(&on, 901);
    assert_eq!(receive(&on, 10).await.len(), 10);
}

#[tokio::test]
async fn a_lower_number_that_is_committed_late_is_received() {
    let on = stores::open_postgres().await.unwrap();
    jobs(&on, &[]).await;
    send_and_receive(&on, 5).await;
    // It has drawn its number and stands before its COMMIT.
    let (gate, mut arrivals) = Gate::new();
    let gate = Arc::new(gate);
    let (store, caller, at_gate) = (on.store.clone(), on.admin.clone(), Arc::clone(&gate));
    let late = tokio::spawn(async move { store.run_gated(body("late"), caller, Some(at_gate)).await });
    for _ in 0..2 {
        arrivals.recv().await.unwrap();
        gate.step();
    }
    arrivals.recv().await.unwrap();

    send_and_receive(&on, 60).await;
    let held_back = head(&on).await;
    gate.open();
    timeout(FAILED, late).await.unwrap().unwrap().unwrap();
    let message = receive(&on, 10).await.remove(0);
    assert_eq!(message.body, "late");
    ok(&on, delete(&message)).await;
    assert!(held_back <= 51, "the head passed the number that was not committed: {held_back}");
    send_and_receive(&on, 60).await;
    assert!(head(&on).await > held_back + 100, "the head stays at {}", head(&on).await);
}
