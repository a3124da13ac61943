//! `cargo xtask bench`: release builds, then the bench program, which starts what it needs.

use crate::process::{self, say};
use crate::setup;
use crate::workspace::Workspace;

pub fn run(workspace: &Workspace, args: &[String]) -> anyhow::Result<()> {
    process::run(workspace.cargo().args(["build", "--release", "-p", "waybill", "-p", "waybill-bench"]))?;
    let mut bench = workspace.command(workspace.binary("release", "waybill-bench"));
    bench.args(args);
    if wants_graphile(args) {
        match setup::graphile(workspace) {
            Ok(prefix) => drop(bench.arg("--graphile").arg(prefix)),
            // The bench says who could not run, and measures the others.
            Err(error) => say(&format!("bench: no graphile-worker: {error:#}")),
        }
    }
    process::run(&mut bench)
}

/// Whether the run is for everybody or names it, and does not say where it is.
fn wants_graphile(args: &[String]) -> bool {
    let given = |flag: &str| args.iter().any(|arg| arg == flag || arg.starts_with(&format!("{flag}=")));
    let named = args.iter().any(|arg| arg.trim_start_matches("--only=").split(',').any(|name| name == "graphile"));
    !given("--graphile") && !given("--help") && (named || !given("--only"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn graphile_is_installed_for_those_who_measure_it() {
        for (args, wanted) in [
            ("", true),
            ("--seconds 1 --only hello,graphile", true),
            ("--only=graphile", true),
            ("--only hello", false),
            ("--graphile some/where", false),
        ] {
            let args: Vec<String> = args.split_whitespace().map(str::to_owned).collect();
            assert_eq!(wants_graphile(&args), wanted, "{args:?}");
        }
    }
}
