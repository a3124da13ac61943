//! `cargo xtask chaos`: builds, then the chaos program. `short` is the part that `test` runs.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::planted;
use crate::process;
use crate::workspace::Workspace;

/// Of every scenario, in CI; kill-points takes as many as it has points.
const SHORT_ROUNDS: &str = "2";
const SHORT_SECONDS: &str = "1";
/// Read by the build with planted bugs and kill points, and named in no other.
const MARKER: &[u8] = b"WAYBILL_PLANT";

pub fn run(workspace: &Workspace, args: &[String]) -> anyhow::Result<()> {
    if let Some((first, only)) = args.split_first()
        && first == "--planted"
    {
        return planted::run(workspace, only);
    }
    process::run(workspace.cargo().args(["build", "--release", "-p", "waybill", "-p", "waybill-chaos"]))?;
    ensure_unplanted(&workspace.binary("release", "waybill"))?;
    let mut chaos = workspace.command(workspace.binary("release", "waybill-chaos"));
    // What the arguments name is not taken apart here: kill-points may be any of them, `--resume` included.
    if !args.is_empty() {
        chaos.arg("--sabotaged").arg(sabotaged(workspace)?);
    }
    process::run(chaos.args(args))
}

/// A few rounds of everything against the dev binary: a release build would be most of CI's time, and what is checked
/// here (nothing acknowledged is lost) does not depend on speed.
pub fn short(workspace: &Workspace) -> anyhow::Result<()> {
    let waybill = workspace.binary("debug", "waybill");
    ensure_unplanted(&waybill)?;
    let sabotaged = sabotaged_with(workspace, &[UNOPTIMISED])?;
    let mut chaos = workspace.command(workspace.binary("debug", "waybill-chaos"));
    chaos.args(["all", "--rounds", SHORT_ROUNDS, "--seconds", SHORT_SECONDS]);
    process::run_remembered(chaos.arg("--waybill").arg(waybill).arg("--sabotaged").arg(sabotaged))
}

/// The program with kill points and planted bugs, under its own name and in the dev profile.
pub fn sabotaged(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    sabotaged_with(workspace, &[])
}

fn sabotaged_with(workspace: &Workspace, settings: &[(&str, &str)]) -> anyhow::Result<PathBuf> {
    let name = "waybill-sabotaged";
    let features = ["--features", "waybill/sabotage"];
    let mut build = workspace.cargo();
    build.args(["build", "--workspace", "--bin", name]).args(features).envs(settings.iter().copied());
    process::run(&mut build)?;
    Ok(workspace.binary("debug", name))
}

/// The short form plays two scenarios with that program, which look at what it does and not at how fast. All of our crates are built
/// once more for it: without optimisation that takes a quarter of the time. Dependencies have settings of their own, and stay.
const UNOPTIMISED: (&str, &str) = ("CARGO_PROFILE_DEV_OPT_LEVEL", "0");

/// Asked of the program itself: whatever was built before, this one cannot sabotage itself.
fn ensure_unplanted(program: &Path) -> anyhow::Result<()> {
    let bytes = std::fs::read(program).with_context(|| format!("cannot read {}", program.display()))?;
    if bytes.windows(MARKER.len()).any(|window| window == MARKER) {
        bail!("{} holds planted bugs", program.display());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_reads_the_name_of_a_plant_is_refused() {
        let folder = std::env::temp_dir().join(format!("xtask-unplanted-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let program = folder.join("waybill");
        std::fs::write(&program, b"\0\x01plain\0").unwrap();
        ensure_unplanted(&program).unwrap();
        std::fs::write(&program, [b"\0\x01".as_slice(), MARKER, b"\0"].concat()).unwrap();
        assert!(ensure_unplanted(&program).is_err());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
