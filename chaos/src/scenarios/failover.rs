//! kill -9 of the primary while its log lags behind, promotion of the standby, and the old primary brought back as it
//! was. The server is not restarted: it has to find the new primary and stay away from the old one.
//!
//! `failover-sync`: commits are answered when the standby has them, and a proxy leads to whichever is the primary.
//! Nothing promised may be lost. `failover-async`: the server knows both addresses, and the old primary, which waits for
//! no standby, would take its writes. What is lost must be the end of the history, and no more than the dead primary
//! had written and not sent.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::{After, Scenario, configure};
use crate::checker::{Invariant, Violation};
use crate::client::Endpoint;
use crate::cluster::Cluster;
use crate::history::{Entry, Event, Fate, Op, Verb};
use crate::journal::Journal;
use crate::listing::{self, Listing};
use crate::load::{Load, Pace, Stamp, Tally};
use crate::rng::{Rng, Stream};
use crate::server::{Launch, Server};
use crate::standby::{self, Behind, Gateway};

/// How long the log is held back before the kill.
const LAG_MS_MAX: u64 = 450;
/// Shorter than that: a server that gives up waiting for the standby must not take that for a commit.
const CONFIG: &str = "[postgres]\nstatement_ms = 250\n";
/// Load on the new primary: before the old one is back, and beside it.
const AFTERWARDS: Duration = Duration::from_millis(200);
/// For the server to be led to the new primary.
const SERVICE_MAX: Duration = Duration::from_secs(60);
/// Making, promoting and tempting are most of a round.
const LOAD_MS_MAX: u64 = 600;
/// How far an asynchronous standby is behind, at most, while nobody holds the log back.
const UNSENT_MAX: Duration = Duration::from_secs(1);
const REPLY_LOST: &str = "503 unavailable";
/// By then a kill has come between a commit and its answer.
const ROUNDS_SURE: u32 = 4;
/// What a call may be told while nobody can serve it: nobody knows, or nothing was done.
const HONEST: [&str; 3] = [REPLY_LOST, "503 store_unavailable", "503 overloaded"];
const TASKS: &str = "SELECT count(*) FROM tasks";

pub struct Failover {
    folder: PathBuf,
    rng: Rng,
    synchronous: bool,
    /// Leaves the pair asynchronous and judges it as if it were not.
    planted: bool,
    gateway: Option<Gateway>,
    primary: Option<Cluster>,
    /// The next standby, which is made while the round is checked.
    making: Option<JoinHandle<Result<(Cluster, Duration)>>>,
    standby: Option<Cluster>,
    round: u32,
    struck: Option<Struck>,
    /// Answers to commits that were lost, as their callers were told.
    replies_lost: u64,
    told: String,
}

/// What a fail-over was.
struct Struck {
    killed: Instant,
    promoted: Instant,
    lag_ms: u64,
    behind: Behind,
    /// Tasks that the old primary has taken after it was brought back.
    forked: u64,
}

impl Failover {
    pub fn new(folder: PathBuf, seed: u64, synchronous: bool, planted: bool) -> Self {
        Failover {
            folder,
            rng: Rng::new(seed, Stream::Fault),
            synchronous,
            planted,
            gateway: None,
            primary: None,
            making: None,
            standby: None,
            round: 0,
            struck: None,
            replies_lost: 0,
            told: String::new(),
        }
    }

    /// Brings the old primary back as it was, takes the server's connections away so that it has to choose again, and
    /// counts what the old one was given.
    async fn tempt(&self, old: &mut Cluster, new: &Cluster) -> Result<u64> {
        old.start().await.context("the old primary")?;
        let before: u64 = standby::sql(old, TASKS).await?.parse()?;
        let sever = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'waybill'";
        standby::sql(new, sever).await?;
        sleep(AFTERWARDS).await;
        let after: u64 = standby::sql(old, TASKS).await?.parse()?;
        old.kill().await?;
        Ok(after - before)
    }
}

impl Scenario for Failover {
    async fn prepare(&mut self, launch: &mut Launch) -> Result<PathBuf> {
        let primary = Cluster::create(&self.folder).await?;
        standby::prepare(&primary).await?;
        let standby = primary.beside("postgres-2")?;
        let store = if self.synchronous {
            Cluster::url(self.gateway.insert(Gateway::start(primary.port).await?).port)
        } else {
            let (one, two) = (primary.port, standby.port);
            format!("postgres://postgres@127.0.0.1:{one},127.0.0.1:{two}/waybill?target_session_attrs=read-write")
        };
        launch.extra.extend(["--store".into(), store]);
        self.making = Some(tokio::spawn(standby::follow(primary.port, standby)));
        self.primary = Some(primary);
        configure(&self.folder, CONFIG, launch)
    }

    /// One answer of the primary that took it along, the other of the one that never had it. The old one's parts live a
    /// moment longer than it does, and the new one takes writes a moment before we know.
    fn forgives(&self, asked: &Stamp) -> bool {
        let struck = self.struck.as_ref().filter(|_| !self.synchronous);
        struck.is_some_and(|struck| asked.began <= struck.promoted && asked.ended >= struck.killed)
    }

    /// What is made in a round is looked at in it.
    fn pace(&self, connections: u32) -> Pace {
        Pace { connections, per_second: 400, sprints: false }
    }

    fn load_ms_max(&self) -> u64 {
        LOAD_MS_MAX
    }

    /// The standby was begun when the last round had struck; here it only has to be streaming.
    async fn begin(&mut self, server: Server, _launch: &Launch, _data: &Path) -> Result<Option<Server>> {
        self.round += 1;
        let (standby, took) = self.making.take().context("no standby is being made")?.await??;
        standby::attach(self.primary.as_ref().context("no primary")?, self.synchronous && !self.planted).await?;
        self.told = format!("standby made in {:.1} s", took.as_secs_f64());
        self.standby = Some(standby);
        Ok(Some(server))
    }

    async fn strike(&mut self, server: Server, _load: &Load) -> Result<After> {
        let mut old = self.primary.take().context("no primary")?;
        let standby = self.standby.take().context("no standby")?;
        let lag_ms = self.rng.below(LAG_MS_MAX);
        let (killed, behind) = standby::kill_late(&mut old, &standby, Duration::from_millis(lag_ms)).await?;
        standby::promote(&standby).await.context("promoting the standby")?;
        let promoted = Instant::now();
        if let Some(gateway) = &self.gateway {
            gateway.aim(standby.port);
        }
        server.await_service(SERVICE_MAX).await.context("after the promotion")?;
        sleep(AFTERWARDS).await;
        let forked = self.tempt(&mut old, &standby).await?;
        self.struck = Some(Struck { killed, promoted, lag_ms, behind, forked });
        self.making = Some(tokio::spawn(standby::follow(standby.port, old)));
        self.primary = Some(standby);
        Ok(After::Serving(Box::new(server)))
    }

    /// What the standby had not received when the log was held back is not there any more.
    fn voids(&self) -> Option<(Instant, Instant)> {
        let struck = self.struck.as_ref().filter(|_| !self.synchronous)?;
        let since = struck.killed.checked_sub(Duration::from_millis(struck.lag_ms) + UNSENT_MAX)?;
        Some((since, struck.promoted))
    }

    async fn account(&mut self, tally: &Tally, at: &Endpoint, journal: &Journal) -> Result<Vec<Violation>> {
        if self.synchronous {
            return Ok(Vec::new());
        }
        let struck = self.struck.as_ref().context("nothing was struck")?;
        let lost = lost(self.round, at, journal).await?;
        let violations = judge_loss(&lost, &tally.stamps, struck);
        self.told = format!("{}, {} acknowledged lost", self.told, lost.len());
        for (verb, op) in lost {
            let note = Some("lost with the asynchronous primary".to_owned());
            journal.record(Entry { round: self.round, event: Event::Void, verb, op, task_id: None, note }).await?;
        }
        Ok(violations)
    }

    fn judge(&mut self, tally: &Tally, _created_us: &HashMap<Op, i64>) -> Vec<Violation> {
        let Some(struck) = self.struck.take() else { return Vec::new() };
        let answers: Vec<String> = tally.unknowns.iter().map(|(kind, count)| format!("{count} × {kind}")).collect();
        self.told = format!(
            "{}; killed with the log {} ms late ({} kB, {} commits), served again after {}; answered {}",
            self.told,
            struck.lag_ms,
            struck.behind.bytes >> 10,
            struck.behind.commits,
            served_after(&tally.stamps, &struck)
                .map_or_else(|| "the load".to_owned(), |gap| format!("{:.2} s", gap.as_secs_f64())),
            if answers.is_empty() { "no 503".to_owned() } else { answers.join(", ") },
        );
        self.replies_lost += tally.unknowns.get(REPLY_LOST).copied().unwrap_or(0);
        let mut violations = judge_answers(&tally.unknowns);
        if struck.forked > 0 {
            let detail = format!("the old primary was given {} tasks after it had been replaced", struck.forked);
            violations.push(Violation::new(Invariant::Lost, detail));
        }
        violations
    }

    fn told(&self) -> Option<String> {
        Some(self.told.clone())
    }

    fn finish(&mut self) -> Result<Option<String>> {
        // An asynchronous primary answers what it has begun before its parts notice that it is dead.
        let untested = self.synchronous && self.replies_lost == 0 && self.round >= ROUNDS_SURE;
        ensure!(!untested, "in {} rounds no reply was lost, so nothing was tested", self.round);
        Ok(Some(format!("{} callers were told that the answer to their commit was lost", self.replies_lost)))
    }
}

/// From the kill to the first promise of the new primary.
fn served_after(stamps: &[Stamp], struck: &Struck) -> Option<Duration> {
    let ended = stamps.iter().map(|stamp| stamp.ended).filter(|ended| *ended > struck.promoted).min()?;
    Some(ended - struck.killed)
}

/// So many calls may share a transaction.
const CALLS_PER_COMMIT: u64 = 8;

/// Whoever was not served was told so.
fn judge_answers(unknowns: &BTreeMap<String, u64>) -> Vec<Violation> {
    let others = unknowns.iter().filter(|(kind, _)| !HONEST.contains(&kind.as_str()));
    others.map(|(kind, count)| Violation::new(Invariant::Unserved, format!("{count} × {kind}"))).collect()
}

/// What was promised in the round and is not there.
async fn lost(round: u32, at: &Endpoint, journal: &Journal) -> Result<Vec<(Verb, Op)>> {
    let rounds = listing::rounds(&journal.history());
    let listed = Listing::default().round(round, at, &rounds).await?;
    let there: HashMap<&str, Option<&str>> =
        listed.iter().map(|item| (item.task_id.as_str(), item.status.as_deref())).collect();
    let history = journal.history();
    let of_round = history.iter().filter(|(_, task)| task.round == round && task.create == Fate::Promised);
    let gone = of_round.filter_map(|(op, task)| match there.get(task.task_id.as_deref()?) {
        None => Some((Verb::Create, op)),
        Some(status) if task.cancel == Some(Fate::Promised) && *status != Some("canceled") => Some((Verb::Cancel, op)),
        Some(_) => None,
    });
    Ok(gone.collect())
}

/// A create that was lost had not ended before one began that was kept, of those that the old primary answered; and the
/// old primary had at least as many commits to itself as that many promises take.
fn judge_loss(lost: &[(Verb, Op)], stamps: &[Stamp], struck: &Struck) -> Vec<Violation> {
    let mut violations = Vec::new();
    let is_lost = |op: Op| lost.contains(&(Verb::Create, op));
    let first_lost = stamps.iter().filter(|stamp| is_lost(stamp.op)).map(|stamp| stamp.ended).min();
    let kept = stamps.iter().filter(|stamp| stamp.ended < struck.killed && !is_lost(stamp.op));
    for stamp in kept.filter(|stamp| first_lost.is_some_and(|lost| lost < stamp.began)) {
        violations.push(Violation::of(Invariant::Lost, stamp.op, "kept, although an earlier promise was lost"));
    }
    if lost.len() as u64 > struck.behind.commits.saturating_mul(CALLS_PER_COMMIT) {
        let detail = format!("{} promises, with {} commits not yet sent", lost.len(), struck.behind.commits);
        violations.push(Violation::new(Invariant::Lost, detail));
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_is_the_end_of_the_history_and_no_more_than_was_not_sent() {
        let killed = Instant::now() + Duration::from_secs(60);
        let struck =
            |commits| Struck { killed, promoted: killed, lag_ms: 0, behind: Behind { bytes: 0, commits }, forked: 0 };
        let op = |seq| Op { conn: 0, seq };
        let stamp = |seq: u32| {
            let began = killed - Duration::from_secs(10) + Duration::from_secs(2 * u64::from(seq));
            Stamp { op: op(seq), began, ended: began + Duration::from_secs(1) }
        };
        let stamps = [0, 1, 2, 6].map(stamp);
        let create = |seq| (Verb::Create, op(seq));
        assert!(judge_loss(&[], &stamps, &struck(0)).is_empty());
        // The last one was made on the new primary.
        assert!(judge_loss(&[create(1), create(2)], &stamps, &struck(2)).is_empty());
        assert_eq!(judge_loss(&[create(1)], &stamps, &struck(2)).len(), 1);
        assert!(judge_loss(&[create(2), (Verb::Cancel, op(0))], &stamps, &struck(1)).is_empty(), "two share a commit");
        assert_eq!(judge_loss(&[create(2), (Verb::Cancel, op(0))], &stamps, &struck(0)).len(), 1);
    }

    #[test]
    fn only_honest_answers_are_clean() {
        let answers = |kinds: &[&str]| kinds.iter().map(|kind| ((*kind).to_owned(), 1)).collect();
        assert!(judge_answers(&answers(&HONEST)).is_empty());
        assert_eq!(judge_answers(&answers(&["503 unavailable", "500 internal", "no answer"])).len(), 2);
    }
}
