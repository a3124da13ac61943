//! Wakes between nodes.
//!
//! How PostgreSQL does it: NOTIFY queues a text at commit, under a lock that all committing transactions of the database
//! share; inside the hot transactions it would serialise them. So wakes are collected for a few milliseconds and sent from
//! a transaction of their own. A listener hears only while it is connected: a poll stands behind every wait.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::Pool;
use tokio::sync::mpsc;
use tokio_postgres::{AsyncMessage, Config, NoTls};

use waybill_kernel::Time;

use super::connect::unreachable;
use super::fence::{Fence, Refused};
use crate::Topic;
use crate::wake::{Hub, Wake};

const CHANNEL: &str = "waybill_wake";
/// A notification holds less than 8,000 bytes; one wake takes at most 34.
const WAKES_PER_NOTIFICATION: usize = 230;
const TELL_MAX: Duration = Duration::from_secs(5);
const RECONNECT_PAUSE: Duration = Duration::from_millis(500);

pub(super) async fn tell_others(pool: Pool, mut outgoing: mpsc::Receiver<Wake>, node: u64, interval: Duration) {
    while let Some(wake) = outgoing.recv().await {
        let mut wakes = Wakes::new();
        add(&mut wakes, wake);
        tokio::time::sleep(interval).await;
        while wakes.len() < WAKES_PER_NOTIFICATION
            && let Ok(wake) = outgoing.try_recv()
        {
            add(&mut wakes, wake);
        }
        let payload = encode(node, &wakes);
        // A wake that takes longer than this comes after the poll that stands behind it.
        let _ = tokio::time::timeout(TELL_MAX, tell(&pool, &payload)).await;
    }
}

/// By topic and time, None where it has come; with how many.
type Wakes = HashMap<(Topic, Option<Time>), u32>;

fn add(wakes: &mut Wakes, wake: Wake) {
    let (topic, at, count) = match wake {
        Wake::Now(topic, count) => (topic, None, count),
        Wake::At(topic, at) => (topic, Some(at), 1),
    };
    let total = wakes.entry((topic, at)).or_insert(0);
    *total = total.saturating_add(count);
}

async fn tell(pool: &Pool, payload: &str) {
    if let Ok(client) = pool.get().await {
        let _ = client.execute("SELECT pg_notify($1, $2)", &[&CHANNEL, &payload]).await;
    }
}

pub(super) async fn hear_others(config: Config, fence: Arc<Fence>, hub: Hub, node: u64) {
    loop {
        if let Err(refused) = listen(&config, &fence, &hub, node).await {
            let error = refused.into_error(unreachable);
            tracing::debug!(%error, "the wake-up connection was lost; connecting again");
        }
        tokio::time::sleep(RECONNECT_PAUSE).await;
    }
}

async fn listen(config: &Config, fence: &Fence, hub: &Hub, node: u64) -> Result<(), Refused> {
    let (client, mut connection) = config.connect(NoTls).await?;
    let (sender, mut heard) = mpsc::channel(1024);
    let driver = tokio::spawn(async move {
        // An error is the connection's last word, and would be given again at every further poll.
        while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
            if let AsyncMessage::Notification(notification) = message
                && sender.send(notification.payload().to_owned()).await.is_err()
            {
                break;
            }
        }
    });
    let _abort = AbortOnDrop(driver.abort_handle());
    // On a primary that was replaced nobody says anything.
    fence.check(&client).await.map_err(Refused::ByFence)?;
    client.batch_execute(&format!("LISTEN {CHANNEL}")).await?;
    // What was said while nobody listened is not said again.
    hub.look_again();
    while let Some(payload) = heard.recv().await {
        let (from, wakes) = decode(&payload);
        if from != Some(node) {
            wakes.into_iter().for_each(|wake| hub.wake_here(wake));
        }
    }
    Ok(())
}

struct AbortOnDrop(tokio::task::AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// `node topic:count topic@time …`, in hexadecimal.
fn encode(node: u64, wakes: &Wakes) -> String {
    let wakes = wakes.iter().map(|((topic, at), count)| match at {
        None => format!(" {:x}:{count:x}", topic.0),
        Some(at) => format!(" {:x}@{:x}", topic.0, at.micros()),
    });
    std::iter::once(format!("{node:x}")).chain(wakes).collect()
}

/// Lenient: what cannot be read was sent by another version, and a poll stands behind it.
fn decode(payload: &str) -> (Option<u64>, Vec<Wake>) {
    let mut words = payload.split(' ');
    let node = words.next().and_then(|word| u64::from_str_radix(word, 16).ok());
    let wakes = words.filter_map(|word| {
        let (topic, count, at) = match word.split_once('@') {
            Some((topic, at)) => (topic, None, Some(at)),
            None => word.split_once(':').map(|(topic, count)| (topic, Some(count), None))?,
        };
        let topic = Topic(u64::from_str_radix(topic, 16).ok()?);
        Some(match (count, at) {
            (Some(count), _) => Wake::Now(topic, u32::from_str_radix(count, 16).ok()?),
            (None, at) => Wake::At(topic, Time::from_micros(i64::from_str_radix(at?, 16).ok()?)),
        })
    });
    (node, wakes.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wakes_read_back_and_a_full_notification_fits() {
        let latest = Time::from_micros(i64::MAX);
        let topic = |n: usize| Topic(u64::MAX - n as u64);
        for at in [None, Some(latest)] {
            let count = if at.is_some() { 1 } else { u32::MAX };
            let wakes: Wakes = (0..WAKES_PER_NOTIFICATION).map(|n| ((topic(n), at), count)).collect();
            let payload = encode(u64::MAX, &wakes);
            assert!(payload.len() < 8000, "{}", payload.len());
            let (node, heard) = decode(&payload);
            let mut back = Wakes::new();
            heard.into_iter().for_each(|wake| add(&mut back, wake));
            assert_eq!((node, back), (Some(u64::MAX), wakes));
        }
        assert_eq!(decode("7 zz 1:2 3@x 4@ @5 :6 8").1, [Wake::Now(Topic(1), 2)]);
    }
}
