//! Pages of mail: the lists of an inbox, of an outbox, and of both.
//!
//! Every list has an index that holds what it shows and nothing else, newest last: a page costs its own length, whatever else the
//! agent has got.
//!
//! # Contract
//! A page is read in two steps. The first reads how long the texts are and none of them; the second reads those that fit. So
//! neither the process nor the wire holds more than [`PAGE_BYTES_MAX`] of them, or one message, and who marks a page as read
//! marks what was shown.

use waybill_kernel::{Error, Result, Time};
use waybill_store::{Row, STATEMENTS_MAX, Statement, Tx, Value};

use crate::acting::{Agent, Project};
use crate::inbox::{MESSAGE_COLUMNS, MessageView, SENT, message_columns};
use crate::inlining::inline;
use crate::rules::addresses::Kind;

pub(crate) const LIMIT_USUAL: i64 = 20;
pub(crate) const LIMIT_MAX: i64 = 1_000;
/// The messages of one page, in bytes as JSON has them. An MCP answer holds its output twice, once as a text in which every
/// quotation mark is written anew: three times as much fits what one key may have waiting to be read, several times over.
const PAGE_BYTES_MAX: usize = 2 << 20;
/// What a message takes beside its texts: names of fields, times, numbers.
const FIELDS_BYTES: usize = 512;

/// Which messages of an inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum List {
    All,
    Unread,
    Urgent,
    UrgentUnread,
    /// An acknowledgement is asked for and has not been given.
    AckOpen,
    /// Of those, the ones that are urgent, unread, or both. No index has these together, so a bounded number is looked at.
    AckOpenAnd {
        urgent: bool,
        unread: bool,
    },
}

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Page {
    pub list: List,
    /// Strictly newer than this.
    pub after: Option<Time>,
    /// Strictly older than this.
    pub before: Option<Time>,
    pub limit: i64,
    pub bodies: bool,
}

/// What is shown, the newest first.
#[derive(Debug)]
pub(crate) struct Shown {
    pub messages: Vec<MessageView>,
    /// Older ones are left: there are more than the limit, or than a page has room for.
    pub has_more: bool,
}

/// A message before its body is read.
struct Listed {
    view: MessageView,
    /// Of all but the body, as JSON.
    bytes: usize,
    /// Of the body, as it is stored; none where bodies are not shown.
    body_bytes: usize,
}

macro_rules! inbox_sql {
    ($filter:literal) => {
        concat!(
            "SELECT ",
            message_columns!(),
            ", CAST(octet_length(m.body) AS BIGINT), r.kind, r.read_at, r.ack_at \
             FROM mail_recipients r JOIN mail_messages m ON m.tenant = $1 AND m.message = r.message \
             WHERE r.tenant = $1 AND r.agent = $2 AND r.created_at > $3 AND r.created_at < $4",
            $filter,
            " ORDER BY r.created_at DESC, r.message DESC LIMIT $5"
        )
    };
}

impl List {
    const fn sql(self) -> &'static str {
        match self {
            List::All => inbox_sql!(""),
            List::Unread => inbox_sql!(" AND r.read_at IS NULL"),
            List::Urgent => inbox_sql!(" AND r.urgent = 1"),
            List::UrgentUnread => inbox_sql!(" AND r.urgent = 1 AND r.read_at IS NULL"),
            List::AckOpen | List::AckOpenAnd { .. } => inbox_sql!(" AND r.ack_required = 1 AND r.ack_at IS NULL"),
        }
    }

    /// Whether a message of the index is one of the list.
    fn has(self, message: &MessageView) -> bool {
        match self {
            List::AckOpenAnd { urgent, unread } => {
                (!urgent || message.importance.is_urgent()) && (!unread || message.read_ts.is_none())
            }
            _ => true,
        }
    }

    /// How many messages of the index are looked at for a page of so many.
    fn looked_at(self, limit: i64) -> i64 {
        if matches!(self, List::AckOpenAnd { .. }) { LIMIT_MAX } else { limit }
    }

    pub(crate) const fn count_sql(self) -> &'static str {
        macro_rules! count_sql {
            ($filter:literal) => {
                concat!(
                    "SELECT count(*) FROM (SELECT 1 AS one FROM mail_recipients r WHERE r.tenant = $1 AND r.agent = $2",
                    $filter,
                    " LIMIT $3) AS counted"
                )
            };
        }
        match self {
            List::All => count_sql!(""),
            List::Unread => count_sql!(" AND r.read_at IS NULL"),
            List::Urgent => count_sql!(" AND r.urgent = 1"),
            List::UrgentUnread => count_sql!(" AND r.urgent = 1 AND r.read_at IS NULL"),
            List::AckOpen | List::AckOpenAnd { .. } => count_sql!(" AND r.ack_required = 1 AND r.ack_at IS NULL"),
        }
    }
}

/// What the agent has got, as it is read in its project.
pub(crate) async fn read(tx: &mut Tx<'_>, home: &Project, agent: &Agent, page: Page) -> Result<Shown> {
    let mut listed = got(tx, home, agent, page).await?;
    let is_cut = matches!(page.list, List::AckOpenAnd { .. }) && listed.len() as i64 > LIMIT_MAX;
    if is_cut {
        // The one that only told of more.
        listed.pop();
    }
    listed.retain(|one| page.list.has(&one.view));
    let mut shown = shown(tx, listed, page).await?;
    shown.has_more |= is_cut;
    Ok(shown)
}

/// Messages that were found without their texts: as many of the first as a page has room for, with their texts where these are
/// wanted.
pub(crate) async fn fitted(tx: &mut Tx<'_>, messages: Vec<MessageView>, bodies: bool) -> Result<Shown> {
    let limit = i64::try_from(messages.len()).unwrap_or(i64::MAX);
    let page = Page { list: List::All, after: None, before: None, limit, bodies };
    let lengths = if bodies { body_lengths(tx, &messages).await? } else { vec![0; messages.len()] };
    let mut listed = Vec::with_capacity(messages.len());
    for (view, body_bytes) in messages.into_iter().zip(lengths) {
        let bytes = serde_json::to_string(&view).map_err(Error::internal)?.len();
        listed.push(Listed { view, bytes, body_bytes });
    }
    shown(tx, listed, page).await
}

/// Of each text, in bytes as it is stored.
async fn body_lengths(tx: &mut Tx<'_>, messages: &[MessageView]) -> Result<Vec<usize>> {
    const LENGTH: &str =
        "SELECT CAST(octet_length(body) AS BIGINT) FROM mail_messages WHERE tenant = $1 AND message = $2";
    let mut lengths = Vec::with_capacity(messages.len());
    for some in messages.chunks(STATEMENTS_MAX) {
        let asked: Vec<Statement<'_>> = some.iter().map(|view| (LENGTH, vec![view.id.into()])).collect();
        for rows in tx.query_all(&asked).await? {
            let row = rows.first().ok_or_else(|| Error::internal("a message of a list is gone"))?;
            lengths.push(usize::try_from(row.int(0)?).unwrap_or(usize::MAX));
        }
    }
    Ok(lengths)
}

/// What the agent has sent.
pub(crate) async fn read_sent(tx: &mut Tx<'_>, home: &Project, agent: &Agent, page: Page) -> Result<Shown> {
    let listed = sent(tx, home, agent, page).await?;
    shown(tx, listed, page).await
}

pub(crate) async fn read_both(tx: &mut Tx<'_>, home: &Project, agent: &Agent, page: Page) -> Result<Shown> {
    let mut listed = got(tx, home, agent, page).await?;
    listed.extend(sent(tx, home, agent, page).await?);
    listed.sort_by_key(|one| std::cmp::Reverse((one.view.created_ts, one.view.id)));
    shown(tx, listed, page).await
}

async fn got(tx: &mut Tx<'_>, home: &Project, agent: &Agent, page: Page) -> Result<Vec<Listed>> {
    let rows = tx.query(page.list.sql(), &page.params(agent)).await?;
    let read = |row: &Row| {
        let mut listed = Listed::read(row, Kind::stored(row.text(AFTER_BODY)?).as_str(), home, page)?;
        listed.view.read_ts = row.time_opt(AFTER_BODY + 1)?;
        listed.view.ack_ts = row.time_opt(AFTER_BODY + 2)?;
        Ok(listed)
    };
    rows.iter().map(read).collect()
}

async fn sent(tx: &mut Tx<'_>, home: &Project, agent: &Agent, page: Page) -> Result<Vec<Listed>> {
    const OUTBOX: &str = concat!(
        "SELECT ",
        message_columns!(),
        ", CAST(octet_length(m.body) AS BIGINT) FROM mail_messages m \
         WHERE m.tenant = $1 AND m.sender = $2 AND m.created_at > $3 AND m.created_at < $4 \
         ORDER BY m.created_at DESC, m.message DESC LIMIT $5"
    );
    let rows = tx.query(OUTBOX, &page.params(agent)).await?;
    rows.iter().map(|row| Listed::read(row, SENT, home, page)).collect()
}

/// Where the columns after the body's length begin.
const AFTER_BODY: usize = MESSAGE_COLUMNS + 1;

impl Page {
    /// One more than is shown tells whether there are more.
    fn params(&self, agent: &Agent) -> [Value<'static>; 4] {
        let after = self.after.unwrap_or(Time::from_micros(i64::MIN));
        let before = self.before.unwrap_or(Time::from_micros(i64::MAX));
        [agent.id.into(), after.into(), before.into(), (self.list.looked_at(self.limit) + 1).into()]
    }
}

impl Listed {
    fn read(row: &Row, kind: &'static str, home: &Project, page: Page) -> Result<Self> {
        let view = MessageView::read(row, kind, home)?;
        let body_bytes = if page.bodies { usize::try_from(row.int(MESSAGE_COLUMNS)?).unwrap_or(usize::MAX) } else { 0 };
        // Names and attachments are stored as JSON.
        let bytes =
            FIELDS_BYTES + json_bytes(&view.subject) + row.text(3)?.len() + row.text_opt(9)?.map_or(0, str::len);
        Ok(Self { view, bytes, body_bytes })
    }
}

/// As many as a page has room for, and always one.
async fn shown(tx: &mut Tx<'_>, mut listed: Vec<Listed>, page: Page) -> Result<Shown> {
    const BODY: &str = "SELECT body FROM mail_messages WHERE tenant = $1 AND message = $2";
    let (all, mut room) = (listed.len(), None);
    listed.truncate(usize::try_from(page.limit).unwrap_or(usize::MAX));
    listed.truncate(fitting(listed.iter().map(|one| one.bytes + one.body_bytes)));
    if page.bodies {
        for some in listed.chunks_mut(STATEMENTS_MAX) {
            let bodies: Vec<Statement<'_>> = some.iter().map(|one| (BODY, vec![one.view.id.into()])).collect();
            for (one, rows) in some.iter_mut().zip(tx.query_all(&bodies).await?) {
                let row = rows.first().ok_or_else(|| Error::internal("a message of a list is gone"))?;
                one.view.body_md = Some(row.text(0)?.to_owned());
            }
        }
        // Only now it is known how much longer they are as JSON.
        let bytes = |one: &Listed| one.bytes + one.view.body_md.as_deref().map_or(0, json_bytes);
        listed.truncate(fitting(listed.iter().map(bytes)));
        room = Some(PAGE_BYTES_MAX.saturating_sub(listed.iter().map(bytes).sum()));
    }
    let mut messages: Vec<MessageView> = listed.into_iter().map(|one| one.view).collect();
    if let Some(room) = room {
        inline(tx, &mut messages, room).await?;
    }
    Ok(Shown { has_more: messages.len() < all, messages })
}

/// As [`inline`], for one message that is shown alone.
pub(crate) async fn inline_one(tx: &mut Tx<'_>, message: &mut MessageView) -> Result<()> {
    let written = serde_json::to_string(message).map_err(Error::internal)?.len();
    let room = PAGE_BYTES_MAX.saturating_sub(written);
    inline(tx, std::slice::from_mut(message), room).await
}

/// How many of the first fit a page.
fn fitting(bytes: impl Iterator<Item = usize>) -> usize {
    let sums = bytes.scan(0_usize, |sum, bytes| {
        *sum = sum.saturating_add(bytes);
        Some(*sum)
    });
    sums.take_while(|sum| *sum <= PAGE_BYTES_MAX).count().max(1)
}

/// A text as JSON writes it, without its quotation marks.
fn json_bytes(text: &str) -> usize {
    let written = |byte: u8| match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 0x08 | 0x0c => 2,
        0..0x20 => 6,
        _ => 1,
    };
    text.bytes().map(written).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_counted_as_json_writes_it() {
        for text in ["", "plain", "\"quoted\" \\ \n\r\t", "\u{0}\u{1}\u{8}\u{c}\u{1f}\u{20}\u{7f}", "über 🦀"] {
            assert_eq!(json_bytes(text) + 2, serde_json::to_string(text).unwrap().len(), "{text:?}");
        }
    }

    #[test]
    fn a_page_has_room_for_one_message_at_least() {
        assert_eq!(fitting([PAGE_BYTES_MAX + 1, 1].into_iter()), 1);
        assert_eq!(fitting([1, PAGE_BYTES_MAX - 1, 1].into_iter()), 2);
        assert_eq!(fitting([usize::MAX, usize::MAX].into_iter()), 1);
    }
}
