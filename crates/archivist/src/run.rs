//! Keeps the archive behind the database while the program serves.
//!
//! Nobody polls: it sleeps until the topic is woken or a rest is over, and looks once in a while besides. What is written within a window
//! shares a commit; a project is in one hand at a time, so its commits come one after another, and several projects are written at once.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use waybill_archive::Error as ArchiveError;
use waybill_archive::repo::Archive;
use waybill_kernel::{Result, Tenant};
use waybill_mail::archive_health::{ArchiveHealth, HealthBounds, Pressure, Troubles};
use waybill_mail::archive_rows;
use waybill_store::Store;

use crate::breaker::After;
use crate::rows::{BEFORE_ALL, Backlog, Look, Measure, PassOver, Whose};
use crate::slot::{Readiness, Slot};
use crate::turn::{Done, Ended, Hand, Task, Trouble, blocking};
use crate::walk::Walk;
use crate::{Settings, disk, metrics, probe};

/// However long nobody wakes it.
const LOOK_AGAIN: Duration = Duration::from_secs(30);
/// After a look that failed.
const PAUSE: Duration = Duration::from_secs(1);
/// Between two counts of what is not written.
const MEASURED: Duration = Duration::from_secs(1);
/// Projects that are remembered. One that is forgotten begins with a short window again.
const REMEMBERED_MAX: usize = 4_096;
/// Projects with changes that wait for a free hand; with more of them no others are looked for.
const CHANGED_MAX: usize = 256;
/// Looks that find nothing to begin before [`Archivist::settle`] takes it for the end, where projects that rest are too many for one look.
const IDLE_LOOKS_MAX: usize = 16;

pub struct Archivist {
    hand: Hand,
    health: ArchiveHealth,
    slots: HashMap<Whose, Slot>,
    hands: JoinSet<Ended>,
    /// Who is written by which of them.
    tasks: HashMap<Id, Whose>,
    /// The last failure of each tenant, in words that name no path.
    errors: HashMap<Tenant, String>,
    pressure: Pressure,
    sampled: Option<Instant>,
    changes_looked: Option<Instant>,
    /// Agents with changes that a look has found and that nobody has begun with yet.
    changed: BTreeMap<Whose, Vec<i64>>,
    /// Where the next looks begin.
    projects_from: Whose,
    agents_from: Whose,
    /// The last look for rows has not seen all projects.
    is_partial: bool,
    measured: Option<Instant>,
    /// A turn since the last round of [`Self::settle`] has written something.
    progressed: bool,
}

impl Archivist {
    pub fn new(store: Store, archive: Arc<Archive>, settings: Settings, health: ArchiveHealth) -> Self {
        metrics::describe(settings.capacity);
        health.set_bounds(HealthBounds {
            capacity: settings.capacity,
            lag_yellow: Duration::from_secs(settings.lag_yellow_s),
            lag_red: Duration::from_secs(settings.lag_red_s),
        });
        health.set_history(crate::history::reader(Arc::clone(&archive)));
        Self {
            hand: Hand { store, archive, settings: Arc::new(settings), watch: None },
            health,
            slots: HashMap::new(),
            hands: JoinSet::new(),
            tasks: HashMap::new(),
            errors: HashMap::new(),
            pressure: Pressure::None,
            sampled: None,
            changes_looked: None,
            changed: BTreeMap::new(),
            projects_from: BEFORE_ALL,
            agents_from: BEFORE_ALL,
            is_partial: false,
            measured: None,
            progressed: false,
        }
    }

    /// `watch` is called on the thread that is about to write a window: for tests of what becomes of it when that thread dies.
    #[must_use]
    pub fn watched(mut self, watch: impl Fn() + Send + Sync + 'static) -> Self {
        self.hand.watch = Some(Arc::new(watch));
        self
    }

    /// As [`Self::run`], begun again when it dies: nothing is lost, since what is not written is in the database.
    pub async fn keep_running(self, stopping: CancellationToken) {
        let (hand, health) = (self.hand.clone(), self.health.clone());
        let mut next = self;
        while tokio::spawn(next.run(stopping.clone())).await.is_err() && !stopping.is_cancelled() {
            tracing::error!("the archiver panicked; it begins again");
            metrics::worker_died();
            tokio::time::sleep(PAUSE).await;
            next = Self::new(
                hand.store.clone(),
                Arc::clone(&hand.archive),
                Settings::clone(&hand.settings),
                health.clone(),
            );
        }
    }

    /// Until it is stopped. What waits then is written for as long as the settings allow.
    pub async fn run(mut self, stopping: CancellationToken) {
        self.probe().await;
        while !stopping.is_cancelled() {
            // Before the look: what is woken after it is seen.
            let flag = self.hand.store.flag(archive_rows::topic());
            let wait = self.look().await;
            tokio::select! {
                () = stopping.cancelled() => break,
                Some(ended) = self.hands.join_next_with_id() => self.told(ended),
                () = flag.wait() => self.gather(&stopping).await,
                () = tokio::time::sleep(wait) => {}
            }
        }
        self.flush().await;
    }

    /// Writes whatever can be written now, and ends when there is nothing left of it. For tests, and for the end of a program.
    pub async fn settle(&mut self) -> Result<()> {
        self.sample().await;
        let mut idle = 0;
        loop {
            self.changes_looked = None;
            self.start_due(true).await?;
            if !self.hands.is_empty() {
                idle = 0;
                self.join_all().await;
                continue;
            }
            idle += 1;
            if !self.is_partial || idle >= IDLE_LOOKS_MAX {
                self.measure().await;
                return Ok(());
            }
        }
    }

    /// Waits for everybody; a moment longer where nobody could write anything yet.
    async fn join_all(&mut self) {
        self.progressed = self.hands.is_empty();
        while let Some(ended) = self.hands.join_next_with_id().await {
            self.told(ended);
        }
        if !self.progressed {
            tokio::time::sleep(self.hand.settings.window()).await;
        }
    }

    /// What comes within a window shares a commit.
    async fn gather(&mut self, stopping: &CancellationToken) {
        let until = Instant::now() + self.hand.settings.window();
        loop {
            tokio::select! {
                () = stopping.cancelled() => return,
                Some(ended) = self.hands.join_next_with_id() => self.told(ended),
                () = tokio::time::sleep_until(until) => return,
            }
        }
    }

    /// Begins what is due, and answers with how long there is nothing to begin.
    async fn look(&mut self) -> Duration {
        self.sample().await;
        let wait = match self.start_due(false).await {
            Ok(wait) => wait,
            Err(error) => {
                let cause = error.cause().unwrap_or_default();
                tracing::warn!(%error, cause, "what is to be archived could not be looked for; it is tried again");
                PAUSE
            }
        };
        if self.measured.is_none_or(|at| at.elapsed() >= MEASURED) {
            self.measure().await;
        }
        wait
    }

    async fn start_due(&mut self, at_once: bool) -> Result<Duration> {
        let (now, from) = (Instant::now(), self.projects_from);
        let (projects, mut wait) = self.find_due(now).await?;
        let (has_room, mut last) = (self.pressure != Pressure::Critical, from);
        for task in self.tasks(from, &projects) {
            let whose = task.whose;
            match self.slot(whose, now).readiness(now, at_once, has_room) {
                Readiness::InHand => {}
                Readiness::Rests { until, is_open: false } => wait = wait.min(until.saturating_duration_since(now)),
                Readiness::Rests { until, is_open: true } => {
                    if task.rows {
                        self.pass_over(whose).await?;
                    }
                    self.changed.remove(&whose);
                    wait = wait.min(until.saturating_duration_since(now).max(PAUSE));
                }
                Readiness::Now if self.hands.len() >= self.hand.settings.projects_at_once => {
                    // The next look begins with this one.
                    self.projects_from = last;
                    break;
                }
                Readiness::Now => {
                    self.slot(whose, now).in_hand = true;
                    self.changed.remove(&whose);
                    self.begin(whose, self.hand.clone().turn(task));
                }
            }
            last = whose;
        }
        Ok(wait)
    }

    fn begin(&mut self, whose: Whose, turn: impl Future<Output = Ended> + Send + 'static) {
        self.tasks.insert(self.hands.spawn(turn).id(), whose);
        self.tell_pending();
    }

    /// Projects with rows, and how long it can be until the next look. Changes are added to those that nobody has begun yet.
    async fn find_due(&mut self, now: Instant) -> Result<(Vec<Whose>, Duration)> {
        let every = self.hand.settings.changes();
        let is_time = self.changes_looked.is_none_or(|at| now.duration_since(at) >= every);
        let changes = is_time && self.changed.len() < CHANGED_MAX;
        let busy = self.slots.iter().filter(|(_, slot)| slot.is_busy(now)).map(|(whose, _)| *whose).collect();
        let look = Look { projects_from: self.projects_from, agents_from: changes.then_some(self.agents_from), busy };
        let due = self.hand.store.system().run(look).await?;
        self.is_partial = due.projects_from.is_some();
        self.projects_from = due.projects_from.unwrap_or(self.projects_from);
        let mut wait = if self.is_partial { PAUSE } else { LOOK_AGAIN.min(self.hand.settings.disk_sample()) };
        if changes {
            self.changes_looked = Some(now);
            self.agents_from = due.agents_from.unwrap_or(self.agents_from);
            self.changed.extend(due.agents);
        }
        if !changes || due.more_changes || !self.changed.is_empty() {
            wait = wait.min(every);
        }
        Ok((due.projects, wait))
    }

    /// By project: its rows, its agents' changes, and what its archive lacks. Those behind `from` come first.
    fn tasks(&self, from: Whose, projects: &[Whose]) -> Vec<Task> {
        let rows: HashSet<Whose> = projects.iter().copied().collect();
        let walks = self.slots.iter().filter(|(_, slot)| slot.walk.is_some()).map(|(whose, _)| *whose);
        let all: BTreeSet<Whose> = rows.iter().copied().chain(self.changed.keys().copied()).chain(walks).collect();
        let task = |whose: &Whose| Task {
            whose: *whose,
            rows: rows.contains(whose),
            agents: self.changed.get(whose).cloned().unwrap_or_default(),
            walk: self.slots.get(whose).and_then(|slot| slot.walk.clone()),
        };
        let behind = all.range((Bound::Excluded(from), Bound::Unbounded));
        behind.chain(all.range(..=from)).map(task).collect()
    }

    fn slot(&mut self, whose: Whose, now: Instant) -> &mut Slot {
        if self.slots.len() >= REMEMBERED_MAX && !self.slots.contains_key(&whose) {
            self.slots
                .retain(|_, slot| slot.in_hand || slot.walk.is_some() || slot.breaker.is_failing() || slot.missing > 0);
        }
        self.slots.entry(whose).or_insert_with(|| Slot::new(now))
    }

    async fn pass_over(&mut self, whose: Whose) -> Result<()> {
        let passed = self.hand.store.system().run(PassOver(whose)).await?;
        if passed > 0 {
            metrics::passed_over(passed);
            self.measured = None;
            tracing::warn!(
                project = whose.1,
                rows = passed,
                "rows of the archive were passed over; they are written later"
            );
        }
        Ok(())
    }

    fn told(&mut self, ended: std::result::Result<(Id, Ended), JoinError>) {
        self.tell_pending();
        let now = Instant::now();
        let settings = Arc::clone(&self.hand.settings);
        let (id, ended) = match ended {
            Ok((id, ended)) => (id, Some(ended)),
            Err(error) => (error.id(), None),
        };
        let in_hand = self.tasks.remove(&id);
        let Some(Ended { whose, outcome }) = ended else {
            tracing::error!(project = in_hand.map(|whose| whose.1), "a turn of the archive panicked");
            metrics::worker_died();
            if let Some(whose) = in_hand {
                let slot = self.slot(whose, now);
                slot.in_hand = false;
                slot.breaker.rest(now, PAUSE);
            }
            return;
        };
        self.progressed |= matches!(&outcome, Ok(done) if done.wrote);
        let slot = self.slot(whose, now);
        slot.in_hand = false;
        match outcome {
            Ok(Done { more, took, walk, walked, wrote }) => {
                // What is left is not made to wait for company.
                let window = if more || walk.is_some() { Duration::ZERO } else { settings.window_after(took) };
                if wrote {
                    slot.breaker.worked(now, window);
                } else {
                    // Rows that an open transaction hides for a moment.
                    slot.breaker.rest(now, settings.window());
                }
                slot.walk = walk;
                if walked {
                    slot.missing = 0;
                }
                if !more {
                    // The figures return to nothing with the last row.
                    self.measured = None;
                }
            }
            Err(Trouble::Archive(error)) => self.archive_failed(whose, &error, now),
            Err(Trouble::Store(error)) => {
                let cause = error.cause().unwrap_or_default();
                tracing::warn!(project = whose.1, %error, cause, "the database did not answer the archive; it is tried again");
                slot.breaker.rest(now, PAUSE);
            }
        }
        self.tell_health();
    }

    fn archive_failed(&mut self, whose: Whose, error: &ArchiveError, now: Instant) {
        let settings = Arc::clone(&self.hand.settings);
        let locked = matches!(error, ArchiveError::Locked { .. });
        metrics::failed(locked);
        self.errors.insert(whose.0, error.kind());
        if error.is_disk_full() {
            self.sampled = None;
        }
        match self.slot(whose, now).breaker.failed(now, &settings) {
            After::TryAgain => {
                tracing::warn!(project = whose.1, %error, "the archive could not be written; it is tried again");
            }
            After::GiveUp => {
                metrics::given_up(locked);
                self.health.commit_given_up();
                let rest = settings.breaker_s;
                tracing::error!(project = whose.1, %error, rest, "the archive could not be written and rests; mail goes on without it");
            }
        }
    }

    fn tell_pending(&self) {
        metrics::pending(self.hands.len());
        self.health.set_committing(self.hands.len() as u64);
    }

    fn tell_health(&mut self) {
        let mut troubles: HashMap<Tenant, Troubles> = HashMap::new();
        for ((tenant, _), slot) in &self.slots {
            if slot.breaker.is_failing() || slot.missing > 0 {
                let of = troubles.entry(*tenant).or_default();
                of.failing += u64::from(slot.breaker.is_failing());
                of.breakers_open += u64::from(slot.breaker.has_opened());
                of.missing += slot.missing;
            }
        }
        self.errors.retain(|tenant, _| troubles.get(tenant).is_some_and(|of| of.failing > 0));
        for (tenant, error) in &self.errors {
            troubles.entry(*tenant).or_default().error = Some(error.clone());
        }
        self.health.set_troubles(troubles);
    }

    fn missing(&self) -> u64 {
        self.slots.values().map(|slot| slot.missing).sum()
    }

    async fn measure(&mut self) {
        self.measured = Some(Instant::now());
        match self.hand.store.system().run(Measure).await {
            Ok(Backlog { rows, passed_over, lag }) => {
                metrics::depth(rows, lag);
                metrics::needs_reindex(passed_over.unsigned_abs() + self.missing());
            }
            Err(error) => tracing::debug!(%error, "what is not archived could not be counted"),
        }
    }

    /// How full the disk is, and whether archives are gone.
    async fn sample(&mut self) {
        let now = Instant::now();
        if self.sampled.is_some_and(|at| now.duration_since(at) < self.hand.settings.disk_sample()) {
            return;
        }
        let is_first = self.sampled.is_none();
        self.sampled = Some(now);
        self.sample_disk().await;
        if !is_first && let Err(error) = self.find_gone(now).await {
            tracing::debug!(%error, "whether archives are gone could not be looked for");
        }
    }

    async fn sample_disk(&mut self) {
        let (root, settings) = (self.hand.archive.root().to_owned(), Arc::clone(&self.hand.settings));
        let pressure = blocking(move || disk::sample(&root, &settings)).await.unwrap_or_default();
        if pressure != self.pressure {
            let level = pressure.level();
            match pressure {
                Pressure::None => tracing::info!(level, "the archive's disk has room again"),
                _ => tracing::warn!(level, "the archive's disk is filling up; at level 2 nothing is written to it"),
            }
        }
        self.pressure = pressure;
        self.health.set_disk(pressure);
    }

    /// Projects whose archive somebody has removed get it back, also while nobody writes to them.
    async fn find_gone(&mut self, now: Instant) -> Result<()> {
        let mut after = (waybill_kernel::Tenant(0), 0);
        let mut owners = self.hand.store.system().run(probe::Tenants).await?;
        loop {
            let archive = Arc::clone(&self.hand.archive);
            let next = owners.last().filter(|owner| owner.project > 0).map(crate::Owner::whose);
            let gone = blocking(move || {
                owners.retain(|owner| !archive.exists(&owner.key()));
                owners
            })
            .await?;
            for owner in &gone {
                self.begin_walk(owner.whose(), now);
            }
            after = next.unwrap_or(after);
            owners = self.hand.store.system().run(probe::Projects(after)).await?;
            if owners.is_empty() {
                return Ok(());
            }
        }
    }

    fn begin_walk(&mut self, whose: Whose, now: Instant) {
        let bytes_max = self.hand.settings.window_bytes_max;
        self.slot(whose, now).walk.get_or_insert_with(|| Walk::new(whose, bytes_max));
    }

    /// Whether the newest messages have their files. It keeps nobody waiting: the server serves already.
    pub async fn probe(&mut self) {
        self.sampled = Some(Instant::now());
        self.sample_disk().await;
        if let Err(error) = self.find_missing().await {
            let cause = error.cause().unwrap_or_default();
            tracing::warn!(%error, cause, "whether the archive is whole could not be looked for");
        }
        self.tell_health();
        self.measure().await;
    }

    async fn find_missing(&mut self) -> Result<()> {
        let now = Instant::now();
        let expected = self.hand.store.system().run(probe::Newest(self.hand.settings.probe_messages)).await?;
        let root = self.hand.archive.root().to_owned();
        let missing = blocking(move || probe::missing(&root, expected)).await?;
        if !missing.is_empty() {
            let count = missing.len();
            tracing::warn!(count, "messages are not in the archive; it is completed from the database");
        }
        for one in missing {
            self.begin_walk(one.whose, now);
            self.slot(one.whose, now).missing += 1;
        }
        Ok(())
    }

    async fn flush(mut self) {
        let budget = Duration::from_millis(self.hand.settings.flush_ms);
        let flushed = tokio::time::timeout(budget, async {
            loop {
                self.join_all().await;
                self.changes_looked = None;
                if self.start_due(true).await.is_err() || self.hands.is_empty() {
                    return;
                }
            }
        });
        if flushed.await.is_err() {
            tracing::warn!("not everything was archived before the end; the rest is written after the next start");
        }
        let archive = Arc::clone(&self.hand.archive);
        self.hands.shutdown().await;
        let _ = blocking(move || archive.close()).await;
    }
}

#[cfg(test)]
#[path = "run_tests.rs"]
mod tests;
