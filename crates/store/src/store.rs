//! The store: runs calls on whichever engine it was opened with, and waits for those who asked to.

use std::sync::Arc;
use std::time::Duration;

use futures_util::TryFutureExt;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::{Instant, sleep_until};
use waybill_kernel::{
    Caller, Clock, Code, Entropy, Error, IdSource, Mode, Principal, PrincipalKind, Result, Role, Roles, Scope, Scopes,
    Tenant, Time, id::Uuid,
};

use crate::operation::{Call, Ctx, Operation, OperationWork, Reach, Reply, Until, Wait, Work};
use crate::postgres::{self, Postgres};
use crate::shares::{Limits, Share, Shares};
use crate::sqlite::{self, Sqlite};
use crate::stored::{Ledger, ReadSums, Stored};
use crate::stores::HOME;
use crate::waits::PoolFigures;
use crate::wake::{Hub, Subscription, Topic, WakeFlag};
use crate::{Gate, Migration, Settings, Tx, Value, metrics};

/// Times that one call is admitted, each by what the run before has found.
const ADMISSIONS_MAX: usize = 4;
/// So many reads may be under way for each reader; a key's quarter of them keeps all readers busy.
const READS_PER_READER: usize = 8;

/// Where the rows are.
#[derive(Clone, Debug)]
pub enum Backend {
    Sqlite(sqlite::Options),
    Postgres(postgres::Options),
}

impl Backend {
    /// Under which its figures are shown.
    fn named(self, name: &str) -> Self {
        match self {
            Self::Sqlite(options) => Self::Sqlite(sqlite::Options { name: name.to_owned(), ..options }),
            Self::Postgres(options) => Self::Postgres(postgres::Options { name: name.to_owned(), ..options }),
        }
    }
}

#[derive(Clone)]
pub struct Store(Arc<Inner>);

struct Inner {
    /// `home`, or that of a shard.
    name: String,
    engine: Engine,
    hub: Hub,
    clock: Arc<Clock>,
    entropy: Arc<dyn Entropy>,
    settings: Arc<Settings>,
    /// A wait looks again at least this often, in case a wake from another node was lost. None on one node.
    poll: Option<Duration>,
    settle_max: Duration,
    /// Places for what an operation prepares before its transaction.
    preparing: Semaphore,
    /// Reads that may be under way, each until somebody has taken its answer. A page may have megabytes: one caller's must
    /// neither pile up faster than they are taken nor stand before everybody else's.
    reads: Shares,
    times: metrics::OperationTimes,
    stored: Arc<Ledger>,
}

enum Engine {
    Sqlite(Sqlite),
    Postgres(Postgres),
}

impl Store {
    /// Opens or creates the database and brings its schema up to date.
    pub async fn open(
        backend: Backend,
        migrations: &[Migration],
        settings: Settings,
        clock: Arc<Clock>,
        entropy: Arc<dyn Entropy>,
    ) -> Result<Self> {
        Self::open_as(HOME, backend, migrations, Arc::new(settings), clock, entropy).await
    }

    /// Another one in the same process, with the same settings.
    pub(crate) async fn open_beside(
        home: &Self,
        name: &str,
        backend: Backend,
        migrations: &[Migration],
        clock: Arc<Clock>,
    ) -> Result<Self> {
        let (settings, entropy) = (Arc::clone(&home.0.settings), Arc::clone(&home.0.entropy));
        Self::open_as(name, backend.named(name), migrations, settings, clock, entropy).await
    }

    async fn open_as(
        name: &str,
        backend: Backend,
        migrations: &[Migration],
        settings: Arc<Settings>,
        clock: Arc<Clock>,
        entropy: Arc<dyn Entropy>,
    ) -> Result<Self> {
        crate::metrics::describe();
        let name = name.to_owned();
        let migrations = crate::migrate::ordered(&[crate::MIGRATIONS, migrations].concat());
        let stored = Arc::new(Ledger::default());
        let ledger = Arc::clone(&stored);
        let (engine, hub, readers, poll, settle_max) = match backend {
            Backend::Sqlite(options) => {
                let (hub, readers) = (Hub::new(), options.readers);
                let (clock, entropy, sqlite_hub) = (Arc::clone(&clock), Arc::clone(&entropy), hub.clone());
                let open = move || Sqlite::open(&options, &migrations, &clock, entropy.as_ref(), sqlite_hub, ledger);
                let sqlite = tokio::task::spawn_blocking(open).await.map_err(Error::internal)??;
                (Engine::Sqlite(sqlite), hub, readers, None, Duration::ZERO)
            }
            Backend::Postgres(options) => {
                let (hub, outgoing) = Hub::shared_with_others();
                let (readers, poll, settle_max) = (options.readers, Some(options.wait_poll), options.settle_max);
                let (clock, hub) = (Arc::clone(&clock), hub.clone());
                let opened =
                    Postgres::open(options, &migrations, clock, entropy.as_ref(), hub.clone(), outgoing, ledger);
                let postgres = opened.await?;
                (Engine::Postgres(postgres), hub, readers, poll, settle_max)
            }
        };
        tokio::spawn(hub.keep_time(Arc::clone(&clock)));
        let reads = Shares::new(Limits {
            what: "turns of reads",
            whole: readers.max(1) * READS_PER_READER,
            kept_for_admins: readers.max(1),
            key_percent: 25,
            tenant_percent: 50,
        });
        let preparing = Semaphore::new(std::thread::available_parallelism().map_or(1, usize::from));
        let times = metrics::OperationTimes::default();
        let inner =
            Inner { name, engine, hub, clock, entropy, settings, poll, settle_max, preparing, reads, times, stored };
        Ok(Self(Arc::new(inner)))
    }

    /// Runs an operation for a caller who has been authorised; answers after its commit is durable.
    pub fn run<O: Operation>(
        &self,
        operation: O,
        caller: Caller,
    ) -> impl Future<Output = Result<Reply<O::Output>>> + Send {
        self.run_in_turn(operation, caller).map_ok(|(reply, _)| reply)
    }

    /// As `run`, with the turn of a read: until it is dropped, the answer counts as not yet taken.
    pub fn run_in_turn<O: Operation>(
        &self,
        operation: O,
        caller: Caller,
    ) -> impl Future<Output = Result<(Reply<O::Output>, Option<Share>)>> + Send {
        self.run_beside(operation, caller, 0)
    }

    /// As `run_in_turn`, where the caller's tenant has so many bytes of rows in other stores.
    pub(crate) fn run_beside<O: Operation>(
        &self,
        operation: O,
        caller: Caller,
        stored_beside: i64,
    ) -> impl Future<Output = Result<(Reply<O::Output>, Option<Share>)>> + Send {
        self.run_with(Box::new((operation, caller, stored_beside)), None)
    }

    /// As `run`, with every statement held at the gate: for tests of interleavings.
    pub fn run_gated<O: Operation>(
        &self,
        operation: O,
        caller: Caller,
        gate: Option<Arc<Gate>>,
    ) -> impl Future<Output = Result<Reply<O::Output>>> + Send {
        self.run_with(Box::new((operation, caller, 0)), gate).map_ok(|(reply, _)| reply)
    }

    /// What it is given is in a box: a future has room for all that it was ever given, also when it has handed it on, and many
    /// calls wait at the same time.
    async fn run_with<O: Operation>(
        &self,
        mut given: Box<(O, Caller, i64)>,
        gate: Option<Arc<Gate>>,
    ) -> Result<(Reply<O::Output>, Option<Share>)> {
        if O::PREPARES {
            // As many at a time as there are cores: each may take much memory as well as time.
            let _place = self.0.preparing.acquire().await.map_err(|_| shutting_down())?;
            let entropy = Arc::clone(&self.0.entropy);
            let (give, prepared) = oneshot::channel();
            // In a box, so that the task is the same for every operation.
            let prepare: Box<dyn FnOnce() + Send> = Box::new(move || {
                let _ = give.send(given.0.prepare(entropy.as_ref()).map(|()| given));
            });
            tokio::task::spawn_blocking(prepare).await.map_err(Error::internal)?;
            given = prepared.await.map_err(Error::internal)??;
        }
        if O::SETTLES {
            crate::effects::settle(self).await?;
        }
        let wait = given.0.wait(&given.1);
        let call = self.call_of(given);
        if O::ADMITS {
            call.work.0.admit(&call.ctx(self.now())).await?;
        }
        let meter = self.0.times.of(O::SPEC.domain, O::SPEC.name);
        let Some(wait) = wait else {
            let began = Instant::now();
            let outcome = self.execute_admitted(&call, gate.as_ref()).await;
            meter.record(began.elapsed(), outcome.is_err());
            return outcome;
        };

        let mut subscription = self.0.hub.subscribe(wait.topic);
        let entered = Instant::now();
        let mut deadline = entered + wait.at_most;
        loop {
            let began = Instant::now();
            let outcome = self.execute_admitted(&call, gate.as_ref()).await;
            let (reply, turn) = outcome.inspect_err(|_| meter.record(began.elapsed(), true))?;
            if let Reply::Empty { until: Until { at_most: Some(at_most), .. }, .. } = &reply {
                deadline = entered + wait.at_most.min(*at_most);
            }
            let until = match &reply {
                Reply::Empty { until, .. } if Instant::now() < deadline && !self.0.hub.is_closed() => *until,
                _ => {
                    meter.record(began.elapsed(), false);
                    if !matches!(reply, Reply::Empty { .. }) {
                        subscription.satisfied();
                    }
                    return Ok((reply, turn));
                }
            };
            // Its answer may be large, and many may wait.
            drop((reply, turn));
            self.found_nothing(&mut subscription, Some(until));
            self.pause(&mut subscription, until, deadline).await;
        }
    }

    /// How long calls wait for a connection.
    pub fn pool(&self) -> PoolFigures {
        match &self.0.engine {
            Engine::Sqlite(sqlite) => sqlite.waits().figures(),
            Engine::Postgres(postgres) => postgres.waits().figures(),
        }
    }

    /// How often each operation of a domain was called since the start.
    pub fn operations(&self, domain: &str) -> Vec<metrics::OperationFigures> {
        self.0.times.figures(domain)
    }

    /// `home`, or that of a shard.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// How many bytes of a tenant are here, as far as this process knows.
    pub fn stored_bytes(&self, tenant: Tenant, kind: Stored) -> i64 {
        self.0.stored.used(tenant, kind)
    }

    /// Reads how many bytes every tenant has here, which [`Self::stored_bytes`] goes by until the next reading.
    pub async fn measure_stored_bytes(&self) -> Result<Vec<(Tenant, Stored, i64)>> {
        self.0.stored.begin_reading();
        let sums = self.system().run(ReadSums).await?;
        self.0.stored.end_reading(&sums);
        Ok(sums)
    }

    pub(crate) fn subscribe(&self, topic: Topic) -> Subscription {
        self.0.hub.subscribe(topic)
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.0.hub.is_closed()
    }

    /// Tells whether `topic` has been woken since.
    pub fn flag(&self, topic: Topic) -> WakeFlag {
        self.0.hub.flag(topic)
    }

    /// The program's own work, across tenants.
    pub fn system(&self) -> System<'_> {
        System(self)
    }

    pub fn now(&self) -> Time {
        self.0.clock.now()
    }

    pub(crate) fn settle_max(&self) -> Duration {
        self.0.settle_max
    }

    pub fn settings(&self) -> &Settings {
        &self.0.settings
    }

    pub fn clock(&self) -> &Arc<Clock> {
        &self.0.clock
    }

    pub fn entropy(&self) -> &Arc<dyn Entropy> {
        &self.0.entropy
    }

    pub fn is_postgres(&self) -> bool {
        self.postgres().is_some()
    }

    pub(crate) fn postgres(&self) -> Option<&Postgres> {
        match &self.0.engine {
            Engine::Postgres(postgres) => Some(postgres),
            Engine::Sqlite(_) => None,
        }
    }

    /// Ends all waiting: each waiter answers with what it has.
    pub fn stop_waiting(&self) {
        self.0.hub.close();
    }

    /// Answers everything accepted, then closes the database. Blocking; nothing is accepted afterwards.
    pub fn close(&self) {
        match &self.0.engine {
            Engine::Sqlite(sqlite) => sqlite.close(),
            Engine::Postgres(postgres) => postgres.close(),
        }
    }

    /// What becomes of the wake that a run was given, by what it says of the time to come if it has come to an end.
    pub(crate) fn found_nothing(&self, subscription: &mut Subscription, until: Option<Until>) {
        let now = self.now();
        // Of a time for which there is no room everybody has to hear.
        let is_noted = |at: Time| at.since(now) > Wait::LONGEST || subscription.due(at);
        if until.is_some_and(|until| until.looked_for_all() && until.due.is_none_or(is_noted)) {
            subscription.nothing_is_there();
        } else {
            subscription.found_nothing(until.is_some_and(|until| until.looked_everywhere()));
        }
    }

    async fn pause(&self, subscription: &mut Subscription, until: Until, deadline: Instant) {
        let moment = self.look_again_at(subscription, until, deadline);
        tokio::select! {
            () = subscription.woken() => {}
            () = sleep_until(moment) => {}
        }
    }

    /// When whoever waits has to look by itself, at the latest.
    pub(crate) fn look_again_at(&self, subscription: &Subscription, until: Until, deadline: Instant) -> Instant {
        let (here, now) = (Instant::now(), self.now());
        let moment = |at: Time| here + at.since(now);
        // One of those who wait for it is woken when the time has come, unless it could not be noted. It is noted beyond this
        // caller's deadline as well: others may wait for longer, and know only of what comes before. Nobody waits for longer than this.
        let due = until.due.filter(|at| at.since(now) <= Wait::LONGEST && !subscription.due(*at));
        let polled = self.0.poll.map(|poll| here + poll);
        let own = [due, until.look].map(|at| at.map(moment));
        own.into_iter().chain([polled]).flatten().fold(deadline, Instant::min)
    }

    #[expect(
        clippy::boxed_local,
        reason = "unpacked by the caller, its parts would be kept in the future of who waits"
    )]
    fn call_of<O: Operation>(&self, given: Box<(O, Caller, i64)>) -> Arc<Call<OperationWork<O>>> {
        let (operation, caller, stored_beside) = *given;
        self.call(OperationWork(operation), O::REACH, caller, stored_beside)
    }

    fn call<W: Work>(&self, work: W, reach: Reach, caller: Caller, stored_beside: i64) -> Arc<Call<W>> {
        let ids = IdSource::new(self.0.entropy.as_ref(), self.now());
        Arc::new(Call { work, reach, caller, ids, settings: Arc::clone(&self.0.settings), stored_beside })
    }

    /// One run, and others where the first finds that the call was admitted by something that is not true.
    async fn execute_admitted<O: Operation>(
        &self,
        call: &Arc<Call<OperationWork<O>>>,
        gate: Option<&Arc<Gate>>,
    ) -> Result<(Reply<O::Output>, Option<Share>)> {
        let operation = &call.work.0;
        let mut outcome = self.execute_in_turn(call, gate).await;
        for _ in 1..ADMISSIONS_MAX {
            if !(O::ADMITS && outcome.is_err() && operation.is_misjudged()) {
                break;
            }
            operation.admit(&call.ctx(self.now())).await?;
            outcome = self.execute_in_turn(call, gate).await;
        }
        if let Ok((Reply::Done(output), _)) = &outcome {
            operation.committed(&call.caller, &call.settings, output);
        }
        outcome
    }

    async fn execute_in_turn<W: Work>(
        &self,
        call: &Arc<Call<W>>,
        gate: Option<&Arc<Gate>>,
    ) -> Result<(W::Output, Option<Share>)> {
        let turn = match call.work.mode() {
            Mode::Read => Some(self.0.reads.take(&call.caller, 1).await?),
            Mode::Write => None,
        };
        Ok((self.execute(call, gate).await?, turn))
    }

    async fn execute<W: Work>(&self, call: &Arc<Call<W>>, gate: Option<&Arc<Gate>>) -> Result<W::Output> {
        match &self.0.engine {
            Engine::Sqlite(sqlite) => sqlite.execute(Arc::clone(call)).await,
            Engine::Postgres(postgres) => postgres.execute(call, gate).await,
        }
    }
}

/// A handle for authentication, sweeps and probes: statements bind their own parameters from `$1` on.
pub struct System<'a>(&'a Store);

/// What a readiness probe found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    pub writable: bool,
    pub detail: Option<String>,
    /// The check of the file that start-up began is still under way.
    pub checking: bool,
}

impl System<'_> {
    pub async fn run<W: Work>(&self, work: W) -> Result<W::Output> {
        let call = self.0.call(work, Reach::System, system_caller(), 0);
        self.0.execute(&call, None).await
    }

    /// Writes a row and reads it back: the only proof that a write would be kept.
    pub async fn probe(&self) -> Health {
        let (trouble, checking) = match &self.0.0.engine {
            Engine::Sqlite(sqlite) => (sqlite.trouble(), sqlite.is_checking()),
            Engine::Postgres(_) => (None, false),
        };
        if trouble.is_some() {
            return Health { writable: false, detail: trouble, checking };
        }
        ::metrics::gauge!(metrics::CLOCK_OFFSET).set(self.0.clock().offset_us() as f64);
        match self.run(Probe).await {
            Ok(()) => Health { writable: true, detail: None, checking },
            Err(error) => Health { writable: false, detail: Some(error.message().to_owned()), checking },
        }
    }
}

struct Probe;

impl Work for Probe {
    type Output = ();

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<()> {
        tx.execute("UPDATE meta SET probe_us = $1 WHERE id = 1", &[Value::from(ctx.now)]).await?;
        let row = tx.query_opt("SELECT probe_us FROM meta WHERE id = 1", &[]).await?;
        let read = row.map(|row| row.time(0)).transpose()?;
        if read == Some(ctx.now) {
            Ok(())
        } else {
            Err(Error::internal("a probe read back another value than it wrote"))
        }
    }
}

fn system_caller() -> Caller {
    Caller {
        tenant: Tenant(0),
        tenant_id: Uuid::nil(),
        principal: Principal { kind: PrincipalKind::System, id: "asyncgate".to_owned() },
        roles: Roles::new([Role::System]),
        scopes: Scopes::new(Scope::ALL.iter().copied()),
        key: None,
    }
}

/// Too many wait already, or one did for too long.
pub(crate) fn overloaded() -> Error {
    Error::new(Code::Overloaded, Code::Overloaded.entry().title)
}

pub(crate) fn shutting_down() -> Error {
    Error::new(Code::ShuttingDown, Code::ShuttingDown.entry().title)
}
