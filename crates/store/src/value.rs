//! What goes into a statement and what comes out of it. Three types are enough for both engines: integers, text,
//! bytes, each with its own NULL, because PostgreSQL wants to know the type of a NULL as well.

use waybill_kernel::{Error, Result, Time};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    Int(Option<i64>),
    Text(Option<&'a str>),
    Bytes(Option<&'a [u8]>),
}

impl From<i64> for Value<'_> {
    fn from(value: i64) -> Self {
        Value::Int(Some(value))
    }
}

impl From<Option<i64>> for Value<'_> {
    fn from(value: Option<i64>) -> Self {
        Value::Int(value)
    }
}

impl From<bool> for Value<'_> {
    fn from(value: bool) -> Self {
        Value::Int(Some(i64::from(value)))
    }
}

impl From<Time> for Value<'_> {
    fn from(value: Time) -> Self {
        Value::Int(Some(value.micros()))
    }
}

impl From<Option<Time>> for Value<'_> {
    fn from(value: Option<Time>) -> Self {
        Value::Int(value.map(Time::micros))
    }
}

impl<'a> From<&'a str> for Value<'a> {
    fn from(value: &'a str) -> Self {
        Value::Text(Some(value))
    }
}

impl<'a> From<&'a String> for Value<'a> {
    fn from(value: &'a String) -> Self {
        Value::Text(Some(value))
    }
}

impl<'a> From<Option<&'a str>> for Value<'a> {
    fn from(value: Option<&'a str>) -> Self {
        Value::Text(value)
    }
}

impl<'a> From<&'a [u8]> for Value<'a> {
    fn from(value: &'a [u8]) -> Self {
        Value::Bytes(Some(value))
    }
}

impl<'a> From<Option<&'a [u8]>> for Value<'a> {
    fn from(value: Option<&'a [u8]>) -> Self {
        Value::Bytes(value)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cell {
    Null,
    Int(i64),
    Text(String),
    Bytes(Vec<u8>),
}

/// One row of an answer, read by position. A cell of another type than asked for is a fault of ours (or a damaged
/// file), never the caller's: it becomes an internal error that names the column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row(pub(crate) Vec<Cell>);

impl Row {
    pub fn int(&self, column: usize) -> Result<i64> {
        self.int_opt(column)?.ok_or_else(|| wrong(column, "NULL"))
    }

    pub fn int_opt(&self, column: usize) -> Result<Option<i64>> {
        match self.cell(column)? {
            Cell::Int(value) => Ok(Some(*value)),
            Cell::Null => Ok(None),
            other => Err(wrong(column, other)),
        }
    }

    pub fn bool(&self, column: usize) -> Result<bool> {
        Ok(self.int(column)? != 0)
    }

    pub fn time(&self, column: usize) -> Result<Time> {
        self.int(column).map(Time::from_micros)
    }

    pub fn time_opt(&self, column: usize) -> Result<Option<Time>> {
        Ok(self.int_opt(column)?.map(Time::from_micros))
    }

    pub fn text(&self, column: usize) -> Result<&str> {
        self.text_opt(column)?.ok_or_else(|| wrong(column, "NULL"))
    }

    pub fn text_opt(&self, column: usize) -> Result<Option<&str>> {
        match self.cell(column)? {
            Cell::Text(value) => Ok(Some(value)),
            Cell::Null => Ok(None),
            other => Err(wrong(column, other)),
        }
    }

    pub fn bytes(&self, column: usize) -> Result<&[u8]> {
        self.bytes_opt(column)?.ok_or_else(|| wrong(column, "NULL"))
    }

    pub fn bytes_opt(&self, column: usize) -> Result<Option<&[u8]>> {
        match self.cell(column)? {
            Cell::Bytes(value) => Ok(Some(value)),
            Cell::Null => Ok(None),
            other => Err(wrong(column, other)),
        }
    }

    pub fn cells(&self) -> &[Cell] {
        &self.0
    }

    fn cell(&self, column: usize) -> Result<&Cell> {
        self.0.get(column).ok_or_else(|| Error::internal(format!("a row has no column {column}")))
    }
}

fn wrong(column: usize, found: impl std::fmt::Debug) -> Error {
    Error::internal(format!("column {column} holds {found:?}"))
}
