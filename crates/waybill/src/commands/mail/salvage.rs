//! `waybill mail salvage`: what can be read of a damaged database, and the rest of its mail from the archive.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;
use waybill_kernel::entropy::OsEntropy;
use waybill_kernel::{Clock, Code, Error, Result};
use waybill_mail::import::{ForgetWords, IndexAgain};
use waybill_reindex::Report;
use waybill_store::safety::{self, Salvaged, Way};
use waybill_store::{Backend, Store};

use super::offline::Offline;
use super::reindex;
use crate::cli::Location;
use crate::commands::backup::unsupported;
use crate::commands::session::refuse_absent;
use crate::commands::watched::watched;
use crate::config::Config;
use crate::data::DataFolder;
use crate::output;

#[derive(Args)]
pub struct Salvage {
    /// The root of the archive that the mail is taken from [default: the one of this server].
    #[arg(long, value_name = "ROOT")]
    from: Option<PathBuf>,
    /// Go on although rows of tables that no archive has (tasks, queues, keys) cannot be read.
    #[arg(long)]
    lossy: bool,
    #[command(flatten)]
    location: Location,
    /// Print the report as JSON.
    #[arg(long)]
    json: bool,
}

pub async fn run(flags: Salvage) -> Result<()> {
    let config = Config::at(&flags.location)?;
    let Backend::Sqlite(options) = &config.backend else {
        let message = "PostgreSQL mends and restores its databases with its own tools; `waybill mail reconcile --reindex` then \
                       takes mail from the archive that it lacks.";
        return Err(unsupported(message.to_owned()));
    };
    refuse_absent(&config)?;
    let folder = DataFolder::open(&config.data)?;
    let database = options.path.clone();
    let looked = database.clone();
    let found = tokio::task::spawn_blocking(move || safety::finding(&looked)).await.map_err(Error::internal)??;
    let salvaged = match (found, folder.unfinished_salvage()?) {
        (Some(finding), _) => replace(&config, database, finding, folder, flags.lossy).await?,
        (None, Some(salvaged)) => {
            drop(folder);
            output::note("A salvage has not come to its end; it goes on with the archive and the index of words.")?;
            salvaged
        }
        (None, None) if flags.json => return output::json(&json!({ "damaged": false })),
        (None, None) => return output::line("The database is sound; nothing was done."),
    };
    let report = refill(&flags).await?;
    show(&salvaged, report.as_ref(), flags.json)?;
    conclude(&salvaged, report.as_ref())
}

/// Puts a database with what can be read in the place of the damaged one, and frees the folder.
async fn replace(
    config: &Config,
    database: PathBuf,
    finding: String,
    folder: DataFolder,
    lossy: bool,
) -> Result<Salvaged> {
    let now = Clock::system().now();
    let quarantine = config.data.join(format!("quarantine-{}", now.micros()));
    let salvage = move |watch: &safety::Watch| {
        let migrations = waybill_domains::migrations();
        let run = safety::Salvage {
            database: &database,
            quarantine: &quarantine,
            finding,
            migrations: &migrations,
            entropy: &OsEntropy,
            now,
        };
        run.run(|salvaged| accept(salvaged, lossy).and_then(|()| folder.begin_salvage(salvaged)), watch)
    };
    watched(salvage).await
}

/// Mail has an archive; what else was lost is for its owner to decide.
fn accept(salvaged: &Salvaged, lossy: bool) -> Result<()> {
    let others: Vec<&str> =
        salvaged.incomplete().map(|table| table.table.as_str()).filter(|table| !table.starts_with("mail_")).collect();
    if others.is_empty() || lossy {
        return Ok(());
    }
    let message =
        format!("Rows of {} cannot be read, and no archive has them. Nothing was changed.", others.join(", "));
    let cure = "Restore a backup; or say --lossy to go on without them. The damaged files are kept either way.";
    Err(Error::new(Code::DatabaseUnusable, message).with_cure(cure))
}

/// Opens what was salvaged, takes from the archive what it lacks, and makes its index of words anew.
async fn refill(flags: &Salvage) -> Result<Option<Report>> {
    let offline = Offline::open(&flags.location, reindex::ALONE).await?;
    let outcome = refill_open(&offline, flags).await;
    offline.close().await;
    outcome
}

async fn refill_open(offline: &Offline, flags: &Salvage) -> Result<Option<Report>> {
    let taken = take_archive(offline, flags).await;
    // Last, when every message has its agents again; and also after an error, or nobody would find what was salvaged.
    let indexed = index_again(offline.store()).await;
    let report = taken.map_err(|error| match error.code() {
        Code::Interrupted => error.with_cure("Run `waybill mail salvage` again: it goes on from here."),
        _ => error,
    })?;
    indexed?;
    offline.folder().end_salvage()?;
    Ok(report)
}

async fn take_archive(offline: &Offline, flags: &Salvage) -> Result<Option<Report>> {
    let root = flags.from.clone().unwrap_or_else(|| offline.config.archive_root());
    if !root.is_dir() {
        return Ok(None);
    }
    let admin = waybill_access::admin_caller(offline.store()).await?;
    // This server's own archive lacks what comes from another.
    let archived = flags.from.is_some();
    reindex::take(offline.store(), &root, &admin.principal.to_string(), None, archived).await.map(Some)
}

async fn index_again(store: &Store) -> Result<()> {
    store.system().run(ForgetWords).await?;
    let mut after = 0;
    while let Some(last) = store.system().run(IndexAgain(after)).await? {
        after = last;
    }
    Ok(())
}

fn show(salvaged: &Salvaged, report: Option<&Report>, as_json: bool) -> Result<()> {
    if as_json {
        return output::json(&json!({ "damaged": true, "salvaged": salvaged, "reindexed": report }));
    }
    output::line(&format!("The database was damaged: {}", output::cell(&salvaged.finding.as_str().into())))?;
    match salvaged.way {
        Way::Whole => output::line("All of it could be read.")?,
        Way::Rows => output::line("It was read row by row.")?,
    }
    for table in salvaged.incomplete() {
        let damage = table.damage.as_deref().unwrap_or_default();
        output::line(&format!("{}: {} rows, and then: {damage}", table.table, table.rows))?;
    }
    output::line(&format!("The files as they were found: {}", salvaged.quarantine.display()))?;
    match report {
        Some(report) => reindex::show(report, false),
        None => output::note("There is no archive of mail to take the rest from."),
    }
}

/// What is still missing is told by the exit code as well.
fn conclude(salvaged: &Salvaged, report: Option<&Report>) -> Result<()> {
    let lacking = salvaged.incomplete().count();
    if lacking > 0 {
        let message = format!("The database can be opened again; {lacking} tables may lack rows.");
        let cure = "Read the report; the damaged files are in the quarantine that it names.";
        return Err(Error::new(Code::ChecksFailed, message).with_cure(cure));
    }
    report.map_or(Ok(()), reindex::conclude)
}
