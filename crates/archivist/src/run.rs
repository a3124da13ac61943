//! Keeps the archive behind the database while the program serves.
//!
//! Nobody polls: it sleeps until the topic is woken or a rest is over, and looks once in a while besides. What is written within a window
//! shares a commit; a project is in one hand at a time, so its commits come one after another, and several projects are written at once.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use waybill_archive::Error as ArchiveError;
use waybill_archive::repo::Archive;
use waybill_kernel::Result;
use waybill_mail::archive_health::{ArchiveHealth, HealthBounds, Pressure};
use waybill_mail::archive_rows;
use waybill_store::Store;

use crate::breaker::{After, Breaker};
use crate::rows::{Backlog, Due, Look, Measure, PassOver, Whose};
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

/// What is remembered of a project.
struct Slot {
    breaker: Breaker,
    in_hand: bool,
    walk: Option<Walk>,
    /// Messages whose files the probe has missed.
    missing: u64,
}

pub struct Archivist {
    hand: Hand,
    health: ArchiveHealth,
    slots: HashMap<Whose, Slot>,
    hands: JoinSet<Ended>,
    pressure: Pressure,
    sampled: Option<Instant>,
    changes_looked: Option<Instant>,
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
            pressure: Pressure::None,
            sampled: None,
            changes_looked: None,
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
                Some(ended) = self.hands.join_next() => self.told(ended),
                () = flag.wait() => self.gather(&stopping).await,
                () = tokio::time::sleep(wait) => {}
            }
        }
        self.flush().await;
    }

    /// Writes whatever can be written now, and ends when there is nothing left of it. For tests, and for the end of a program.
    pub async fn settle(&mut self) -> Result<()> {
        self.sample().await;
        loop {
            self.changes_looked = None;
            self.start_due(true).await?;
            if self.hands.is_empty() {
                self.measure().await;
                return Ok(());
            }
            self.join_all().await;
        }
    }

    /// Waits for everybody; a moment longer where nobody could write anything yet.
    async fn join_all(&mut self) {
        self.progressed = self.hands.is_empty();
        while let Some(ended) = self.hands.join_next().await {
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
                Some(ended) = self.hands.join_next() => self.told(ended),
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
        let now = Instant::now();
        let every = self.hand.settings.changes();
        let changes = self.changes_looked.is_none_or(|at| now.duration_since(at) >= every);
        let due = self.hand.store.system().run(Look { changes }).await?;
        if changes {
            self.changes_looked = Some(now);
        }
        let mut wait = LOOK_AGAIN.min(self.hand.settings.disk_sample());
        let more_changes = changes && !due.agents.is_empty();
        let tasks = self.tasks(due);
        if !changes || more_changes {
            wait = wait.min(every);
        }
        for task in tasks {
            let whose = task.whose;
            let slot = self.slot(whose, now);
            if slot.in_hand {
                continue;
            }
            if self.pressure == Pressure::Critical || self.slot(whose, now).breaker.is_open(now) {
                if task.rows {
                    self.pass_over(whose).await?;
                }
                let until = self.slot(whose, now).breaker.rests_until();
                wait = wait.min(until.saturating_duration_since(now).max(PAUSE));
                continue;
            }
            let slot = self.slot(whose, now);
            let may_write = slot.breaker.may_write(now) || (at_once && !slot.breaker.is_failing());
            if !may_write {
                wait = wait.min(slot.breaker.rests_until().saturating_duration_since(now));
                continue;
            }
            if self.hands.len() >= self.hand.settings.projects_at_once {
                break;
            }
            self.slot(whose, now).in_hand = true;
            self.hands.spawn(self.hand.clone().turn(task));
            self.tell_pending();
        }
        Ok(wait)
    }

    /// By project: its rows, its agents' changes, and what its archive lacks.
    fn tasks(&self, due: Due) -> Vec<Task> {
        let mut whose: BTreeSet<(i64, i64)> =
            due.projects.iter().map(|(tenant, project)| (tenant.0, *project)).collect();
        whose.extend(due.agents.iter().map(|((tenant, project), _)| (tenant.0, *project)));
        whose.extend(
            self.slots
                .iter()
                .filter(|(_, slot)| slot.walk.is_some())
                .map(|((tenant, project), _)| (tenant.0, *project)),
        );
        let task = |(tenant, project): (i64, i64)| {
            let whose = (waybill_kernel::Tenant(tenant), project);
            Task {
                whose,
                rows: due.projects.contains(&whose),
                agents: due.agents.iter().filter(|(of, _)| *of == whose).map(|(_, agent)| *agent).collect(),
                walk: self.slots.get(&whose).and_then(|slot| slot.walk.clone()),
            }
        };
        whose.into_iter().map(task).collect()
    }

    fn slot(&mut self, whose: Whose, now: Instant) -> &mut Slot {
        if self.slots.len() >= REMEMBERED_MAX && !self.slots.contains_key(&whose) {
            self.slots
                .retain(|_, slot| slot.in_hand || slot.walk.is_some() || slot.breaker.is_failing() || slot.missing > 0);
        }
        self.slots.entry(whose).or_insert_with(|| Slot {
            breaker: Breaker::new(now),
            in_hand: false,
            walk: None,
            missing: 0,
        })
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

    fn told(&mut self, ended: std::result::Result<Ended, tokio::task::JoinError>) {
        self.tell_pending();
        let now = Instant::now();
        let settings = Arc::clone(&self.hand.settings);
        let Ok(Ended { whose, outcome }) = ended else {
            // Of a panic nobody can say whose it was: all of them are looked at again.
            tracing::error!("a turn of the archive panicked");
            metrics::worker_died();
            self.slots.values_mut().for_each(|slot| slot.in_hand = false);
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
        self.health.set_error(&error.to_string());
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

    fn tell_health(&self) {
        let failing = self.slots.values().filter(|slot| slot.breaker.is_failing()).count();
        let open = self.slots.values().filter(|slot| slot.breaker.has_opened()).count();
        self.health.set_troubles(failing as u64, open as u64);
        self.health.set_missing(self.missing());
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
        let mut places = self.hand.store.system().run(probe::Tenants).await?;
        loop {
            let archive = Arc::clone(&self.hand.archive);
            let next = places.last().filter(|place| place.project > 0).map(crate::Place::whose);
            let gone = blocking(move || {
                places.retain(|place| !archive.exists(&place.key()));
                places
            })
            .await?;
            for place in &gone {
                self.begin_walk(place.whose(), now);
            }
            after = next.unwrap_or(after);
            places = self.hand.store.system().run(probe::Projects(after)).await?;
            if places.is_empty() {
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
