//! `cargo xtask chaos --planted [bug …]`: proves that the checks can fail. Each bug is planted in turn, the scenario that
//! should notice it is played, and it must turn red by the name of the invariant that the bug violates.

use std::time::Instant;

use anyhow::bail;

use crate::chaos;
use crate::process::{self, result, say};
use crate::workspace::Workspace;

/// Lies that the harness itself tells, between the server and PostgreSQL; the others are in the store.
const PROXY_LIES: &str = "proxy-lies";
const STANDBY_LATE: &str = "standby-late";

struct Plant {
    bug: &'static str,
    what: &'static str,
    scenario: &'static str,
    /// One, or several with commas between, of which one must be violated. None: a second guard holds against the bug.
    invariant: Option<&'static str>,
}

impl Plant {
    /// The program is an honest one; what stands around it is not.
    fn is_of_the_harness(&self) -> bool {
        [PROXY_LIES, STANDBY_LATE].contains(&self.bug)
    }
}

const fn plant(bug: &'static str, what: &'static str, scenario: &'static str, invariant: &'static str) -> Plant {
    Plant { bug, what, scenario, invariant: Some(invariant) }
}

const fn withstood(bug: &'static str, what: &'static str, scenario: &'static str) -> Plant {
    Plant { bug, what, scenario, invariant: None }
}

const PLANTS: &[Plant] = &[
    plant("answer-before-commit", "callers are answered before COMMIT", "kill", "lost"),
    // A file of which a part was never written is missing something, or is no database any more.
    plant("no-fsync", "synchronous=OFF", "power", "lost,unserved"),
    plant("fsync-ignored", "a failed fsync counts as a commit", "fsync-error", "lost"),
    plant("reopen-skipped", "writing goes on after a failed fsync without verifying", "fsync-error", "unverified"),
    plant("no-fsync", "synchronous=OFF", "fsync-error", "hollow"),
    plant("unknown-as-internal", "a commit of unknown fate is answered 500", "fsync-error", "unserved"),
    // Of a task that was made, or of a cancel.
    plant("unknown-as-undone", "a commit of unknown fate is answered as not made", "fsync-error", "phantom,altered"),
    plant("payload-emptied", "a task is stored without its payload", "kill", "altered"),
    plant("twin-made", "every create leaves a second task that is nobody's", "kill", "phantom"),
    plant("cancel-forgotten", "a start takes canceled tasks up again", "kill", "reverted"),
    plant("key-ignored", "the idempotency key is not stored", "kill", "doubled"),
    plant("retry-mints", "a retry is answered with a new id", "kill", "doubled"),
    plant("unguarded-update", "cancel looks at no status", "kill", "ended-again"),
    plant("result-missing", "a canceled task gets no result", "kill", "unproven"),
    plant("tenant-dropped", "reads do not ask for the tenant", "kill", "foreign"),
    withstood("filters-dropped", "no statement names the tenant; row-level security is left", "postgres-kill"),
    plant("policies-evaded", "nor does row-level security hold", "postgres-kill", "foreign"),
    plant("clock-leaps", "times follow every step of the wall clock ahead", "clock", "raced"),
    plant("wall-clock", "times are those of the wall clock", "clock", "ran-back"),
    plant("mark-not-written", "the newest commit is not noted outside the log", "damage", "silent"),
    plant("mark-not-compared", "the note is not looked at", "damage", "silent"),
    plant("check-skipped", "the file is not checked at start", "damage", "silent"),
    plant("ballast-kept", "the reserve is not given back on a full disk", "disk-full", "stuck"),
    plant("attempt-on-expiry", "a lease that ran out counts as a failed attempt", "worker-kill", "miscounted"),
    plant("complete-unguarded", "complete looks at no lease", "worker-pause", "stale"),
    plant("parents-dropped", "the receipt that ends a task names no parents", "worker-kill", "orphaned"),
    plant("expiry-early", "leases are taken back 0.6 s before their end", "worker-pause", "shared"),
    plant("expired-kept", "leases that ran out are not looked for", "worker-kill", "stranded"),
    plant("obligation-kept", "an ended obligation stays in the list of open ones", "worker-kill", "misowed"),
    plant("line-by-time", "a group's messages of one second come the last first", "kill", "disordered"),
    plant("group-let-go", "a message that came back no longer stands before its group", "kill", "disordered"),
    plant("duplicate-forgotten", "a deduplication id is forgotten with its message", "kill", "doubled"),
    plant("handle-outlives-purge", "a purge leaves handles of before good", "kill", "stale"),
    plant("flight-early", "messages are visible again 0.6 s before their time", "kill", "shared"),
    plant("receive-uncounted", "later receives of a message are not counted", "kill", "miscounted"),
    plant("delete-hollow", "a delete is answered and not made", "kill", "reverted"),
    plant(
        "throttle-budget-doubled",
        "an empty bucket is evicted under its callers and built anew, full",
        "kill",
        "overspent",
    ),
    plant("mesh-answer-before-commit", "a daemon answers before its COMMIT", "mesh-daemon-kill", "lost"),
    plant("mesh-id-freed", "a daemon forgets the id of what is done", "mesh-daemon-kill", "doubled,lost"),
    plant("mesh-requeue-frees-id", "a message that is replaced gives up its id", "mesh-cut", "doubled"),
    plant("mesh-inbox-unkeyed", "an inbox takes every delivery for a new message", "mesh-daemon-kill", "doubled"),
    plant("mesh-reencrypt", "a daemon seals a message anew for every attempt", "mesh-broker-kill", "lost"),
    plant(
        "mesh-dedupe-outside",
        "the broker commits some ids without their message",
        "mesh-broker-kill",
        "lost,orphaned",
    ),
    plant("mesh-b0-after-limiter", "the broker charges for what it has accepted before", "mesh-limit", "miscounted"),
    plant(PROXY_LIES, "commits are answered and rolled back before PostgreSQL", "commit-cut", "lost"),
    plant(STANDBY_LATE, "commits are answered before the standby has them", "failover-sync", "lost"),
    // After a kill the start finds what has no file, and files it: without a start nobody does.
    plant(
        "archive-row-apart",
        "the archive's row is not in the message's transaction, and is lost at times",
        "archive",
        "unfiled",
    ),
    plant("state-left-behind", "an older state of what was acknowledged is written for the newest", "kill", "outdated"),
    plant("archive-readable", "files of the archive may be read by others", "kill", "exposed"),
    plant("recipients-apart", "recipients are not in the message's transaction, and are lost at times", "kill", "lost"),
];

/// Of the scenario, until the bug has to have been noticed: not every torn page is one that somebody reads.
const ROUNDS: &str = "15";
/// Of a scenario that has to stay green.
const WITHSTOOD_ROUNDS: &str = "5";
const SECONDS: &str = "1";

pub fn run(workspace: &Workspace, only: &[String]) -> anyhow::Result<()> {
    if let Some(unknown) = only.iter().find(|name| PLANTS.iter().all(|plant| plant.bug != name.as_str())) {
        let known: Vec<&str> = PLANTS.iter().map(|plant| plant.bug).collect();
        bail!("no planted bug {unknown}; there are {}", known.join(", "));
    }
    workspace.build_programs()?;
    let sabotaged = chaos::sabotaged(workspace)?;
    let mut rows = Vec::new();
    let mut missed = Vec::new();
    for plant in PLANTS.iter().filter(|plant| only.is_empty() || only.iter().any(|name| name == plant.bug)) {
        let mut command = workspace.command(workspace.binary("debug", "waybill-chaos"));
        let rounds = if plant.invariant.is_none() { WITHSTOOD_ROUNDS } else { ROUNDS };
        command.args([plant.scenario, "--rounds", rounds, "--seconds", SECONDS]);
        command.args(plant.invariant.map(|name| format!("--expect-red={name}"))).arg("--waybill").arg(&sabotaged);
        if plant.is_of_the_harness() {
            command.arg("--plant");
        } else {
            command.env("WAYBILL_PLANT", plant.bug);
        }
        let began = Instant::now();
        let outcome = process::run_captured(&mut command);
        let seconds = began.elapsed().as_secs_f64();
        let verdict = match outcome {
            Ok(output) if output.contains("skipped: ") => {
                missed.push(plant.bug);
                "skipped"
            }
            Ok(_) if plant.invariant.is_none() => "held",
            Ok(_) => "found",
            Err(error) => {
                say(&format!("{}: {error:#}", plant.bug));
                missed.push(plant.bug);
                if plant.invariant.is_none() { "BROKEN" } else { "MISSED" }
            }
        };
        rows.push(format!(
            "{:<25} {:<13} {:<16} {verdict:<8} {seconds:>5.1} s  {}",
            plant.bug,
            plant.invariant.unwrap_or("none"),
            plant.scenario,
            plant.what
        ));
    }
    result(&format!("{:<25} {:<13} {:<16} {:<8} {:>7}", "planted bug", "invariant", "scenario", "", "time"));
    rows.iter().for_each(|row| result(row));
    if !missed.is_empty() {
        bail!("not found by the name it should have, or not withstood: {}", missed.join(", "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The product's list of plants and this one are apart on purpose: the harness shares no code with it.
    #[test]
    fn every_plant_of_the_store_is_played() {
        let workspace = Workspace::find().unwrap();
        let source = std::fs::read_to_string(workspace.root.join("crates/store/src/sabotage.rs")).unwrap();
        let list = source.split_once("const PLANTS").and_then(|(_, rest)| rest.split_once("];")).unwrap().0;
        let names: Vec<&str> =
            list.lines().filter_map(|line| line.trim().strip_prefix('"')?.strip_suffix("\",")).collect();
        assert!(!names.is_empty());
        let played: BTreeSet<&str> =
            PLANTS.iter().filter(|plant| !plant.is_of_the_harness()).map(|plant| plant.bug).collect();
        assert_eq!(names.into_iter().collect::<BTreeSet<_>>(), played);
    }

    #[test]
    fn every_invariant_of_the_harness_has_a_plant() {
        let workspace = Workspace::find().unwrap();
        let source = std::fs::read_to_string(workspace.root.join("chaos/src/checker.rs")).unwrap();
        let names: BTreeSet<&str> = source
            .lines()
            .filter_map(|line| line.trim().strip_prefix("Invariant::")?.split_once("=> \"")?.1.strip_suffix("\","))
            .collect();
        assert!(!names.is_empty());
        let found: BTreeSet<&str> =
            PLANTS.iter().filter_map(|plant| plant.invariant).flat_map(|names| names.split(',')).collect();
        assert_eq!(names, found);
    }
}
