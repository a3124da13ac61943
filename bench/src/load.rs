//! The load client: as many keep-alive HTTP/1.1 connections as asked, one request in flight on each.
//!
//! It shares two cores with what it measures, so it does little: one thread, requests built once with only their
//! digits rewritten, responses read as far as status and length. Every status is checked; only 2xx counts.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::task::{JoinSet, LocalSet};

use crate::histogram::Histogram;
use crate::process::thread_cpu_seconds;
use crate::script::{Script, Turn};
use crate::wire::{Address, Wire};

/// How long the requests in flight at the end may take before they count as lost.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
/// A refused caller that comes back at once would only measure how fast refusals are.
const REFUSED_PAUSE: Duration = Duration::from_millis(2);

#[derive(Clone)]
pub struct Plan {
    pub addr: Address,
    pub connections: usize,
    pub script: Script,
    /// Turns that end before this are checked but not counted in `ops` and the latencies.
    pub warmup: Duration,
    pub measure: Duration,
    /// Requests that each connection signs before the clock starts, where each has a signature of its own.
    pub signed_ahead: usize,
}

#[derive(Default)]
pub struct Outcome {
    /// Turns of the script that ended well inside the measured time.
    pub ops: u64,
    /// Those since the first byte was sent: what the server's own counters have seen.
    pub ops_total: u64,
    pub seconds: f64,
    pub latencies: Histogram,
    /// Of one core, that the client itself took while it asked.
    pub client_cpu: Option<f64>,
    /// What went wrong, and how often.
    pub errors: BTreeMap<String, u64>,
}

/// Runs the plan on a thread of its own. Dropping the future leaves that thread to end by itself, in bounded time.
pub async fn run(plan: Plan) -> Result<Outcome> {
    let (done, outcome) = tokio::sync::oneshot::channel();
    std::thread::Builder::new().name("load".to_owned()).spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let result = match runtime {
            Ok(runtime) => LocalSet::new().block_on(&runtime, drive(plan)),
            Err(error) => Err(error.into()),
        };
        // Nobody listens when the run was interrupted.
        drop(done.send(result));
    })?;
    outcome.await.context("the load thread ended early")?
}

struct Clock {
    counted_from: Instant,
    end: Instant,
}

async fn drive(plan: Plan) -> Result<Outcome> {
    let mut wires = Vec::with_capacity(plan.connections);
    for _ in 0..plan.connections {
        wires.push(Wire::connect(plan.addr.clone()).await?);
    }
    let tally = Rc::new(RefCell::new(Outcome::default()));
    let scripts: Vec<Script> = (0..plan.connections)
        .map(|index| {
            let mut script = plan.script.clone().for_connection(index);
            script.sign_ahead(plan.signed_ahead);
            script
        })
        .collect();
    let (began, busy) = (Instant::now(), thread_cpu_seconds());
    let counted_from = Instant::now() + plan.warmup;
    let clock = Rc::new(Clock { counted_from, end: counted_from + plan.measure });
    let mut connections = JoinSet::new();
    for (wire, script) in wires.into_iter().zip(scripts) {
        let connection = Connection { wire, script, tally: tally.clone() };
        connections.spawn_local(connection.keep_asking(clock.clone()));
    }
    let drained = async { while connections.join_next().await.is_some() {} };
    let lost = tokio::time::timeout_at((clock.end + DRAIN_TIMEOUT).into(), drained).await.is_err();
    if lost {
        *tally.borrow_mut().errors.entry("no answer within 10 s".to_owned()).or_default() += connections.len() as u64;
    }
    drop(connections);
    let mut outcome = tally.take();
    outcome.seconds = plan.measure.as_secs_f64();
    let took = began.elapsed().as_secs_f64();
    outcome.client_cpu = busy.zip(thread_cpu_seconds()).map(|(before, after)| (after - before) / took);
    Ok(outcome)
}

struct Connection {
    wire: Wire,
    script: Script,
    tally: Rc<RefCell<Outcome>>,
}

impl Connection {
    /// One turn after the other until the end. A broken connection stays broken, so that it shows in the result.
    async fn keep_asking(mut self, clock: Rc<Clock>) {
        let mut sequence = 0;
        while Instant::now() < clock.end {
            sequence += 1;
            let (took, count) = match self.script.run(&mut self.wire, sequence).await {
                Ok(Turn::Done(took, count)) => (took, count),
                Ok(Turn::Aside) => continue,
                Ok(Turn::Refused(why)) => {
                    self.failed(why);
                    tokio::time::sleep(REFUSED_PAUSE).await;
                    continue;
                }
                Err(error) => return self.failed(format!("{error:#}")),
            };
            let after = Instant::now();
            let mut tally = self.tally.borrow_mut();
            tally.ops_total += count;
            if after >= clock.counted_from && after < clock.end {
                tally.ops += count;
                tally.latencies.record(took);
            }
        }
    }

    fn failed(&self, what: String) {
        *self.tally.borrow_mut().errors.entry(what).or_default() += 1;
    }
}
