//! The list of messages for operators, in the order of arrival, without their texts.

use serde::Serialize;
use waybill_kernel::{Error, Mode, Result, Time, cursor};
use waybill_store::{Ctx, Row, Tx, Value, Work};

use super::known::owned;
use super::rules::Status;

pub const LIMIT_MAX: usize = 1_000;

#[derive(Clone, Debug, Default)]
pub struct Query {
    pub status: Option<Status>,
    pub limit: Option<usize>,
    pub cursor: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Summary {
    pub client_message_id: String,
    pub status: Status,
    pub destination_kind: String,
    pub destination_ref: String,
    pub enqueued_at: Time,
    pub attempts: i64,
    pub next_attempt_at: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delivered_at: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broker_message_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub history_id: Option<String>,
}

/// The columns of a summary, from the first on.
pub(super) const SUMMARY_COLUMNS: usize = 11;

impl Summary {
    pub(super) fn read(row: &Row) -> Result<Self> {
        Ok(Self {
            client_message_id: row.text(0)?.to_owned(),
            status: Status::from_stored(row.text(1)?)?,
            destination_kind: row.text(2)?.to_owned(),
            destination_ref: row.text(3)?.to_owned(),
            enqueued_at: row.time(4)?,
            attempts: row.int(5)?,
            next_attempt_at: row.time(6)?,
            last_error: owned(row, 7)?,
            delivered_at: row.time_opt(8)?,
            broker_message_id: owned(row, 9)?,
            history_id: owned(row, 10)?,
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Listed {
    pub messages: Vec<Summary>,
    pub next_cursor: Option<String>,
}

pub(super) struct List {
    status: Option<Status>,
    limit: i64,
    after: i64,
}

impl List {
    pub(super) fn new(query: Query) -> Result<Self> {
        let limit = query.limit.unwrap_or(100);
        if !(1..=LIMIT_MAX).contains(&limit) {
            return Err(Error::invalid(format!("limit must be from 1 to {LIMIT_MAX}.")));
        }
        let after = match &query.cursor {
            None => 0,
            Some(text) => {
                let position = cursor::decode(&scope(query.status), text)?;
                i64::from_be_bytes(position.try_into().map_err(|_| cursor::refused())?)
            }
        };
        Ok(Self { status: query.status, limit: i64::try_from(limit).unwrap_or(i64::MAX), after })
    }
}

fn scope(status: Option<Status>) -> [&'static [u8]; 2] {
    [b"outbox", status.map_or("", Status::as_str).as_bytes()]
}

impl Work for List {
    type Output = Listed;

    fn mode(&self) -> Mode {
        Mode::Read
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Listed> {
        const ALL: &str = "SELECT client_message_id, status, destination_kind, destination_ref, enqueued_at, attempts, \
                           next_attempt_at, last_error, delivered_at, broker_message_id, history_id, id FROM outbox \
                           WHERE id > $1 ORDER BY id LIMIT $2";
        const OF_STATUS: &str = "SELECT client_message_id, status, destination_kind, destination_ref, enqueued_at, attempts, \
                                 next_attempt_at, last_error, delivered_at, broker_message_id, history_id, id FROM outbox \
                                 WHERE id > $1 AND status = $3 ORDER BY id LIMIT $2";
        let (after, limit) = (Value::from(self.after), Value::from(self.limit));
        let rows = match self.status {
            None => tx.query(ALL, &[after, limit]).await?,
            Some(status) => tx.query(OF_STATUS, &[after, limit, status.as_str().into()]).await?,
        };
        let is_whole = rows.len() as i64 == self.limit;
        let last = rows.last().filter(|_| is_whole).map(|row| row.int(SUMMARY_COLUMNS)).transpose()?;
        let next_cursor = last.map(|id| cursor::encode(&scope(self.status), &id.to_be_bytes()));
        Ok(Listed { messages: rows.iter().map(Summary::read).collect::<Result<_>>()?, next_cursor })
    }
}
