//! The client's own record, on another file system than the server's data.
//!
//! `record` returns once the line is on disk: an `invoke` is journaled before its request leaves, an `ok` before
//! anything builds on it. One thread writes; lines that wait together share one fsync, as the server's commits do.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

use crate::history::{Entry, Event, History, Line, Op, Verb};

/// Lines per fsync. More than the usual number of connections, so one pass serves all of them.
const GROUP_MAX: usize = 256;
/// Waiting lines; each connection has at most one.
const QUEUE_MAX: usize = 1024;

type Waiting = (Line, oneshot::Sender<()>);

#[derive(Clone)]
pub struct Journal {
    path: PathBuf,
    queue: mpsc::Sender<Waiting>,
    history: Arc<Mutex<History>>,
}

impl Journal {
    pub fn create(path: PathBuf, run: &str, seed: u64) -> Result<Journal> {
        let mut file = File::create_new(&path).with_context(|| format!("creating the journal {}", path.display()))?;
        writeln!(file, "{}", json!({"run": run, "seed": seed}))?;
        file.sync_all()?;
        Self::go_on(path, file, History::new(run.to_owned(), seed))
    }

    /// The journal of an interrupted run, to be continued. A torn last line is cut off: nobody acted on it.
    pub fn resume(path: PathBuf) -> Result<Journal> {
        let gone = "it is kept in memory and does not survive the machine: begin anew";
        let history = replay(&path).with_context(|| format!("the journal {} ({gone})", path.display()))?;
        let text = std::fs::read(&path)?;
        let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        let file = File::options().append(true).open(&path)?;
        file.set_len(whole as u64)?;
        Self::go_on(path, file, history)
    }

    fn go_on(path: PathBuf, file: File, history: History) -> Result<Journal> {
        let history = Arc::new(Mutex::new(history));
        let (queue, waiting) = mpsc::channel(QUEUE_MAX);
        let applied = Arc::clone(&history);
        std::thread::Builder::new().name("journal".into()).spawn(move || write_groups(file, waiting, &applied))?;
        Ok(Journal { path, queue, history })
    }

    /// Returns when the line is durable and part of the history.
    pub async fn record(&self, line: impl Into<Line>) -> Result<()> {
        let (done, durable) = oneshot::channel();
        if self.queue.send((line.into(), done)).await.is_err() || durable.await.is_err() {
            bail!("the journal {} cannot be written", self.path.display());
        }
        Ok(())
    }

    pub async fn invoke(&self, round: u32, verb: Verb, op: Op) -> Result<()> {
        self.record(Entry { round, event: Event::Invoke, verb, op, task_id: None, note: None }).await
    }

    pub fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file must tell the same story as the memory, or a kept journal would prove nothing.
    pub fn verify(&self) -> Result<()> {
        let replayed = replay(&self.path)?;
        if replayed != *self.history() {
            bail!("the journal {} does not match what the client remembers", self.path.display());
        }
        Ok(())
    }
}

/// Ends when the last handle is gone, or on the first write error: dropping the senders tells every waiter.
fn write_groups(mut file: File, mut waiting: mpsc::Receiver<Waiting>, history: &Mutex<History>) {
    while let Some(first) = waiting.blocking_recv() {
        let mut group = vec![first];
        while group.len() < GROUP_MAX {
            let Ok(next) = waiting.try_recv() else { break };
            group.push(next);
        }
        if write_group(&mut file, &group).is_err() {
            return;
        }
        let mut history = history.lock().unwrap_or_else(PoisonError::into_inner);
        for (line, _) in &group {
            history.apply_line(line);
        }
        drop(history);
        for (_, done) in group {
            // A caller that has gone (Ctrl-C) needs no answer.
            let _ = done.send(());
        }
    }
}

fn write_group(file: &mut File, group: &[Waiting]) -> Result<()> {
    let mut lines = Vec::new();
    for (line, _) in group {
        serde_json::to_writer(&mut lines, line)?;
        lines.push(b'\n');
    }
    file.write_all(&lines)?;
    file.sync_data()?;
    Ok(())
}

/// Folds a journal file. A torn last line was never acknowledged to anybody and is left out.
pub fn replay(path: &Path) -> Result<History> {
    let mut lines = BufReader::new(File::open(path)?).lines();
    let head: Value = serde_json::from_str(&lines.next().context("the journal is empty")??)?;
    let run = head["run"].as_str().context("the journal names no run")?;
    let seed = head["seed"].as_u64().context("the journal names no seed")?;
    let mut history = History::new(run.to_owned(), seed);
    let mut torn = false;
    for line in lines {
        if torn {
            bail!("the journal {} is damaged in the middle", path.display());
        }
        match serde_json::from_str::<Line>(&line?) {
            Ok(line) => history.apply_line(&line),
            Err(_) => torn = true,
        }
    }
    Ok(history)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Fate;
    use crate::leases::{Deed, Word};

    fn claimed() -> Word {
        Word {
            round: 1,
            event: Event::Ok,
            deed: Deed::Claim,
            worker: "w".into(),
            task_id: Some("t1".into()),
            lease_id: Some("l1".into()),
            expires_us: Some(1),
            requeued: None,
            note: None,
        }
    }

    #[tokio::test]
    async fn replay_equals_memory_and_forgives_a_torn_tail() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal.jsonl");
        let journal = Journal::create(path.clone(), "kill-7", 7).unwrap();
        let op = Op { conn: 1, seq: 2 };
        journal.invoke(1, Verb::Create, op).await.unwrap();
        let ok = Entry { round: 1, event: Event::Ok, verb: Verb::Create, op, task_id: Some("t1".into()), note: None };
        journal.record(ok).await.unwrap();
        journal.record(claimed()).await.unwrap();
        assert!(!journal.history().leases.is_empty());
        journal.verify().unwrap();
        assert_eq!(journal.history().get(op).unwrap().create, Fate::Promised);

        let mut file = File::options().append(true).open(&path).unwrap();
        file.write_all(b"{\"round\":1,\"ev").unwrap();
        journal.verify().unwrap();

        let resumed = Journal::resume(path.clone()).unwrap();
        assert_eq!(*resumed.history(), *journal.history());
        assert_eq!(resumed.history().last_round(), 1);
        resumed.invoke(2, Verb::Create, Op { conn: 0, seq: 9 }).await.unwrap();
        resumed.verify().unwrap();

        file.write_all(b"torn\n{}\n").unwrap();
        assert!(replay(&path).is_err());
    }
}
