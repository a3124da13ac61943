//! `waybill mail reindex`: from the files of an archive to the rows of the database, while no server runs on the data folder.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Args;
use tokio::signal::unix::{SignalKind, signal};
use waybill_kernel::{Code, Error, Principal, Result, Tenant};
use waybill_reindex::{Options, Report, Source, Tally};
use waybill_store::Store;

use super::offline::Offline;
use crate::cli::Location;
use crate::output;

/// What to do about a server that runs.
pub const ALONE: &str = "Stop the server: this writes its database and must be alone.";
/// Refused files that are shown; the report as JSON has more of them.
const SHOWN_MAX: usize = 50;

#[derive(Args)]
pub struct Reindex {
    /// The archive: the folder that has `projects` in it, or the root of an archive of ours [default: this server's own].
    #[arg(long, value_name = "ROOT")]
    from: Option<PathBuf>,
    /// Who acts for the agents that come with it, as in agent:alice [default: the admin]. HumanOverseer is the admin's.
    #[arg(long, value_name = "PRINCIPAL")]
    principal: Option<String>,
    /// The tenant that gets it, by name or id [default: the default tenant].
    #[arg(long, value_name = "TENANT")]
    tenant: Option<String>,
    #[command(flatten)]
    location: Location,
    /// Print the report as JSON.
    #[arg(long)]
    json: bool,
}

pub async fn run(flags: Reindex) -> Result<()> {
    let Some(from) = &flags.from else { return from_own(&flags.location, flags.json).await };
    let principal = flags.principal.as_deref().map(str::parse::<Principal>).transpose()?;
    if !from.is_dir() {
        return Err(Error::new(Code::PathUnusable, format!("There is no folder {}.", from.display())));
    }
    let offline = Offline::open(&flags.location, ALONE).await?;
    let outcome = import(offline.store(), from, flags.tenant.as_deref(), principal).await;
    offline.close().await;
    let report = outcome?;
    show(&report, flags.json)?;
    conclude(&report)
}

async fn import(store: &Store, from: &Path, tenant: Option<&str>, principal: Option<Principal>) -> Result<Report> {
    let admin = waybill_access::admin_caller(store).await?;
    let principal = principal.unwrap_or(admin.principal).to_string();
    let tenant = match tenant {
        None => None,
        Some(tenant) => Some(waybill_access::find_tenant(store, tenant).await?),
    };
    take(store, from, &principal, tenant, true).await
}

/// An archive of either kind.
pub async fn take(
    store: &Store,
    root: &Path,
    principal: &str,
    tenant: Option<Tenant>,
    archived: bool,
) -> Result<Report> {
    if !Source::is_legacy_at(root) {
        if tenant.is_some() {
            return Err(Error::invalid("An archive of ours says itself which tenants it is of; leave --tenant out."));
        }
        return own(store, root, principal, archived).await;
    }
    let root = root.to_owned();
    let source = tokio::task::spawn_blocking(move || Source::legacy(&root)).await.map_err(Error::internal)??;
    let tenant = tenant.unwrap_or(waybill_access::DEFAULT_TENANT);
    one(store, source, &options(store, tenant, principal, true).await?).await
}

async fn options(store: &Store, tenant: Tenant, principal: &str, archived: bool) -> Result<Options> {
    let admin = waybill_access::admin_caller(store).await?.principal.to_string();
    Ok(Options { tenant, principal: principal.to_owned(), admin, archived })
}

/// Every tenant of an archive of ours that the database has. `archived` where the archive is another than the one that this
/// database has written.
pub async fn own(store: &Store, root: &Path, principal: &str, archived: bool) -> Result<Report> {
    let mut report = Report::default();
    let (tenants, refused) = waybill_reindex::tenants(store, root).await?;
    report.refuse_all(&refused);
    for (folder, tenant) in tenants {
        let Some(tenant) = tenant else {
            let why = absent(&folder);
            report.refuse(folder, why);
            continue;
        };
        let root = root.to_owned();
        let read = move || Source::ours(&root, &folder);
        let source = tokio::task::spawn_blocking(read).await.map_err(Error::internal)??;
        report.add(one(store, source, &options(store, tenant, principal, archived).await?).await?);
    }
    Ok(report)
}

/// Why a folder is left: a name that is too long cannot be read from it.
fn absent(folder: &str) -> String {
    match waybill_archive::names::name(folder) {
        Some(name) => format!("there is no tenant {name}: make it with `waybill tenant create {name}`"),
        None => {
            "there is no tenant of the long name that it is made of: make it with `waybill tenant create`".to_owned()
        }
    }
}

/// Takes from this server's own archive what the database lacks.
pub async fn from_own(location: &Location, as_json: bool) -> Result<()> {
    let offline = Offline::open(location, ALONE).await?;
    let outcome = own_of(&offline).await;
    offline.close().await;
    let report = outcome?;
    show(&report, as_json)?;
    conclude(&report)
}

async fn own_of(offline: &Offline) -> Result<Report> {
    let root = offline.config.archive_root();
    if !root.is_dir() {
        return Err(Error::new(Code::PathUnusable, "This server has no archive of mail yet."));
    }
    let admin = waybill_access::admin_caller(offline.store()).await?;
    own(offline.store(), &root, &admin.principal.to_string(), false).await
}

/// With a line of progress at a terminal; a signal ends it between two transactions.
async fn one(store: &Store, source: Source, options: &Options) -> Result<Report> {
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Error::internal)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(Error::internal)?;
    let stop = Arc::new(AtomicBool::new(false));
    let (shows, stopped) = (std::io::stderr().is_terminal(), Arc::clone(&stop));
    let progress = move |done: usize, total: usize| {
        if shows {
            output::status(&bar(done, total));
        }
        !stopped.load(Ordering::Relaxed)
    };
    let mut running = std::pin::pin!(waybill_reindex::reindex(store, source, options, &progress));
    let outcome = loop {
        tokio::select! {
            outcome = &mut running => break outcome,
            _ = interrupt.recv() => stop.store(true, Ordering::Relaxed),
            _ = terminate.recv() => stop.store(true, Ordering::Relaxed),
        }
    };
    if shows {
        output::status("");
    }
    outcome
}

fn bar(done: usize, total: usize) -> String {
    const WIDTH: usize = 30;
    let filled = (WIDTH * done).checked_div(total).unwrap_or(WIDTH);
    format!("[{}{}] {done} of {total} messages", "#".repeat(filled), " ".repeat(WIDTH - filled))
}

pub fn show(report: &Report, as_json: bool) -> Result<()> {
    if as_json {
        return output::json(&serde_json::to_value(report).map_err(Error::internal)?);
    }
    let rows: [(&str, Tally); 7] = [
        ("projects", report.projects),
        ("agents", report.agents),
        ("messages", report.messages),
        ("reservations", report.reservations),
        ("contacts", report.contacts),
        ("build slots", report.build_slots),
        ("products", report.products),
    ];
    let row = |(what, tally): (&str, Tally)| {
        let mut row = serde_json::to_value(tally).unwrap_or_default();
        row["what"] = what.into();
        row
    };
    output::table(&["what", "written", "renumbered", "known", "refused"], &rows.map(row))?;
    if report.read > 0 {
        output::line(&format!("{} deliveries were marked as read or acknowledged.", report.read))?;
    }
    for missing in &report.not_in_archive {
        output::note(&format!("Not in such an archive: {missing}."))?;
    }
    for name in report.without_profile.iter().take(SHOWN_MAX) {
        output::note(&format!("Without a profile, and retired: {}.", output::cell(&name.as_str().into())))?;
    }
    for refused in report.refused.iter().chain(&report.attachments_lost).take(SHOWN_MAX) {
        let line = format!("Refused: {}: {}", refused.file, refused.why);
        output::note(&output::cell(&line.into()))?;
    }
    Ok(())
}

pub fn conclude(report: &Report) -> Result<()> {
    if report.is_whole() {
        return Ok(());
    }
    let (refused, lost) = (report.refused_total, report.attachments_lost.len());
    let message = format!("Some of the archive was not taken: {refused} refused, {lost} attachments lost.");
    Err(Error::new(Code::ChecksFailed, message)
        .with_cure("Read the report, mend the files it names, and run it again."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_is_full_at_the_end_and_where_there_is_nothing() {
        assert!(bar(0, 0).starts_with(&format!("[{}]", "#".repeat(30))));
        assert!(bar(5, 10).starts_with(&format!("[{}{}]", "#".repeat(15), " ".repeat(15))));
        assert_eq!(bar(10, 10), format!("[{}] 10 of 10 messages", "#".repeat(30)));
    }
}
