//! `cargo xtask hostile`: builds, then the attackers; `--short` for a few seconds of each.

use crate::process;
use crate::workspace::Workspace;

pub fn run(workspace: &Workspace, args: &[String]) -> anyhow::Result<()> {
    process::run(workspace.cargo().args(["build", "--release", "-p", "waybill", "-p", "waybill-hostile"]))?;
    process::run(workspace.command(workspace.binary("release", "waybill-hostile")).args(args))
}
