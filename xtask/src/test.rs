//! `cargo xtask test`: everything CI checks. Checks of the text stop at the first failure; once the product is built,
//! every stage runs and the failures are counted at the end, so that one run tells all.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::bail;

use crate::process::{self, say};
use crate::setup::{is_root, postgres_bin};
use crate::workspace::Workspace;
use crate::{chaos, deny, foreign, fuzz, hostile, setup, tidy};

pub fn run(workspace: &Workspace) -> anyhow::Result<()> {
    let mut stages = Stages::default();
    stages.must("setup", || setup::run(workspace))?;
    stages.must("tidy", || tidy::run(workspace))?;
    stages.must("deny", || deny::run(workspace))?;
    stages.must("fmt", || process::run(workspace.cargo().args(["fmt", "--all", "--check"])))?;
    let clippy = ["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"];
    stages.must("clippy", || process::run(workspace.cargo().args(clippy)))?;
    // Tests start the real program and expect it where cargo puts it.
    stages.must("build", || workspace.build_programs())?;
    let nextest = setup::cargo_nextest(workspace)?;
    stages.must("build of the tests", || process::run(tests(workspace, &nextest).arg("--no-run")))?;

    let at_once = (cores() * TESTS_PER_CORE).to_string();
    stages.run("tests", || {
        process::run_remembered(tests(workspace, &nextest).args(["--no-fail-fast", "--test-threads", &at_once]))
    });
    stages.run("fuzzing", || fuzz::run(workspace, fuzz::SHORT_SECONDS));
    stages.run("short chaos", || chaos::short(workspace));
    stages.run("short attacks", || hostile::short(workspace));
    stages.say_seconds("foreign clients");
    say_slowest(workspace);
    // Last, so that their count is the last line of a good run.
    stages.run("foreign clients", || foreign::run(workspace));
    stages.end()
}

/// What was done, how long it took, and what failed.
#[derive(Default)]
struct Stages {
    took: Vec<(&'static str, Duration)>,
    failed: Vec<(&'static str, String)>,
}

impl Stages {
    /// What the rest cannot do without.
    fn must(&mut self, name: &'static str, stage: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<()> {
        let began = Instant::now();
        let outcome = stage();
        self.took.push((name, began.elapsed()));
        outcome
    }

    fn run(&mut self, name: &'static str, stage: impl FnOnce() -> anyhow::Result<()>) {
        if let Err(error) = self.must(name, stage) {
            say(&format!("{name}: {error:#}"));
            self.failed.push((name, format!("{error:#}")));
        }
    }

    /// Before the last one, whose count is the last line.
    fn say_seconds(&self, last: &str) {
        let total: Duration = self.took.iter().map(|(_, took)| *took).sum();
        say("seconds per stage:");
        for (name, took) in self.took.iter().map(|(name, took)| (*name, *took)).chain([("until here", total)]) {
            say(&format!("  {:>7.1}  {name}", took.as_secs_f64()));
        }
        say(&format!("  and now {last}"));
    }

    fn end(self) -> anyhow::Result<()> {
        if !self.failed.is_empty() {
            // Once more: between a stage and the end may lie a thousand lines of others.
            self.failed.iter().for_each(|(name, why)| say(&format!("{name}: {why}")));
            let names: Vec<_> = self.failed.iter().map(|(name, _)| *name).collect();
            bail!("failed: {}", names.join(", "));
        }
        Ok(())
    }
}

/// Where nextest writes how long each test took (`.config/nextest.toml`).
const JUNIT: &str = "nextest/default/junit.xml";
const SLOWEST_SHOWN: usize = 15;

/// Of the run that was just made. A file that is missing or unlike what is expected costs the list and nothing else.
fn say_slowest(workspace: &Workspace) {
    let Ok(text) = std::fs::read_to_string(workspace.target.join(JUNIT)) else { return };
    say("the slowest tests, in seconds:");
    for (seconds, name) in slowest(&text, SLOWEST_SHOWN) {
        say(&format!("  {seconds:>7.1}  {name}"));
    }
}

/// The longest first. Each test is an element `<testcase name="…" classname="…" time="…">`.
fn slowest(junit: &str, most: usize) -> Vec<(f64, String)> {
    let mut tests: Vec<(f64, String)> = junit
        .split("<testcase")
        .skip(1)
        .filter_map(|case| {
            let seconds = attribute(case, "time")?.parse().ok()?;
            Some((seconds, format!("{} {}", attribute(case, "classname")?, attribute(case, "name")?)))
        })
        .collect();
    tests.sort_by(|a, b| b.0.total_cmp(&a.0));
    tests.truncate(most);
    tests
}

/// Of a tag whose attributes follow; with a blank before it, since `name` ends `classname` as well.
fn attribute<'a>(element: &'a str, name: &str) -> Option<&'a str> {
    let tag = element.split('>').next()?;
    let (_, value) = tag.split_once(&format!(" {name}=\""))?;
    value.split('"').next()
}

/// Most tests wait more than they work: for a disk, a database, a program to start.
const TESTS_PER_CORE: usize = 2;

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// By nextest, which gives each test a process of its own: several of them bound the memory or the files of theirs.
fn tests(workspace: &Workspace, nextest: &Path) -> Command {
    let mut tests = workspace.command(nextest);
    tests.args(["nextest", "run", "--workspace"]);
    tests
}

/// Stops the clusters that the test kit leaves running for the next test process: every folder below
/// `target/testkit-pg` (or the folder that its file `elsewhere` names) that holds a running data folder.
pub fn stop_databases(workspace: &Workspace) -> anyhow::Result<()> {
    let home = workspace.target.join("testkit-pg");
    let mut homes = vec![home.clone()];
    homes.extend(std::fs::read_to_string(home.join("elsewhere")).ok().map(|path| path.trim().into()));
    let Some(bin) = postgres_bin() else { return Ok(()) };
    for cluster in homes.iter().filter_map(|home| std::fs::read_dir(home).ok()).flatten().flatten() {
        let data = cluster.path().join("data");
        if !data.join("postmaster.pid").exists() {
            continue;
        }
        let mut stop = if is_root() {
            let mut runuser = Command::new("runuser");
            runuser.args(["-u", "postgres", "--"]).arg(bin.join("pg_ctl"));
            runuser
        } else {
            Command::new(bin.join("pg_ctl"))
        };
        stop.current_dir("/").args(["stop", "-s", "-w", "-m", "fast", "-D"]).arg(&data);
        if let Err(error) = process::run(&mut stop) {
            // A stale pid file of a killed cluster is no failure of the tests.
            say(&format!("{}: {error:#}", data.display()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_tests_come_first() {
        let junit = r#"<?xml version="1.0"?><testsuites name="nextest-run" tests="3" time="9.0">
            <testsuite name="waybill-store" time="3.0">
              <testcase name="a::quick" classname="waybill-store" timestamp="2026-01-01T00:00:00Z" time="0.010"></testcase>
              <testcase name="b::slow" classname="waybill-store" time="12.500"><system-out>time="99"</system-out></testcase>
              <testcase classname="waybill-doors::it" name="c" time="1.5"/>
            </testsuite></testsuites>"#;
        let expected = [(12.5, "waybill-store b::slow".to_owned()), (1.5, "waybill-doors::it c".to_owned())];
        assert_eq!(slowest(junit, 2), expected);
        assert_eq!(slowest("none", 2), []);
    }
}
