//! The guard of a repository: a commit of ten files that the committing agent holds itself, while others hold some of their own.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde_json::json;

use super::agents::Agent;
use super::mcp::Endpoint;
use crate::histogram::Histogram;
use crate::load::Outcome;

const RUNS: usize = 20;
const FILES: usize = 10;
/// Reservations of each of the others.
const HELD: usize = 10;

#[derive(Clone)]
pub struct Repository {
    waybill: PathBuf,
    /// Of the server that runs.
    data: PathBuf,
    folder: PathBuf,
    committing: String,
    other: String,
}

impl Repository {
    /// Its agents are registered anew: the project is the repository's folder.
    pub async fn make(
        endpoint: &Endpoint,
        agents: &[Agent],
        waybill: &Path,
        data: &Path,
        folder: PathBuf,
    ) -> Result<Self> {
        for place in 0..FILES {
            let file = folder.join(path(0, place));
            std::fs::create_dir_all(file.parent().context("a file without a folder")?)?;
            std::fs::write(&file, "fn main() {}\n")?;
        }
        for arguments in [&["init", "--quiet"][..], &["add", "."]] {
            let done = git(&folder).args(arguments).output().context("running git")?;
            check(&done, "git")?;
        }
        let project = folder.to_str().context("a folder whose name is no text")?;
        let first = agents.first().context("no agents")?;
        let human = json!({ "human_key": project });
        endpoint.call(first.key.as_deref(), "ensure_project", &human).await?;
        let mut names = Vec::new();
        for (place, agent) in agents.iter().enumerate() {
            let own = Agent::register(endpoint, project, agent.key.clone()).await?;
            let count = if place == 0 { FILES } else { HELD };
            let paths: Vec<String> = (0..count).map(|file| path(place, file)).collect();
            let reserve = json!({ "project_key": project, "agent_name": own.name, "paths": paths });
            endpoint.call(own.key.as_deref(), "file_reservation_paths", &reserve).await?;
            names.push(own.name);
        }
        let [committing, other, ..] = &names[..] else { bail!("a guard needs two agents") };
        let (committing, other) = (committing.clone(), other.clone());
        Ok(Self { waybill: waybill.to_owned(), data: data.to_owned(), folder, committing, other })
    }

    /// Each run must let the commit pass without a word: a guard that could not look would say so.
    pub async fn measure(&self) -> Result<Outcome> {
        let repository = self.clone();
        tokio::task::spawn_blocking(move || repository.run()).await?
    }

    fn run(&self) -> Result<Outcome> {
        let refused = self.check_as(&self.other).output()?;
        if refused.status.success() {
            bail!("the guard lets somebody else's files pass: {}", text(&refused));
        }
        let (mut latencies, began) = (Histogram::default(), Instant::now());
        for _ in 0..RUNS {
            let start = Instant::now();
            let done = self.check_as(&self.committing).output().context("running the guard")?;
            latencies.record(start.elapsed());
            check(&done, "the guard")?;
            if !done.stderr.is_empty() {
                bail!("the guard passed with a word: {}", text(&done));
            }
        }
        let ops = RUNS as u64;
        Ok(Outcome { ops, ops_total: ops, seconds: began.elapsed().as_secs_f64(), latencies, ..Outcome::default() })
    }

    fn check_as(&self, agent: &str) -> Command {
        let mut command = clean(Command::new(&self.waybill));
        command.args(["guard", "check", "--data"]).arg(&self.data).env("AGENT_NAME", agent);
        command.current_dir(&self.folder).stdin(Stdio::null());
        command
    }
}

/// Of the agent at this place.
fn path(place: usize, file: usize) -> String {
    format!("src/part{place}/file{file}.rs")
}

fn git(folder: &Path) -> Command {
    let mut command = clean(Command::new("git"));
    command.arg("-C").arg(folder);
    command
}

/// Settings of the caller's shell must not change what is measured.
fn clean(mut command: Command) -> Command {
    const PREFIXES: [&str; 4] = ["WAYBILL_", "GIT_", "AGENT_", "FILE_RESERVATIONS_"];
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if PREFIXES.iter().any(|prefix| text.starts_with(prefix)) {
            command.env_remove(&name);
        }
    }
    command
}

fn check(done: &Output, what: &str) -> Result<()> {
    if !done.status.success() {
        bail!("{what} ended with {}: {}", done.status, text(done));
    }
    Ok(())
}

fn text(done: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr)).trim().to_owned()
}
