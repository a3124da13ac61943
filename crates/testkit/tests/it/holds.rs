//! What a process holds against others on the same database.

use std::time::{Duration, Instant};

use waybill_kernel::Tenant;
use waybill_store::{Hold, Holding, Store, Topic};
use waybill_testkit::stores;

const PATIENCE: Duration = Duration::from_secs(15);

fn topic() -> Topic {
    Topic::new("test", Tenant(0), b"held")
}

async fn hold(store: &Store, holding: Holding) -> Option<Hold> {
    store.hold(topic(), holding).await.unwrap()
}

/// The database hears a moment later that a connection has ended.
async fn hold_alone_soon(store: &Store) -> Hold {
    let began = Instant::now();
    loop {
        if let Some(held) = hold(store, Holding::Alone).await {
            return held;
        }
        assert!(began.elapsed() < PATIENCE, "what was given back is still held");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_topic_is_held_by_some_together_or_by_one_alone() {
    let on = stores::open_postgres().await.unwrap();
    let other = on.second_node(|_| {}).await.unwrap();
    let together = (hold(&on.store, Holding::Shared).await.unwrap(), hold(&other, Holding::Shared).await.unwrap());
    assert!(hold(&other, Holding::Alone).await.is_none());
    drop(together);
    let alone = hold_alone_soon(&other).await;
    assert!(hold(&on.store, Holding::Shared).await.is_none());
    assert!(hold(&on.store, Holding::Alone).await.is_none());
    drop(alone);
    drop(hold_alone_soon(&on.store).await);
}

#[tokio::test]
async fn a_topic_is_held_for_longer_than_a_transaction_may_rest() {
    let on = stores::open_postgres().await.unwrap();
    let rest_max = Duration::from_secs(1);
    let other = on.second_node(|options| options.statement_timeout = rest_max).await.unwrap();
    let _held = hold(&other, Holding::Shared).await.unwrap();
    tokio::time::sleep(3 * rest_max).await;
    assert!(hold(&on.store, Holding::Alone).await.is_none());
}

#[tokio::test]
async fn whoever_loses_the_connection_is_told() {
    const END: &str = "SELECT pg_terminate_backend(l.pid) FROM pg_locks l JOIN pg_database d ON d.oid = l.database \
                       WHERE l.locktype = 'advisory' AND d.datname = current_database()";
    let on = stores::open_postgres().await.unwrap();
    let held = hold(&on.store, Holding::Alone).await.unwrap();
    on.database().unwrap().connect().await.unwrap().execute(END, &[]).await.unwrap();
    tokio::time::timeout(PATIENCE, held.lost()).await.unwrap();
    drop(hold_alone_soon(&on.store).await);
}

#[tokio::test]
async fn who_has_a_file_of_sqlite_open_holds_everything() {
    let on = stores::open_sqlite().await.unwrap();
    let _held = hold(&on.store, Holding::Alone).await.unwrap();
    assert!(hold(&on.store, Holding::Alone).await.is_some());
}
