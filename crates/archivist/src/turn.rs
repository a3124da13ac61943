//! One turn of one project: what is due is read, written to the archive outside of any transaction, and recorded.

use std::sync::Arc;
use std::time::{Duration, Instant};

use waybill_archive::repo::{Applied, Archive};
use waybill_archive::{Error as ArchiveError, Result as ArchiveResult};
use waybill_kernel::{Error, Result};
use waybill_store::Store;

use crate::rows::{Batch, Changed, ReadBatch, ReadChanges, ReadSeen, Record, SetAside, Taken, Whose};
use crate::walk::{Piece, Step, Walk};
use crate::{Draft, Settings, metrics};

/// Thousands of messages whose files are read at a time.
const SEEN_AT_ONCE: usize = 16;
/// Pieces of a walk between two looks at rows: what is new does not wait for what is old.
const PIECES: usize = 4;

/// What a turn is about.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    pub whose: Whose,
    pub rows: bool,
    /// Agents with changes.
    pub agents: Vec<i64>,
    /// The archive lacks something: where the walk over all of it stands.
    pub walk: Option<Walk>,
}

/// What a turn came to.
#[derive(Debug)]
pub(crate) struct Ended {
    pub whose: Whose,
    pub outcome: std::result::Result<Done, Trouble>,
}

#[derive(Debug, Default)]
pub(crate) struct Done {
    /// Rows are left.
    pub more: bool,
    /// How long writing took.
    pub took: Duration,
    /// Goes on from here; None when there is none or it has ended.
    pub walk: Option<Walk>,
    /// A walk has come to its end: the archive lacks nothing.
    pub walked: bool,
    /// Something was written or recorded.
    pub wrote: bool,
}

#[derive(Debug)]
pub(crate) enum Trouble {
    /// Of the archive: it counts against it.
    Archive(ArchiveError),
    /// Of the database, which has troubles of its own.
    Store(Error),
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Trouble::Store(error)
    }
}

impl From<ArchiveError> for Trouble {
    fn from(error: ArchiveError) -> Self {
        Trouble::Archive(error)
    }
}

/// Whatever a turn needs.
#[derive(Clone)]
pub(crate) struct Hand {
    pub store: Store,
    pub archive: Arc<Archive>,
    pub settings: Arc<Settings>,
    /// Called by whoever is about to write a window.
    pub watch: Option<Watch>,
}

pub(crate) type Watch = Arc<dyn Fn() + Send + Sync>;

impl Hand {
    pub(crate) async fn turn(self, task: Task) -> Ended {
        let whose = task.whose;
        let outcome = self.work(task).await;
        Ended { whose, outcome }
    }

    async fn work(&self, task: Task) -> std::result::Result<Done, Trouble> {
        let mut done = Done { walk: task.walk, ..Done::default() };
        if task.rows {
            self.rows(task.whose, &mut done).await?;
        }
        if !task.agents.is_empty() {
            self.changes(task.whose, &task.agents, &mut done).await?;
        }
        if let Some(walk) = done.walk.take() {
            self.walk(walk, &mut done).await?;
        }
        Ok(done)
    }

    /// One window.
    async fn rows(&self, whose: Whose, done: &mut Done) -> std::result::Result<(), Trouble> {
        let Settings { window_rows_max: rows_max, window_bytes_max: bytes_max, .. } = *self.settings;
        let Some(batch) = self.store.system().run(ReadBatch { whose, rows_max, bytes_max }).await? else {
            return Ok(());
        };
        let Batch { draft, taken, more } = batch;
        done.more = more;
        done.wrote = true;
        match self.write(draft, taken.at.len(), done).await {
            Err(Trouble::Archive(error @ (ArchiveError::Format(_) | ArchiveError::Path(_)))) => {
                self.set_aside(taken, &error).await?;
                return Ok(());
            }
            outcome => outcome?,
        }
        self.record(Some(taken), Vec::new()).await
    }

    /// A row that nothing can be made of would stand before all others. Found by taking the window apart: a window of one is set aside.
    async fn set_aside(&self, taken: Taken, error: &ArchiveError) -> std::result::Result<(), Trouble> {
        if taken.at.len() == 1 {
            tracing::error!(project = taken.whose.1, row = taken.row, %error, "a row cannot be archived and is set aside");
            self.store.system().run(SetAside(taken)).await?;
            return Ok(());
        }
        for _ in 0..taken.at.len() {
            let one = ReadBatch { whose: taken.whose, rows_max: 1, bytes_max: 1 };
            let Some(batch) = self.store.system().run(one).await? else { break };
            if (batch.taken.xact, batch.taken.row) > (taken.xact, taken.row) {
                break;
            }
            let (single, mut done) = (batch.taken, Done::default());
            match self.write(batch.draft, 1, &mut done).await {
                Err(Trouble::Archive(error @ (ArchiveError::Format(_) | ArchiveError::Path(_)))) => {
                    Box::pin(self.set_aside(single, &error)).await?;
                }
                outcome => {
                    outcome?;
                    self.record(Some(single), Vec::new()).await?;
                }
            }
        }
        Ok(())
    }

    /// State that agents' calls have changed, several agents in one window where they fit.
    async fn changes(&self, whose: Whose, agents: &[i64], done: &mut Done) -> std::result::Result<(), Trouble> {
        let (mut draft, mut changed): (Option<Draft>, Vec<Changed>) = (None, Vec::new());
        for agent in agents {
            let Some(state) = self.store.system().run(ReadChanges { whose, agent: *agent }).await? else { continue };
            changed.push(state.changed);
            done.wrote = true;
            let Some(owner) = state.owner else { continue };
            let now = self.store.now();
            let window = draft.get_or_insert_with(|| Draft::new(owner.clone(), now));
            if !state.items.is_empty() {
                window.lines.push(crate::draft::Line::state(&state.name));
            }
            window.items.extend(state.items);
            let mut seen = state.seen.chunks(SEEN_AT_ONCE);
            loop {
                // Also before anything that was seen: a single agent's contacts may fill a window.
                if window.weight() > self.settings.window_bytes_max {
                    let empty = Draft::new(window.owner.clone(), now);
                    let full = std::mem::replace(window, empty);
                    window.lines.clone_from(&full.lines);
                    self.write_state(full, 1, done).await?;
                }
                let Some(messages) = seen.next() else { break };
                let (owner, name) = (owner.clone(), state.name.clone());
                let read = ReadSeen { owner, agent: *agent, name, messages: messages.to_vec() };
                window.items.extend(self.store.system().run(read).await?);
            }
        }
        if let Some(draft) = draft {
            let agents = changed.len();
            self.write_state(draft, agents, done).await?;
        }
        self.record(None, changed).await
    }

    /// State that no file can hold is left out, as in a walk: it must not stand before that of all other agents. A check tells of it.
    async fn write_state(&self, draft: Draft, size: usize, done: &mut Done) -> std::result::Result<(), Trouble> {
        let draft = Arc::new(draft);
        match self.write(Arc::clone(&draft), size, done).await {
            Err(Trouble::Archive(ArchiveError::Format(_) | ArchiveError::Path(_))) => {
                self.write(Arc::unwrap_or_clone(draft).fileable(), size, done).await
            }
            outcome => outcome,
        }
    }

    /// Some of what the archive has to hold, until all of it was looked at.
    async fn walk(&self, mut walk: Walk, done: &mut Done) -> std::result::Result<(), Trouble> {
        let mut pieces = 0;
        done.wrote = true;
        while pieces < PIECES {
            let Piece { draft, next } = self.store.system().run(walk.clone()).await?;
            if let Some(draft) = draft.map(Draft::fileable).filter(|draft| !draft.items.is_empty()) {
                pieces += 1;
                let begun = self.write_window(Arc::new(draft), 0, done).await?;
                if begun != walk.begun {
                    // It was removed meanwhile, and lacks what was walked over already.
                    done.walk = Some(self.walk_from(walk.whose, begun));
                    return Ok(());
                }
            }
            walk.step = next;
            if walk.step == Step::Done {
                let settled = self.settled(&walk).await?;
                done.walk = if settled { None } else { Some(self.walk_from(walk.whose, String::new())) };
                done.walked = settled;
                return Ok(());
            }
        }
        done.walk = Some(walk);
        Ok(())
    }

    fn walk_from(&self, whose: Whose, begun: String) -> Walk {
        Walk { begun, ..Walk::new(whose, self.settings.window_bytes_max) }
    }

    /// The archive has everything that the database had when it began again. False if it began again since.
    async fn settled(&self, walk: &Walk) -> std::result::Result<bool, Trouble> {
        if walk.begun.is_empty() {
            return Ok(true);
        }
        let Some(owner) = self.store.system().run(crate::probe::FindOwner(walk.whose)).await? else { return Ok(true) };
        let (archive, begun, now) = (Arc::clone(&self.archive), walk.begun.clone(), self.store.now());
        Ok(blocking(move || archive.settled(&owner.key(), &begun, now)).await??)
    }

    /// One window to the archive. What it lacks besides is asked for.
    async fn write(
        &self,
        draft: impl Into<Arc<Draft>>,
        size: usize,
        done: &mut Done,
    ) -> std::result::Result<(), Trouble> {
        let draft = draft.into();
        if draft.items.is_empty() {
            return Ok(());
        }
        let whose = draft.owner.whose();
        let begun = self.write_window(draft, size, done).await?;
        let known = done.walk.as_ref().map(|walk| walk.begun.as_str());
        if !begun.is_empty() && known != Some(&begun) {
            done.walk = Some(self.walk_from(whose, begun));
        }
        Ok(())
    }

    /// Answers with the beginning that the archive has to be completed from; empty for none.
    async fn write_window(
        &self,
        draft: Arc<Draft>,
        size: usize,
        done: &mut Done,
    ) -> std::result::Result<String, Trouble> {
        let began = Instant::now();
        metrics::window_begun();
        let applied = match self.apply(&draft).await {
            Err(Trouble::Store(error)) => {
                // Whoever wrote it has died. It is written again by another, and nothing is lost.
                tracing::error!(%error, "writing to the archive panicked; it is tried once more");
                metrics::worker_died();
                self.apply(&draft).await?
            }
            applied => applied?,
        };
        let took = began.elapsed();
        done.took += took;
        metrics::window_ended();
        if applied.written > 0 {
            metrics::committed(size, took);
        }
        Ok(applied.begun)
    }

    async fn apply(&self, draft: &Arc<Draft>) -> std::result::Result<Applied, Trouble> {
        let (archive, draft) = (Arc::clone(&self.archive), Arc::clone(draft));
        let (watch, asked) = (self.watch.clone(), Instant::now());
        let apply = move || -> ArchiveResult<Applied> {
            metrics::window_taken(asked.elapsed());
            if let Some(watch) = watch {
                watch();
            }
            archive.apply(&draft.owner.key(), &draft.window()?)
        };
        Ok(blocking(apply).await??)
    }

    async fn record(&self, taken: Option<Taken>, changed: Vec<Changed>) -> std::result::Result<(), Trouble> {
        let latencies: Vec<_> = taken.iter().flat_map(|taken| taken.at.iter().copied()).collect();
        self.store.system().run(Record { taken, changed }).await?;
        let now = self.store.now();
        metrics::drained(latencies.into_iter().map(|at| now.since(at)));
        Ok(())
    }
}

/// On a thread that may block. An error of the task itself is a panic.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(Error::internal)
}

#[cfg(test)]
#[path = "turn_tests.rs"]
mod tests;
