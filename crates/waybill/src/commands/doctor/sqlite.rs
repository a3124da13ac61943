//! A SQLite file, home's or a shard's: sound, complete, of this program's schema.

use std::path::Path;

use waybill_kernel::{Code, Result};
use waybill_store::safety::{Beside, Inspection, Marked, Watch, sqlite_version};
use waybill_store::{Rule, SqliteOptions, StoreRole};

use super::ledger::Broken;
use super::{Check, Scene, ledger, list, work};
use crate::commands::watched::watched;

/// Err only when it was interrupted.
pub(super) async fn examine(options: &SqliteOptions, role: StoreRole, scene: &Scene) -> Result<Vec<Check>> {
    let mut checks: Vec<_> = (role == StoreRole::Home).then(version).into_iter().collect();
    let path = options.path.clone();
    if !path.exists() {
        checks.push(Check::skipped("database", format!("there is none at {} yet", path.display())));
        return Ok(checks);
    }
    let scene = scene.clone();
    checks.extend(watched(move |watch| look(&path, role, &scene, watch)).await?);
    Ok(checks)
}

fn version() -> Check {
    match sqlite_version() {
        (version, true) => Check::ok("sqlite", version),
        (version, false) => {
            let cure = "Build the program with its bundled SQLite: older ones can lose data when the log begins anew.";
            Check::failed("sqlite", format!("{version} is too old"), cure)
        }
    }
}

fn look(path: &Path, role: StoreRole, scene: &Scene, watch: &Watch) -> Result<Vec<Check>> {
    let beside = if scene.holder.is_some() { Beside::Server } else { Beside::Nobody };
    let mut file = match Inspection::open(path, beside) {
        Ok(file) => file,
        Err(error) => return Ok(vec![Check::of_error("database", &error)]),
    };
    let mut checks = vec![integrity(&mut file, scene.quick, watch)?];
    let runs = scene.holder.is_some();
    let schema = file.schema();
    let (has_tables, rules) = (schema.as_ref().is_ok_and(Option::is_some), ledger::rules(role, &schema));
    checks.push(work::schema(schema, role, runs));
    checks.push(mark(&file, path));
    checks.push(match file.newest() {
        Ok(Some(newest)) => work::clock(newest.commit_time, scene.now),
        Ok(None) => Check::skipped("clock", "nothing was committed yet"),
        Err(error) => Check::of_error("clock", &error),
    });
    if !rules.is_empty() {
        let noted = file.text(waybill_access::SERVER_KEY_ID);
        checks.push(work::server_key(noted, scene.server_key_id.as_deref()));
    }
    if has_tables && role == StoreRole::Home {
        checks.push(agreement(&mut file, &rules, watch)?);
    }
    if has_tables {
        checks.push(work::sweeps(file.sweeps(), scene.now, runs));
        checks.push(work::dead_jobs(file.dead_jobs()));
    }
    if file.was_disturbed() {
        let found = "the file was written to meanwhile, so what was found here may be no fault";
        checks.push(Check::warning("database", found, "A server was started: run the command again."));
    }
    Ok(checks)
}

fn integrity(file: &mut Inspection, quick: bool, watch: &Watch) -> Result<Check> {
    const NAME: &str = "integrity";
    match file.findings(quick, watch) {
        Err(error) if error.code() == Code::Interrupted => Err(error),
        Err(error) => Ok(Check::of_error(NAME, &error)),
        Ok(findings) if findings.is_empty() && quick => {
            Ok(Check::ok(NAME, "sound; without --quick indexes are compared with their tables, too"))
        }
        Ok(findings) if findings.is_empty() => Ok(Check::ok(NAME, "sound")),
        Ok(findings) => {
            let cure = "Stop the server, keep its files, and restore a backup (`waybill restore`); most of what the damaged \
                        file holds can be read with SQLite's `.recover`.";
            Ok(Check::failed(NAME, list(&findings), cure))
        }
    }
}

fn agreement(file: &mut Inspection, rules: &[&'static Rule], watch: &Watch) -> Result<Check> {
    let mut broken = Vec::new();
    for &rule in rules {
        match file.ids(rule.sql, ledger::ASKED_MAX, watch) {
            Ok(ids) => broken.push(Broken::new(rule, ids)),
            Err(error) if error.code() == Code::Interrupted => return Err(error),
            Err(error) => return Ok(Check::of_error(ledger::NAME, &error)),
        }
    }
    Ok(ledger::verdict(rules, &broken))
}

fn mark(file: &Inspection, path: &Path) -> Check {
    const NAME: &str = "commits";
    let newest = match file.newest() {
        Ok(newest) => newest.map_or(0, |newest| newest.commit_seq),
        Err(error) => return Check::of_error(NAME, &error),
    };
    match file.marked() {
        Err(error) => Check::of_error(NAME, &error),
        Ok(Marked::Whole) => Check::ok(NAME, format!("{newest}, all that the mark remembers")),
        Ok(Marked::Nothing) => Check::ok(NAME, format!("{newest}; the mark of this database is not begun")),
        Ok(Marked::Damaged) => {
            let found = format!("{newest}; the mark is damaged, so nobody can say whether some were lost");
            Check::warning(NAME, found, "The next start of the server begins a new one.")
        }
        Ok(Marked::Missing { commits, newest: remembered, at }) => {
            let found = format!(
                "{commits} commits are missing: the mark remembers {remembered}, made at {at}; the newest here is {newest}"
            );
            let mark = path.with_extension("mark");
            let mark = mark.file_name().unwrap_or_default().display();
            Check::failed(NAME, found, format!("Restore a backup; or delete {mark} to go on without them."))
        }
    }
}
