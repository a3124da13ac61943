//! Recurring work that is late or fails, and jobs that have given up: the same on both engines.

use std::time::Duration;

use waybill_kernel::{Result, Time};
use waybill_store::StoreRole;
use waybill_store::safety::{DeadJobs, SweepState};

use super::{Check, list};

/// A sweep that is late by its whole interval and this is run by nobody.
const LATE: Duration = Duration::from_secs(60);

/// `runs` says whether anybody is there to run them.
pub(super) fn sweeps(found: Result<Vec<SweepState>>, now: Time, runs: bool) -> Check {
    const NAME: &str = "sweeps";
    let sweeps = match found {
        Ok(sweeps) => sweeps,
        Err(error) => return Check::of_error(NAME, &error),
    };
    let failing = sweeps.iter().filter_map(|sweep| Some(format!("{}: {}", sweep.name, sweep.last_error.as_ref()?)));
    let failing: Vec<_> = failing.collect();
    if !failing.is_empty() {
        let cure = "It is tried again by itself; if it goes on failing, the server's log says more.";
        return Check::warning(NAME, format!("the latest run failed: {}", list(&failing)), cure);
    }
    let is_late = |sweep: &&SweepState| {
        let interval = Duration::from_micros(u64::try_from(sweep.interval_us).unwrap_or(0));
        now.since(sweep.next_at) > interval + LATE
    };
    let late: Vec<_> = sweeps.iter().filter(is_late).map(|sweep| sweep.name.clone()).collect();
    match (runs, late.is_empty()) {
        (_, true) => Check::ok(NAME, format!("{} known, none late or failing", sweeps.len())),
        (false, false) => Check::skipped(NAME, "due, and no server runs here that would do them"),
        (true, false) => {
            let cure = "Another version of the program may have run them; `waybill sweeps` shows when each last ran.";
            Check::warning(NAME, format!("late: {}", list(&late)), cure)
        }
    }
}

pub(super) fn dead_jobs(found: Result<Vec<DeadJobs>>) -> Check {
    const NAME: &str = "jobs";
    let dead = match found {
        Ok(dead) => dead,
        Err(error) => return Check::of_error(NAME, &error),
    };
    let shown: Vec<_> = dead.iter().map(|jobs| format!("{} of {}", jobs.count, jobs.kind)).collect();
    if shown.is_empty() {
        return Check::ok(NAME, "none has given up");
    }
    let cure = "Their last_error in the table jobs says why; whatever they were to do was not done.";
    Check::warning(NAME, format!("dead: {}", list(&shown)), cure)
}

/// Does the database go with the server key that is here?
pub(super) fn server_key(noted: Result<Option<String>>, present: Option<&str>) -> Check {
    const NAME: &str = "server key";
    let noted = match noted {
        Ok(noted) => noted,
        Err(error) => return Check::of_error(NAME, &error),
    };
    match (noted.as_deref(), present) {
        (Some(noted), Some(present)) if noted != present => {
            let found = format!("the one here is {present}, and the database goes with {noted}");
            let cure = "Copy server.key from where that one is, or `waybill server-key adopt` if it is lost; until then API \
                        keys are verified in full at their first use.";
            Check::warning(NAME, found, cure)
        }
        (Some(noted), None) => {
            let cure = "Put the old server.key back; else the next start makes a new one, and API keys are verified in full \
                        at their first use.";
            Check::warning(NAME, format!("the database goes with {noted}, and there is none here"), cure)
        }
        (Some(noted), Some(_)) => Check::ok(NAME, format!("{noted}, as the database says")),
        (None, _) => Check::ok(NAME, "the database goes with none yet"),
    }
}

/// How far the stored time is ahead of this machine's.
pub(super) fn clock(stored: Time, now: Time) -> Check {
    const NAME: &str = "clock";
    const AHEAD_MAX: Duration = Duration::from_secs(5);
    let ahead = stored.since(now);
    if ahead <= AHEAD_MAX {
        return Check::ok(NAME, format!("the newest commit was made at {stored}"));
    }
    let found = format!("the newest commit is {} s ahead of this machine's clock", ahead.as_secs());
    let cure = "Set the clock right (NTP). Times go on from the newest commit's until the wall has caught up.";
    Check::warning(NAME, found, cure)
}

/// The newest that this program knows for such a store.
pub(super) fn schema_known(role: StoreRole) -> i64 {
    let migrations = waybill_domains::migrations_of(role);
    let known = waybill_store::MIGRATIONS.iter().chain(&migrations).map(|migration| migration.version).max();
    i64::from(known.unwrap_or(0))
}

pub(super) fn schema(found: Result<Option<i64>>, role: StoreRole, runs: bool) -> Check {
    const NAME: &str = "schema";
    let known = schema_known(role);
    match found {
        Err(error) => Check::of_error(NAME, &error),
        Ok(None) => Check::warning(NAME, "the database is empty", "The first `waybill serve` makes its tables."),
        Ok(Some(version)) if version > known => {
            let found = format!("schema {version}, and this program knows up to {known}");
            Check::failed(NAME, found, "Run the newer version of the program that wrote it.")
        }
        Ok(Some(version)) if version < known && runs => {
            let found = format!("schema {version}, and this program is for {known}: the server is an older version");
            Check::warning(NAME, found, "Restart the server with this version when it suits.")
        }
        Ok(Some(version)) if version < known => {
            Check::ok(NAME, format!("schema {version}; the next start brings it to {known}"))
        }
        Ok(Some(version)) => Check::ok(NAME, format!("schema {version}")),
    }
}
