//! `cargo xtask chaos`: release builds, then the chaos program. `short` is the part that `test` runs.

use std::process::Command;

use anyhow::Context;

use crate::process::{self, say, succeeds};
use crate::workspace::Workspace;

pub fn run(workspace: &Workspace, args: &[String]) -> anyhow::Result<()> {
    process::run(workspace.cargo().args(["build", "--release", "-p", "waybill", "-p", "waybill-chaos"]))?;
    process::run(workspace.command(workspace.binary("release", "waybill-chaos")).args(args))
}

/// A few rounds against the dev binary: a release build would be most of CI's time, and what is checked here
/// (nothing acknowledged is lost) does not depend on speed.
pub fn short(workspace: &Workspace) -> anyhow::Result<()> {
    let waybill = workspace.binary("debug", "waybill");
    let chaos = |scenario: &[&str]| {
        let mut command = workspace.cargo();
        command.args(["run", "--quiet", "-p", "waybill-chaos", "--"]).args(scenario).arg("--waybill").arg(&waybill);
        process::run(&mut command)
    };
    chaos(&["kill", "--rounds", "3"])?;
    if !loop_mounts_work(workspace)? {
        say("skipped: the power cut needs root and loop mounts, which this machine does not allow");
        return Ok(());
    }
    chaos(&["power", "--rounds", "1"])
}

/// Tried rather than guessed: containers often have the tools and the device nodes but not the permission.
fn loop_mounts_work(workspace: &Workspace) -> anyhow::Result<bool> {
    let folder = workspace.target.join("xtask-loop-probe");
    let (image, mount) = (folder.join("image"), folder.join("mount"));
    std::fs::create_dir_all(&mount).with_context(|| format!("cannot create {}", mount.display()))?;
    std::fs::File::create(&image)?.set_len(4 << 20)?;
    let works = succeeds(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image))
        && succeeds(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&mount))
        && succeeds(Command::new("umount").arg(&mount));
    std::fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    Ok(works)
}
