//! `cargo xtask hostile`: builds, then the attackers. `short` is the part that `test` runs.

use crate::process;
use crate::workspace::Workspace;

pub fn run(workspace: &Workspace, args: &[String]) -> anyhow::Result<()> {
    process::run(workspace.cargo().args(["build", "--release", "-p", "waybill", "-p", "waybill-hostile"]))?;
    process::run(workspace.command(workspace.binary("release", "waybill-hostile")).args(args))
}

/// A few seconds of every attack against the dev binary, which is slower: what it holds, the release build holds.
pub fn short(workspace: &Workspace) -> anyhow::Result<()> {
    let mut hostile = workspace.command(workspace.binary("debug", "waybill-hostile"));
    process::run_remembered(hostile.arg("--short").arg("--waybill").arg(workspace.binary("debug", "waybill")))
}
