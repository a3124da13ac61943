//! Many large messages at once: what the server holds of them, how long its log gets, and whether one is lost.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::process::{Server, memory};
use crate::queues::{Counter, opened_at};
use crate::wire::Wire;

pub const CONNECTIONS: usize = 256;
const BODY_BYTES: usize = 1_000_000;
/// Messages of each connection, one after the other.
const TURNS: usize = 4;
/// Refused for want of room, a caller comes back after this, as SDKs do.
const REFUSED_PAUSE: Duration = Duration::from_millis(100);
const REFUSALS_MAX: usize = 100;
const LOOK: Duration = Duration::from_millis(5);
const QUEUE: &str = "burst";

pub struct Burst {
    /// The most that the process has been, all in all.
    pub peak: u64,
    /// The longest that the log was seen.
    pub log: u64,
    /// Asked to come back later.
    pub refused: u64,
    /// Accepted, and not in the queue.
    pub lost: i64,
    pub seconds: f64,
}

pub async fn measure(waybill: &Path, data: &Path) -> Result<Burst> {
    let server = Server::waybill(waybill, data, None).await?;
    let counter = opened_at(&server, QUEUE, &Value::Null).await?;
    let request = Arc::new(counter.post("SendMessage", json!({ "MessageBody": "m".repeat(BODY_BYTES) }))?);
    let longest = Arc::new(AtomicU64::new(0));
    let watch = tokio::spawn(watch_length(data.join("waybill.db-wal"), Arc::clone(&longest)));
    let began = Instant::now();
    let mut senders = JoinSet::new();
    for _ in 0..CONNECTIONS {
        let wire = Wire::connect(counter.addr).await?;
        senders.spawn(send(wire, Arc::clone(&request)));
    }
    let (mut sent, mut refused) = (0_i64, 0_u64);
    while let Some(outcome) = senders.join_next().await {
        let (own, own_refused) = outcome??;
        (sent, refused) = (sent + own, refused + own_refused);
    }
    let seconds = began.elapsed().as_secs_f64();
    watch.abort();
    let peak = memory(server.pid())?.peak;
    let lost = sent - held(&counter).await?;
    server.stop().await?;
    Ok(Burst { peak, log: longest.load(Ordering::Relaxed), refused, lost, seconds })
}

/// How many were accepted, and how many refused at first.
async fn send(mut wire: Wire, request: Arc<Vec<u8>>) -> Result<(i64, u64)> {
    let (mut sent, mut refused) = (0, 0);
    for _ in 0..TURNS {
        for attempt in 0.. {
            match wire.exchange(&request).await? {
                200 => break,
                503 if attempt < REFUSALS_MAX => {
                    refused += 1;
                    tokio::time::sleep(REFUSED_PAUSE).await;
                }
                status => bail!("a large message was answered {status}"),
            }
        }
        sent += 1;
    }
    Ok((sent, refused))
}

async fn watch_length(path: PathBuf, longest: Arc<AtomicU64>) {
    loop {
        if let Ok(found) = std::fs::metadata(&path) {
            longest.fetch_max(found.len(), Ordering::Relaxed);
        }
        tokio::time::sleep(LOOK).await;
    }
}

async fn held(counter: &Counter) -> Result<i64> {
    let input = json!({ "AttributeNames": ["ApproximateNumberOfMessages"] });
    let answer = counter.ask(&counter.post("GetQueueAttributes", input)?).await?;
    let answer: Value = serde_json::from_str(&answer)?;
    let count = answer["Attributes"]["ApproximateNumberOfMessages"].as_str().context("no number of messages")?;
    Ok(count.parse()?)
}
