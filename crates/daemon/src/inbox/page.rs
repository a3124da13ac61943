//! Reading the inbox: pages in the order of arrival, with filters.

use serde::Serialize;
use waybill_kernel::{Error, Mode, Result, Time, cursor};
use waybill_store::{Ctx, Row, Tx, Value, Work};

use super::message::{Message, columns};

/// Messages of one page.
pub const LIMIT_MAX: usize = 1_000;
pub const LIMIT_DEFAULT: usize = 100;
/// A page ends early beyond so many bytes of bodies: local answers are cut at 10 MB.
const PAGE_BYTES_MAX: usize = 6 << 20;
/// Rows read at once: what is read beyond the bound in bytes is thrown away.
const ROWS_AT_ONCE: usize = 50;

/// Where a page begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Since {
    /// After the message with this id.
    Id(i64),
    /// With messages that arrived at this time or later.
    At(Time),
    /// As an earlier page with the same filters said.
    Cursor(String),
}

impl Since {
    /// A decimal id, an RFC 3339 time or a cursor. No cursor is as short as an id.
    pub fn parse(text: &str) -> Result<Self> {
        if text.len() < 20
            && let Ok(id) = text.parse()
        {
            return Ok(Self::Id(id));
        }
        if text.contains(':') {
            let quoted = serde_json::Value::String(text.to_owned());
            let time = serde_json::from_value(quoted);
            return time.map(Self::At).map_err(|_| Error::invalid("`since` is no time in the form of RFC 3339."));
        }
        Ok(Self::Cursor(text.to_owned()))
    }
}

#[derive(Clone, Debug, Default)]
pub struct Query {
    pub since: Option<Since>,
    pub topic: Option<String>,
    /// A member's name or key.
    pub from: Option<String>,
    pub limit: Option<usize>,
}

#[derive(Debug, Serialize)]
pub struct Page {
    pub messages: Vec<Message>,
    /// None when this page has the newest message.
    pub next_cursor: Option<String>,
}

pub(super) struct Read {
    query: Query,
    /// After this id …
    after: i64,
    /// … and not before this time.
    not_before: Time,
    limit: usize,
}

impl Read {
    pub(super) fn new(query: Query) -> Result<Self> {
        let limit = query.limit.unwrap_or(LIMIT_DEFAULT);
        if !(1..=LIMIT_MAX).contains(&limit) {
            return Err(Error::invalid(format!("`limit` is {limit}; it must be from 1 to {LIMIT_MAX}.")));
        }
        let (after, not_before) = match &query.since {
            None => (0, Time::EPOCH),
            Some(Since::Id(id)) => (*id, Time::EPOCH),
            Some(Since::At(time)) => (0, *time),
            Some(Since::Cursor(text)) => {
                let bytes = cursor::decode(&scope(&query), text)?;
                (bytes.try_into().map(i64::from_be_bytes).map_err(|_| cursor::refused())?, Time::EPOCH)
            }
        };
        Ok(Self { query, after, not_before, limit })
    }

    async fn rows(&self, tx: &mut Tx<'_>, after: i64, limit: usize) -> Result<Vec<Row>> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let mut params = vec![Value::from(after), self.not_before.into(), limit.into()];
        let text = match (&self.query.topic, &self.query.from) {
            (None, None) => ALL,
            (Some(topic), None) => {
                params.push(Value::from(topic));
                OF_TOPIC
            }
            (None, Some(from)) => {
                params.push(Value::from(from));
                FROM
            }
            (Some(topic), Some(from)) => {
                params.extend([Value::from(topic), Value::from(from)]);
                OF_TOPIC_FROM
            }
        };
        tx.query(text, &params).await
    }
}

/// What a cursor is only valid with.
fn scope(query: &Query) -> [&[u8]; 3] {
    fn bytes(text: Option<&String>) -> &[u8] {
        text.map_or(&[], |text| text.as_bytes())
    }
    [b"inbox", bytes(query.topic.as_ref()), bytes(query.from.as_ref())]
}

macro_rules! page {
    ($filter:literal) => {
        concat!(
            "SELECT ",
            columns!(),
            " FROM inbox WHERE id > $1 AND received_at >= $2 ",
            $filter,
            " ORDER BY id LIMIT $3"
        )
    };
}

const ALL: &str = page!("");
const OF_TOPIC: &str = page!("AND topic = $4");
const FROM: &str = page!("AND (sender_pubkey = $4 OR sender_name = $4)");
const OF_TOPIC_FROM: &str = page!("AND topic = $4 AND (sender_pubkey = $5 OR sender_name = $5)");

impl Work for Read {
    type Output = Page;

    fn mode(&self) -> Mode {
        Mode::Read
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Page> {
        let (mut messages, mut bytes, mut after) = (Vec::new(), 0, self.after);
        // One more than asked for tells whether there are others.
        'page: loop {
            let wanted = (self.limit + 1 - messages.len()).min(ROWS_AT_ONCE);
            let rows = self.rows(tx, after, wanted).await?;
            let is_last = rows.len() < wanted;
            for row in &rows {
                let message = Message::read(row)?;
                if messages.len() == self.limit || (bytes > PAGE_BYTES_MAX && !messages.is_empty()) {
                    break 'page;
                }
                (after, bytes) = (message.id, bytes + message.body.len());
                messages.push(message);
            }
            if is_last {
                return Ok(Page { messages, next_cursor: None });
            }
        }
        Ok(Page { messages, next_cursor: Some(cursor::encode(&scope(&self.query), &after.to_be_bytes())) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beginning_is_an_id_a_time_or_a_cursor() {
        assert_eq!(Since::parse("17").unwrap(), Since::Id(17));
        assert_eq!(Since::parse("2023-11-14T22:13:20Z").unwrap(), Since::At(Time::from_micros(1_700_000_000_000_000)));
        let cursor = cursor::encode(&scope(&Query::default()), &5_i64.to_be_bytes());
        assert_eq!(Since::parse(&cursor).unwrap(), Since::Cursor(cursor.clone()));
        assert!(Since::parse("10:99").is_err());
        let read = |cursor: &str, topic: Option<&str>| {
            let since = Some(Since::Cursor(cursor.to_owned()));
            Read::new(Query { since, topic: topic.map(str::to_owned), ..Query::default() }).map(|read| read.after)
        };
        assert_eq!(read(&cursor, None).unwrap(), 5);
        assert!(read(&cursor, Some("ops")).is_err(), "a cursor of another filter");
        assert!(read("00", None).is_err());
    }

    #[test]
    fn limits_are_checked() {
        for (limit, ok) in [(0, false), (1, true), (LIMIT_MAX, true), (LIMIT_MAX + 1, false)] {
            assert_eq!(Read::new(Query { limit: Some(limit), ..Query::default() }).is_ok(), ok, "{limit}");
        }
    }
}
