//! The last writes of a transaction, kept until its COMMIT and sent in front of it: an operation that asks for nothing more
//! saves the round trip in which it would only learn that all went well.

use std::sync::Arc;

use waybill_kernel::Tenant;

use super::combined::{Combined, NOTHING_WRITTEN, Part};
use super::failure::{self, Failure};
use crate::tx::Otherwise;
use crate::{Statement, Value};

/// A statement that owns what it needs.
pub(super) struct Conclusion {
    pub(super) sql: Arc<str>,
    pub(super) tenant: Option<Tenant>,
    /// What it was made of, for when more comes.
    parts: Vec<Part>,
    demanded: Vec<usize>,
    params: Vec<Kept>,
    otherwise: Otherwise,
}

impl Conclusion {
    /// None when they cannot be one statement.
    pub(super) fn new(
        combined: &Combined,
        tenant: Option<Tenant>,
        statements: &[Statement<'_>],
        demanded: &[usize],
        otherwise: Otherwise,
    ) -> Option<Self> {
        let parts: Vec<Part> = statements.iter().map(|(sql, params)| (*sql, params.len())).collect();
        let sql = match parts.as_slice() {
            [(sql, _)] if demanded.is_empty() => Arc::from(*sql),
            parts => combined.text(parts, usize::from(tenant.is_some()), demanded)?,
        };
        let params = statements.iter().flat_map(|(_, params)| params).map(Kept::from).collect();
        Some(Self { sql, tenant, parts, demanded: demanded.to_vec(), params, otherwise })
    }

    /// With more behind it, in the same statement. False when that cannot be, and it is as it was.
    pub(super) fn take_in(&mut self, combined: &Combined, tenant: Tenant, statements: &[Statement<'_>]) -> bool {
        let more = statements.iter().map(|(sql, params)| (*sql, params.len()));
        let parts: Vec<Part> = self.parts.iter().copied().chain(more).collect();
        if self.tenant != Some(tenant) {
            return false;
        }
        let Some(sql) = combined.text(&parts, 1, &self.demanded) else { return false };
        (self.sql, self.parts) = (sql, parts);
        self.params.extend(statements.iter().flat_map(|(_, params)| params).map(Kept::from));
        true
    }

    pub(super) fn params(&self) -> Vec<Value<'_>> {
        self.params.iter().map(Kept::value).collect()
    }

    /// What an error of it means: nothing of its transaction is committed, whether or not COMMIT was sent after it.
    pub(super) fn failure(&self, error: &tokio_postgres::Error) -> Failure {
        match error.code() {
            Some(state) if state.code() == NOTHING_WRITTEN => Failure::Final((self.otherwise)()),
            _ => failure::of_statement(error),
        }
    }
}

enum Kept {
    Int(Option<i64>),
    Text(Option<String>),
    Bytes(Option<Vec<u8>>),
}

impl From<&Value<'_>> for Kept {
    fn from(value: &Value<'_>) -> Self {
        match *value {
            Value::Int(value) => Kept::Int(value),
            Value::Text(value) => Kept::Text(value.map(str::to_owned)),
            Value::Bytes(value) => Kept::Bytes(value.map(<[u8]>::to_vec)),
        }
    }
}

impl Kept {
    fn value(&self) -> Value<'_> {
        match self {
            Kept::Int(value) => Value::Int(*value),
            Kept::Text(value) => Value::Text(value.as_deref()),
            Kept::Bytes(value) => Value::Bytes(value.as_deref()),
        }
    }
}
