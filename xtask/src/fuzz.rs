//! `cargo xtask fuzz`: the tests named `fuzz_…`, each fed for its part of the time.

use anyhow::bail;

use crate::process::{self, say};
use crate::workspace::Workspace;

/// Read by the targets.
const TIME_MS: &str = "WAYBILL_FUZZ_MS";
/// In CI, all targets together.
pub const SHORT_SECONDS: u64 = 60;
const PREFIX: &str = "fuzz_";

pub fn run(workspace: &Workspace, seconds: u64) -> anyhow::Result<()> {
    let listed = process::capture(tests(workspace).args(["--", "--list"]))?;
    let targets = listed.lines().filter(|line| line.ends_with(": test")).count() as u64;
    if targets == 0 {
        bail!("there is no test named {PREFIX}…");
    }
    // One at a time: a target that runs out of its stack takes its process with it, and the last line says which.
    let share_ms = seconds * 1_000 / targets;
    let fed = process::run(tests(workspace).env(TIME_MS, share_ms.to_string()).args(["--", "--test-threads=1"]));
    for input in std::fs::read_dir(workspace.target.join("fuzz")).into_iter().flatten().flatten() {
        say(&format!("fuzz: an input that a reader did not survive: {}", workspace.relative(&input.path()).display()));
    }
    fed
}

fn tests(workspace: &Workspace) -> std::process::Command {
    let mut cargo = workspace.cargo();
    // The whole workspace, as the tests are built: a part of it would build its dependencies with other features.
    cargo.args(["test", "--quiet", "--workspace", "--lib", "--no-fail-fast", PREFIX]);
    cargo
}
