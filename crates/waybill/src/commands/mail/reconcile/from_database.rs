//! From the database to the archive: `--check` and `--rebuild`.

use std::io::IsTerminal;
use std::sync::Arc;
use std::time::{Duration, Instant};

use waybill_archive::repo::Archive;
use waybill_archivist::reconcile::{self, Progress, Report};
use waybill_kernel::{Code, Error, Result};

use crate::cli::Location;
use crate::commands::mail::offline::Offline;
use crate::output;

/// Findings that people are shown; the report as JSON has more of them.
const SHOWN_MAX: usize = 50;
/// Between two lines of progress.
const INTERVAL: Duration = Duration::from_millis(100);
const BAR: usize = 30;

/// A database on which no server runs, and its archive.
struct Both {
    offline: Offline,
    archive: Arc<Archive>,
}

impl Both {
    async fn open(location: &Location) -> Result<Self> {
        const ALONE: &str = "Stop the server first: it writes the archive, and what is under way would look like a difference. \
                             While it runs, `health_check` says how far the archive is behind.";
        let offline = Offline::open(location, ALONE).await?;
        let config = &offline.config;
        let archive = Arc::new(Archive::new(config.archive_root(), config.mail_archive.limits()));
        Ok(Self { offline, archive })
    }

    async fn close(self) {
        let archive = self.archive;
        let _ = tokio::task::spawn_blocking(move || archive.close()).await;
        self.offline.close().await;
    }
}

pub async fn check(location: &Location, json: bool) -> Result<()> {
    let both = Both::open(location).await?;
    let report = reconcile::check(both.offline.store(), &both.archive, shown("comparing", json)).await;
    both.close().await;
    let report = report?;
    tell(&report, json, "checked")?;
    concluded(&report, "The archive is not what the database says: `waybill mail reconcile --rebuild` makes it so.")
}

pub async fn rebuild(location: &Location, json: bool) -> Result<()> {
    let both = Both::open(location).await?;
    let report = reconcile::rebuild(both.offline.store(), &both.archive, shown("writing", json)).await;
    both.close().await;
    let report = report?;
    tell(&report, json, "rebuilt")?;
    concluded(&report, left_by_rebuild(&report))
}

/// What a rebuild cannot make whole.
fn left_by_rebuild(report: &Report) -> &'static str {
    if report.unfileable > 0 {
        "The database has something that no file can hold, as the list says: its rows stay marked as failed. Everything else was written."
    } else {
        "The archive has projects that the database does not have. They were left alone: take them into the database, or move \
         their folders away."
    }
}

fn concluded(report: &Report, otherwise: &str) -> Result<()> {
    if report.consistent { Ok(()) } else { Err(Error::new(Code::ChecksFailed, otherwise)) }
}

fn tell(report: &Report, json: bool, done: &str) -> Result<()> {
    if std::io::stderr().is_terminal() && !json {
        output::status("");
    }
    if json {
        return output::json(&serde_json::to_value(report).map_err(Error::internal)?);
    }
    let shown =
        report.findings.iter().take(SHOWN_MAX).map(|finding| serde_json::to_value(finding).map_err(Error::internal));
    let shown = shown.collect::<Result<Vec<_>>>()?;
    if !shown.is_empty() {
        output::table(&["what", "project", "path"], &shown)?;
    }
    if report.findings.len() > SHOWN_MAX {
        output::note(&format!("and more: {} are shown; --json has up to 1000.", shown.len()))?;
    }
    output::note(&summary(report, done))
}

fn summary(report: &Report, done: &str) -> String {
    let Report {
        projects,
        files,
        missing,
        different,
        extra,
        files_apart,
        damaged,
        unfileable,
        written,
        removed,
        waiting_rows,
        ..
    } = report;
    let unknown = report.unknown_projects.len();
    format!(
        "{projects} projects with {files} files {done}: {missing} missing, {different} different, {extra} without a row, \
         {files_apart} plain files apart, {damaged} damaged, {unfileable} that no file can hold, {unknown} projects unknown to the database; {written} written, \
         {removed} removed; {waiting_rows} rows wait to be archived."
    )
}

/// A bar at a terminal, and nothing elsewhere.
fn shown(what: &'static str, json: bool) -> impl FnMut(&Progress) {
    let shows = std::io::stderr().is_terminal() && !json;
    let mut last = None::<Instant>;
    move |progress| {
        if shows && last.is_none_or(|at| at.elapsed() >= INTERVAL) {
            last = Some(Instant::now());
            output::status(&bar(what, progress));
        }
    }
}

fn bar(what: &str, progress: &Progress) -> String {
    let Progress { projects, projects_done, messages, messages_done } = progress;
    let part = if *messages > 0 { *messages_done as f64 / *messages as f64 } else { 1.0 };
    let part = part.clamp(0.0, 1.0);
    let full = (part * BAR as f64) as usize;
    let (done, left) = ("#".repeat(full), ".".repeat(BAR - full));
    format!(
        "{what} [{done}{left}] {:3.0} %  {messages_done} of {messages} messages, {projects_done} of {projects} projects",
        part * 100.0
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_told_as_a_bar() {
        let progress = Progress { projects: 4, projects_done: 1, messages: 200, messages_done: 50 };
        let text = bar("comparing", &progress);
        assert!(text.starts_with("comparing [#######.......................]  25 %"), "{text}");
        let nothing = bar("comparing", &Progress::default());
        assert!(nothing.contains("100 %"), "{nothing}");
    }

    #[test]
    fn a_difference_is_an_exit_code_of_its_own() {
        let report = Report { missing: 1, ..Report::default() };
        assert_eq!(concluded(&report, "x").unwrap_err().code(), Code::ChecksFailed);
        assert!(concluded(&Report { consistent: true, ..Report::default() }, "x").is_ok());
    }
}
