//! `waybill doctor`: looks at everything a deployment stands on and says what is wrong and what to do.
//!
//! It changes nothing, works beside a running server, and on what is left of a broken one: a check that cannot be made is
//! a finding like any other, never the end of the others.

mod folder;
mod ledger;
mod postgres;
mod server;
mod settings;
mod shards;
mod sqlite;
mod work;

use serde::Serialize;
use serde_json::json;
use waybill_kernel::{Clock, Code, Error, Result, Time};
use waybill_store::stores::HOME;
use waybill_store::{Backend, StoreRole};

use crate::cli::Doctor;
use crate::config::Config;
use crate::output;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Ok,
    Warning,
    Failed,
    Skipped,
}

/// What one look has found.
#[derive(Clone, Debug, Serialize)]
struct Check {
    check: &'static str,
    /// The store that was looked at, where there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    store: Option<String>,
    verdict: Verdict,
    found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    cure: Option<String>,
}

impl Check {
    fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, store: None, verdict: Verdict::Ok, found: found.into(), cure: None }
    }

    fn warning(check: &'static str, found: impl Into<String>, cure: impl Into<String>) -> Self {
        Self { check, store: None, verdict: Verdict::Warning, found: found.into(), cure: Some(cure.into()) }
    }

    fn failed(check: &'static str, found: impl Into<String>, cure: impl Into<String>) -> Self {
        Self { check, store: None, verdict: Verdict::Failed, found: found.into(), cure: Some(cure.into()) }
    }

    fn skipped(check: &'static str, why: impl Into<String>) -> Self {
        Self { check, store: None, verdict: Verdict::Skipped, found: why.into(), cure: None }
    }

    fn of_store(self, name: &str) -> Self {
        Self { store: Some(name.to_owned()), ..self }
    }

    /// With its store, where it is one of several.
    fn name(&self) -> String {
        match &self.store {
            Some(store) => format!("{} of {store}", self.check),
            None => self.check.to_owned(),
        }
    }

    /// A check that could not be made.
    fn of_error(check: &'static str, error: &Error) -> Self {
        let cause = error.cause().map(|cause| format!(" ({cause})")).unwrap_or_default();
        Self::failed(check, format!("{}{cause}", error.message()), error.cure())
    }
}

/// What several checks need to know.
#[derive(Clone, Debug)]
struct Scene {
    /// The process that holds the data folder.
    holder: Option<String>,
    /// Of the key that the folder has, or that was named.
    server_key_id: Option<String>,
    now: Time,
    quick: bool,
}

pub async fn run(flags: Doctor) -> Result<()> {
    let checks = examine(&flags).await?;
    let failed: Vec<_> = checks.iter().filter(|check| check.verdict == Verdict::Failed).collect();
    if flags.json {
        output::json(&json!({ "ok": failed.is_empty(), "checks": checks }))?;
    } else {
        let rows = checks.iter().map(|check| serde_json::to_value(check).map_err(Error::internal));
        let columns: &[&str] = match checks.iter().any(|check| check.store.is_some()) {
            true => &["verdict", "store", "check", "found", "cure"],
            false => &["verdict", "check", "found", "cure"],
        };
        output::table(columns, &rows.collect::<Result<Vec<_>>>()?)?;
        let count = |verdict| checks.iter().filter(|check| check.verdict == verdict).count();
        let (ok, warnings, skipped) = (count(Verdict::Ok), count(Verdict::Warning), count(Verdict::Skipped));
        output::note(&format!("{ok} ok, {warnings} warnings, {} failed, {skipped} skipped.", failed.len()))?;
    }
    if failed.is_empty() {
        return Ok(());
    }
    let names: Vec<_> = failed.iter().map(|check| check.name()).collect();
    Err(Error::new(Code::ChecksFailed, format!("These checks have failed: {}.", names.join(", "))))
}

async fn examine(flags: &Doctor) -> Result<Vec<Check>> {
    let config = match Config::at(&flags.location) {
        Ok(config) => config,
        Err(error) => return Ok(vec![Check::of_error("settings", &error)]),
    };
    let mut checks = settings::examine(&config);
    let mut scene = Scene { holder: None, server_key_id: None, now: Clock::system().now(), quick: flags.quick };
    checks.extend(folder::examine(&config, &mut scene));
    checks.push(server::examine(&config, &scene).await);
    let home = store(&config.backend, StoreRole::Home, &scene).await?;
    match config.shards.is_empty() {
        true => checks.extend(home),
        false => checks.extend(home.into_iter().map(|check| check.of_store(HOME))),
    }
    for shard in &config.shards {
        let found = store(&shard.backend, StoreRole::Shard, &scene).await?;
        checks.extend(found.into_iter().map(|check| check.of_store(&shard.name)));
    }
    checks.extend(shards::examine(&config, &scene).await);
    Ok(checks)
}

/// Err only when it was interrupted.
async fn store(backend: &Backend, role: StoreRole, scene: &Scene) -> Result<Vec<Check>> {
    match backend {
        Backend::Sqlite(options) => sqlite::examine(options, role, scene).await,
        Backend::Postgres(options) => Ok(postgres::examine(options, role, scene).await),
    }
}

/// As many as a line holds; the rest is counted.
fn list(findings: &[String]) -> String {
    const SHOWN_MAX: usize = 5;
    let shown = findings.iter().take(SHOWN_MAX).cloned().collect::<Vec<_>>().join("; ");
    match findings.len().saturating_sub(SHOWN_MAX) {
        0 => shown,
        more => format!("{shown}; and {more} more"),
    }
}
