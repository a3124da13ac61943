//! A round's work from its first claim to its check: the crew, the servers it may turn to, and the books. What the scenarios
//! with workers have in common; what they do to the servers is theirs.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::time::sleep;

use crate::checker::{Invariant, Violation};
use crate::client::{Client, Endpoint};
use crate::crew::{Board, Crew, Deeds, Staff};
use crate::journal::Journal;
use crate::ledger::{self, Ledger};
use crate::load::{Load, Pace};

/// The shortest lease and the shortest pause between two looks for those that ran out; pages as large as `ledger` reads. On
/// PostgreSQL lists wait until they can show everything, however long the part of a killed server takes to let go.
pub const SETTINGS: &str = "[tasks]\nlease_ttl_s = 1\nsweep_interval_s = 1\nrequeue_delay_s_max = 0\n\
                            list_limit_max = 1000\n[postgres]\nsettle_ms = 5000\n";
/// As many as the crew can do, or the queue would grow from round to round.
pub const PACE: Pace = Pace { connections: 8, per_second: 120, sprints: false };
/// What the checks take of a round does not depend on the load, so that is short.
pub const LOAD_MS_MAX: u64 = 700;
/// Owns what the check itself creates: creates that nobody knows of are sent again by it.
const ADMIN: &str = "human:admin";
/// The crew goes on for this long after the fault.
const AFTERWARDS: Duration = Duration::from_millis(250);
/// For the leases left behind to end and to be found. Mostly two seconds; a sweep that was killed between two batches is
/// taken up again when its own lease of 10 s is over.
const BACK_MAX: Duration = Duration::from_secs(30);
/// For an honest crew to do everything that is left.
const DRAIN_MAX: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(25);
/// Beyond those of any round.
const LAST_ROUND: u32 = u32::MAX;

#[derive(Default)]
pub struct Shift {
    /// By how much times may be apart from the order of what they date, on a machine that never stands still.
    skew_us: i64,
    stalls: Option<Stalls>,
    /// In any round before this one.
    stalled_us_max: i64,
    pub staff: Option<Staff>,
    board: Board,
    crew: Option<Crew>,
    deeds: Arc<Deeds>,
    ledger: Ledger,
    settled_ms: u128,
}

/// For how long the machine has stood still at most in a round: a thread that only sleeps tells by how much it was late.
struct Stalls(Arc<AtomicI64>);

impl Stalls {
    /// From now on, until it is dropped.
    fn watch() -> Self {
        let longest_us = Arc::new(AtomicI64::new(0));
        let watched = Arc::downgrade(&longest_us);
        std::thread::spawn(move || {
            while let Some(longest_us) = watched.upgrade() {
                let began = Instant::now();
                std::thread::sleep(LOOK);
                let late = began.elapsed().saturating_sub(LOOK);
                longest_us.fetch_max(i64::try_from(late.as_micros()).unwrap_or(i64::MAX), Ordering::Relaxed);
            }
        });
        Stalls(longest_us)
    }

    /// Begins a round, and tells of the one before.
    fn begin_round(&self) -> i64 {
        self.0.swap(0, Ordering::Relaxed)
    }

    fn longest_us(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Shift {
    /// For a store that several write to at once.
    pub fn with_skew(skew_us: i64) -> Self {
        Shift { skew_us, stalls: Some(Stalls::watch()), ..Shift::default() }
    }

    /// What was under way when the machine stood still bears the time of before.
    fn skew_us(&self) -> i64 {
        self.skew_us + self.stalls.as_ref().map_or(0, Stalls::longest_us)
    }

    /// Before the first round: everybody gets a key.
    pub async fn open(&mut self, at: &Endpoint) -> Result<()> {
        let staff = Staff::introduce(at).await?;
        let owners = staff.agents().map(str::to_owned).chain([ADMIN.to_owned()]);
        self.ledger = Ledger::of(owners.collect());
        self.staff = Some(staff);
        Ok(())
    }

    /// Before each load.
    pub async fn greet(&self, servers: &[SocketAddr]) -> Result<()> {
        self.staff.as_ref().context("nobody has a key yet")?.greet(servers).await
    }

    pub fn callers(&self, servers: &[SocketAddr]) -> Vec<Endpoint> {
        self.staff.as_ref().map(|staff| staff.callers(servers)).unwrap_or_default()
    }

    /// Of the tasks that the callers hand over, connection by connection.
    pub fn owners(&self) -> Vec<String> {
        self.staff.as_ref().map(|staff| staff.agents().map(str::to_owned).collect()).unwrap_or_default()
    }

    pub fn begin(&mut self, servers: Vec<SocketAddr>, load: &Load) -> Result<()> {
        let staff = self.staff.as_ref().context("nobody has a key yet")?;
        if let Some(stalls) = &self.stalls {
            self.stalled_us_max = self.stalled_us_max.max(stalls.begin_round());
        }
        self.board.put(servers);
        let crew = Crew::start(load.round(), staff, &self.board, load.journal(), false);
        self.deeds = crew.deeds();
        self.crew = Some(crew);
        Ok(())
    }

    /// From here on the crew turns to these.
    pub fn turn_to(&self, servers: Vec<SocketAddr>) {
        self.board.put(servers);
    }

    /// The crew goes on for a moment, ends what it holds, and leaves; then everything must come to rest and be in order.
    pub async fn end(&mut self, at: &Endpoint, journal: &Journal) -> Result<Vec<Violation>> {
        self.board.put(vec![at.addr]);
        sleep(AFTERWARDS).await;
        let crew = self.crew.take().context("nobody has worked")?;
        let mut violations = crew.finish().await?;
        let began = Instant::now();
        violations.extend(await_none(at, &["leased", "running"], BACK_MAX).await?);
        self.settled_ms = began.elapsed().as_millis();
        let reading = self.ledger.read(at).await?;
        let skew_us = self.skew_us();
        violations.extend(self.ledger.judge(&reading, &journal.history(), skew_us));
        Ok(violations)
    }

    /// After the last round: an honest crew does what is left, so that every task ends, and the books are read anew.
    pub async fn close(&mut self, at: &Endpoint, journal: &Journal) -> Result<Vec<Violation>> {
        let staff = self.staff.as_ref().context("nobody has a key yet")?;
        self.board.put(vec![at.addr]);
        let crew = Crew::start(LAST_ROUND, staff, &self.board, journal, true);
        let mut violations = await_none(at, &["queued", "leased", "running"], DRAIN_MAX).await?;
        violations.extend(crew.finish().await?);
        self.ledger.begin_anew();
        let reading = self.ledger.read(at).await?;
        let skew_us = self.skew_us().max(self.skew_us + self.stalled_us_max);
        violations.extend(self.ledger.judge(&reading, &journal.history(), skew_us));
        Ok(violations)
    }

    pub fn told(&self) -> String {
        format!("{}, at rest after {} ms", self.deeds.told(), self.settled_ms)
    }

    /// For the end of the run.
    pub fn summary(&self) -> String {
        format!("every task has ended; {} receipts in the books", self.ledger.receipts())
    }
}

/// Waits until no task has one of these states.
async fn await_none(at: &Endpoint, statuses: &[&str], longest: Duration) -> Result<Vec<Violation>> {
    let mut client = Client::new(at.clone());
    let began = Instant::now();
    loop {
        let left = ledger::count(&mut client, statuses).await?;
        if left == 0 {
            return Ok(Vec::new());
        }
        if began.elapsed() > longest {
            let detail = format!("{left} tasks are still {} after {longest:?}", statuses.join(" or "));
            return Ok(vec![Violation::new(Invariant::Stranded, detail)]);
        }
        sleep(LOOK).await;
    }
}
