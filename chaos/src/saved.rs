//! What a run needs to be continued: written into its folder after every round, read by `--resume`.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::campaign::Report;

const FILE: &str = "run.json";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Saved {
    pub scenario: String,
    pub seed: u64,
    pub rounds: u32,
    pub seconds: u64,
    pub connections: u32,
    pub journal: PathBuf,
    pub data: PathBuf,
    pub passed: u32,
    pub acknowledged: u64,
    pub refused: u64,
    pub resolved: u64,
    pub longest_ms: u64,
}

impl Saved {
    /// Renamed into place, so that whoever kills us leaves the old one or the new one.
    pub fn write(&self, folder: &Path) -> Result<()> {
        let fresh = folder.join("run.json.new");
        fs::write(&fresh, serde_json::to_vec_pretty(self)?)?;
        fs::rename(&fresh, folder.join(FILE)).context("keeping the state of the run")
    }

    pub fn read(folder: &Path) -> Result<Saved> {
        let file = folder.join(FILE);
        let text = fs::read(&file).with_context(|| format!("{} is not the folder of a run", folder.display()))?;
        serde_json::from_slice(&text).with_context(|| format!("reading {}", file.display()))
    }

    pub fn exists(folder: &Path) -> bool {
        folder.join(FILE).exists()
    }

    pub fn report(&self) -> Report {
        Report {
            passed: self.passed,
            acknowledged: self.acknowledged,
            refused: self.refused,
            resolved: self.resolved,
            longest: Duration::from_millis(self.longest_ms),
            ..Report::default()
        }
    }

    pub fn note(&mut self, report: &Report, data: &Path) {
        self.data = data.to_owned();
        self.passed = report.passed;
        self.acknowledged = report.acknowledged;
        self.refused = report.refused;
        self.resolved = report.resolved;
        self.longest_ms = u64::try_from(report.longest.as_millis()).unwrap_or(u64::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!Saved::exists(folder.path()) && Saved::read(folder.path()).is_err());
        let mut saved = Saved {
            scenario: "kill".into(),
            seed: u64::MAX,
            rounds: 200,
            seconds: 2,
            connections: 32,
            journal: "/dev/shm/j".into(),
            data: "/data".into(),
            passed: 0,
            acknowledged: 0,
            refused: 0,
            resolved: 0,
            longest_ms: 0,
        };
        let report = Report { passed: 7, acknowledged: 99, ..Report::default() };
        saved.note(&report, Path::new("/elsewhere"));
        saved.write(folder.path()).unwrap();
        let read = Saved::read(folder.path()).unwrap();
        assert_eq!(read, saved);
        assert_eq!((read.report().passed, read.report().acknowledged), (7, 99));
    }
}
