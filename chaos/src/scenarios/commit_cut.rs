//! The connection to PostgreSQL is cut between a COMMIT and its reply, again and again under load. Nobody knows then whether
//! the commit happened: the server must say so (503 `unavailable`), and the retry with the same key must end as one task.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::{After, Scenario};
use crate::checker::{Invariant, Violation};
use crate::cluster::Cluster;
use crate::history::Op;
use crate::load::{Load, Tally};
use crate::proxy::Proxy;
use crate::server::{Launch, Server};

const UNKNOWN: &str = "503 unavailable";
/// Statements that met the cut connection before their own COMMIT: surely nothing of them happened.
const UNREACHABLE: &str = "503 store_unavailable";
/// Those whom nobody served in time while the machine stood still: nothing of them happened either.
const OVERLOADED: &str = "503 overloaded";
/// A cut may meet a commit of a queue, or one that belongs to no request; so many in one round cannot all.
const CUTS_SEEN: u64 = 12;

pub struct CommitCut {
    folder: PathBuf,
    seed: u64,
    /// Cuts nothing, but answers commits that it has not made.
    planted: bool,
    cluster: Option<Cluster>,
    proxy: Option<Proxy>,
    cuts_before: u64,
    told: String,
}

impl CommitCut {
    pub fn new(folder: PathBuf, seed: u64, planted: bool) -> Self {
        CommitCut { folder, seed, planted, cluster: None, proxy: None, cuts_before: 0, told: String::new() }
    }
}

/// While commits are cut, every create and cancel is answered, and what is not a promise is said to be unknown.
fn judge(unknowns: &std::collections::BTreeMap<String, u64>, cuts: u64) -> Vec<Violation> {
    let others = unknowns.iter().filter(|(kind, _)| ![UNKNOWN, UNREACHABLE, OVERLOADED].contains(&kind.as_str()));
    let mut violations: Vec<Violation> = others
        .map(|(kind, count)| Violation::new(Invariant::Unserved, format!("{count} × {kind} instead of {UNKNOWN}")))
        .collect();
    if cuts >= CUTS_SEEN && !unknowns.contains_key(UNKNOWN) {
        let detail = format!("{cuts} commits were cut, and no request was answered {UNKNOWN}");
        violations.push(Violation::new(Invariant::Unserved, detail));
    }
    violations
}

impl Scenario for CommitCut {
    async fn prepare(&mut self, launch: &mut Launch) -> Result<PathBuf> {
        let cluster = self.cluster.insert(Cluster::at(&self.folder).await?);
        let proxy = self.proxy.insert(Proxy::start(cluster.port, self.seed, self.planted).await?);
        launch.extra.extend(["--store".into(), Cluster::url(proxy.port)]);
        let data = self.folder.join("data");
        std::fs::create_dir_all(&data)?;
        Ok(data)
    }

    async fn begin(&mut self, server: Server, _launch: &Launch, _data: &Path) -> Result<Option<Server>> {
        let proxy = self.proxy.as_ref().context("no proxy was started")?;
        self.cuts_before = proxy.cuts();
        proxy.arm(true);
        Ok(Some(server))
    }

    /// The cuts went on all the time; from here on the connections hold, for the check.
    async fn strike(&mut self, server: Server, _load: &Load) -> Result<After> {
        self.proxy.as_ref().context("no proxy was started")?.arm(false);
        Ok(After::Serving(Box::new(server)))
    }

    fn judge(&mut self, tally: &Tally, _created_us: &HashMap<Op, i64>) -> Vec<Violation> {
        let cuts = self.proxy.as_ref().map_or(0, Proxy::cuts) - self.cuts_before;
        let answers: Vec<String> = tally.unknowns.iter().map(|(kind, count)| format!("{count} × {kind}")).collect();
        self.told = format!("{cuts} commits cut, answered {}", answers.join(", "));
        if self.planted { Vec::new() } else { judge(&tally.unknowns, cuts) }
    }

    fn told(&self) -> Option<String> {
        Some(self.told.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_honest_unknown_is_clean() {
        let answers = |kinds: &[&str]| kinds.iter().map(|kind| ((*kind).to_owned(), 1)).collect();
        assert!(judge(&answers(&[UNKNOWN, UNREACHABLE, OVERLOADED]), 20).is_empty());
        assert!(judge(&answers(&[]), 11).is_empty());
        assert_eq!(judge(&answers(&[UNREACHABLE]), 12).len(), 1);
        assert_eq!(judge(&answers(&[UNKNOWN, "500 internal"]), 9).len(), 1);
        assert_eq!(judge(&answers(&[UNKNOWN, "no answer"]), 9).len(), 1);
    }
}
