//! `cargo xtask bench`: release builds, then the bench program, which starts what it needs.

use crate::process;
use crate::workspace::Workspace;

pub fn run(workspace: &Workspace, args: &[String]) -> anyhow::Result<()> {
    process::run(workspace.cargo().args(["build", "--release", "-p", "waybill", "-p", "waybill-bench"]))?;
    process::run(workspace.command(workspace.binary("release", "waybill-bench")).args(args))
}
