//! `cargo xtask bench`: release builds, then the bench program, which starts what it needs.

use crate::process::{self, say};
use crate::setup::{self, Compared, ELASTICMQ, FAUXQS, GRAPHILE};
use crate::workspace::Workspace;

/// Whoever is compared with, and the part of the bench that does so.
const COMPARED: [(&Compared, &str); 3] = [(&GRAPHILE, "graphile"), (&FAUXQS, "rivals"), (&ELASTICMQ, "rivals")];

pub fn run(workspace: &Workspace, args: &[String]) -> anyhow::Result<()> {
    process::run(workspace.cargo().args(["build", "--release", "-p", "waybill", "-p", "waybill-bench"]))?;
    let mut bench = workspace.command(workspace.binary("release", "waybill-bench"));
    bench.args(args);
    for (compared, part) in COMPARED {
        if !wants(args, compared.name, part) {
            continue;
        }
        match setup::compared(workspace, compared) {
            Ok(prefix) => drop(bench.arg(format!("--{}", compared.name)).arg(prefix)),
            // The bench says who could not run, and measures the others.
            Err(error) => say(&format!("bench: no {}: {error:#}", compared.name)),
        }
    }
    process::run(&mut bench)
}

/// Whether the run is for everybody or names the part, and does not say where it is.
fn wants(args: &[String], flag: &str, part: &str) -> bool {
    let given = |flag: &str| args.iter().any(|arg| arg == flag || arg.starts_with(&format!("{flag}=")));
    let named = args.iter().any(|arg| arg.trim_start_matches("--only=").split(',').any(|name| name == part));
    !given(&format!("--{flag}")) && !given("--help") && (named || !given("--only"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn somebody_is_installed_for_those_who_measure_it() {
        for (args, wanted) in [
            ("", true),
            ("--seconds 1 --only hello,graphile", true),
            ("--only=graphile", true),
            ("--only hello", false),
            ("--graphile some/where", false),
        ] {
            let args: Vec<String> = args.split_whitespace().map(str::to_owned).collect();
            assert_eq!(wants(&args, "graphile", "graphile"), wanted, "{args:?}");
        }
        let rivals: Vec<String> = ["--only", "queues,rivals"].map(str::to_owned).to_vec();
        assert!(wants(&rivals, "fauxqs", "rivals") && !wants(&rivals, "graphile", "graphile"));
    }
}
