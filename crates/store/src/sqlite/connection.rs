//! One SQLite connection that runs the statements of [`crate::Tx`].

use std::collections::HashMap;
use std::sync::Arc;

use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{ErrorCode, ToSql};
use waybill_kernel::{Code, Error, Result, Tenant};

use super::remembered::{Remembered, written};
#[cfg(feature = "sabotage")]
use crate::sabotage;
use crate::statement::for_sqlite;
use crate::stored::Added;
use crate::tenant_check::TenantTables;
use crate::{Cell, Row, Value};

/// More than all statements of the program together, so none is prepared twice.
const PREPARED_STATEMENTS_MAX: usize = 512;

pub(crate) struct Connection {
    raw: rusqlite::Connection,
    tables: Arc<TenantTables>,
    /// Rewritten text by the address of the original, which is static and therefore its identity, and by whether it was
    /// checked for the tenant.
    texts: HashMap<(usize, usize, bool), Arc<Text>>,
    /// None where others write.
    remembered: Option<Remembered>,
    /// SQLite has said FULL since this was last asked.
    full: bool,
    /// What the open transaction stores, to be counted before its commit.
    pub(crate) added: Vec<Added>,
}

/// A statement as SQLite reads it, and the tables it writes to.
struct Text {
    sql: String,
    written: Vec<Box<str>>,
}

impl Connection {
    pub(crate) fn new(raw: rusqlite::Connection, tables: Arc<TenantTables>) -> Self {
        raw.set_prepared_statement_cache_capacity(PREPARED_STATEMENTS_MAX);
        Self { raw, tables, texts: HashMap::new(), remembered: None, full: false, added: Vec::new() }
    }

    /// The one that all writes go through: what it has read in a transaction stays true until it writes.
    pub(crate) fn that_remembers(self) -> Self {
        Self { remembered: Some(Remembered::default()), ..self }
    }

    pub(crate) fn remembered(&mut self) -> Option<&mut Remembered> {
        self.remembered.as_mut()
    }

    pub(crate) fn raw(&mut self) -> &mut rusqlite::Connection {
        &mut self.raw
    }

    /// SQLite has ended the transaction by itself: full disk, I/O error, no memory.
    pub(crate) fn is_outside_transaction(&self) -> bool {
        self.raw.is_autocommit()
    }

    /// Rows changed since the connection was opened.
    pub(crate) fn changes(&self) -> u64 {
        self.raw.total_changes()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.full
    }

    pub(crate) fn take_full(&mut self) -> bool {
        std::mem::take(&mut self.full)
    }

    /// BEGIN, SAVEPOINT and their like: prepared once, no parameters.
    pub(crate) fn control(&mut self, sql: &'static str) -> rusqlite::Result<()> {
        if let Some(remembered) = &mut self.remembered {
            remembered.forget_all();
        }
        let outcome = self.raw.prepare_cached(sql).and_then(|mut statement| statement.execute([]).map(drop));
        self.full |= outcome.as_ref().is_err_and(is_full);
        outcome
    }

    pub(crate) fn query(
        &mut self,
        sql: &'static str,
        tenant: Option<Tenant>,
        params: &[Value<'_>],
    ) -> Result<Vec<Row>> {
        let text = self.text(sql, tenant)?;
        let outcome = self.query_text(&text.sql, tenant, params);
        self.ran(&text, &outcome);
        outcome
    }

    pub(crate) fn execute(&mut self, sql: &'static str, tenant: Option<Tenant>, params: &[Value<'_>]) -> Result<u64> {
        let text = self.text(sql, tenant)?;
        let outcome = self.execute_text(&text.sql, tenant, params);
        self.ran(&text, &outcome);
        outcome
    }

    fn ran<T>(&mut self, text: &Text, outcome: &Result<T>) {
        // Only SQLite's own FULL becomes this code here.
        self.full |= outcome.as_ref().is_err_and(|error| error.code() == Code::StorageFull);
        if let Some(remembered) = &mut self.remembered {
            remembered.forget(&text.written);
        }
    }

    fn query_text(&self, text: &str, tenant: Option<Tenant>, params: &[Value<'_>]) -> Result<Vec<Row>> {
        let mut statement = self.raw.prepare_cached(text).map_err(|error| explain(&error))?;
        bind(&mut statement, tenant, params)?;
        let columns = statement.column_count();
        let mut rows = statement.raw_query();
        let mut found = Vec::new();
        while let Some(row) = rows.next().map_err(|error| explain(&error))? {
            let cells = (0..columns).map(|column| row.get_ref(column).map(cell)).collect::<rusqlite::Result<_>>();
            found.push(Row(cells.map_err(|error| explain(&error))?));
        }
        Ok(found)
    }

    fn execute_text(&self, text: &str, tenant: Option<Tenant>, params: &[Value<'_>]) -> Result<u64> {
        let mut statement = self.raw.prepare_cached(text).map_err(|error| explain(&error))?;
        bind(&mut statement, tenant, params)?;
        statement.raw_execute().map(|rows| rows as u64).map_err(|error| explain(&error))
    }

    fn text(&mut self, sql: &'static str, tenant: Option<Tenant>) -> Result<Arc<Text>> {
        let key = (sql.as_ptr() as usize, sql.len(), tenant.is_some());
        if let Some(text) = self.texts.get(&key) {
            return Ok(Arc::clone(text));
        }
        if tenant.is_some() {
            self.tables.check(sql)?;
        }
        let text = for_sqlite(sql);
        #[cfg(feature = "sabotage")]
        let text = sabotage::statement(text);
        let text = Arc::new(Text { written: written(&text), sql: text });
        self.texts.insert(key, Arc::clone(&text));
        Ok(text)
    }
}

fn bind(statement: &mut rusqlite::Statement<'_>, tenant: Option<Tenant>, params: &[Value<'_>]) -> Result<()> {
    let mut index = 0;
    let mut bind_next = |value: &dyn ToSql| {
        index += 1;
        statement.raw_bind_parameter(index, value).map_err(|error| explain(&error))
    };
    if let Some(tenant) = tenant {
        bind_next(&tenant.0)?;
    }
    // SQLite would keep a NUL and PostgreSQL refuses it: what is stored on one must be storable on the other.
    if params.iter().any(|value| matches!(value, Value::Text(Some(text)) if text.contains('\0'))) {
        return Err(Error::invalid("A text holds a NUL character."));
    }
    params.iter().try_for_each(|value| bind_next(value))
}

impl ToSql for Value<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Value::Int(value) => value.map_or(ValueRef::Null, ValueRef::Integer),
            Value::Text(value) => value.map_or(ValueRef::Null, |text| ValueRef::Text(text.as_bytes())),
            Value::Bytes(value) => value.map_or(ValueRef::Null, ValueRef::Blob),
        }))
    }
}

fn cell(value: ValueRef<'_>) -> Cell {
    match value {
        ValueRef::Null => Cell::Null,
        ValueRef::Integer(value) => Cell::Int(value),
        // Never produced by our schema; the debug text makes the wrong type visible where it is read.
        ValueRef::Real(value) => Cell::Text(value.to_string()),
        ValueRef::Text(value) => Cell::Text(String::from_utf8_lossy(value).into_owned()),
        ValueRef::Blob(value) => Cell::Bytes(value.to_vec()),
    }
}

pub(crate) fn is_full(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::DiskFull)
}

/// What a failed statement means to the caller. Nothing was written by it.
pub(crate) fn explain(error: &rusqlite::Error) -> Error {
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => Error::new(Code::StorageFull, Code::StorageFull.entry().title).because(error),
        Some(
            ErrorCode::SystemIoFailure | ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase | ErrorCode::ReadOnly,
        ) => Error::new(Code::StoreUnavailable, Code::StoreUnavailable.entry().title).because(error),
        _ => Error::internal(error),
    }
}
