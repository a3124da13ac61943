//! A hundred thousand messages handed to a daemon whose broker is away, and their way out when it is back: what the daemon holds of
//! them in memory, how fast they leave, and whether each topic arrives in its order.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::pair::{Pair, TOPICS, topic};
use super::slices::post;
use crate::process::memory;

const DRAIN_MAX: Duration = Duration::from_secs(600);
const LOOK: Duration = Duration::from_millis(100);

pub struct Drain {
    pub messages: usize,
    /// The most that the sending daemon has been.
    pub peak: u64,
    pub accepted_per_second: f64,
    /// From the broker's return to the link that is up again.
    pub reconnected_ms: f64,
    /// From the broker's return to the last arrival.
    pub drained_per_second: f64,
    /// Not there in the order of their topic, or not there once.
    pub misplaced: u64,
}

pub async fn measure(waybill: &Path, dir: &Path, messages: usize) -> Result<Drain> {
    let each = (messages / TOPICS).max(1);
    let messages = each * TOPICS;
    let mut pair = Pair::open(waybill, dir).await.context("two daemons and their broker")?;
    let first = pair.bob.inbox_end(0).await?;
    pair.part().await?;
    let began = Instant::now();
    let mut posters = JoinSet::new();
    for number in 0..TOPICS {
        posters.spawn(post(pair.alice.address(), number, 0, each));
    }
    while let Some(posted) = posters.join_next().await {
        posted.context("a poster ended badly")??;
    }
    let accepted = began.elapsed();
    pair.meet().await?;
    let began = Instant::now();
    pair.alice.connected().await?;
    let reconnected_ms = began.elapsed().as_secs_f64() * 1e3;
    let misplaced = follow(&pair, first, messages).await?;
    let drained = began.elapsed();
    pair.rest(DRAIN_MAX).await?;
    let rate = |took: Duration| messages as f64 / took.as_secs_f64();
    Ok(Drain {
        messages,
        reconnected_ms,
        peak: memory(pair.alice.pid())?.peak,
        accepted_per_second: rate(accepted),
        drained_per_second: rate(drained),
        misplaced,
    })
}

/// Reads the inbox until all of them have come; how many were not the next of their topic.
async fn follow(pair: &Pair, mut since: i64, messages: usize) -> Result<u64> {
    let names: Vec<String> = (0..TOPICS).map(topic).collect();
    let (mut next, mut came, mut misplaced) = ([0_u64; TOPICS], 0, 0);
    let began = Instant::now();
    while came < messages {
        if began.elapsed() > DRAIN_MAX {
            bail!("{came} of {messages} have arrived after {} s", DRAIN_MAX.as_secs());
        }
        let page = pair.bob.inbox(since).await?;
        for message in &page {
            since = message["id"].as_i64().context("a message without its row")?;
            let topic = names.iter().position(|name| message["topic"] == *name.as_str());
            let number = message["body"].as_str().and_then(|body| body.split(' ').next()?.parse::<u64>().ok());
            let (Some(topic), Some(number)) = (topic, number) else { continue };
            misplaced += u64::from(number != next[topic]);
            next[topic] = number + 1;
            came += 1;
        }
        if page.is_empty() {
            sleep(LOOK).await;
        }
    }
    Ok(misplaced)
}
