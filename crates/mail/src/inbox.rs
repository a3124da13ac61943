//! A message as its parties are shown it, and what they have done with it. Lists of messages are in [`crate::pages`].

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Code, Error, Result, Time};
use waybill_store::{Ctx, Row, STATEMENTS_MAX, Statement, Tx, Value};

use crate::Settings;
use crate::acting::{Agent, Project};
use crate::archive_rows;
use crate::pages::List;
use crate::rules::addresses::{Kind, seen_from};
use crate::rules::message::Importance;
use crate::sending::Attachment;

/// Counts go no further: what is beyond costs as much as there is.
const COUNT_MAX: i64 = 1_000;

/// A message of an inbox or an outbox.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct MessageView {
    pub id: i64,
    pub subject: String,
    /// `project:<slug>#<name>` where it is an agent of another project, as in the lists.
    pub from: String,
    /// Of all recipients, those who are hidden are shown to the sender alone.
    pub to: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cc: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bcc: Vec<String>,
    pub created_ts: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_ts: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ack_ts: Option<Time>,
    pub importance: Importance,
    pub ack_required: bool,
    /// Which list the reader is on: to, cc or bcc; from for what the agent sent.
    pub kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reply_to: Option<i64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attachments: Vec<Attachment>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body_md: Option<String>,
}

/// The columns that [`MessageView::read`] reads first, in its order, of a message with the alias `m`. `body` is read only where
/// it is shown.
macro_rules! message_columns {
    () => {
        "m.message, m.subject, m.sender_name, m.names, m.created_at, m.importance, m.ack_required, m.thread, m.reply_to, \
         m.attachments, m.project, \
         (SELECT home.slug FROM mail_projects home WHERE home.tenant = $1 AND home.project = m.project)"
    };
}
pub(crate) use message_columns;

/// How many they are: what else is read begins here.
pub(crate) const MESSAGE_COLUMNS: usize = 12;

#[derive(Deserialize, Default)]
struct Names {
    #[serde(default)]
    to: Vec<String>,
    #[serde(default)]
    cc: Vec<String>,
    #[serde(default)]
    bcc: Vec<String>,
}

impl MessageView {
    /// As it is read in the project `home`: names are written as in the sender's, where they may be those of others here.
    pub(crate) fn read(row: &Row, kind: &'static str, home: &Project) -> Result<Self> {
        let names: Names = serde_json::from_str(row.text(3)?).map_err(Error::internal)?;
        let attachments = match row.text_opt(9)? {
            Some(text) => serde_json::from_str(text).map_err(Error::internal)?,
            None => Vec::new(),
        };
        let is_sender = kind == SENT;
        let (is_home, written_in) = (row.int(10)? == home.id, row.text(11)?);
        let seen = |name: String| if is_home { name } else { seen_from(&home.slug, written_in, &name) };
        let all_seen = |names: Vec<String>| names.into_iter().map(seen).collect();
        Ok(Self {
            id: row.int(0)?,
            subject: row.text(1)?.to_owned(),
            from: seen(row.text(2)?.to_owned()),
            to: all_seen(names.to),
            cc: all_seen(names.cc),
            bcc: if is_sender { all_seen(names.bcc) } else { Vec::new() },
            created_ts: row.time(4)?,
            read_ts: None,
            ack_ts: None,
            importance: Importance::stored(row.text(5)?),
            ack_required: row.bool(6)?,
            kind,
            thread_id: row.text_opt(7)?.map(str::to_owned),
            reply_to: row.int_opt(8)?,
            attachments,
            body_md: None,
        })
    }
}

/// The kind of a message for who sent it.
pub(crate) const SENT: &str = "from";

/// How many messages there are of each kind, up to a bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct Counts {
    /// Up to 1,000, as all of them.
    pub unread: i64,
    pub urgent_unread: i64,
    pub ack_open: i64,
}

pub(crate) async fn counts(tx: &mut Tx<'_>, agent: &Agent) -> Result<Counts> {
    let params = || vec![Value::from(agent.id), COUNT_MAX.into()];
    let lists = [List::Unread, List::UrgentUnread, List::AckOpen];
    let rows = tx.query_all(&lists.map(|list| (list.count_sql(), params()))).await?;
    let count = |at: usize| rows[at].first().map_or(Ok(0), |row| row.int(0));
    Ok(Counts { unread: count(0)?, urgent_unread: count(1)?, ack_open: count(2)? })
}

/// Marks what is unread of these messages as read, and shows when each was read and acknowledged: somebody else may have come first.
pub(crate) async fn mark_read(
    ctx: &Ctx<'_>,
    tx: &mut Tx<'_>,
    agent: &Agent,
    messages: &mut [MessageView],
) -> Result<()> {
    const READ: &str = "UPDATE mail_recipients SET read_at = $4 \
                        WHERE tenant = $1 AND message = $2 AND agent = $3 AND read_at IS NULL";
    const FOUND: &str = "SELECT read_at, ack_at FROM mail_recipients WHERE tenant = $1 AND message = $2 AND agent = $3";
    let mut marked = 0;
    let mut unread: Vec<_> = messages.iter_mut().filter(|message| message.read_ts.is_none()).collect();
    for some in unread.chunks_mut(STATEMENTS_MAX) {
        let read: Vec<Statement<'_>> =
            some.iter().map(|one| (READ, vec![one.id.into(), agent.id.into(), ctx.now.into()])).collect();
        marked += tx.execute_all(&read).await?.iter().sum::<u64>();
        let found: Vec<Statement<'_>> = some.iter().map(|one| (FOUND, vec![one.id.into(), agent.id.into()])).collect();
        for (message, rows) in some.iter_mut().zip(tx.query_all(&found).await?) {
            let row = rows.first().ok_or_else(|| Error::internal("a message of an inbox is gone"))?;
            (message.read_ts, message.ack_ts) = (row.time_opt(0)?, row.time_opt(1)?);
        }
    }
    if marked > 0 {
        archive_rows::changed(tx, ctx.now, agent.project, agent.id).await?;
    }
    Ok(())
}

/// A message and what its parties may do with it.
pub(crate) struct Found {
    pub view: MessageView,
    pub sender: i64,
}

/// A message that the agent sent or got; as for everybody else there is none. `home` is the agent's project.
pub(crate) async fn find(tx: &mut Tx<'_>, home: &Project, agent: &Agent, id: i64) -> Result<Option<Found>> {
    const FIND: &str = concat!(
        "SELECT ",
        message_columns!(),
        ", r.kind, r.read_at, r.ack_at, m.body, m.sender FROM mail_messages m LEFT JOIN mail_recipients r \
         ON r.tenant = $1 AND r.message = m.message AND r.agent = $3 \
         WHERE m.tenant = $1 AND m.message = $2 AND (m.sender = $3 OR r.agent IS NOT NULL)"
    );
    let Some(row) = tx.query_opt(FIND, &[id.into(), agent.id.into()]).await? else { return Ok(None) };
    let sender = row.int(MESSAGE_COLUMNS + 4)?;
    let kind = if sender == agent.id { SENT } else { Kind::stored(row.text(MESSAGE_COLUMNS)?).as_str() };
    let mut view = MessageView::read(&row, kind, home)?;
    view.read_ts = row.time_opt(MESSAGE_COLUMNS + 1)?;
    view.ack_ts = row.time_opt(MESSAGE_COLUMNS + 2)?;
    view.body_md = row.text_opt(MESSAGE_COLUMNS + 3)?.map(str::to_owned);
    Ok(Some(Found { view, sender }))
}

/// Whether there is one that others have is not told.
pub(crate) fn no_message(agent: &Agent) -> Error {
    Error::new(Code::NotFound, format!("{} has neither sent nor got such a message.", agent.name))
        .with_cure("Check message_id against fetch_inbox.")
}

/// What came before this and is not acknowledged is overdue.
pub(crate) fn overdue(now: Time, settings: &Settings) -> Time {
    Time::from_micros(now.micros().saturating_sub(settings.ack_ttl().as_micros() as i64))
}
