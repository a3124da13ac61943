//! One run of a scenario: rounds of load, fault, restart and check over one growing history.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures_util::future::join_all;
use tempfile::TempDir;
use tokio::time::sleep;

use crate::checker::{Invariant, Violation};
use crate::journal::Journal;
use crate::load::{Load, Tally};
use crate::mail::Mail;
use crate::queues::Queues;
use crate::rng::{Rng, Stream};
use crate::saved::Saved;
use crate::say;
use crate::scenarios::{After, Scenario};
use crate::server::{self, Launch, Server};
use crate::tasks::Tasks;
use crate::workload::{Count, Signals, Site, Workload};

/// The shortest load before a fault; the longest is an option.
const LOAD_MS_MIN: u64 = 500;
/// Flat out for this long before the fault.
const SPRINT_MS: u64 = 150;
const LOOK: Duration = Duration::from_millis(50);
/// For a server that was not restarted: it has to find its store again, and to notice that it has.
const SERVICE_MAX: Duration = Duration::from_secs(60);
const VIOLATIONS_SHOWN: usize = 10;

pub struct Plan {
    pub scenario: String,
    pub run: String,
    pub seed: u64,
    pub rounds: u32,
    pub seconds: u64,
    pub connections: u32,
    pub launch: Launch,
    /// The run's own folder.
    pub folder: PathBuf,
    /// The state of the run that is continued.
    pub resumed: Option<Saved>,
}

impl Plan {
    /// The seed of what is chosen from here on: a continued run must not repeat the choices of its first rounds.
    pub fn choices(&self) -> u64 {
        let done = self.resumed.as_ref().map_or(0, |saved| saved.passed);
        self.seed.wrapping_add(u64::from(done).wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }
}

/// Filled as the run goes on, so that an interrupted one still says how far it came.
#[derive(Default)]
pub struct Report {
    pub passed: u32,
    pub failed: u32,
    pub acknowledged: u64,
    pub refused: u64,
    pub resolved: u64,
    pub violations: Vec<Violation>,
    pub longest: Duration,
    /// What the run as a whole has to say.
    pub summaries: Vec<String>,
}

impl Report {
    pub fn count(&self, invariant: Invariant) -> usize {
        self.violations.iter().filter(|violation| violation.invariant == invariant).count()
    }
}

/// Runs until the rounds are done or the first one fails: after a violation the history no longer fits the server, and
/// every later round would only repeat it. An `Err` is trouble of the harness or an interruption, not a finding.
pub async fn run(plan: &mut Plan, scenario: &mut impl Scenario, report: &mut Report) -> Result<()> {
    let (data, journal) = match plan.resumed.clone() {
        Some(saved) => {
            server::end_orphan(&saved.data)?;
            (scenario.resume(&mut plan.launch, &saved.data).await?, Journal::resume(saved.journal)?)
        }
        None => {
            let data = scenario.prepare(&mut plan.launch).await?;
            // Kept until the run is over: an interrupted one is continued from it.
            let home = journal_home(&data)?.keep();
            (data, Journal::create(home.join("journal.jsonl"), &plan.run, plan.seed)?)
        }
    };
    let mut work = Work::new(plan, scenario, &journal, report.resolved)?;
    rounds(plan, scenario, &mut work, data, &journal, report).await?;
    // Beside the data, for whoever keeps the folder.
    for kept in work.all().map(|workload| workload.journal().to_owned()) {
        let name = kept.file_name().context("a journal without a name")?;
        fs::copy(&kept, plan.folder.join(name)).context("keeping the journal")?;
    }
    discard(journal.path());
    Ok(())
}

/// Everything that is asked of a server in a round. A scenario's own judgement rests on the tasks, so those are always there.
struct Work {
    tasks: Tasks,
    others: Vec<Box<dyn Workload>>,
}

impl Work {
    fn new(plan: &Plan, scenario: &impl Scenario, journal: &Journal, resolved: u64) -> Result<Self> {
        let tasks = Tasks::new(journal.clone(), plan.connections, plan.seed, resolved);
        let mut others: Vec<Box<dyn Workload>> = Vec::new();
        if scenario.takes_queues() {
            others.push(Box::new(Queues::new(journal.path(), plan.choices(), scenario.queues())?));
        }
        if scenario.takes_mail() {
            others.push(Box::new(Mail::new(journal.path(), plan.choices())));
        }
        Ok(Work { tasks, others })
    }

    fn all(&mut self) -> impl Iterator<Item = &mut dyn Workload> {
        let others = self.others.iter_mut().map(|other| other.as_mut() as &mut dyn Workload);
        std::iter::once(&mut self.tasks as &mut dyn Workload).chain(others)
    }

    /// All at once, and the violations in the order of the workloads.
    async fn check(&mut self, round: u32, at: &Site) -> Result<Vec<Violation>> {
        let checks = join_all(self.all().map(|workload| workload.check(round, at))).await;
        Ok(checks.into_iter().collect::<Result<Vec<_>>>()?.concat())
    }

    async fn close(&mut self, at: &Site) -> Result<Vec<Violation>> {
        let closed = join_all(self.all().map(|workload| workload.close(at))).await;
        Ok(closed.into_iter().collect::<Result<Vec<_>>>()?.concat())
    }

    async fn finish(&mut self) -> Result<Vec<Count>> {
        join_all(self.all().map(Workload::finish)).await.into_iter().collect()
    }

    fn resolved(&mut self) -> u64 {
        self.all().map(|workload| workload.resolved()).sum()
    }
}

/// Removes a journal's folder.
pub fn discard(journal: &Path) {
    if let Some(home) = journal.parent() {
        let _ = fs::remove_dir_all(home);
    }
}

fn save(plan: &Plan, journal: &Journal, data: &Path, report: &Report) -> Result<()> {
    let mut saved = Saved {
        scenario: plan.scenario.clone(),
        seed: plan.seed,
        rounds: plan.rounds,
        seconds: plan.seconds,
        connections: plan.connections,
        journal: journal.path().to_owned(),
        data: PathBuf::new(),
        passed: 0,
        acknowledged: 0,
        refused: 0,
        resolved: 0,
        longest_ms: 0,
    };
    saved.note(report, data);
    saved.write(&plan.folder)
}

async fn rounds(
    plan: &mut Plan,
    scenario: &mut impl Scenario,
    work: &mut Work,
    mut data: PathBuf,
    journal: &Journal,
    report: &mut Report,
) -> Result<()> {
    save(plan, journal, &data, report)?;
    scenario.arm(&mut plan.launch)?;
    let mut server = Server::start(&plan.launch, &data).await.context("the first start")?;
    // Operations of a round that was interrupted have used up its number.
    let before = journal.history().last_round();
    let violations = prepare(scenario, work, before, &server).await?;
    if !violations.is_empty() {
        found(report, violations);
        return Ok(());
    }
    let mut strikes = Rng::new(plan.choices(), Stream::Strike);
    let pace = Pace { began: Instant::now(), done: report.passed, rounds: plan.rounds };
    for round in (before + 1..).take((plan.rounds - report.passed) as usize) {
        let started = Instant::now();
        let load_ms_max = (plan.seconds * 1_000).min(scenario.load_ms_max()).max(LOAD_MS_MIN);
        let load_ms = LOAD_MS_MIN + strikes.below(load_ms_max - LOAD_MS_MIN + 1);
        let after = match scenario.begin(server, &plan.launch, &data).await? {
            Some(server) => {
                let struck = strike_under_load(plan, scenario, work, round, load_ms, server, journal, report).await?;
                let Some(struck) = struck else { return Ok(()) };
                struck
            }
            None => {
                work.tasks.tally = Tally::default();
                After::Restart(data.clone())
            }
        };
        server = match come_back(plan, scenario, after, &mut data).await {
            Ok(server) => server,
            Err(error) => {
                // What the scenario has seen may say why.
                let mut violations = scenario.judge(&work.tasks.tally, work.tasks.created_us());
                let detail = format!("round {round}: no service after the fault: {error:#}");
                violations.push(Violation::new(Invariant::Unserved, detail));
                found(report, violations);
                return Ok(());
            }
        };
        let violations = judge_round(scenario, work, round, &mut server, journal).await?;
        report.resolved = work.resolved();
        report.longest = report.longest.max(started.elapsed());
        if !violations.is_empty() {
            found(report, violations);
            return Ok(());
        }
        report.passed += 1;
        save(plan, journal, &data, report)?;
        say(&format!(
            "round {}/{}: {}, checked after {:.2} s; {} acknowledged, {} resolved so far{}",
            report.passed,
            plan.rounds,
            scenario.told().unwrap_or_else(|| format!("struck after {:.2} s of load", load_ms as f64 / 1e3)),
            started.elapsed().as_secs_f64(),
            report.acknowledged,
            report.resolved,
            pace.left(report.passed),
        ));
    }
    say("checking everything once more");
    found(report, work.close(&server.site()).await?);
    found(report, scenario.close(&server.endpoint, journal).await?);
    report.summaries.extend(scenario.finish()?);
    report.summaries.extend(work.all().filter_map(|workload| workload.summary()));
    server.shut_down().await
}

/// Makes every workload ready, and checks what an interrupted run has left, whose last round was `before`.
async fn prepare(
    scenario: &mut impl Scenario,
    work: &mut Work,
    before: u32,
    server: &Server,
) -> Result<Vec<Violation>> {
    for workload in work.all() {
        workload.open(&server.site()).await.with_context(|| format!("preparing {}", workload.name()))?;
    }
    scenario.open(&server.endpoint).await?;
    work.tasks.owned_by(scenario.owners());
    if before > 0 { work.check(before, &server.site()).await } else { Ok(Vec::new()) }
}

/// Everything that is wrong with a round, once the server is back from its fault.
async fn judge_round(
    scenario: &mut impl Scenario,
    work: &mut Work,
    round: u32,
    server: &mut Server,
    journal: &Journal,
) -> Result<Vec<Violation>> {
    work.tasks.tally.violations.retain(|(stamp, _)| !scenario.forgives(stamp));
    if let Some((since, until)) = scenario.voids() {
        work.all().for_each(|workload| workload.void(since, until));
    }
    let mut violations = scenario.account(&work.tasks.tally, &server.endpoint, journal).await?;
    violations.extend(work.check(round, &server.site()).await?);
    violations.extend(scenario.judge(&work.tasks.tally, work.tasks.created_us()));
    violations.extend(ended(server, "while it was checked")?);
    Ok(violations)
}

/// How long the rest will take, at the pace so far.
struct Pace {
    began: Instant,
    done: u32,
    rounds: u32,
}

impl Pace {
    fn left(&self, passed: u32) -> String {
        let (played, to_go) = (passed - self.done, self.rounds.saturating_sub(passed));
        if played == 0 || to_go == 0 {
            return String::new();
        }
        let left_s = self.began.elapsed().as_secs_f64() / f64::from(played) * f64::from(to_go);
        let left = if left_s < 90.0 { format!("{left_s:.0} s") } else { format!("{:.0} min", left_s / 60.0) };
        format!("; {} %, about {left} left", 100 * passed / self.rounds)
    }
}

/// The server for the check: a new one, or the same, which must serve on.
async fn come_back(plan: &mut Plan, scenario: &mut impl Scenario, after: After, data: &mut PathBuf) -> Result<Server> {
    match after {
        After::Restart(folder) => {
            *data = folder;
            scenario.arm(&mut plan.launch)?;
            Server::start(&plan.launch, data).await
        }
        After::Serving(mut server) => {
            if let Some(violation) = ended(&mut server, "under the fault")? {
                bail!(violation.detail);
            }
            server.await_service(SERVICE_MAX).await?;
            Ok(*server)
        }
    }
}

fn ended(server: &mut Server, when: &str) -> Result<Option<Violation>> {
    let status = server.ended()?;
    Ok(status.map(|status| Violation::new(Invariant::Unserved, format!("the server ended by itself {when}: {status}"))))
}

/// Load, then the fault. `None` when the server ended before anybody struck.
#[expect(clippy::too_many_arguments, reason = "all of a round, in one place")]
async fn strike_under_load(
    plan: &Plan,
    scenario: &mut impl Scenario,
    work: &mut Work,
    round: u32,
    load_ms: u64,
    mut server: Server,
    journal: &Journal,
    report: &mut Report,
) -> Result<Option<After>> {
    let (site, signals, pace) = (server.site(), Signals::default(), scenario.pace(plan.connections));
    work.tasks.ask_as(pace, scenario.callers(&server), &site).await;
    for workload in work.all() {
        workload.start(round, &site, &signals)?;
    }
    let load = Load { round, journal: journal.clone(), sprints: pace.sprints, signals };
    scenario.join(&server, &load)?;
    let until = Instant::now() + Duration::from_millis(load_ms - SPRINT_MS);
    // Looked at now and then: a server that is gone early would fill the journal with calls that nobody answers.
    while Instant::now() < until && server.ended()?.is_none() {
        sleep(LOOK.min(until.saturating_duration_since(Instant::now()))).await;
    }
    load.sprint();
    sleep(Duration::from_millis(SPRINT_MS)).await;
    // Asked before the strike, after which a scenario may speak of its next round.
    let ends_by_itself = scenario.ends_by_itself();
    if !ends_by_itself && let Some(violation) = ended(&mut server, "under load")? {
        found(report, vec![violation]);
        return Ok(None);
    }
    let after = scenario.strike(server, &load).await?;
    load.stop();
    let counts = work.finish().await?;
    for count in &counts {
        report.acknowledged += count.acknowledged;
        report.refused += count.refused;
    }
    let tally = &work.tasks.tally;
    if tally.acknowledged == 0 && !ends_by_itself {
        let why = tally.first_refusal.clone().unwrap_or_else(|| format!("{} without an answer", tally.unknown));
        bail!("round {round}: nothing was acknowledged, so nothing was tested: {why}");
    }
    Ok(Some(after))
}

fn found(report: &mut Report, violations: Vec<Violation>) {
    for violation in violations.iter().take(VIOLATIONS_SHOWN) {
        say(&format!("VIOLATED {violation}"));
    }
    if violations.len() > VIOLATIONS_SHOWN {
        say(&format!("… and {} more", violations.len() - VIOLATIONS_SHOWN));
    }
    report.violations.extend(violations);
}

/// A folder on another file system than the data, so that no fault of theirs is ever ours.
fn journal_home(data: &Path) -> Result<TempDir> {
    let device = fs::metadata(data)?.dev();
    for home in [PathBuf::from("/dev/shm"), std::env::temp_dir()] {
        if fs::metadata(&home).is_ok_and(|home| home.dev() != device)
            && let Ok(folder) = TempDir::with_prefix_in("waybill-chaos-", &home)
        {
            return Ok(folder);
        }
    }
    say("note: no second file system for the journal, it shares the data's");
    Ok(TempDir::with_prefix("waybill-chaos-")?)
}
