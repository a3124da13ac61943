//! What is measured one call at a time: how soon a waiting receive is woken, and what a large message writes when it is
//! received.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::json;

use super::speech::{BATCH, Counter};
use crate::costs::Costs;
use crate::histogram::Histogram;
use crate::load::Outcome;
use crate::process::{Server, handed_bytes};
use crate::wire::Wire;

/// For a receive to have come to its wait.
const PARKED: Duration = Duration::from_millis(3);
const LARGE_BYTES: usize = 1 << 20;
const LARGE_ROOM: usize = 4 << 20;
const LARGE_COUNT: usize = 20;
/// What was sent is copied into the database in the background; nothing more is written when this has passed without.
const STILL: Duration = Duration::from_millis(1500);
const STILL_MAX: Duration = Duration::from_secs(20);

/// From when a message is sent until the one who waits for it has it.
pub async fn wake(counter: &Counter, measure: Duration) -> Result<Outcome> {
    let (mut waiting, mut sending) = (Wire::connect(counter.addr).await?, Wire::connect(counter.addr).await?);
    let (receive, send) = (counter.receive(BATCH, 20)?, counter.send()?);
    let mut deletes = counter.deletes()?;
    let (mut latencies, mut ops, began) = (Histogram::default(), 0, Instant::now());
    while began.elapsed() < measure {
        waiting.send(&receive).await?;
        tokio::time::sleep(PARKED).await;
        let start = Instant::now();
        let (sent, received) = tokio::join!(sending.exchange(&send), waiting.answer());
        let took = start.elapsed();
        let (count, delete) = deletes.of(waiting.response());
        if sent? != 200 || received? != 200 || count != 1 {
            bail!("a waiting receive was given {count} messages");
        }
        if sending.exchange(delete).await? != 200 {
            bail!("a message was not deleted");
        }
        latencies.record(took);
        ops += 1;
    }
    Ok(Outcome { ops, ops_total: ops, seconds: began.elapsed().as_secs_f64(), latencies, ..Outcome::default() })
}

/// Bytes that a receive of a large body causes to be written to files: what the process writes, less its answers and its log. The
/// kernel's own count is in pages, and a frame of SQLite's log lies across two of them.
pub async fn receive_large(server: &Server, counter: &Counter) -> Result<(Outcome, Costs)> {
    let mut wire = Wire::connect_with(counter.addr, LARGE_ROOM).await?;
    let send = counter.post("SendMessage", json!({ "MessageBody": "m".repeat(LARGE_BYTES) }))?;
    for _ in 0..LARGE_COUNT {
        let status = wire.exchange(&send).await?;
        if status != 200 {
            bail!("a large message was answered {status}: {}", String::from_utf8_lossy(wire.response()));
        }
    }
    let before = still(server).await?;
    let receive = counter.post("ReceiveMessage", json!({ "VisibilityTimeout": 43_000 }))?;
    let (mut latencies, began, mut answered) = (Histogram::default(), Instant::now(), 0);
    for _ in 0..LARGE_COUNT {
        let start = Instant::now();
        let status = wire.exchange(&receive).await?;
        answered += wire.response().len() as u64;
        if status != 200 || wire.response().len() < LARGE_BYTES {
            bail!("a receive was answered {status} with {} bytes", wire.response().len());
        }
        latencies.record(start.elapsed());
    }
    let seconds = began.elapsed().as_secs_f64();
    let after = written(server).context("no count of written bytes")?;
    let ops = LARGE_COUNT as u64;
    let bytes = after.saturating_sub(before + answered) as f64 / ops as f64;
    let outcome = Outcome { ops, ops_total: ops, seconds, latencies, ..Outcome::default() };
    Ok((outcome, Costs { bytes: Some(bytes), ..Costs::default() }))
}

fn written(server: &Server) -> Option<u64> {
    handed_bytes(server.pid()).map(|bytes| bytes.saturating_sub(server.log_bytes()))
}

async fn still(server: &Server) -> Result<u64> {
    let began = Instant::now();
    let mut last = written(server).context("no count of written bytes")?;
    loop {
        tokio::time::sleep(STILL).await;
        let now = written(server).context("no count of written bytes")?;
        if now == last || began.elapsed() > STILL_MAX {
            return Ok(now);
        }
        last = now;
    }
}
