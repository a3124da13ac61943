//! The load: N connections that create tasks and cancel some, each operation journaled before and after.
//!
//! Most of a round is paced, so that histories stay small enough to check whole; the last stretch before the fault runs
//! flat out, so that the fault meets full commit groups and as many answers in flight as there are connections.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::checker::{self, Violation};
use crate::client::{Answer, Client, Endpoint};
use crate::history::{Entry, Event, Op, Verb};
use crate::journal::Journal;
use crate::rng::{Rng, Stream};
use crate::workload::Signals;

/// One operation in this many cancels a task made before.
const CANCEL_ONE_IN: u64 = 8;
/// One cancel in this many is sent over two connections at once.
const RIVAL_ONE_IN: u64 = 2;
/// After a refusal or a 5xx: a server that can do nothing must not fill the journal, and every unknown is retried later.
const REFUSED_PAUSE: Duration = Duration::from_millis(50);
/// Cancels of one connection while its creates are refused.
const RELIEFS_MAX: u32 = 3;
/// Nobody knows whether it happened, as the server says it.
const UNKNOWN: &str = "503 unavailable";
/// Sequence numbers of a round; also the bound of a worker's loop. 4,000 rounds of them fit the type.
pub const SEQ_PER_ROUND: u32 = 1_000_000;
/// After a lost connection: long enough that a dead server's workers are told to stop before they try again.
const RECONNECT_AFTER: Duration = Duration::from_millis(50);
/// Above the client's own limit for one call.
const FINISH_MAX: Duration = Duration::from_secs(45);

#[derive(Clone, Debug, Default)]
pub struct Tally {
    pub acknowledged: u64,
    pub unknown: u64,
    pub refused: u64,
    pub first_refusal: Option<String>,
    /// What came instead of a promise, in short, and how often.
    pub unknowns: BTreeMap<String, u64>,
    /// When the first `503 unavailable` came.
    pub first_unknown: Option<Instant>,
    /// What was definitely refused, and how often.
    pub refusals: BTreeMap<String, u64>,
    pub first_refused: Option<Instant>,
    pub cancels_refused: u64,
    /// When the acknowledged cancels were asked for.
    pub cancels_at: Vec<Instant>,
    /// What one connection alone can tell, and when it asked.
    pub violations: Vec<(Stamp, Violation)>,
    /// The promised creates of this load, in no particular order.
    pub stamps: Vec<Stamp>,
}

/// When something was asked for and answered, on the client's clock.
#[derive(Clone, Copy, Debug)]
pub struct Stamp {
    pub op: Op,
    pub began: Instant,
    pub ended: Instant,
}

impl Tally {
    fn add(&mut self, other: Tally) {
        self.acknowledged += other.acknowledged;
        self.unknown += other.unknown;
        self.refused += other.refused;
        self.first_refusal = self.first_refusal.take().or(other.first_refusal);
        for (kind, count) in other.unknowns {
            *self.unknowns.entry(kind).or_default() += count;
        }
        for (kind, count) in other.refusals {
            *self.refusals.entry(kind).or_default() += count;
        }
        self.first_unknown = earlier(self.first_unknown, other.first_unknown);
        self.first_refused = earlier(self.first_refused, other.first_refused);
        self.cancels_refused += other.cancels_refused;
        self.cancels_at.extend(other.cancels_at);
        self.violations.extend(other.violations);
        self.stamps.extend(other.stamps);
    }
}

fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    one.into_iter().chain(other).min()
}

/// How many ask, and how often.
#[derive(Clone, Copy)]
pub struct Pace {
    pub connections: u32,
    /// Operations per second of all connections together, outside the sprint.
    pub per_second: u64,
    /// Whether it ends flat out.
    pub sprints: bool,
}

/// The round that is being played, for scenarios that have something to say to it. What is said concerns all workloads.
pub struct Load {
    pub round: u32,
    pub journal: Journal,
    pub sprints: bool,
    pub signals: Signals,
}

impl Load {
    pub fn round(&self) -> u32 {
        self.round
    }

    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// From here on without pauses.
    pub fn sprint(&self) {
        if self.sprints {
            self.signals.sprint();
        }
    }

    /// From here on no answer is a promise: it may have left the server after the moment that the fault preserves.
    pub fn cut(&self) {
        self.signals.cut();
    }

    /// Issues nothing more.
    pub fn stop(&self) {
        self.signals.stop();
    }
}

/// The connections that create and cancel.
pub struct Hands(JoinSet<Result<Tally>>);

impl Hands {
    /// The connections call as these, in turn.
    pub fn start(round: u32, pace: Pace, callers: &[Endpoint], journal: &Journal, signals: &Signals) -> Hands {
        let mut workers = JoinSet::new();
        let seed = journal.history().seed;
        for (conn, endpoint) in (0..pace.connections).zip(callers.iter().cycle()) {
            let worker = Worker {
                round,
                conn,
                pause_us: 1_000_000 * u64::from(pace.connections) / pace.per_second,
                client: Client::new(endpoint.clone()),
                rival: Client::new(endpoint.clone()),
                journal: journal.clone(),
                signals: signals.clone(),
                rng: Rng::new(seed, Stream::Load { round, conn }),
                cancelable: Vec::new(),
                refused: false,
                relieved: 0,
                tally: Tally::default(),
            };
            workers.spawn(worker.run());
        }
        Hands(workers)
    }

    /// Waits until every outcome is journaled.
    pub async fn finish(mut self) -> Result<Tally> {
        let mut total = Tally::default();
        let drain = async {
            while let Some(worker) = self.0.join_next().await {
                total.add(worker.context("a worker ended badly")??);
            }
            anyhow::Ok(())
        };
        timeout(FINISH_MAX, drain).await.context("the load did not end")??;
        Ok(total)
    }
}

struct Worker {
    round: u32,
    conn: u32,
    pause_us: u64,
    client: Client,
    /// Cancels the same task at the same time.
    rival: Client,
    journal: Journal,
    signals: Signals,
    rng: Rng,
    /// Tasks of this round that nobody has tried to cancel.
    cancelable: Vec<(Op, String)>,
    /// The last create was refused, and so many cancels came since.
    refused: bool,
    relieved: u32,
    tally: Tally,
}

impl Worker {
    async fn run(mut self) -> Result<Tally> {
        for n in 0..SEQ_PER_ROUND {
            if !self.signals.sprints() {
                // Uniform around the mean, so that the connections do not fall into step.
                sleep(Duration::from_micros(self.rng.below(2 * self.pause_us))).await;
            }
            if self.signals.stopped() {
                break;
            }
            // One that is refused ends some work instead; the room in reserve is for some, not for all.
            let one_in = if self.refused { 2 } else { CANCEL_ONE_IN };
            let cancels = self.rng.below(one_in) == 0 && (!self.refused || self.relieved < RELIEFS_MAX);
            self.relieved += u32::from(cancels && self.refused);
            match self.cancelable.pop() {
                Some((op, task_id)) if cancels => self.cancel(op, &task_id).await?,
                kept => {
                    self.cancelable.extend(kept);
                    self.create(Op { conn: self.conn, seq: self.round * SEQ_PER_ROUND + n }).await?;
                }
            }
        }
        Ok(self.tally)
    }

    async fn create(&mut self, op: Op) -> Result<()> {
        let request = self.journal.history().request(op);
        self.journal.invoke(self.round, Verb::Create, op).await?;
        let began = Instant::now();
        let answer = self.client.create(&request).await;
        let ended = Instant::now();
        let task_id = answer.as_ref().ok().and_then(|answer| answer.text("task_id")).map(str::to_owned);
        let promised = task_id.is_some();
        let event = self.settle(Verb::Create, op, task_id.clone(), answer, promised).await?;
        self.refused = event == Event::Fail;
        if event == Event::Ok {
            self.relieved = 0;
            self.cancelable.extend(task_id.map(|task_id| (op, task_id)));
            self.tally.stamps.push(Stamp { op, began, ended });
        }
        Ok(())
    }

    async fn cancel(&mut self, op: Op, task_id: &str) -> Result<()> {
        self.journal.invoke(self.round, Verb::Cancel, op).await?;
        let began = Instant::now();
        let answer = if self.rng.below(RIVAL_ONE_IN) == 0 {
            let (one, other) = tokio::join!(self.client.cancel(task_id), self.rival.cancel(task_id));
            let judged = checker::judge_rivals(op, [one.as_ref().ok(), other.as_ref().ok()]);
            let stamp = Stamp { op, began, ended: Instant::now() };
            self.tally.violations.extend(judged.map(|violation| (stamp, violation)));
            if certainty(&one) >= certainty(&other) { one } else { other }
        } else {
            self.client.cancel(task_id).await
        };
        let promised = answer.as_ref().is_ok_and(|answer| answer.text("status") == Some("canceled"));
        match self.settle(Verb::Cancel, op, Some(task_id.to_owned()), answer, promised).await? {
            Event::Ok => self.tally.cancels_at.push(began),
            Event::Fail => self.tally.cancels_refused += 1,
            Event::Info | Event::Invoke | Event::Void | Event::Late => {}
        }
        Ok(())
    }

    /// Journals the outcome. `promised`: a successful answer also says what it should.
    async fn settle(
        &mut self,
        verb: Verb,
        op: Op,
        task_id: Option<String>,
        answer: Result<Answer>,
        promised: bool,
    ) -> Result<Event> {
        // Read after the answer arrived: an answer that came before the cut is a promise.
        let cut = self.signals.is_cut();
        let (event, note) = match &answer {
            Ok(answer) if answer.refused() => (Event::Fail, Some(answer.brief())),
            Ok(_) if cut => (Event::Info, Some("answered after the cut".to_owned())),
            Ok(answer) if answer.success() && promised => (Event::Ok, None),
            Ok(answer) if verb == Verb::Cancel && checker::ended_otherwise(answer) => (Event::Late, None),
            Ok(answer) => (Event::Info, Some(answer.brief())),
            Err(error) => (Event::Info, Some(format!("{error:#}"))),
        };
        match event {
            Event::Ok => self.tally.acknowledged += 1,
            Event::Fail => self.tally.refused += 1,
            Event::Info | Event::Invoke | Event::Void => self.tally.unknown += 1,
            Event::Late => {}
        }
        if event == Event::Info && !cut {
            let kind = kind(&answer);
            if kind == UNKNOWN {
                self.tally.first_unknown.get_or_insert_with(Instant::now);
            }
            *self.tally.unknowns.entry(kind).or_default() += 1;
        }
        if event == Event::Fail {
            self.tally.first_refused.get_or_insert_with(Instant::now);
            *self.tally.refusals.entry(kind(&answer)).or_default() += 1;
        }
        if event == Event::Fail && self.tally.first_refusal.is_none() {
            self.tally.first_refusal.clone_from(&note);
        }
        // Held to its word: what was not done must not be there.
        let undone = event == Event::Info && !cut && answer.as_ref().is_ok_and(Answer::undone);
        let recorded = if undone { Event::Fail } else { event };
        self.journal.record(Entry { round: self.round, event: recorded, verb, op, task_id, note }).await?;
        match event {
            _ if answer.is_err() => sleep(RECONNECT_AFTER).await,
            Event::Fail | Event::Info => sleep(REFUSED_PAUSE).await,
            Event::Ok | Event::Invoke | Event::Void | Event::Late => {}
        }
        Ok(event)
    }
}

/// Of two answers to one request: a success tells most, a refusal says nothing about the other.
fn certainty(answer: &Result<Answer>) -> u8 {
    match answer {
        Ok(answer) if answer.success() => 2,
        Ok(answer) if answer.refused() || answer.undone() => 0,
        _ => 1,
    }
}

/// Few enough kinds to count: the status and code of an answer, or that there was none.
fn kind(answer: &Result<Answer>) -> String {
    match answer {
        Ok(answer) => format!("{} {}", answer.status, answer.code().unwrap_or("without a code")),
        Err(_) => "no answer".to_owned(),
    }
}
