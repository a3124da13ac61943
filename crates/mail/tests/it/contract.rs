//! The database decides: what failed has left nothing, and nobody who reads waits for who writes.

use std::time::{Duration, Instant};

use serde_json::json;
use waybill_kernel::{Caller, Mode, Result};
use waybill_store::{Ctx, Tx, Work};
use waybill_testkit::stores::TestStore;

use crate::support::*;

waybill_testkit::both! {
    rule_01_a_call_that_could_not_be_written_is_an_error_and_left_nothing,
    rule_02_what_failed_gives_the_archive_nothing_to_do,
    rule_03_what_failed_can_be_repeated_and_is_done_once,
    rule_06_reads_go_on_while_somebody_writes,
}

/// Everything that a send writes.
const WRITTEN: &[&str] =
    &["mail_messages", "mail_recipients", "mail_inbox_events", "mail_archive_rows", "mail_attachments", "mail_keys"];

async fn counts(on: &TestStore) -> Vec<i64> {
    let mut counts = Vec::new();
    for table in WRITTEN {
        counts.push(on.count(&format!("SELECT count(*) FROM {table}")).await.unwrap());
    }
    counts
}

/// Rows under the numbers that the next messages get, which keep those from being written.
const PLANTED: &[(&str, &str, &str)] = &[
    (
        "mail_recipients",
        "INSERT INTO mail_recipients (tenant, message, agent, kind, sender, urgent, ack_required, intro, created_at) \
         WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20) \
         SELECT a.tenant, (SELECT coalesce(max(message), 0) FROM mail_messages) + n.i, a.agent, 'to', 0, 0, 0, 0, 0 \
         FROM mail_agents a, n WHERE a.name = 'BlueLake'",
        "DELETE FROM mail_recipients WHERE sender = 0",
    ),
    (
        "mail_attachments",
        "INSERT INTO mail_attachments (tenant, message, position, name, media_type, sha256, content) \
         WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20) \
         SELECT a.tenant, (SELECT coalesce(max(message), 0) FROM mail_messages) + n.i, 0, 'planted', 'x', a.token, a.token \
         FROM mail_agents a, n WHERE a.name = 'BlueLake'",
        "DELETE FROM mail_attachments WHERE name = 'planted'",
    ),
];

/// A send that fails at this table, after it has written to others.
async fn fails(on: &TestStore, caller: &Caller, (table, plant, weed): (&str, &str, &str)) {
    on.write(plant).await.unwrap();
    let outcome = on.call(caller, "send_message", full()).await;
    assert!(outcome.is_err(), "{table}: {outcome:?}");
    on.write(weed).await.unwrap();
}

fn full() -> serde_json::Value {
    let file = json!([{ "name": "a.txt", "content_base64": "aGk=" }]);
    with(letter("a"), json!({ "idempotency_key": "k", "attachments": file }))
}

async fn rule_01_a_call_that_could_not_be_written_is_an_error_and_left_nothing(on: TestStore) {
    let (alice, _) = two(&on).await;
    let before = counts(&on).await;
    for planted in PLANTED {
        fails(&on, &alice, *planted).await;
        assert_eq!(counts(&on).await, before, "{}", planted.0);
    }
}

async fn rule_02_what_failed_gives_the_archive_nothing_to_do(on: TestStore) {
    let (alice, bob) = two(&on).await;
    let id = send(&on, &alice, letter("a")).await;
    let before = archive(&on).await;
    for planted in PLANTED {
        fails(&on, &alice, *planted).await;
    }
    assert_eq!(archive(&on).await, before);
    // One more change than a number can count.
    on.write(&format!("UPDATE mail_changes SET changes = {}", i64::MAX)).await.unwrap();
    on.call(&bob, "mark_message_read", message("BlueLake", id)).await.unwrap_err();
    assert_eq!(inbox(&on, &bob, "BlueLake", json!({ "unread_only": true })).await.len(), 1, "it is not read either");
}

async fn rule_03_what_failed_can_be_repeated_and_is_done_once(on: TestStore) {
    let (alice, _) = two(&on).await;
    let before = counts(&on).await;
    fails(&on, &alice, PLANTED[0]).await;
    assert!(!call(&on, &alice, "send_message", full()).await.replay, "the key was not used up");
    assert!(call(&on, &alice, "send_message", full()).await.replay);
    let after: Vec<i64> = counts(&on).await.iter().zip(before).map(|(after, before)| after - before).collect();
    assert_eq!(after, [1, 1, 1, 1, 1, 1]);
}

/// A transaction that has written and does not end for a while.
struct Hold;

const HELD_FOR: Duration = Duration::from_secs(2);

impl Work for Hold {
    type Output = ();

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<()> {
        tx.execute("UPDATE mail_agents SET task = 'held'", &[]).await?;
        tx.execute("UPDATE mail_recipients SET kind = kind", &[]).await?;
        std::thread::sleep(HELD_FOR);
        Ok(())
    }
}

async fn rule_06_reads_go_on_while_somebody_writes(on: TestStore) {
    let (alice, bob) = two(&on).await;
    send(&on, &alice, letter("a")).await;
    let store = on.store.clone();
    // On a thread of its own: it stands still with the transaction open.
    let (began, held) = std::sync::mpsc::channel();
    let writer = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        began.send(()).unwrap();
        runtime.block_on(store.system().run(Hold))
    });
    held.recv().unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    let asked = Instant::now();
    assert_eq!(subjects(&inbox(&on, &bob, "BlueLake", json!({})).await), ["a"]);
    let took = asked.elapsed();
    let still_held = !writer.is_finished();
    tokio::task::spawn_blocking(move || writer.join().unwrap()).await.unwrap().unwrap();
    assert!(took < HELD_FOR && still_held, "the read took {took:?}");
}
