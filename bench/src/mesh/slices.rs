//! One slice of each deed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::pair::{Daemon, Pair, TOPICS, topic};
use super::{Deed, name};
use crate::contest::Sample;
use crate::costs::{Costs, PerOp};
use crate::load::{self, Outcome, Plan};
use crate::process::cpu_seconds;
use crate::request::Template;
use crate::script::Script;
use crate::wire::Wire;

/// Of a slice of topics, for each second that it may take.
const PER_SECOND: usize = 1_000;
const ARRIVAL_MAX: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(10);
const TEXT: &str = "the build of main is green again, the two flaky tests were one race in the fixture";

pub struct Slice {
    pub number: usize,
    pub connections: usize,
    pub warmup: Duration,
    pub measure: Duration,
}

/// The daemons of the heat: those whose broker is away, and those that hear each other.
pub struct Pairs {
    waybill: PathBuf,
    dir: PathBuf,
    open: BTreeMap<bool, Pair>,
}

impl Pairs {
    pub fn new(waybill: &Path, dir: &Path) -> Self {
        Self { waybill: waybill.to_owned(), dir: dir.to_owned(), open: BTreeMap::new() }
    }

    pub async fn prepare(&mut self, deed: Deed) -> Result<()> {
        let alone = deed == Deed::Send;
        if self.open.contains_key(&alone) {
            return Ok(());
        }
        // Short: a socket's path has few bytes.
        let mut pair = Pair::open(&self.waybill, &self.dir.join(if alone { "m1" } else { "m2" })).await?;
        if alone {
            pair.part().await?;
        }
        self.open.insert(alone, pair);
        Ok(())
    }

    pub fn dismiss(&mut self) -> Result<()> {
        self.open.clear();
        for name in ["m1", "m2"] {
            let folder = self.dir.join(name);
            if folder.exists() {
                std::fs::remove_dir_all(folder)?;
            }
        }
        Ok(())
    }

    pub async fn slice(&mut self, deed: Deed, slice: Slice) -> Result<Sample> {
        let pair = self.open.get_mut(&(deed == Deed::Send)).with_context(|| format!("{} is not open", name(deed)))?;
        pair.alice.check_running()?;
        let before = cpu_seconds(pair.alice.pid());
        let outcome = match deed {
            Deed::Send => sends(&pair.alice, &slice).await?,
            Deed::EndToEnd => end_to_end(pair, &slice).await?,
            Deed::Topics => topics(pair, &slice).await?,
        };
        let cpu_us = PerOp(outcome.ops_total).share(before, cpu_seconds(pair.alice.pid()), 1e6);
        Sample::new(outcome, Costs { cpu_us, ..Costs::default() })
    }
}

async fn sends(alice: &Daemon, slice: &Slice) -> Result<Outcome> {
    let body =
        format!(r####"{{"to":"bob","message":"{TEXT}","client_message_id":"b-{:05}-###-@@@@@@@@@"}}"####, slice.number);
    let local = std::net::SocketAddr::from((std::net::Ipv4Addr::LOCALHOST, 80));
    let script = Script::Single(Template::post(local, "/v1/send", None, &body));
    let Slice { connections, warmup, measure, .. } = *slice;
    load::run(Plan { addr: alice.address(), connections, script, warmup, measure, signed_ahead: 0 }).await
}

/// From the call to the event of the other daemon, which follows the commit of its inbox.
async fn end_to_end(pair: &Pair, slice: &Slice) -> Result<Outcome> {
    let mut events = UnixStream::connect(&pair.bob.socket).await?;
    events.write_all(b"GET /v1/events HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n").await?;
    let mut wire = Wire::connect(pair.alice.address()).await?;
    let (mut outcome, began) = (Outcome::default(), Instant::now());
    let mut heard = Vec::new();
    while began.elapsed() < slice.warmup + slice.measure {
        let id = format!("e-{}-{}", slice.number, outcome.ops_total);
        let body = json!({ "to": "bob", "message": TEXT, "client_message_id": id }).to_string();
        let head = "POST /v1/send HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
        let asked = Instant::now();
        let request = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
        let status = wire.exchange(request.as_bytes()).await?;
        ensure!(status == 202, "a send was answered {status}");
        let quoted = format!("\"{id}\"");
        timeout(ARRIVAL_MAX, await_text(&mut events, &mut heard, quoted.as_bytes())).await.context("no event")??;
        let took = asked.elapsed();
        outcome.ops_total += 1;
        if began.elapsed() > slice.warmup {
            outcome.ops += 1;
            outcome.latencies.record(took);
        }
    }
    outcome.seconds = slice.measure.as_secs_f64();
    Ok(outcome)
}

async fn await_text(events: &mut UnixStream, heard: &mut Vec<u8>, wanted: &[u8]) -> Result<()> {
    loop {
        if let Some(at) = heard.windows(wanted.len()).position(|window| window == wanted) {
            heard.drain(..at + wanted.len());
            return Ok(());
        }
        // What is before cannot be awaited any more, but for its last bytes.
        let keep = heard.len().min(wanted.len());
        heard.drain(..heard.len() - keep);
        let mut bytes = [0; 8 << 10];
        let read = events.read(&mut bytes).await?;
        ensure!(read > 0, "the stream of events has ended");
        heard.extend(&bytes[..read]);
    }
}

/// As many as the time allows for, from the first call to the last arrival.
async fn topics(pair: &Pair, slice: &Slice) -> Result<Outcome> {
    let each = PER_SECOND * (slice.measure.as_secs() as usize).max(1) / TOPICS;
    let mut seen = pair.bob.inbox_end(0).await?;
    let wanted = seen + (each * TOPICS) as i64;
    let began = Instant::now();
    let mut posters = JoinSet::new();
    for number in 0..TOPICS {
        posters.spawn(post(pair.alice.address(), number, slice.number, each));
    }
    while let Some(posted) = posters.join_next().await {
        posted.context("a poster ended badly")??;
    }
    while seen < wanted {
        if began.elapsed() > ARRIVAL_MAX {
            bail!("{} of {} have not arrived", wanted - seen, each * TOPICS);
        }
        sleep(LOOK).await;
        seen = pair.bob.inbox_end(seen).await?;
    }
    let ops = (each * TOPICS) as u64;
    Ok(Outcome { ops, ops_total: ops, seconds: began.elapsed().as_secs_f64(), ..Outcome::default() })
}

/// One message after the other, numbered from zero.
pub async fn post(to: crate::wire::Address, number: usize, slice: usize, count: usize) -> Result<()> {
    let mut wire = Wire::connect(to).await?;
    for turn in 0..count {
        let id = format!("p-{slice}-{number}-{turn}");
        let body = json!({ "topic": topic(number), "message": format!("{turn} {TEXT}"), "client_message_id": id });
        let body = body.to_string();
        let head = "POST /v1/topic/post HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
        let status = wire.exchange(format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()).as_bytes()).await?;
        ensure!(status == 202, "a post was answered {status}: {}", wire.json().unwrap_or_default());
    }
    Ok(())
}
