//! Follow an inbox: every delivery once, in the order of the commits, from a cursor that outlives client and server.
//!
//! Places in the feed are below the horizon, so none appears behind a cursor later. What was forgotten is told, and so is a cursor
//! whose delivery is not there: it comes from a state that was lost when the database was restored from an earlier one.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Caller, Code, Error, Example, OperationSpec, Profile, Result, Role, Route, Scope, Time, cursor};
use waybill_store::effects::{Cursor, Feed};
use waybill_store::{Ctx, Operation, Reply, Row, Tx, Until, Wait};

use crate::acting::{self, Agent, Project};
use crate::rules::addresses::{Kind, foreign};
use crate::rules::message::{Importance, page};
use crate::sending;

const LIMIT_USUAL: i64 = 50;
const LIMIT_MAX: i64 = 500;
/// After this long a delivery that an older transaction held back is looked for again.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FetchInboxEvents {
    /// The project's absolute path or slug.
    pub project_key: String,
    /// Your agent's name.
    pub agent_name: String,
    /// `next_cursor` of the call before. Left out, from the oldest delivery that is still known.
    pub after: Option<String>,
    /// Deliveries at most: 50 unless given, at most 500.
    #[schemars(range(min = 1))]
    pub limit: Option<i64>,
    /// Only give the position after everything there is, to begin from.
    #[serde(default)]
    #[schemars(extend("x-rare" = true))]
    pub position_now: bool,
    /// Wait so long for a delivery when there is none; longer waits are shortened to 20.
    #[serde(default)]
    pub wait_seconds: u32,
    /// The agent's token, where another key has registered it.
    #[schemars(extend("x-rare" = true))]
    pub registration_token: Option<String>,
}

/// A message that came, without its text.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct Delivered {
    /// The position after it.
    pub cursor: String,
    pub message_id: i64,
    pub subject: String,
    pub from: String,
    pub importance: Importance,
    pub ack_required: bool,
    /// Which list the agent is on: to, cc or bcc.
    pub kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread_id: Option<String>,
    pub created_ts: Time,
}

/// Deliveries, the oldest first.
#[derive(Debug, Serialize, JsonSchema)]
pub struct InboxEvents {
    pub events: Vec<Delivered>,
    /// Where to go on from.
    pub next_cursor: String,
    /// There is more at once.
    pub has_more: bool,
    /// Before the oldest delivery that is still known.
    pub oldest_available_cursor: String,
    /// After the newest.
    pub tail_cursor: String,
}

/// `$6` is the agent. Two ranges rather than one comparison of pairs, so that both engines look the position up in the index.
macro_rules! deliveries {
    ($range:literal, $order:literal) => {
        concat!(
            "SELECT e.xact, e.seq, e.message, m.subject, m.sender_name, m.importance, m.ack_required, r.kind, m.thread, \
             m.created_at, m.project, \
             (SELECT home.slug FROM mail_projects home WHERE home.tenant = $1 AND home.project = m.project), e.at \
             FROM mail_inbox_events e JOIN mail_messages m ON m.tenant = $1 AND m.message = e.message \
             JOIN mail_recipients r ON r.tenant = $1 AND r.message = e.message AND r.agent = e.agent \
             WHERE e.tenant = $1 AND e.agent = $6 AND ",
            $range,
            " AND e.xact < $4 ORDER BY ",
            $order,
            " LIMIT $5"
        )
    };
}

const DELIVERIES: Feed = Feed {
    sql: concat!(
        "SELECT * FROM (",
        deliveries!("e.xact = $2 AND e.seq > $3", "e.seq"),
        ") AS same_xact UNION ALL SELECT * FROM (",
        deliveries!("e.xact > $2", "e.xact, e.seq"),
        ") AS later_xact ORDER BY 1, 2 LIMIT $5"
    ),
};

impl Operation for FetchInboxEvents {
    const SPEC: OperationSpec = OperationSpec {
        name: "fetch_inbox_events",
        domain: crate::NAME,
        route: Route::get("/v1/mail/inbox/events"),
        profile: Profile::Core,
        roles: &[Role::Agent, Role::Admin, Role::System],
        scopes: &[Scope::MailRead],
        title: "Follow an inbox",
        description: "What has come for your agent since a cursor, the oldest first, without the texts. Keep next_cursor: with \
                      it nothing is missed or repeated, also after a restart. With wait_seconds it waits for the next one.",
        example: Example {
            arguments: r#"{"project_key": "/data/projects/backend", "agent_name": "BlueLake", "wait_seconds": 20}"#,
            answer: r#"{"events": [{"cursor": "00000000000000000000000000000001000647a337b34200a1b2c3d4e5f6", "message_id": 42,
                "subject": "The login page", "from": "GreenCastle", "importance": "normal", "ack_required": true,
                "kind": "to", "thread_id": "FEAT-123", "created_ts": "2026-01-05T12:30:00.000000Z"}],
                "next_cursor": "00000000000000000000000000000001000647a337b34200a1b2c3d4e5f6", "has_more": false,
                "oldest_available_cursor": "00000000000000000000000000000000b1b2c3d4e5f6",
                "tail_cursor": "00000000000000000000000000000001000647a337b34200a1b2c3d4e5f6"}"#,
        },
        ..OperationSpec::READ
    };
    type Output = InboxEvents;

    fn wait(&self, caller: &Caller) -> Option<Wait> {
        if self.position_now {
            return None;
        }
        let topic = sending::inbox_topic(caller.tenant, &self.project_key, &self.agent_name);
        Wait::up_to(self.wait_seconds, topic)
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<InboxEvents>> {
        let limit = page(self.limit, LIMIT_USUAL, LIMIT_MAX)?;
        let project = acting::project(tx, &self.project_key).await?;
        let token = self.registration_token.as_deref();
        let agent = acting::act_as(ctx, tx, &project, &self.agent_name, token).await?.agent;
        let agent_bytes = agent.id.to_be_bytes();
        let scope: [&[u8]; 3] = [b"mail.inbox", ctx.caller.tenant_id.as_bytes(), &agent_bytes];
        let horizon = tx.horizon().await?;
        let ends = Ends::read(tx, &agent, horizon).await?;
        let mut answer = InboxEvents {
            events: Vec::new(),
            next_cursor: ends.tail.to_text(&scope),
            has_more: false,
            oldest_available_cursor: ends.forgotten.to_text(&scope),
            tail_cursor: ends.tail.to_text(&scope),
        };
        if self.position_now {
            return Ok(Reply::Done(answer));
        }
        let after = match &self.after {
            Some(text) => ends.check(tx, &agent, Place::from_text(&scope, text)?, &answer).await?,
            None => ends.forgotten,
        };
        // One more than is shown tells whether there is more.
        let page = DELIVERIES.read_below(tx, horizon, after.at, limit + 1, &[agent.id.into()]).await?;
        let shown = page.rows.len().min(usize::try_from(limit).unwrap_or(usize::MAX));
        let mut next = after;
        for row in &page.rows[..shown] {
            next = Place { at: Cursor { xact: row.int(0)?, seq: row.int(1)? }, delivered: Some(row.time(12)?) };
            answer.events.push(event(row, next.to_text(&scope), &project)?);
        }
        answer.next_cursor = next.to_text(&scope);
        answer.has_more = page.rows.len() > shown;
        if !answer.events.is_empty() {
            return Ok(Reply::Done(answer));
        }
        let look = is_held_back(tx, &agent, horizon).await?.then(|| ctx.now.after(LOOK_AGAIN));
        Ok(Reply::Empty { answer, until: Until { look, ..Until::default() } })
    }
}

fn event(row: &Row, cursor: String, home: &Project) -> Result<Delivered> {
    let (name, slug) = (row.text(4)?, row.text(11)?);
    Ok(Delivered {
        cursor,
        message_id: row.int(2)?,
        subject: row.text(3)?.to_owned(),
        from: if row.int(10)? == home.id { name.to_owned() } else { foreign(slug, name) },
        importance: Importance::stored(row.text(5)?),
        ack_required: row.bool(6)?,
        kind: Kind::stored(row.text(7)?).as_str(),
        thread_id: row.text_opt(8)?.map(str::to_owned),
        created_ts: row.time(9)?,
    })
}

/// A position as followers keep it, with the time of the delivery there: after a restore SQLite gives the numbers of lost deliveries out again.
#[derive(Clone, Copy, Debug)]
struct Place {
    at: Cursor,
    /// None before the first delivery, where it was forgotten, and in cursors of versions that did not write it.
    delivered: Option<Time>,
}

impl Place {
    const BYTES: usize = 24;

    fn to_text(self, scope: &[&[u8]]) -> String {
        let Some(delivered) = self.delivered else { return self.at.to_text(scope) };
        let numbers = [self.at.xact, self.at.seq, delivered.micros()];
        cursor::encode(scope, &numbers.map(i64::to_be_bytes).concat())
    }

    fn from_text(scope: &[&[u8]], text: &str) -> Result<Self> {
        let Ok(bytes) = <[u8; Self::BYTES]>::try_from(cursor::decode(scope, text)?) else {
            return Ok(Self { at: Cursor::from_text(scope, text)?, delivered: None });
        };
        let [xact, seq, delivered] = [0, 8, 16].map(|from| {
            let mut number = [0; 8];
            number.copy_from_slice(&bytes[from..from + 8]);
            i64::from_be_bytes(number)
        });
        Ok(Self { at: Cursor { xact, seq }, delivered: Some(Time::from_micros(delivered)) })
    }
}

/// Where an agent's deliveries begin and end.
struct Ends {
    /// Up to here they were forgotten.
    forgotten: Place,
    /// The newest below the horizon.
    tail: Place,
}

impl Ends {
    async fn read(tx: &mut Tx<'_>, agent: &Agent, horizon: i64) -> Result<Self> {
        const FORGOTTEN: &str = "SELECT xact, seq FROM mail_forgotten_events WHERE tenant = $1 AND agent = $2";
        const TAIL: &str = "SELECT xact, seq, at FROM mail_inbox_events WHERE tenant = $1 AND agent = $2 AND xact < $3 \
                            ORDER BY xact DESC, seq DESC LIMIT 1";
        let rows =
            tx.query_all(&[(FORGOTTEN, vec![agent.id.into()]), (TAIL, vec![agent.id.into(), horizon.into()])]).await?;
        let position = |row: &Row| Ok::<_, Error>(Cursor { xact: row.int(0)?, seq: row.int(1)? });
        let forgotten = rows[0].first().map(position).transpose()?.unwrap_or(Cursor::START);
        let forgotten = Place { at: forgotten, delivered: None };
        let tail = match rows[1].first() {
            Some(row) => Place { at: position(row)?, delivered: Some(row.time(2)?) },
            None => forgotten,
        };
        Ok(Self { forgotten, tail: if tail.at > forgotten.at { tail } else { forgotten } })
    }

    /// A position is good where the deliveries begin, and at one that is there.
    async fn check(&self, tx: &mut Tx<'_>, agent: &Agent, after: Place, ends: &InboxEvents) -> Result<Place> {
        let (code, message) = if after.at < self.forgotten.at {
            (Code::CursorExpired, Code::CursorExpired.entry().title)
        } else if after.at == self.forgotten.at || is_there(tx, agent, after).await? {
            return Ok(after);
        } else if after.at > self.tail.at {
            (Code::CursorAhead, Code::CursorAhead.entry().title)
        } else {
            (Code::CursorAhead, "The cursor is of a delivery that does not exist.")
        };
        let error = Error::new(code, message);
        Err(error
            .with("oldest_available_cursor", ends.oldest_available_cursor.as_str())
            .with("tail_cursor", ends.tail_cursor.as_str()))
    }
}

async fn is_there(tx: &mut Tx<'_>, agent: &Agent, place: Place) -> Result<bool> {
    const DELIVERED: &str =
        "SELECT at FROM mail_inbox_events WHERE tenant = $1 AND agent = $2 AND xact = $3 AND seq = $4";
    let params = [agent.id.into(), place.at.xact.into(), place.at.seq.into()];
    let Some(row) = tx.query_opt(DELIVERED, &params).await? else { return Ok(false) };
    let at = row.time(0)?;
    Ok(place.delivered.is_none_or(|delivered| delivered == at))
}

/// Is there a delivery that is committed and was not below the horizon of before the page?
async fn is_held_back(tx: &mut Tx<'_>, agent: &Agent, horizon: i64) -> Result<bool> {
    const HELD_BACK: &str = "SELECT 1 FROM mail_inbox_events WHERE tenant = $1 AND agent = $2 AND xact >= $3 LIMIT 1";
    Ok(tx.query_opt(HELD_BACK, &[agent.id.into(), horizon.into()]).await?.is_some())
}
