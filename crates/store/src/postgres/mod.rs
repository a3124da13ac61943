//! The engine for more than one machine: READ COMMITTED, writes through a few lanes, wake-ups between nodes.
//!
//! Every transaction begins with its role and its tenant in the same round trip as its first statement, so a pooled
//! connection carries nothing from one tenant to the next and a transaction-pooling proxy may stand between.

mod combined;
mod conclusion;
mod connect;
mod erased;
mod failure;
mod fence;
mod hold;
pub(crate) mod inspect;
mod notify;
mod others;
pub(crate) mod roles;
mod shared;
mod transaction;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tokio_postgres::Config;
use waybill_kernel::ranges::{MANY, Setting, at_least, check, setting};
use waybill_kernel::{Clock, Entropy, Error, Mode, Result, request};

use crate::hold::Holding;
use crate::lanes::{Lane, Lanes};
use crate::metrics::{COMMITS, OPS, RETRIES};
use crate::operation::{Call, Work};
use crate::store::overloaded;
use crate::stored::Ledger;
use crate::tx::Backend;
use crate::waits::Waits;
use crate::wake::{Hub, Wake};
use crate::{Gate, Migration, Topic, Tx, migrate};
use erased::{Erased, Keeping};
use failure::Failure;
use fence::Fence;
pub(crate) use hold::Hold;
use shared::Shared;
use transaction::Statements;
pub(crate) use transaction::Transaction;

#[derive(Clone)]
pub struct Options {
    /// Of the store, as its figures show it.
    pub name: String,
    /// `postgres://user@host,other/database`; several hosts are tried until one takes writes. May hold a password.
    pub url: String,
    /// Writes at a time: of calls that share transactions a quarter, one at least, and of others the rest, one at least.
    pub lanes: usize,
    /// Reads at a time.
    pub readers: usize,
    /// Calls that may wait for a lane, and as many for a reader; one more is refused with 503.
    pub queue_max: usize,
    pub connect_timeout: Duration,
    /// A statement or a lock that takes longer is given up.
    pub statement_timeout: Duration,
    /// How long a call may wait for a lane and be tried again over lost connections and fail-overs before it is refused.
    pub retry_for: Duration,
    /// Wakes for other nodes are collected for this long and sent together.
    pub notify_interval: Duration,
    /// A waiting call looks again at least this often.
    pub wait_poll: Duration,
    /// How long a list may be held up until its caller's own writes are below the horizon of feeds.
    pub settle_max: Duration,
    /// How often the clock is compared with the database's.
    pub clock_interval: Duration,
}

impl Options {
    /// The server gives up by itself first, and says so, unless the link is dead.
    fn patience(&self) -> Duration {
        self.statement_timeout + Duration::from_secs(1)
    }

    pub fn at(url: impl Into<String>) -> Self {
        const LANES_USUAL: usize = 16;
        let cores = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
        Self {
            name: crate::stores::HOME.to_owned(),
            url: url.into(),
            // More than run at once: most wait for the disk, and one flush serves all that wait. Many more would leave
            // none of the server's connections to other nodes.
            lanes: LANES_USUAL.min(8 * cores).max(2 * cores),
            readers: 2 * cores,
            queue_max: 4096,
            connect_timeout: Duration::from_secs(3),
            statement_timeout: Duration::from_secs(10),
            retry_for: Duration::from_secs(5),
            notify_interval: Duration::from_millis(10),
            wait_poll: Duration::from_secs(1),
            settle_max: crate::effects::SETTLE_MAX,
            clock_interval: Duration::from_secs(30),
        }
    }
}

impl Options {
    /// As the file has them.
    pub fn ranges(&self) -> Vec<Setting> {
        vec![
            setting("lanes", self.lanes, 1..=1_000),
            setting("readers", self.readers, 1..=1_000),
            setting("queue_max", self.queue_max, MANY),
            setting("connect_ms", self.connect_timeout.as_millis(), at_least(10)),
            setting("statement_ms", self.statement_timeout.as_millis(), at_least(100)),
            setting("retry_ms", self.retry_for.as_millis(), at_least(100)),
            setting("notify_ms", self.notify_interval.as_millis(), 0..=1_000),
            setting("wait_poll_ms", self.wait_poll.as_millis(), at_least(10)),
            setting("settle_ms", self.settle_max.as_millis(), 0..=10_000),
            setting("clock_ms", self.clock_interval.as_millis(), at_least(100)),
        ]
    }

    /// What could not work, in words for whoever wrote the file.
    pub fn check(&self) -> std::result::Result<(), String> {
        check("postgres", &self.ranges())
    }
}

/// Without the address, which may hold a password.
impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options").field("lanes", &self.lanes).field("readers", &self.readers).finish_non_exhaustive()
    }
}

pub(crate) struct Postgres {
    core: Arc<Core>,
    /// For connections beside those of the pool.
    config: Config,
    fence: Arc<Fence>,
    tasks: Vec<AbortHandle>,
}

/// What a call needs; shared with the task it runs in.
struct Core {
    pool: deadpool_postgres::Pool,
    statements: Arc<Statements>,
    /// Where calls that may share a transaction wait for one.
    shared: Shared,
    /// Beside those of calls that share, which are the carriers'.
    writes: Arc<Lanes>,
    reads: Arc<Lanes>,
    options: Options,
    clock: Arc<Clock>,
    hub: Hub,
    meters: Meters,
    waits: Waits,
    stored: Arc<Ledger>,
}

struct Meters {
    ops: metrics::Counter,
    commits: metrics::Counter,
}

impl Meters {
    fn new(store: &str) -> Self {
        Self {
            ops: metrics::counter!(OPS, "store" => store.to_owned()),
            commits: metrics::counter!(COMMITS, "store" => store.to_owned()),
        }
    }
}

impl Postgres {
    pub(crate) async fn open(
        options: Options,
        migrations: &[Migration],
        clock: Arc<Clock>,
        entropy: &dyn Entropy,
        hub: Hub,
        outgoing: mpsc::Receiver<Wake>,
        stored: Arc<Ledger>,
    ) -> Result<Self> {
        #[cfg(feature = "sabotage")]
        crate::sabotage::begin()?;
        let config = connect::config(&options)?;
        let fence = Arc::new(Fence::default());
        fence.look_around(&config).await;
        connect::prepare_database(&config, &fence, migrations, entropy).await?;
        let pool = connect::pool(&config, &options, &fence)?;
        connect::begin_clock(&pool, &clock).await?;

        let mut node = [0; 8];
        entropy.fill(&mut node);
        let node = u64::from_be_bytes(node);
        let tasks = vec![
            tokio::spawn(notify::tell_others(pool.clone(), outgoing, node, options.notify_interval)).abort_handle(),
            tokio::spawn(notify::hear_others(config.clone(), Arc::clone(&fence), hub.clone(), node)).abort_handle(),
            tokio::spawn(connect::keep_anchored(pool.clone(), Arc::clone(&clock), options.clock_interval))
                .abort_handle(),
        ];
        let shared = Shared::new(options.lanes);
        let alone = options.lanes.saturating_sub(shared.carriers_max()).max(1);
        let core = Core {
            pool,
            statements: Arc::new(Statements::new(migrate::tenant_tables(migrations))),
            shared,
            writes: Lanes::new(alone, options.queue_max),
            reads: Lanes::new(options.readers, options.queue_max),
            meters: Meters::new(&options.name),
            waits: Waits::new(&options.name),
            options,
            clock,
            hub,
            stored,
        };
        Ok(Self { core: Arc::new(core), config, fence, tasks })
    }

    pub(crate) async fn execute<W: Work>(&self, call: &Arc<Call<W>>, gate: Option<&Arc<Gate>>) -> Result<W::Output> {
        let keeping = Arc::new(Keeping::new(Arc::clone(call)));
        self.perform(Arc::clone(&keeping) as Arc<dyn Erased>, gate.cloned()).await?;
        keeping.output()
    }

    async fn perform(&self, call: Arc<dyn Erased>, gate: Option<Arc<Gate>>) -> Result<()> {
        // Counted from the call's arrival: while the database is away, a long line of callers must not each wait for
        // the patience of all before them.
        let deadline = Instant::now() + self.core.options.retry_for;
        // A test that steps through a transaction has it for itself.
        let tenant = call.tenant().filter(|_| gate.is_none() && call.mode() == Mode::Write);
        if let Some(tenant) = tenant
            && self.core.share(&call, tenant, deadline).await?
        {
            return Ok(());
        }
        // Here and not in the task: whoever goes away while it waits is not run.
        let entered = self.core.enter(&*call, deadline).await?;
        // In a task of its own: a caller that goes away must not leave a transaction half-way.
        let core = Arc::clone(&self.core);
        let run = async move { core.execute(&*call, gate, entered, deadline).await };
        let task = tokio::spawn(request::during(request::current(), run));
        task.await.unwrap_or_else(|error| Err(Error::internal(error)))
    }

    pub(crate) async fn hold(&self, topic: Topic, holding: Holding) -> Result<Option<Hold>> {
        Hold::take(&self.config, &self.fence, topic, holding).await
    }

    pub(crate) fn waits(&self) -> &Waits {
        &self.core.waits
    }

    pub(crate) fn close(&self) {
        self.core.pool.close();
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl Core {
    async fn enter(&self, call: &dyn Erased, deadline: Instant) -> Result<Entered> {
        let lanes = if call.mode() == Mode::Write { &self.writes } else { &self.reads };
        let asked = std::time::Instant::now();
        let lane = tokio::time::timeout_at(deadline, lanes.enter(call.owner())).await;
        let lane = lane.unwrap_or_else(|_| Err(overloaded())).inspect_err(|_| self.waits.failed())?;
        Ok(Entered { _lane: lane, asked })
    }

    async fn execute(
        &self,
        call: &dyn Erased,
        gate: Option<Arc<Gate>>,
        entered: Entered,
        deadline: Instant,
    ) -> Result<()> {
        let _in_use = self.waits.got(entered.asked);
        let mut pause = Duration::from_millis(2);
        loop {
            let failure = match self.attempt(call, gate.clone()).await {
                Ok(()) => return Ok(()),
                Err(failure) => failure,
            };
            let again = match failure {
                Failure::Final(error) | Failure::Unknown(error) => return Err(error),
                Failure::Again(error) => error,
                Failure::Lost(error) => {
                    // The other pooled connections lead to the same server, which is gone or no longer takes writes.
                    self.pool.retain(|_, _| false);
                    error
                }
            };
            if Instant::now() + pause >= deadline {
                return Err(again);
            }
            metrics::counter!(RETRIES, "store" => self.options.name.clone()).increment(1);
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(250));
        }
    }

    async fn attempt(&self, call: &dyn Erased, gate: Option<Arc<Gate>>) -> std::result::Result<(), Failure> {
        let client = self.pool.get().await.map_err(|error| failure::no_connection(&error))?;
        let (tenant, mode) = (call.tenant(), call.mode());
        let mut transaction =
            Transaction::new(client, Arc::clone(&self.statements), mode, tenant, gate, self.options.patience());
        let mut tx = Tx::new(Backend::Postgres(&mut transaction), tenant);
        let outcome = call.run(self.clock.now(), &mut tx).await;
        let wakes = tx.into_wakes();
        match outcome.and(wakes) {
            Ok(wakes) => {
                let committed = transaction.commit().await;
                // Also when nobody knows: it may have been made, and a wake in vain does no harm.
                self.hub.release(&wakes);
                self.stored.committed(&committed?);
                if mode == Mode::Write {
                    self.meters.ops.increment(1);
                    self.meters.commits.increment(1);
                }
                Ok(())
            }
            Err(error) => Err(transaction.roll_back(error).await),
        }
    }
}

/// A call that may begin.
struct Entered {
    _lane: Lane,
    asked: std::time::Instant,
}
