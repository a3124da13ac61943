//! A queue knows how many messages it has, also while they come and go and whoever counts them is at work.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use waybill_kernel::entropy::{Entropy, SeededEntropy};
use waybill_queues::Message;
use waybill_queues::ops::receive_message::ReceiveMessage;
use waybill_queues::ops::send_message::SendMessage;
use waybill_store::Gate;
use waybill_testkit::both;
use waybill_testkit::stores::{self, TestStore};

use crate::expiry::one_run;
use crate::support::{body, change, counted, delete, jobs, ok, pass, purge, receive, recount, send, up_to, upkeep};

both! {
    messages_are_counted_by_what_they_are,
    a_total_follows_what_ends,
    a_number_that_comes_again_is_counted_again,
    whatever_happens_the_figures_are_right,
    figures_are_exact_when_all_is_quiet,
    a_backlog_is_counted_in_one_run,
}

/// As often as it takes until everything is in the total.
async fn counted_up(on: &TestStore) {
    for _ in 0..4 {
        upkeep(on).await;
    }
}

async fn messages_are_counted_by_what_they_are(on: TestStore) {
    jobs(&on, &[("VisibilityTimeout", "10")]).await;
    assert_eq!(counted(&on, "jobs").await, (0, 0, 0));
    for number in 0..5 {
        send(&on, &format!("m{number}")).await;
    }
    ok(&on, SendMessage { delay_seconds: Some(5), ..body("delayed") }).await;
    assert_eq!(counted(&on, "jobs").await, (5, 0, 1));
    let messages = receive(&on, 2).await;
    assert_eq!(counted(&on, "jobs").await, (3, 2, 1));
    // Before, while and after it is counted up.
    for _ in 0..4 {
        upkeep(&on).await;
        assert_eq!(counted(&on, "jobs").await, (3, 2, 1));
    }
    assert_eq!(on.count("SELECT total FROM parts").await.unwrap(), 6);
    ok(&on, delete(&messages[0])).await;
    ok(&on, change(&messages[1], 0)).await;
    assert_eq!(counted(&on, "jobs").await, (4, 0, 1));
    pass(&on, 6);
    assert_eq!(counted(&on, "jobs").await, (5, 0, 0));
    assert_eq!(receive(&on, 10).await.len(), 5);
    assert_eq!(counted(&on, "jobs").await, (0, 5, 0));
    pass(&on, 11);
    assert_eq!(counted(&on, "jobs").await, (5, 0, 0));
    ok(&on, purge()).await;
    assert_eq!(counted(&on, "jobs").await, (0, 0, 0));
    counted_up(&on).await;
    assert_eq!(counted(&on, "jobs").await, (0, 0, 0));
}

async fn a_total_follows_what_ends(on: TestStore) {
    jobs(&on, &[("MessageRetentionPeriod", "60")]).await;
    for number in 0..20 {
        send(&on, &format!("m{number}")).await;
    }
    counted_up(&on).await;
    for message in receive(&on, 5).await {
        ok(&on, delete(&message)).await;
    }
    assert_eq!(counted(&on, "jobs").await, (15, 0, 0));
    upkeep(&on).await;
    assert_eq!(counted(&on, "jobs").await, (15, 0, 0));
    assert_eq!(on.count("SELECT count(*) FROM departures").await.unwrap(), 0);
    assert_eq!(on.count("SELECT total FROM parts").await.unwrap(), 15);
    // Those that grow too old: some are met by a receive, the others by the sweep.
    assert_eq!(receive(&on, 3).await.len(), 3);
    pass(&on, 61);
    send(&on, "young").await;
    assert_eq!(receive(&on, 1).await[0].body, "young");
    assert_eq!(counted(&on, "jobs").await, (0, 1, 0));
    counted_up(&on).await;
    assert_eq!(counted(&on, "jobs").await, (0, 1, 0));
    assert_eq!(on.count("SELECT total FROM parts").await.unwrap(), 1);
}

/// SQLite gives the number of the last message again when it is gone.
async fn a_number_that_comes_again_is_counted_again(on: TestStore) {
    jobs(&on, &[]).await;
    for round in 0..10 {
        for number in 0..3 {
            send(&on, &format!("{round}.{number}")).await;
        }
        counted_up(&on).await;
        let messages = receive(&on, 10).await;
        assert_eq!(messages.len(), 3, "round {round}");
        for message in &messages {
            ok(&on, delete(message)).await;
        }
        assert_eq!(counted(&on, "jobs").await, (0, 0, 0), "round {round}");
        if round % 2 == 0 {
            counted_up(&on).await;
        }
        send(&on, "one").await;
        assert_eq!(counted(&on, "jobs").await, (1, 0, 0), "round {round}");
        counted_up(&on).await;
        assert_eq!(counted(&on, "jobs").await, (1, 0, 0), "round {round}");
        ok(&on, delete(&receive(&on, 1).await[0])).await;
    }
}

async fn whatever_happens_the_figures_are_right(on: TestStore) {
    jobs(&on, &[("VisibilityTimeout", "100"), ("MessageRetentionPeriod", "600")]).await;
    let entropy = SeededEntropy::new(7);
    let chance = |of: u8| {
        let mut byte = [0];
        entropy.fill(&mut byte);
        byte[0] % of
    };
    let mut held: Vec<Message> = Vec::new();
    for step in 0..400 {
        match chance(12) {
            0..=3 => send(&on, &format!("m{step}")).await,
            4 => drop(ok(&on, SendMessage { delay_seconds: Some(30), ..body("delayed") }).await),
            5 | 6 => held.extend(receive(&on, i64::from(chance(5)) + 1).await),
            7 | 8 if !held.is_empty() => {
                let message = held.swap_remove(usize::from(chance(200)) % held.len());
                ok(&on, delete(&message)).await;
            }
            // Never a whole number of seconds: nothing becomes visible between the two looks below.
            9 => on.time.pass(Duration::from_millis(1_000 * u64::from(chance(20)) + 7)),
            // Also where there is nothing to delete.
            _ => upkeep(&on).await,
        }
        let now = on.store.now().micros();
        let total = on.count("SELECT count(*) FROM messages").await.unwrap();
        let flying = |condition: &str| format!("SELECT count(*) FROM flights WHERE visible_at > {now} AND {condition}");
        let not_visible = on.count(&flying("receives > 0")).await.unwrap();
        let delayed = on.count(&flying("receives = 0")).await.unwrap();
        assert_eq!(counted(&on, "jobs").await, (total - not_visible - delayed, not_visible, delayed), "step {step}");
    }
    assert!(on.count("SELECT counted FROM parts").await.unwrap() > 50, "nothing was counted up");
}

async fn figures_are_exact_when_all_is_quiet(on: TestStore) {
    const WORKERS: usize = 4;
    const EACH: usize = 40;
    jobs(&on, &[]).await;
    let on = Arc::new(on);
    let mut work = JoinSet::new();
    for worker in 0..WORKERS {
        let on = Arc::clone(&on);
        work.spawn(async move {
            for number in 0..EACH {
                send(&on, &format!("{worker}.{number}")).await;
                for message in ok(&on, ReceiveMessage { ..up_to(3) }).await.messages {
                    if message.body.ends_with(['0', '2', '4', '6', '8']) {
                        ok(&on, delete(&message)).await;
                    }
                }
            }
        });
    }
    let counts = {
        let on = Arc::clone(&on);
        tokio::spawn(async move {
            for _ in 0..30 {
                upkeep(&on).await;
            }
        })
    };
    work.join_all().await;
    counts.await.unwrap();
    for _ in 0..2 {
        let left = on.count("SELECT count(*) FROM messages").await.unwrap();
        let (visible, not_visible, delayed) = counted(&on, "jobs").await;
        assert_eq!((visible + not_visible, delayed), (left, 0));
        counted_up(&on).await;
    }
    assert_eq!(
        on.count("SELECT total FROM parts").await.unwrap(),
        on.count("SELECT count(*) FROM messages").await.unwrap()
    );
}

/// A queue that is busier than one step between two runs would not get more and more that nobody has counted.
async fn a_backlog_is_counted_in_one_run(on: TestStore) {
    const MANY: &str = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 44999) \
        INSERT INTO messages (mid, tenant, id, body, md5, sent_at, sender) \
        SELECT m.mid + n.i, m.tenant, m.id, m.body, m.md5, m.sent_at, m.sender FROM n, messages m";
    const ALL_GONE: &str = "WITH gone AS (DELETE FROM messages RETURNING mid, tenant) \
        INSERT INTO departures (mid, tenant) SELECT gone.mid, gone.tenant FROM gone";
    jobs(&on, &[]).await;
    send(&on, "m").await;
    on.write(MANY).await.unwrap();
    recount(&on).await;
    // On PostgreSQL the third visit is the first that counts.
    for _ in 0..3 {
        one_run(&on).await;
    }
    assert_eq!(on.count("SELECT total FROM parts").await.unwrap(), 45_000);
    assert_eq!(counted(&on, "jobs").await, (45_000, 0, 0));
    if on.store.is_postgres() {
        on.write(ALL_GONE).await.unwrap();
        one_run(&on).await;
        assert_eq!(on.count("SELECT count(*) FROM departures").await.unwrap(), 0);
        assert_eq!(on.count("SELECT total FROM parts").await.unwrap(), 0);
        assert_eq!(counted(&on, "jobs").await, (0, 0, 0));
    }
}

#[tokio::test]
async fn a_lower_number_that_is_committed_late_is_counted() {
    let on = stores::open_postgres().await.unwrap();
    jobs(&on, &[]).await;
    let (gate, mut arrivals) = Gate::new();
    let gate = Arc::new(gate);
    let (store, caller, at_gate) = (on.store.clone(), on.admin.clone(), Arc::clone(&gate));
    let late = tokio::spawn(async move { store.run_gated(body("late"), caller, Some(at_gate)).await });
    // It has drawn its number and stands before its COMMIT.
    for _ in 0..2 {
        arrivals.recv().await.unwrap();
        gate.step();
    }
    arrivals.recv().await.unwrap();
    for number in 0..5 {
        send(&on, &format!("m{number}")).await;
    }
    counted_up(&on).await;
    assert_eq!(counted(&on, "jobs").await, (5, 0, 0));
    assert_eq!(on.count("SELECT counted FROM parts").await.unwrap(), 0, "a lower number may still be committed");
    gate.open();
    late.await.unwrap().unwrap();
    assert_eq!(counted(&on, "jobs").await, (6, 0, 0));
    counted_up(&on).await;
    assert_eq!(counted(&on, "jobs").await, (6, 0, 0));
    assert_eq!(on.count("SELECT total FROM parts").await.unwrap(), 6);
}

#[tokio::test]
async fn a_delete_that_is_committed_late_is_taken_off() {
    let on = stores::open_postgres().await.unwrap();
    jobs(&on, &[]).await;
    for number in 0..5 {
        send(&on, &format!("m{number}")).await;
    }
    // Two visits: the third one counts.
    for _ in 0..2 {
        upkeep(&on).await;
    }
    let message = receive(&on, 1).await.remove(0);
    let (gate, mut arrivals) = Gate::new();
    let gate = Arc::new(gate);
    let (store, caller, at_gate) = (on.store.clone(), on.admin.clone(), Arc::clone(&gate));
    let operation = delete(&message);
    let late = tokio::spawn(async move { store.run_gated(operation, caller, Some(at_gate)).await });
    // The message is deleted, and that is not committed.
    for _ in 0..3 {
        arrivals.recv().await.unwrap();
        gate.step();
    }
    arrivals.recv().await.unwrap();
    counted_up(&on).await;
    let counted_while_open = on.count("SELECT total FROM parts").await.unwrap();
    assert_eq!(counted(&on, "jobs").await, (4, 1, 0));
    gate.open();
    late.await.unwrap().unwrap();
    assert_eq!(counted(&on, "jobs").await, (4, 0, 0));
    counted_up(&on).await;
    assert_eq!(counted(&on, "jobs").await, (4, 0, 0));
    assert_eq!((counted_while_open, on.count("SELECT total FROM parts").await.unwrap()), (5, 4));
}
