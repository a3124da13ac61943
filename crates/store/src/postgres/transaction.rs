//! One transaction on one pooled connection.

mod commit;

use std::collections::HashSet;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use deadpool_postgres::Object;
use futures_util::TryStreamExt;
use futures_util::future::{join, join_all};
use tokio::time::error::Elapsed;
use tokio::time::timeout;
use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};
use waybill_kernel::{Error, Mode, Result, Tenant};

use super::combined::{Combined, Part};
use super::conclusion::Conclusion;
use super::failure::{self, Failure};
use crate::migrate::{ROLE_APP, ROLE_SYSTEM};
#[cfg(feature = "sabotage")]
use crate::sabotage;
use crate::stored::Added;
use crate::tenant_check::TenantTables;
use crate::tx::Otherwise;
use crate::{Cell, Gate, Row, Value};

/// Which statements have been seen to bind the tenant.
pub(crate) struct Statements {
    tables: TenantTables,
    checked: RwLock<HashSet<(usize, usize)>>,
    pub(super) combined: Combined,
}

impl Statements {
    pub(super) fn new(tables: TenantTables) -> Self {
        Self { tables, checked: RwLock::default(), combined: Combined::default() }
    }

    fn check(&self, sql: &'static str) -> Result<()> {
        let key = (sql.as_ptr() as usize, sql.len());
        if self.checked.read().unwrap_or_else(PoisonError::into_inner).contains(&key) {
            return Ok(());
        }
        self.tables.check(sql)?;
        self.checked.write().unwrap_or_else(PoisonError::into_inner).insert(key);
        Ok(())
    }
}

const SILENT: &str = "the server was silent for too long";

/// Of a call among those that share a transaction.
#[derive(Clone, Copy)]
pub(super) struct Mark {
    writes: usize,
    added: usize,
}

pub(crate) struct Transaction {
    /// None once it went back to the pool, or was thrown away.
    client: Option<Object>,
    statements: Arc<Statements>,
    /// Sent in front of the first statement, in the same round trip.
    begin: Option<String>,
    /// Sent in front of COMMIT, in the same round trip, or before the next statement.
    conclusion: Option<Conclusion>,
    failure: Option<Failure>,
    /// Statements that may have left something, or will.
    writes: usize,
    /// What it stores, to be counted with its last statement.
    pub(crate) added: Vec<Added>,
    gate: Option<Arc<Gate>>,
    /// How long the server may be silent. Its own timeouts cannot reach us over a link that has gone quiet.
    patience: Duration,
}

impl Transaction {
    pub(super) fn new(
        client: Object,
        statements: Arc<Statements>,
        mode: Mode,
        tenant: Option<Tenant>,
        gate: Option<Arc<Gate>>,
        patience: Duration,
    ) -> Self {
        let access = if mode == Mode::Read { " READ ONLY" } else { "" };
        let scope = match tenant {
            Some(tenant) => format!("SET LOCAL ROLE {ROLE_APP}; SET LOCAL app.tenant_id = '{}'", tenant.0),
            None => format!("SET LOCAL ROLE {ROLE_SYSTEM}"),
        };
        #[cfg(feature = "sabotage")]
        let scope = sabotage::scope(scope);
        let begin = Some(format!("BEGIN{access}; {scope}"));
        let (conclusion, failure, writes, added) = (None, None, 0, Vec::new());
        Self { client: Some(client), statements, begin, conclusion, failure, writes, added, gate, patience }
    }

    /// Has it fail rather than wait longer for a lock that somebody else holds. To be called before its first statement.
    pub(super) fn wait_for_locks(&mut self, at_most_ms: u32) {
        if let Some(begin) = &mut self.begin {
            begin.push_str(&format!("; SET LOCAL lock_timeout = {at_most_ms}"));
        }
    }

    /// Where a call begins that shares the transaction with others.
    pub(super) fn mark(&self) -> Mark {
        Mark { writes: self.writes, added: self.added.len() }
    }

    /// Whether the call has left nothing and may be forgotten.
    pub(super) fn is_as_at(&mut self, mark: Mark) -> bool {
        let is_same = self.failure.is_none() && self.writes == mark.writes;
        if is_same {
            self.added.truncate(mark.added);
        }
        is_same
    }

    pub(crate) async fn query(
        &mut self,
        sql: &'static str,
        tenant: Option<Tenant>,
        params: &[Value<'_>],
    ) -> Result<Vec<Row>> {
        let (rows, _) = self.send_checked(sql, tenant, params).await?;
        rows.iter().map(row).collect()
    }

    /// All of them are sent before the first answer is waited for.
    pub(crate) async fn query_all(
        &mut self,
        tenant: Option<Tenant>,
        statements: &[crate::Statement<'_>],
    ) -> Result<Vec<Vec<Row>>> {
        self.send_conclusion().await?;
        self.check(tenant, statements)?;
        self.pass_gate().await;
        let begin = self.begin.take();
        let client = self.client()?;
        let sent = async {
            let mut prepared = Vec::with_capacity(statements.len());
            for (sql, params) in statements {
                prepared.push(prepare(client, sql, tenant, params).await?);
            }
            let answers =
                prepared.iter().zip(statements).map(|(statement, (_, params))| ask(client, statement, tenant, params));
            // The first error is the cause; those after it say that the transaction is aborted.
            let all = async { join_all(answers).await.into_iter().collect::<std::result::Result<Vec<_>, _>>() };
            begun(client, begin, all).await
        };
        let answered = timeout(self.patience, sent).await;
        let answers = self.judged(answered)?;
        answers.iter().map(|(rows, _)| rows.iter().map(row).collect()).collect()
    }

    pub(crate) async fn execute(
        &mut self,
        sql: &'static str,
        tenant: Option<Tenant>,
        params: &[Value<'_>],
    ) -> Result<u64> {
        self.send_checked(sql, tenant, params).await.map(|(_, written)| written)
    }

    /// As one statement, if they can be.
    ///
    /// # Contract
    /// No two of them write to the same row.
    pub(crate) async fn execute_together(
        &mut self,
        tenant: Option<Tenant>,
        statements: &[crate::Statement<'_>],
    ) -> Result<Vec<u64>> {
        let parts: Vec<Part> = statements.iter().map(|(sql, params)| (*sql, params.len())).collect();
        let shared = usize::from(tenant.is_some());
        let combined = (parts.len() > 1).then(|| self.statements.combined.text(&parts, shared, &[])).flatten();
        let Some(sql) = combined else {
            return self.execute_all(tenant, statements).await;
        };
        self.check(tenant, statements)?;
        self.writes += 1;
        let params: Vec<Value<'_>> = statements.iter().flat_map(|(_, params)| params).copied().collect();
        let (rows, _) = self.send(&sql, tenant, &params).await?;
        let rows = rows.iter().map(row).collect::<Result<Vec<Row>>>()?;
        let counts = rows.first().ok_or_else(|| Error::internal("no counts of the rows written"))?;
        (0..statements.len()).map(|part| Ok(u64::try_from(counts.int(part)?).unwrap_or(0))).collect()
    }

    /// Keeps them for COMMIT. False when they cannot be kept, and are to be run now.
    pub(crate) async fn conclude(
        &mut self,
        tenant: Option<Tenant>,
        statements: &[crate::Statement<'_>],
        demanded: &[usize],
        otherwise: Otherwise,
    ) -> Result<bool> {
        self.send_conclusion().await?;
        self.check(tenant, statements)?;
        self.writes += 1;
        self.conclusion = Conclusion::new(&self.statements.combined, tenant, statements, demanded, otherwise);
        Ok(self.conclusion.is_some())
    }

    /// Something is asked after what was thought to be the last: it sees what that has written.
    async fn send_conclusion(&mut self) -> Result<()> {
        let Some(last) = self.conclusion.take() else { return Ok(()) };
        self.pass_gate().await;
        let (begin, params) = (self.begin.take(), last.params());
        let sent = exchange(self.client()?, begin, &last.sql, last.tenant, &params);
        let answered = timeout(self.patience, sent).await;
        self.judged_by(answered, |error| last.failure(error)).map(drop)
    }

    fn check(&self, tenant: Option<Tenant>, statements: &[crate::Statement<'_>]) -> Result<()> {
        if tenant.is_none() {
            return Ok(());
        }
        statements.iter().try_for_each(|(sql, _)| self.statements.check(sql))
    }

    /// All of them are sent before the first answer is waited for.
    pub(crate) async fn execute_all(
        &mut self,
        tenant: Option<Tenant>,
        statements: &[crate::Statement<'_>],
    ) -> Result<Vec<u64>> {
        self.send_conclusion().await?;
        self.writes += 1;
        let mut written = Vec::with_capacity(statements.len());
        // The first one brings BEGIN along.
        let (first, rest) = statements.split_at(usize::from(self.begin.is_some()).min(statements.len()));
        for (sql, params) in first {
            written.push(self.execute(sql, tenant, params).await?);
        }
        self.check(tenant, rest)?;
        self.pass_gate().await;
        let client = self.client()?;
        let sent = async {
            let mut prepared = Vec::with_capacity(rest.len());
            for (sql, params) in rest {
                prepared.push(prepare(client, sql, tenant, params).await?);
            }
            let tenant = tenant.map(|tenant| Value::from(tenant.0));
            let answers = prepared.iter().zip(rest).map(|(statement, (_, params))| {
                client.execute_raw(statement, tenant.iter().chain(params).collect::<Vec<_>>())
            });
            // The first error is the cause; those after it say that the transaction is aborted.
            join_all(answers).await.into_iter().collect::<std::result::Result<Vec<u64>, _>>()
        };
        let answered = timeout(self.patience, sent).await;
        written.extend(self.judged(answered)?);
        Ok(written)
    }

    async fn send_checked(
        &mut self,
        sql: &'static str,
        tenant: Option<Tenant>,
        params: &[Value<'_>],
    ) -> Result<Answered> {
        if tenant.is_some() {
            self.statements.check(sql)?;
        }
        self.send(sql, tenant, params).await
    }

    /// A statement that is known to bind the tenant.
    async fn send(&mut self, sql: &str, tenant: Option<Tenant>, params: &[Value<'_>]) -> Result<Answered> {
        if self.gate.is_some() {
            // A test steps in between, as another server may.
            self.send_conclusion().await?;
        }
        self.pass_gate().await;
        let answered = match self.conclusion.take() {
            Some(last) => self.send_after(&last, sql, tenant, params).await?,
            None => {
                let begin = self.begin.take();
                let answered = timeout(self.patience, exchange(self.client()?, begin, sql, tenant, params)).await;
                self.judged(answered)?
            }
        };
        self.writes += usize::from(answered.1 > 0 && !sql.starts_with("SELECT "));
        Ok(answered)
    }

    /// What was thought to be the last, and this behind it, in one round trip.
    async fn send_after(
        &mut self,
        last: &Conclusion,
        sql: &str,
        tenant: Option<Tenant>,
        params: &[Value<'_>],
    ) -> Result<Answered> {
        let (begin, last_params) = (self.begin.take(), last.params());
        let client = self.client()?;
        let sent = async {
            let first = prepare(client, &last.sql, last.tenant, &last_params).await;
            let first = first.map_err(|error| (true, error))?;
            let second = prepare(client, sql, tenant, params).await.map_err(|error| (false, error))?;
            let first = begun(client, begin, ask(client, &first, last.tenant, &last_params));
            let (first, second) = join(first, ask(client, &second, tenant, params)).await;
            // The first error is the cause; the one after it says that the transaction is aborted.
            first.map_err(|error| (true, error))?;
            second.map_err(|error| (false, error))
        };
        let (failure, text) = match timeout(self.patience, sent).await {
            Ok(Ok(answered)) => return Ok(answered),
            Ok(Err((true, error))) => (last.failure(&error), failure::describe(&error)),
            Ok(Err((false, error))) => (failure::of_statement(&error), failure::describe(&error)),
            Err(_) => (failure::silent(), SILENT.to_owned()),
        };
        Err(self.failed(failure, text))
    }

    async fn pass_gate(&self) {
        if let Some(gate) = &self.gate {
            gate.pass().await;
        }
    }

    fn client(&self) -> Result<&Object> {
        self.client.as_ref().ok_or_else(|| Error::internal("the transaction has ended"))
    }

    fn judged<T>(
        &mut self,
        answered: std::result::Result<std::result::Result<T, tokio_postgres::Error>, Elapsed>,
    ) -> Result<T> {
        self.judged_by(answered, failure::of_statement)
    }

    fn judged_by<T>(
        &mut self,
        answered: std::result::Result<std::result::Result<T, tokio_postgres::Error>, Elapsed>,
        meaning: impl FnOnce(&tokio_postgres::Error) -> Failure,
    ) -> Result<T> {
        let (failure, text) = match answered {
            Ok(Ok(answered)) => return Ok(answered),
            Ok(Err(error)) => (meaning(&error), failure::describe(&error)),
            Err(_) => (failure::silent(), SILENT.to_owned()),
        };
        Err(self.failed(failure, text))
    }

    /// The first failure is the cause; later ones only say that the transaction is aborted.
    fn failed(&mut self, failure: Failure, text: String) -> Error {
        self.failure.get_or_insert(failure);
        Error::internal(text)
    }

    fn give_back(&mut self) {
        drop(self.client.take());
    }
}

impl Drop for Transaction {
    /// A connection with an open or broken transaction never returns to the pool; closing it rolls back.
    fn drop(&mut self) {
        if let Some(client) = self.client.take() {
            drop(Object::take(client));
        }
    }
}

/// Rows, and the number of rows written.
type Answered = (Vec<tokio_postgres::Row>, u64);

async fn exchange(
    client: &Object,
    begin: Option<String>,
    sql: &str,
    tenant: Option<Tenant>,
    params: &[Value<'_>],
) -> std::result::Result<Answered, tokio_postgres::Error> {
    let statement = prepare(client, sql, tenant, params).await?;
    begun(client, begin, ask(client, &statement, tenant, params)).await
}

/// `asked`, with BEGIN in front of it if the transaction has not begun.
async fn begun<T>(
    client: &Object,
    begin: Option<String>,
    asked: impl Future<Output = std::result::Result<T, tokio_postgres::Error>>,
) -> std::result::Result<T, tokio_postgres::Error> {
    let Some(begin) = begin else { return asked.await };
    let (begun, answered) = join(client.batch_execute(&begin), asked).await;
    begun?;
    answered
}

async fn ask(
    client: &Object,
    statement: &tokio_postgres::Statement,
    tenant: Option<Tenant>,
    params: &[Value<'_>],
) -> std::result::Result<Answered, tokio_postgres::Error> {
    let tenant = tenant.map(|tenant| Value::from(tenant.0));
    let values: Vec<&Value<'_>> = tenant.iter().chain(params).collect();
    let mut stream = std::pin::pin!(client.query_raw(statement, values).await?);
    let mut rows = Vec::new();
    while let Some(row) = stream.try_next().await? {
        rows.push(row);
    }
    let written = stream.rows_affected().unwrap_or(0);
    Ok((rows, written))
}

/// From the cache but for the first time on each connection.
async fn prepare(
    client: &Object,
    sql: &str,
    tenant: Option<Tenant>,
    params: &[Value<'_>],
) -> std::result::Result<tokio_postgres::Statement, tokio_postgres::Error> {
    let types: Vec<Type> = tenant.map(|_| Type::INT8).into_iter().chain(params.iter().map(kind)).collect();
    #[cfg(feature = "sabotage")]
    let sql = &tenant.map_or_else(|| sql.to_owned(), |_| sabotage::postgres_statement(sql));
    client.prepare_typed_cached(sql, &types).await
}

fn kind(value: &Value<'_>) -> Type {
    match value {
        Value::Int(_) => Type::INT8,
        Value::Text(_) => Type::TEXT,
        Value::Bytes(_) => Type::BYTEA,
    }
}

impl ToSql for Value<'_> {
    fn to_sql(
        &self,
        _: &Type,
        out: &mut BytesMut,
    ) -> std::result::Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        match self {
            Value::Int(value) => value.to_sql(&Type::INT8, out),
            Value::Text(value) => value.to_sql(&Type::TEXT, out),
            Value::Bytes(value) => value.to_sql(&Type::BYTEA, out),
        }
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

fn row(row: &tokio_postgres::Row) -> Result<Row> {
    let cells = row.columns().iter().enumerate().map(|(index, column)| {
        Ok(match *column.type_() {
            Type::INT8 => row.try_get::<_, Option<i64>>(index)?.map_or(Cell::Null, Cell::Int),
            Type::INT4 => row.try_get::<_, Option<i32>>(index)?.map_or(Cell::Null, |value| Cell::Int(value.into())),
            Type::BOOL => row.try_get::<_, Option<bool>>(index)?.map_or(Cell::Null, |value| Cell::Int(value.into())),
            Type::BYTEA => row.try_get::<_, Option<Vec<u8>>>(index)?.map_or(Cell::Null, Cell::Bytes),
            _ => row.try_get::<_, Option<String>>(index)?.map_or(Cell::Null, Cell::Text),
        })
    });
    let cells: std::result::Result<Vec<Cell>, tokio_postgres::Error> = cells.collect();
    cells.map(Row).map_err(Error::internal)
}
