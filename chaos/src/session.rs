//! One scenario from its folder to its closing lines; and how an interrupted one is left so that it can be continued.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tempfile::TempDir;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::campaign::{self, Plan, Report};
use crate::checker::{Invariant, Violation};
use crate::saved::Saved;
use crate::scenarios::{self, About, Setting};
use crate::server::Launch;
use crate::{Args, print, say};

pub struct Session<'a> {
    pub args: &'a Args,
    pub about: &'static About,
    pub seed: u64,
    pub resumed: Option<Saved>,
}

/// What became of a session, with the line that says so.
pub enum Outcome {
    Good(String),
    Failed(String),
    Skipped(String),
    Interrupted,
}

impl Outcome {
    pub fn good(&self) -> bool {
        matches!(self, Outcome::Good(_) | Outcome::Skipped(_))
    }

    pub fn line(&self) -> String {
        match self {
            Outcome::Good(line) => line.clone(),
            Outcome::Failed(line) => format!("FAILED: {line}"),
            Outcome::Skipped(why) => format!("skipped: {why}"),
            Outcome::Interrupted => "interrupted".to_owned(),
        }
    }
}

/// Listens from its making on, so that no signal ends the program while something is mounted.
pub struct Interruption {
    interrupt: Signal,
    terminate: Signal,
}

impl Interruption {
    pub fn listen() -> Result<Self> {
        Ok(Interruption { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    async fn arrived(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// The run's folder: removed at the end unless there is something in it to look at or to go on with.
enum Folder {
    Fresh(TempDir),
    Resumed(PathBuf),
}

impl Folder {
    fn path(&self) -> &Path {
        match self {
            Folder::Fresh(folder) => folder.path(),
            Folder::Resumed(folder) => folder,
        }
    }

    fn keep(self) -> PathBuf {
        match self {
            Folder::Fresh(folder) => folder.keep(),
            Folder::Resumed(folder) => folder,
        }
    }

    fn remove(self) {
        if let Folder::Resumed(folder) = self {
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

impl Session<'_> {
    /// Plays the scenario to its end, or to the first signal; either way what it started and mounted is taken down.
    pub async fn play(self, interruption: &mut Interruption) -> Result<Outcome> {
        let (args, about, seed) = (self.args, self.about, self.seed);
        let folder = self.folder()?;
        let setting = Setting {
            folder: folder.path().to_owned(),
            keep: args.keep,
            plant: args.plant,
            faketime: args.faketime.clone(),
            sabotaged: args.sabotaged.clone(),
        };
        if let Some(why) = scenarios::lacking(about.name, &setting) {
            print(&format!("skipped: {why}"));
            return Ok(Outcome::Skipped(why));
        }
        let mut plan = self.plan(folder.path());
        let mut report = plan.resumed.as_ref().map_or_else(Report::default, Saved::report);
        let rest = if report.passed > 0 { format!(", {} of them done", report.passed) } else { String::new() };
        say(&format!("{}: {} rounds{rest}, seed {seed:#x}", about.name, plan.rounds));
        let outcome = tokio::select! {
            outcome = Box::pin(scenarios::play(about.name, setting, &mut plan, &mut report)) => Some(outcome),
            () = interruption.arrived() => None,
        };
        report.failed += u32::from(matches!(outcome, Some(Err(_))) || !report.violations.is_empty());
        let line = conclude(about.name, seed, &report, outcome.as_ref());
        let good = verdict(&report, matches!(outcome, Some(Ok(()))), args.expect_red.as_deref());
        self.leave(folder, outcome.as_ref(), good);
        Ok(match outcome {
            None => Outcome::Interrupted,
            Some(_) if good => Outcome::Good(line),
            Some(Err(error)) => Outcome::Failed(format!("{error:#}")),
            Some(Ok(())) => Outcome::Failed(line),
        })
    }

    fn folder(&self) -> Result<Folder> {
        if let Some(folder) = &self.args.resume {
            return Ok(Folder::Resumed(std::path::absolute(folder)?));
        }
        let work = &self.args.work;
        std::fs::create_dir_all(work).with_context(|| format!("creating {}", work.display()))?;
        let name = format!("{}-{:x}-", self.about.name, self.seed);
        Ok(Folder::Fresh(TempDir::with_prefix_in(name, std::path::absolute(work)?)?))
    }

    fn plan(&self, folder: &Path) -> Plan {
        let (args, saved) = (self.args, self.resumed.as_ref());
        let rounds = args.rounds.or_else(|| saved.map(|saved| saved.rounds)).unwrap_or(self.about.rounds);
        Plan {
            scenario: self.about.name.to_owned(),
            run: format!("{}-{:x}", self.about.name, self.seed),
            seed: self.seed,
            rounds: rounds.max(scenarios::rounds_min(self.about.name)).max(saved.map_or(0, |saved| saved.passed)),
            seconds: saved.map_or(args.seconds, |saved| saved.seconds),
            connections: saved.map_or(args.connections, |saved| saved.connections),
            launch: Launch {
                wrapper: Vec::new(),
                envs: Vec::new(),
                program: args.waybill.clone(),
                extra: args.serve_args.clone(),
                log: folder.join("server.log"),
            },
            folder: folder.to_owned(),
            resumed: self.resumed.clone(),
        }
    }

    /// An expected violation is no evidence to keep; what was interrupted or in trouble can be continued.
    fn leave(&self, folder: Folder, outcome: Option<&Result<()>>, good: bool) {
        let can_go_on = scenarios::resumes(self.about.name) && Saved::exists(folder.path());
        let goes_on = !matches!(outcome, Some(Ok(()))) && can_go_on;
        if goes_on && self.args.expect_red.is_none() {
            let folder = folder.keep();
            say(&format!("to go on: cargo xtask chaos --resume {}", folder.display()));
        } else if self.args.keep || (!good && outcome.is_some()) {
            say(&format!("kept: {} (seed {:#x})", folder.keep().display(), self.seed));
        } else {
            if let Ok(saved) = Saved::read(folder.path()) {
                campaign::discard(&saved.journal);
            }
            folder.remove();
        }
    }
}

/// Prints the closing lines.
fn conclude(name: &str, seed: u64, report: &Report, outcome: Option<&Result<()>>) -> String {
    match outcome {
        Some(Err(error)) => say(&format!("error: {error:#}")),
        None => say("interrupted"),
        Some(Ok(())) => {}
    }
    let counts = Invariant::ALL.iter().map(|invariant| (report.count(*invariant), invariant.name()));
    let counts: Vec<String> =
        counts.filter(|(count, _)| *count > 0).map(|(count, name)| format!("{count} {name}")).collect();
    let found = if counts.is_empty() { "none violated".to_owned() } else { counts.join(", ") };
    let line = format!(
        "{} rounds, {} acknowledged, {} refused, {} unknown resolved, {found} (seed {seed:#x}, longest round {:.1} s)",
        report.passed + report.failed,
        report.acknowledged,
        report.refused,
        report.resolved,
        report.longest.as_secs_f64(),
    );
    print(&format!("{name}: {line}"));
    report.summaries.iter().for_each(|summary| print(&format!("{name}: {summary}")));
    print(&format!("{} passed, {} failed", report.passed, report.failed));
    line
}

/// With a planted bug only a violation is a success: a harness in trouble proves nothing in either direction.
fn verdict(report: &Report, finished: bool, expect: Option<&str>) -> bool {
    match expect {
        None => finished && report.violations.is_empty(),
        Some("any") => !report.violations.is_empty(),
        Some(names) => {
            let expected = |violation: &Violation| names.split(',').any(|name| name == violation.invariant.name());
            report.violations.iter().any(expected)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_planted_bug_turns_the_verdict_around() {
        let clean = Report::default();
        let red = Report { violations: vec![Violation::new(Invariant::Lost, "planted")], ..Report::default() };
        for (report, finished, expect, good) in [
            (&clean, true, None, true),
            (&clean, false, None, false),
            (&red, true, None, false),
            (&clean, true, Some("any"), false),
            (&clean, false, Some("any"), false),
            (&red, true, Some("any"), true),
            (&red, true, Some("lost"), true),
            (&red, true, Some("doubled"), false),
        ] {
            assert_eq!(verdict(report, finished, expect), good, "finished {finished}, expected {expect:?}");
        }
    }
}
