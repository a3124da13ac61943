//! Asks a restarted server about the history and lets the checker judge.
//!
//! After a round all of that round is asked and a sample of the older ones, so that a round stays short however long
//! the history is; at the end everything is asked. Unknown operations are settled on the way: sent again with the same
//! key, twice, and both answers must be one task.

use std::collections::HashMap;
use std::sync::Arc;

use anyhow::{Context, Result};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::checker::{self, Invariant, Violation};
use crate::client::{ATTEMPT_PAUSE, ATTEMPTS_MAX, Answer, Client, Endpoint};
use crate::foreign::Foreign;
use crate::history::{Entry, Event, Fate, Op, Verb};
use crate::journal::Journal;
use crate::listing::{self, Listing};
use crate::rng::{Rng, Stream};
use crate::stamp;

const SAMPLE_OLD: usize = 100;
const SAMPLE_RETRIES: usize = 200;
const SAMPLE_RETRIES_AT_END: usize = 5_000;
const SAMPLE_CANCELS: usize = 50;

#[derive(Clone, Copy)]
enum Probe {
    Fetch(Op),
    /// The create again, with its key.
    Retry(Op),
    Cancel(Op),
    /// Of a task that was canceled: it changes nothing.
    CancelAgain(Op),
}

pub struct Audit {
    connections: usize,
    attempts_max: u32,
    rng: Rng,
    listing: Listing,
    /// When the tasks that were fetched say they were made, in microseconds; only the last round's are complete.
    pub created_us: HashMap<Op, i64>,
    /// Unknown operations that were settled so far.
    pub resolved: u64,
    /// Whose tasks they are, connection by connection; the caller's own where there is none. A key is its owner's, so whoever
    /// sends a create again for somebody says for whom.
    pub owners: Arc<[String]>,
    /// Who must not see any of it.
    pub foreign: Option<Foreign>,
}

impl Audit {
    pub fn new(connections: u32, seed: u64) -> Self {
        Audit {
            connections: connections as usize,
            attempts_max: ATTEMPTS_MAX,
            rng: Rng::new(seed, Stream::Sample),
            listing: Listing::default(),
            created_us: HashMap::new(),
            resolved: 0,
            owners: Arc::default(),
            foreign: None,
        }
    }

    /// One that takes no for an answer: what a damaged database cannot show is asked for once.
    pub fn once(connections: u32, seed: u64) -> Self {
        Audit { attempts_max: 1, ..Audit::new(connections, seed) }
    }

    /// The promises of a round and some of the older ones, looked at without changing anything.
    pub async fn promises(&mut self, round: u32, at: &Endpoint, journal: &Journal) -> Result<Vec<Violation>> {
        let (new, old) = self.promised(round, journal);
        self.ask(new.into_iter().chain(old).map(Probe::Fetch).collect(), at, journal).await
    }

    /// The promised creates of the round, and a sample of those before.
    fn promised(&mut self, round: u32, journal: &Journal) -> (Vec<Op>, Vec<Op>) {
        let (new, old) = {
            let history = journal.history();
            let promised =
                |wanted: bool| history.select(|task| task.create == Fate::Promised && (task.round == round) == wanted);
            (promised(true), promised(false))
        };
        (new, self.rng.sample(old, SAMPLE_OLD))
    }

    /// The promises first, untouched by any retry: sending a lost key again would create it anew.
    pub async fn after_round(&mut self, round: u32, at: &Endpoint, journal: &Journal) -> Result<Vec<Violation>> {
        let (new, old) = self.promised(round, journal);
        let fetches = new.iter().chain(&old).copied().map(Probe::Fetch).collect();
        let violations = self.ask(fetches, at, journal).await?;
        if !violations.is_empty() {
            return Ok(violations);
        }
        let violations = self.resolve(round, at, journal).await?;
        if !violations.is_empty() {
            return Ok(violations);
        }
        let retries = self.rng.sample(new, SAMPLE_RETRIES).into_iter().chain(old).map(Probe::Retry).collect();
        let mut violations = self.ask(retries, at, journal).await?;
        let canceled = journal.history().select(|task| task.cancel == Some(Fate::Promised) && task.round == round);
        let again = self.rng.sample(canceled, SAMPLE_CANCELS).into_iter().map(Probe::CancelAgain).collect();
        violations.extend(self.ask(again, at, journal).await?);
        violations.extend(self.foreigners(round, at, journal).await?);
        let rounds = listing::rounds(&journal.history());
        let listed = self.listing.round(round, at, &rounds).await?;
        let history = journal.history();
        let must = history.select(|task| task.create == Fate::Promised && task.round == round);
        violations.extend(checker::judge_list(&history, &listed, &must));
        Ok(violations)
    }

    async fn foreigners(&mut self, round: u32, at: &Endpoint, journal: &Journal) -> Result<Vec<Violation>> {
        let Some(foreign) = &self.foreign else { return Ok(Vec::new()) };
        let task_ids = {
            let history = journal.history();
            let of_round = history.iter().filter(|(_, task)| task.round == round);
            of_round.filter_map(|(_, task)| task.task_id.clone()).collect()
        };
        foreign.look(at, task_ids, &mut self.rng).await
    }

    /// Everything promised in the whole run.
    pub async fn everything(&mut self, at: &Endpoint, journal: &Journal) -> Result<Vec<Violation>> {
        let promised = journal.history().select(|task| task.create == Fate::Promised);
        let fetches = promised.iter().copied().map(Probe::Fetch).collect();
        let mut violations = self.ask(fetches, at, journal).await?;
        let sample = self.rng.sample(promised.clone(), SAMPLE_RETRIES_AT_END);
        violations.extend(self.ask(sample.into_iter().map(Probe::Retry).collect(), at, journal).await?);
        let rounds = listing::rounds(&journal.history());
        let listed = self.listing.everything(at, &rounds).await?;
        violations.extend(checker::judge_list(&journal.history(), &listed, &promised));
        Ok(violations)
    }

    async fn ask(&mut self, probes: Vec<Probe>, at: &Endpoint, journal: &Journal) -> Result<Vec<Violation>> {
        let answers = self.send(probes, at, journal).await?;
        let made = answers.iter().filter_map(|(probe, answer)| match (probe, answer) {
            (Probe::Fetch(op), Some(answer)) => Some((*op, stamp::micros(answer.text("created_at")?)?)),
            _ => None,
        });
        self.created_us.extend(made);
        let history = journal.history();
        let violations = answers.iter().filter_map(|(probe, answer)| match probe {
            Probe::Fetch(op) => checker::judge_fetch(&history, *op, answer.as_ref()),
            Probe::Retry(op) => checker::judge_retry(&history, *op, answer.as_ref()),
            Probe::CancelAgain(op) => checker::judge_repeated_cancel(*op, answer.as_ref()),
            Probe::Cancel(_) => None,
        });
        Ok(violations.collect())
    }

    /// Settles every unknown operation: a first retry finds or makes the task, a second must find the same one.
    async fn resolve(&mut self, round: u32, at: &Endpoint, journal: &Journal) -> Result<Vec<Violation>> {
        let (creates, cancels) = {
            let history = journal.history();
            (history.select(|task| task.create.open()), history.select(|task| task.cancel.is_some_and(Fate::open)))
        };
        let retries = creates.iter().map(|op| (Verb::Create, *op)).chain(cancels.iter().map(|op| (Verb::Cancel, *op)));
        let mut probes = Vec::new();
        for (verb, op) in retries {
            journal.invoke(round, verb, op).await?;
            probes.push(if verb == Verb::Create { Probe::Retry(op) } else { Probe::Cancel(op) });
        }
        let mut violations = Vec::new();
        for (probe, answer) in self.send(probes, at, journal).await? {
            violations.extend(settle(round, probe, answer, journal).await?);
        }
        if violations.is_empty() {
            self.resolved += (creates.len() + cancels.len()) as u64;
            let again = creates.iter().map(|op| Probe::Retry(*op));
            let fetches = creates.iter().chain(&cancels).map(|op| Probe::Fetch(*op));
            violations = self.ask(again.chain(fetches).collect(), at, journal).await?;
        }
        Ok(violations)
    }

    /// Sends the probes over several connections; the answers come in no particular order.
    async fn send(&self, probes: Vec<Probe>, at: &Endpoint, journal: &Journal) -> Result<Vec<(Probe, Option<Answer>)>> {
        let share = probes.len().div_ceil(self.connections).max(1);
        let attempts_max = self.attempts_max;
        let probes: Arc<[Probe]> = probes.into();
        let mut workers = JoinSet::new();
        for first in (0..probes.len()).step_by(share) {
            let (probes, owners) = (Arc::clone(&probes), Arc::clone(&self.owners));
            let (journal, mut client) = (journal.clone(), Client::new(at.clone()));
            workers.spawn(async move {
                let mut answers = Vec::with_capacity(share);
                for probe in probes.iter().skip(first).take(share) {
                    answers.push((*probe, send_one(*probe, attempts_max, &owners, &mut client, &journal).await));
                }
                answers
            });
        }
        let mut answers = Vec::with_capacity(probes.len());
        while let Some(part) = workers.join_next().await {
            answers.extend(part.context("a probe ended badly")?);
        }
        Ok(answers)
    }
}

/// Journals the answer to one retried operation.
async fn settle(round: u32, probe: Probe, answer: Option<Answer>, journal: &Journal) -> Result<Option<Violation>> {
    let (verb, op) = match probe {
        Probe::Fetch(op) | Probe::Retry(op) => (Verb::Create, op),
        Probe::Cancel(op) | Probe::CancelAgain(op) => (Verb::Cancel, op),
    };
    let settled = answer.as_ref().filter(|answer| answer.success()).and_then(|answer| match verb {
        Verb::Create => answer.text("task_id").map(str::to_owned),
        // Already canceled (`ok: false`) settles it as well: the first attempt did happen.
        Verb::Cancel => (answer.text("status") == Some("canceled"))
            .then(|| journal.history().get(op).and_then(|task| task.task_id.clone()))
            .flatten(),
    });
    let late = verb == Verb::Cancel && answer.as_ref().is_some_and(checker::ended_otherwise);
    let note = answer.map_or_else(|| "never answered".to_owned(), |answer| answer.brief());
    let event = if late {
        Event::Late
    } else if settled.is_some() {
        Event::Ok
    } else {
        Event::Info
    };
    let violation = (event == Event::Info).then(|| {
        let detail = format!("conn {} seq {}: the retry of an unknown {verb:?}: {note}", op.conn, op.seq);
        Violation::new(Invariant::Unserved, detail)
    });
    journal.record(Entry { round, event, verb, op, task_id: settled, note: Some(note) }).await?;
    Ok(violation)
}

async fn send_one(
    probe: Probe,
    attempts_max: u32,
    owners: &[String],
    client: &mut Client,
    journal: &Journal,
) -> Option<Answer> {
    let mut last = None;
    for attempt in 0..attempts_max {
        if attempt > 0 {
            sleep(ATTEMPT_PAUSE).await;
        }
        let answer = match probe {
            Probe::Fetch(op) => client.fetch(&id_of(journal, op)).await,
            Probe::Retry(op) => {
                let mut request = journal.history().request(op);
                if !owners.is_empty() {
                    request["created_by"] = owners[op.conn as usize % owners.len()].as_str().into();
                }
                client.create(&request).await
            }
            Probe::Cancel(op) | Probe::CancelAgain(op) => client.cancel(&id_of(journal, op)).await,
        };
        match answer {
            Ok(answer) if answer.success() || answer.refused() => return Some(answer),
            Ok(answer) => last = Some(answer),
            Err(_) => {}
        }
    }
    // A 5xx that stays is told as such: for the checker it is an answer, and not a success.
    last
}

fn id_of(journal: &Journal, op: Op) -> String {
    journal.history().get(op).and_then(|task| task.task_id.clone()).unwrap_or_default()
}
