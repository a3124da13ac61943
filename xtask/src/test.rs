//! `cargo xtask test`: everything CI checks. Checks of the text stop at the first failure; once the product is built,
//! every stage runs and the failures are counted at the end, so that one run tells all.

use std::process::Command;

use anyhow::bail;

use crate::process::{self, on_path, say};
use crate::setup::{is_root, postgres_bin};
use crate::workspace::Workspace;
use crate::{chaos, foreign, fuzz, setup, tidy};

pub fn run(workspace: &Workspace) -> anyhow::Result<()> {
    setup::run(workspace)?;
    tidy::run(workspace)?;
    process::run(workspace.cargo().args(["fmt", "--all", "--check"]))?;
    process::run(workspace.cargo().args(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))?;
    // Tests start the real program and expect it where cargo puts it.
    process::run(workspace.cargo().args(["build", "-p", "waybill", "-p", "waybill-chaos"]))?;

    let mut failed = Vec::new();
    let mut stage = |name: &'static str, outcome: anyhow::Result<()>| {
        if let Err(error) = outcome {
            say(&format!("{name}: {error:#}"));
            failed.push(name);
        }
    };
    stage("tests", rust_tests(workspace));
    stage("PostgreSQL of the tests", stop_databases(workspace));
    stage("fuzzing", fuzz::run(workspace, fuzz::SHORT_SECONDS));
    stage("short chaos", chaos::short(workspace));
    // Last, so that their count is the last line of a good run.
    stage("foreign clients", foreign::run(workspace));
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

/// `--all-targets` leaves the doc tests out: examples in this repository are programs, not comments.
fn rust_tests(workspace: &Workspace) -> anyhow::Result<()> {
    let mut cargo = workspace.cargo();
    if on_path("cargo-nextest") {
        cargo.args(["nextest", "run", "--workspace", "--no-fail-fast"]);
    } else {
        cargo.args(["test", "--workspace", "--all-targets", "--no-fail-fast"]);
    }
    process::run(&mut cargo)
}

/// Stops the clusters that the test kit leaves running for the next test process: every folder below
/// `target/testkit-pg` (or the folder that its file `elsewhere` names) that holds a running data folder.
fn stop_databases(workspace: &Workspace) -> anyhow::Result<()> {
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
