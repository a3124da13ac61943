//! One transaction, as an operation sees it: statements in, rows out, and what to wake after the commit.

use std::any::Any;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use tokio::sync::{Semaphore, mpsc};
use waybill_kernel::{Error, Result, Tenant, Time};

pub use crate::sqlite::remembered::Kind;
use crate::wake::Wake;
use crate::{Row, Stored, Topic, Value, Wait, postgres, sqlite};

/// More distinct wakes than any one operation has reason for. What asks for more fails as a whole.
pub const WAKES_MAX: usize = 128;
/// Statements on their way to the server at once.
pub const STATEMENTS_MAX: usize = 30;

/// A statement and its parameters.
pub type Statement<'a> = (&'static str, Vec<Value<'a>>);
/// One statement in two texts, for what one engine has no words for. Both take the same parameters.
#[derive(Clone, Copy, Debug)]
pub struct Sql {
    pub sqlite: &'static str,
    pub postgres: &'static str,
}

/// What a transaction fails with when a write that was demanded found no row.
pub type Otherwise = fn() -> Error;

pub struct Tx<'a> {
    backend: Backend<'a>,
    /// None in the program's own work, which names tenants itself.
    tenant: Option<Tenant>,
    wakes: Vec<Wake>,
    /// A wake had no room: some of those who wait would not hear of this transaction.
    lacks_wakes: bool,
    /// What the connection had changed before this transaction, on SQLite.
    changes_before: u64,
}

pub(crate) enum Backend<'a> {
    Sqlite(&'a mut sqlite::Connection),
    Postgres(&'a mut postgres::Transaction),
}

impl<'a> Tx<'a> {
    pub(crate) fn new(backend: Backend<'a>, tenant: Option<Tenant>) -> Self {
        let changes_before = match &backend {
            Backend::Sqlite(connection) => connection.changes(),
            Backend::Postgres(_) => 0,
        };
        Self { backend, tenant, wakes: Vec::new(), lacks_wakes: false, changes_before }
    }

    /// The text for the engine of this transaction.
    pub fn text(&self, sql: Sql) -> &'static str {
        match self.backend {
            Backend::Sqlite(_) => sql.sqlite,
            Backend::Postgres(_) => sql.postgres,
        }
    }

    /// In a tenant's transaction `$1` is the tenant and `params` begin at `$2`.
    pub async fn query(&mut self, sql: &'static str, params: &[Value<'_>]) -> Result<Vec<Row>> {
        match &mut self.backend {
            Backend::Sqlite(connection) => connection.query(sql, self.tenant, params),
            Backend::Postgres(transaction) => transaction.query(sql, self.tenant, params).await,
        }
    }

    pub async fn query_opt(&mut self, sql: &'static str, params: &[Value<'_>]) -> Result<Option<Row>> {
        let mut rows = self.query(sql, params).await?;
        if rows.len() > 1 {
            return Err(Error::internal(format!("{} rows where one at most was expected: {sql}", rows.len())));
        }
        Ok(rows.pop())
    }

    /// Several reads none of which needs another's answer: one round trip on PostgreSQL.
    pub async fn query_all(&mut self, statements: &[Statement<'_>]) -> Result<Vec<Vec<Row>>> {
        assert!(statements.len() <= STATEMENTS_MAX, "more than {STATEMENTS_MAX} statements at once");
        match &mut self.backend {
            Backend::Sqlite(connection) => {
                statements.iter().map(|(sql, params)| connection.query(sql, self.tenant, params)).collect()
            }
            Backend::Postgres(transaction) => transaction.query_all(self.tenant, statements).await,
        }
    }

    /// The number of rows written: a guarded write looks at it.
    pub async fn execute(&mut self, sql: &'static str, params: &[Value<'_>]) -> Result<u64> {
        match &mut self.backend {
            Backend::Sqlite(connection) => connection.execute(sql, self.tenant, params),
            Backend::Postgres(transaction) => transaction.execute(sql, self.tenant, params).await,
        }
    }

    /// Several statements none of which needs another's answer, run in the order given: one round trip on PostgreSQL.
    /// Answers with the rows each has written.
    pub async fn execute_all(&mut self, statements: &[Statement<'_>]) -> Result<Vec<u64>> {
        assert!(statements.len() <= STATEMENTS_MAX, "more than {STATEMENTS_MAX} statements at once");
        match &mut self.backend {
            Backend::Sqlite(connection) => one_by_one(connection, self.tenant, statements),
            Backend::Postgres(transaction) => transaction.execute_all(self.tenant, statements).await,
        }
    }

    /// As [`Self::execute_all`], and one statement on PostgreSQL.
    ///
    /// # Contract
    /// No two of them write to the same row, and none reads what another writes: PostgreSQL runs them in any order. Debug
    /// builds run them backwards on SQLite, so that a caller who needs an order is found by its tests. Such a caller
    /// takes `execute_all`, which keeps the order.
    pub async fn execute_together(&mut self, statements: &[Statement<'_>]) -> Result<Vec<u64>> {
        assert!(statements.len() <= STATEMENTS_MAX, "more than {STATEMENTS_MAX} statements at once");
        match &mut self.backend {
            Backend::Sqlite(connection) => in_any_order(connection, self.tenant, statements),
            Backend::Postgres(transaction) => transaction.execute_together(self.tenant, statements).await,
        }
    }

    /// The last writes of an operation, as [`Self::execute_together`] would do them. Nobody waits for their answer: PostgreSQL
    /// gets them together with the COMMIT, or before whatever is asked next. Those that are `demanded` must each write a
    /// row; if one does not, nothing of the transaction is kept, and it fails with `otherwise`.
    pub async fn conclude(
        &mut self,
        statements: &[Statement<'_>],
        demanded: &[usize],
        otherwise: Otherwise,
    ) -> Result<()> {
        assert!(statements.len() <= STATEMENTS_MAX, "more than {STATEMENTS_MAX} statements at once");
        let written = match &mut self.backend {
            Backend::Sqlite(connection) => in_any_order(connection, self.tenant, statements)?,
            Backend::Postgres(transaction) => {
                if transaction.conclude(self.tenant, statements, demanded, otherwise).await? {
                    return Ok(());
                }
                transaction.execute_all(self.tenant, statements).await?
            }
        };
        if demanded.iter().any(|part| written[*part] == 0) { Err(otherwise()) } else { Ok(()) }
    }

    /// Whether this transaction is the only one, until it ends, that has come past here for this topic. If not, another
    /// was, and has ended by now. On SQLite every transaction that writes is alone.
    pub async fn alone(&mut self, topic: Topic) -> Result<bool> {
        match &mut self.backend {
            Backend::Sqlite(_) => Ok(true),
            Backend::Postgres(transaction) => transaction.alone(topic).await,
        }
    }

    /// For who counts before it adds one: two at the same time would both find room for the last. Until this transaction ends
    /// nobody else comes past here for this topic; those who wait go on one by one, in the order in
    /// which they came. Not to be called with rows in hand that others wait for. On SQLite every transaction that writes is
    /// alone.
    pub async fn in_turn(&mut self, topic: Topic) -> Result<()> {
        match &mut self.backend {
            Backend::Sqlite(_) => Ok(()),
            Backend::Postgres(transaction) => transaction.in_turn(topic).await,
        }
    }

    /// Whether this transaction has changed anything: one that has not costs no commit.
    pub(crate) async fn has_written(&mut self) -> Result<bool> {
        const HAS_NUMBER: &str = "SELECT pg_current_xact_id_if_assigned() IS NOT NULL";
        match &mut self.backend {
            Backend::Sqlite(connection) => Ok(connection.changes() != self.changes_before),
            // PostgreSQL numbers a transaction with its first write.
            Backend::Postgres(transaction) => {
                let rows = transaction.query(HAS_NUMBER, None, &[]).await?;
                rows.first().map_or(Ok(true), |row| row.bool(0))
            }
        }
    }

    /// Feeds read rows whose transaction is below this number: every one of those has ended, so no row can appear
    /// behind a cursor that has passed. On SQLite commits come one after another and all of them are below.
    pub async fn horizon(&mut self) -> Result<i64> {
        self.bounds().await.map(|(horizon, _)| horizon)
    }

    /// The horizon, and the lowest number that no transaction had yet.
    pub(crate) async fn bounds(&mut self) -> Result<(i64, i64)> {
        match &mut self.backend {
            Backend::Sqlite(_) => Ok((i64::MAX, i64::MAX)),
            Backend::Postgres(transaction) => transaction.bounds().await,
        }
    }

    /// What a run of the same transaction has left by [`Self::remember`], unless something was written since to the tables
    /// it was read from. None on PostgreSQL, where a transaction is one run and others write.
    pub fn remembered<T: Send + Sync + 'static>(&mut self, kind: &'static Kind, key: &str) -> Option<Arc<T>> {
        match &mut self.backend {
            Backend::Sqlite(connection) => connection.remembered()?.find(kind, self.tenant, key)?.downcast().ok(),
            Backend::Postgres(_) => None,
        }
    }

    /// For the runs after this one: what was read just now, from no other tables than its kind names.
    pub fn remember<T: Send + Sync + 'static>(&mut self, kind: &'static Kind, key: &str, value: &Arc<T>) {
        if let Backend::Sqlite(connection) = &mut self.backend
            && let Some(remembered) = connection.remembered()
        {
            remembered.keep(kind, self.tenant, key, Arc::clone(value) as Arc<dyn Any + Send + Sync>);
        }
    }

    /// Whose rows the statements are about; None in the program's own work.
    pub fn tenant(&self) -> Option<Tenant> {
        self.tenant
    }

    /// In the program's own work, for what is written as in a tenant's transaction: until the answer is dropped `$1` is
    /// this tenant, and every statement is checked for it.
    ///
    /// # Panics
    /// In a tenant's transaction, which has its tenant already.
    pub fn as_tenant(&mut self, tenant: Tenant) -> AsTenant<'_, 'a> {
        assert!(self.tenant.is_none(), "a tenant's transaction would act for another");
        self.tenant = Some(tenant);
        AsTenant(self)
    }

    /// After the commit, wake up to `count` of those who wait for `topic`.
    pub fn wake(&mut self, topic: Topic, count: u32) {
        let known = self.wakes.iter_mut().find_map(|wake| match wake {
            Wake::Now(known, total) if *known == topic => Some(total),
            _ => None,
        });
        match known {
            Some(total) => *total = total.saturating_add(count),
            None => self.add_wake(Wake::Now(topic, count)),
        }
    }

    /// As [`Self::wake`], for what is not there to be found before `at`: nobody is woken earlier. Of several times of one topic the
    /// first is enough: whoever looks then and finds nothing says when the next is.
    pub fn wake_at(&mut self, topic: Topic, now: Time, at: Time) {
        // Whoever waits by then has come after this commit, and has looked for itself.
        if at.since(now) > Wait::LONGEST {
            return;
        }
        let known = self.wakes.iter_mut().find_map(|wake| match wake {
            Wake::At(known, first) if *known == topic => Some(first),
            _ => None,
        });
        match known {
            Some(first) => *first = at.min(*first),
            None => self.add_wake(Wake::At(topic, at)),
        }
    }

    fn add_wake(&mut self, wake: Wake) {
        if self.wakes.len() < WAKES_MAX {
            self.wakes.push(wake);
        } else {
            self.lacks_wakes = true;
        }
    }

    /// Asked before the commit: without all of its wakes nothing of the transaction is kept.
    pub(crate) fn into_wakes(self) -> Result<Vec<Wake>> {
        if self.lacks_wakes {
            let message = format!("The call concerns more than {WAKES_MAX} things that somebody may wait for.");
            return Err(Error::invalid(message).with_cure("Split it into several calls."));
        }
        Ok(self.wakes)
    }

    /// Counts what this transaction stores for its tenant: written before the commit, once for all of it. What is deleted is
    /// counted by the triggers of its table.
    ///
    /// # Panics
    /// In the program's own work while it acts for no tenant.
    pub fn add(&mut self, kind: Stored, bytes: usize) {
        if bytes == 0 {
            return;
        }
        let Some(tenant) = self.tenant else { panic!("bytes are stored for no tenant") };
        let added = (tenant, kind, i64::try_from(bytes).unwrap_or(i64::MAX));
        match &mut self.backend {
            Backend::Sqlite(connection) => connection.added.push(added),
            Backend::Postgres(transaction) => transaction.added.push(added),
        }
    }

    /// What was added for this tenant and is not written yet.
    pub(crate) fn added(&self, kind: Stored) -> i64 {
        let added = match &self.backend {
            Backend::Sqlite(connection) => &connection.added,
            Backend::Postgres(transaction) => &transaction.added,
        };
        added
            .iter()
            .filter(|(tenant, of, _)| Some(*tenant) == self.tenant && *of == kind)
            .map(|(.., bytes)| bytes)
            .sum()
    }
}

/// The program's own transaction while it acts for one tenant.
pub struct AsTenant<'t, 'a>(&'t mut Tx<'a>);

impl<'a> Deref for AsTenant<'_, 'a> {
    type Target = Tx<'a>;

    fn deref(&self) -> &Tx<'a> {
        self.0
    }
}

impl<'a> DerefMut for AsTenant<'_, 'a> {
    fn deref_mut(&mut self) -> &mut Tx<'a> {
        self.0
    }
}

impl Drop for AsTenant<'_, '_> {
    fn drop(&mut self) {
        self.0.tenant = None;
    }
}

/// Lets a test step a PostgreSQL transaction statement by statement. Production has none.
#[derive(Debug)]
pub struct Gate {
    steps: Semaphore,
    arrivals: mpsc::UnboundedSender<()>,
}

impl Gate {
    /// The receiver hears of every statement that has come to the gate.
    pub fn new() -> (Self, mpsc::UnboundedReceiver<()>) {
        let (arrivals, receiver) = mpsc::unbounded_channel();
        (Self { steps: Semaphore::new(0), arrivals }, receiver)
    }

    /// Let one more statement through.
    pub fn step(&self) {
        self.steps.add_permits(1);
    }

    /// Let everything through from here on.
    pub fn open(&self) {
        self.steps.add_permits(Semaphore::MAX_PERMITS / 2);
    }

    pub(crate) async fn pass(&self) {
        let _ = self.arrivals.send(());
        if let Ok(permit) = self.steps.acquire().await {
            permit.forget();
        }
    }
}

fn one_by_one(
    connection: &mut sqlite::Connection,
    tenant: Option<Tenant>,
    statements: &[Statement<'_>],
) -> Result<Vec<u64>> {
    statements.iter().map(|(sql, params)| connection.execute(sql, tenant, params)).collect()
}

/// Backwards in debug builds: nobody may rely on an order that PostgreSQL does not keep.
fn in_any_order(
    connection: &mut sqlite::Connection,
    tenant: Option<Tenant>,
    statements: &[Statement<'_>],
) -> Result<Vec<u64>> {
    if !cfg!(debug_assertions) {
        return one_by_one(connection, tenant, statements);
    }
    let backwards = statements.iter().rev().map(|(sql, params)| connection.execute(sql, tenant, params));
    let mut written = backwards.collect::<Result<Vec<u64>>>()?;
    written.reverse();
    Ok(written)
}
