//! What is older than the queue keeps messages is never delivered, and goes when it is met.

use std::sync::Arc;

use waybill_kernel::{Mode, Result};
use waybill_queues::Settings;
use waybill_queues::ops::receive_message::ReceiveMessage;
use waybill_queues::ops::send_message::SendMessage;
use waybill_queues::sweeps::Upkeep;
use waybill_store::effects::Sweep;
use waybill_store::{Ctx, Tx, Work};
use waybill_testkit::both;
use waybill_testkit::stores::TestStore;

use crate::support::{bodies, body, counted, jobs, ok, pass, queue, receive, recount, rows, send, up_to, upkeep, url};

both! {
    a_backlog_that_is_too_old_makes_way,
    a_message_in_flight_grows_too_old,
    a_flight_without_its_message_goes,
    what_nobody_receives_goes_by_itself,
    a_backlog_is_not_left_to_the_next_run,
    every_queue_is_visited,
}

async fn a_backlog_that_is_too_old_makes_way(on: TestStore) {
    jobs(&on, &[("MessageRetentionPeriod", "60")]).await;
    for number in 0..300 {
        send(&on, &format!("old {number}")).await;
    }
    pass(&on, 30);
    send(&on, "young").await;
    pass(&on, 31);
    assert_eq!(bodies(&on).await, ["young"]);
    assert_eq!(rows(&on).await, (1, 1));
}

async fn a_message_in_flight_grows_too_old(on: TestStore) {
    jobs(&on, &[("MessageRetentionPeriod", "60")]).await;
    send(&on, "in flight").await;
    ok(&on, SendMessage { delay_seconds: Some(100), ..body("delayed") }).await;
    let quick = ReceiveMessage { visibility_timeout: Some(0), ..up_to(10) };
    assert_eq!(ok(&on, quick).await.messages.len(), 1);
    pass(&on, 101);
    send(&on, "young").await;
    assert_eq!(bodies(&on).await, ["young"]);
    assert_eq!(rows(&on).await, (1, 1));
}

async fn a_flight_without_its_message_goes(on: TestStore) {
    jobs(&on, &[("VisibilityTimeout", "10")]).await;
    for text in ["a", "b"] {
        send(&on, text).await;
    }
    assert_eq!(receive(&on, 10).await.len(), 2);
    on.write("DELETE FROM messages WHERE body = 'a'").await.unwrap();
    pass(&on, 11);
    assert_eq!(bodies(&on).await, ["b"]);
    assert_eq!(rows(&on).await, (1, 1));
}

async fn what_nobody_receives_goes_by_itself(on: TestStore) {
    jobs(&on, &[("MessageRetentionPeriod", "60"), ("VisibilityTimeout", "1000")]).await;
    for number in 0..600 {
        send(&on, &format!("old {number}")).await;
    }
    assert_eq!(receive(&on, 10).await.len(), 10);
    pass(&on, 30);
    send(&on, "young").await;
    upkeep(&on).await;
    assert_eq!(rows(&on).await, (601, 10));
    pass(&on, 31);
    for _ in 0..4 {
        upkeep(&on).await;
    }
    assert_eq!(rows(&on).await, (1, 0));
    assert_eq!(counted(&on, "jobs").await, (1, 0, 0));
    assert_eq!(bodies(&on).await, ["young"]);
}

/// Transactions of the sweep, until one says that there is nothing more to do in this run.
struct Run(Arc<Upkeep>);

impl Work for Run {
    type Output = u64;

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<u64> {
        self.0.run_batch(ctx, tx, 64).await
    }
}

/// One run, however long it takes.
pub async fn one_run(on: &TestStore) {
    let run = Arc::new(Upkeep::new(&Settings::default()));
    for _ in 0..10 {
        if on.store.system().run(Run(Arc::clone(&run))).await.unwrap() == 0 {
            break;
        }
    }
}

async fn a_backlog_is_not_left_to_the_next_run(on: TestStore) {
    const MANY: &str = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000) \
        INSERT INTO messages (mid, tenant, id, body, md5, sent_at, sender) \
        SELECT m.mid + n.i, m.tenant, m.id, m.body, m.md5, m.sent_at, m.sender FROM n, messages m";
    jobs(&on, &[("MessageRetentionPeriod", "60")]).await;
    send(&on, "old").await;
    on.write(MANY).await.unwrap();
    recount(&on).await;
    pass(&on, 61);
    one_run(&on).await;
    assert_eq!(rows(&on).await, (0, 0));
}

async fn every_queue_is_visited(on: TestStore) {
    for number in 0..150 {
        let name = format!("q{number}");
        ok(&on, queue(&name, &[("MessageRetentionPeriod", "60")])).await;
        ok(&on, SendMessage { queue_url: url(&name), ..body("m") }).await;
    }
    pass(&on, 61);
    upkeep(&on).await;
    assert_eq!(rows(&on).await, (0, 0));
    // The next round begins at the beginning.
    ok(&on, SendMessage { queue_url: url("q0"), ..body("m") }).await;
    pass(&on, 61);
    upkeep(&on).await;
    assert_eq!(rows(&on).await, (0, 0));
}
