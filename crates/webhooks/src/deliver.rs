//! Delivers: takes the lines of endpoints that have something due, posts it, and records what came of it.
//!
//! A line is claimed as a whole, so that one node at a time speaks to an endpoint, with as many requests as it may have. A turn
//! of a line is at most [`TURN_MAX`] deliveries, then it goes back to the end. An endpoint that did not answer is asked for one
//! delivery at a time, with rests in between, and by runners that have nothing else to do: however many are dead, those that
//! live do not wait for them. Nor does a tenant wait for the slow endpoints of another: a tenant may have a part of the hands
//! ([`crate::in_hand`]), and requests are made by turns.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use tokio::time::Instant;
use waybill_access::ServerKey;
use waybill_guard::{Resolver, SystemResolver};
use waybill_kernel::id::Uuid;
use waybill_kernel::{Code, Error, Mode, Result, Tenant, Time};
use waybill_store::effects::{Bounds, Ended, GivenUp, Outward, Taken};
use waybill_store::lanes::{Lanes, Owner};
use waybill_store::{Ctx, Row, Statement, Store, Topic, Tx, Value, Work};

use crate::event::ReadEvent;
use crate::in_hand::InHand;
use crate::post::{Message, Post};
use crate::rules::{self, Answer, Disabled, Health, State};
use crate::secret::{self, Signer};
use crate::webhook::{self, DeliveryId, WebhookId};
use crate::{Settings, metrics};

/// Deliveries of one turn.
const TURN_MAX: i64 = 64;
/// A turn begins no request later than this after its own beginning.
const TURN_TIME: Duration = Duration::from_secs(20);
/// From there, beside a request's own time, until the claim ends and another node may take the line.
const CLAIM_SLACK: Duration = Duration::from_secs(30);
/// A line that could not be worked off by a fault of ours rests for so long.
const TROUBLE: Duration = Duration::from_secs(5);
/// Outcomes written in one round trip.
const OUTCOMES_AT_ONCE: usize = 25;
/// Of the requests at a time, so many beside them are for those that do not answer.
const AILING_PART: usize = 4;

/// Which lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lines {
    Healthy,
    /// Of endpoints that did not answer the last time.
    Ailing,
}

pub struct Deliver<R = SystemResolver> {
    lines: Lines,
    settings: Settings,
    requests_max: usize,
    /// Of all lines.
    requests: Arc<Lanes>,
    in_hand: InHand,
    post: Post<R>,
}

/// The line of one webhook, in hand.
#[derive(Clone, PartialEq, Eq)]
pub struct Line {
    tenant: Tenant,
    webhook_id: WebhookId,
    claim: i64,
    url: String,
    secret: Vec<u8>,
    health: Health,
}

/// What one turn came to.
#[derive(Debug, Default)]
pub struct Turn {
    sent: Vec<Sent>,
    /// What was done is not known and says nothing about the endpoint; the line rests for so long.
    undone: Option<Duration>,
}

#[derive(Debug)]
struct Sent {
    delivery: Due,
    answer: Answer,
}

#[derive(Clone, Debug)]
struct Due {
    delivery_id: DeliveryId,
    /// Of a receipt, or of an audit event of a mesh: the kind tells.
    subject: Uuid,
    kind: String,
    attempts: i64,
    gives_up_at: Time,
}

impl Deliver {
    pub fn new(lines: Lines, settings: &Settings) -> Self {
        Self::by(lines, settings, SystemResolver)
    }
}

impl<R: Resolver + 'static> Deliver<R> {
    pub fn by(lines: Lines, settings: &Settings, resolver: R) -> Self {
        metrics::describe();
        let requests_max = match lines {
            Lines::Healthy => settings.requests_max.max(1),
            Lines::Ailing => (settings.requests_max / AILING_PART).max(1),
        };
        let post = Post::new(settings, resolver);
        // Those that wait for one are bounded by what a line may have under way.
        let requests = Lanes::new(requests_max, usize::MAX);
        Self { lines, settings: settings.clone(), requests_max, requests, in_hand: InHand::new(requests_max), post }
    }

    fn turn_max(&self) -> i64 {
        if self.lines == Lines::Ailing { 1 } else { TURN_MAX }
    }

    async fn turn(&self, store: &Store, line: &Line) -> Result<Turn> {
        let signer = secret::server_key(store.settings().find::<ServerKey>())
            .and_then(|key| Signer::open(key, line.tenant, line.webhook_id, &line.secret));
        let due = FindDue { tenant: line.tenant, webhook_id: line.webhook_id, limit: self.turn_max() };
        let due = store.system().run(due).await?;
        let (ends, over) = (Instant::now() + TURN_TIME, AtomicBool::new(false));
        let going = Going { deliver: self, store, line, signer: &signer, ends, over };
        let sent = futures_util::stream::iter(due)
            .map(|delivery| going.one(delivery))
            .buffer_unordered(self.settings.endpoint_requests_max.max(1))
            .filter_map(std::future::ready)
            .collect()
            .await;
        Ok(Turn { sent, undone: None })
    }
}

/// A turn under way.
struct Going<'a, R> {
    deliver: &'a Deliver<R>,
    store: &'a Store,
    line: &'a Line,
    signer: &'a Result<Signer>,
    ends: Instant,
    /// The endpoint has not answered once: nothing more is begun.
    over: AtomicBool,
}

impl<R: Resolver + 'static> Going<'_, R> {
    /// None for what was not begun.
    async fn one(&self, delivery: Due) -> Option<Sent> {
        let owner = Owner::new(self.line.tenant, self.line.webhook_id);
        let _request = tokio::time::timeout_at(self.ends, self.deliver.requests.enter(owner)).await.ok()?.ok()?;
        if self.over.load(Ordering::Relaxed) {
            return None;
        }
        let answer = match self.signed(&delivery).await {
            Ok(Signed { id, timestamp_s, signature, body }) => {
                let message = Message { url: &self.line.url, id: &id, timestamp_s, signature: &signature, body };
                self.deliver.post.send(message).await
            }
            Err(answer) => answer,
        };
        if answer.is_silence() {
            self.over.store(true, Ordering::Relaxed);
        }
        Some(Sent { delivery, answer })
    }

    async fn signed(&self, delivery: &Due) -> std::result::Result<Signed, Answer> {
        let tenant = self.line.tenant;
        let read =
            self.store.system().run(ReadEvent { tenant, subject: delivery.subject, kind: delivery.kind.clone() }).await;
        let body = match read {
            Ok(Some(body)) => body,
            Ok(None) => return Err(Answer::Unsendable { why: "What it tells of is not there any more.".to_owned() }),
            Err(error) => return Err(ours("What it tells of could not be read.", &error)),
        };
        let id = delivery.delivery_id.to_string();
        let timestamp_s = self.store.now().micros().div_euclid(1_000_000);
        let signature = self.signer.as_ref().map_err(|error| ours("The secret could not be opened.", error))?;
        let signature = signature.sign(&id, timestamp_s, &body);
        let signature = signature.map_err(|error| ours("The message could not be signed.", &error))?;
        Ok(Signed { id, timestamp_s, signature, body })
    }
}

/// A message as it will be sent.
struct Signed {
    id: String,
    timestamp_s: i64,
    signature: String,
    body: String,
}

/// The fault is here and may be gone the next time.
fn ours(what: &str, error: &Error) -> Answer {
    let cause = error.cause().unwrap_or_default();
    tracing::warn!(%error, cause, "a webhook could not be sent: {what}");
    Answer::Silent { status: None, why: format!("{what} The server's log says why."), retry_after: None }
}

impl<R: Resolver + 'static> Outward for Deliver<R> {
    type Claimed = Line;
    type Outcome = Turn;

    fn name(&self) -> &'static str {
        match self.lines {
            Lines::Healthy => "webhooks",
            Lines::Ailing => "webhooks.ailing",
        }
    }

    fn topic(&self) -> Topic {
        webhook::topic()
    }

    fn bounds(&self) -> Bounds {
        let attempt_max = TURN_TIME + self.settings.request() + CLAIM_SLACK / 2;
        Bounds { at_once: self.requests_max, attempt_max }
    }

    async fn due(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Option<Time>> {
        const DUE: &str = "SELECT due_at FROM webhooks WHERE ailing = $1 AND due_at IS NOT NULL \
                           AND tenant NOT IN ($2, $3, $4, $5) ORDER BY due_at LIMIT 1";
        let [a, b, c, d] = self.in_hand.full().map(|tenant| Value::from(tenant.0));
        let row = tx.query_opt(DUE, &[Value::from(self.lines == Lines::Ailing), a, b, c, d]).await?;
        row.map(|row| row.time(0)).transpose()
    }

    async fn take(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, room: usize) -> Result<Taken<Line>> {
        // Past what others are about to take, and not behind it; the outer condition holds under the row's lock. Materialized,
        // or PostgreSQL may look once per row, find others each time, and claim more than there is room for.
        const CLAIM: &str = "WITH due (owner, found) AS MATERIALIZED (SELECT tenant, webhook_id FROM webhooks \
            WHERE ailing = $1 AND due_at <= $2 AND tenant NOT IN ($5, $6, $7, $8) ORDER BY due_at LIMIT $4 FOR UPDATE SKIP LOCKED) \
            UPDATE webhooks SET held = 1, claim = claim + 1, due_at = $3 \
            WHERE (tenant, webhook_id) IN (SELECT due.owner, due.found FROM due) AND ailing = $1 AND due_at <= $2 \
            RETURNING tenant, webhook_id, claim, url, secret, failures, failing_since";
        let until = ctx.now.after(TURN_TIME + self.settings.request() + CLAIM_SLACK);
        let room = i64::try_from(room.min(self.in_hand.claim_max())).map_err(Error::internal)?;
        let [a, b, c, d] = self.in_hand.full().map(|tenant| Value::from(tenant.0));
        let params = [
            Value::from(self.lines == Lines::Ailing),
            Value::from(ctx.now),
            Value::from(until),
            Value::from(room),
            a,
            b,
            c,
            d,
        ];
        let rows = tx.query(CLAIM, &params).await?;
        Ok(Taken { claimed: rows.iter().map(Line::read).collect::<Result<_>>()?, dead: 0 })
    }

    async fn attempt(&self, store: &Store, line: &Line) -> Turn {
        let _held = self.in_hand.take(line.tenant);
        self.turn(store, line).await.unwrap_or_else(|error| {
            let cause = error.cause().unwrap_or_default();
            tracing::warn!(%error, cause, "the deliveries of a webhook could not be read; they are tried again");
            Turn { undone: Some(TROUBLE), ..Turn::default() }
        })
    }

    /// What was sent before the end is not known, and is sent again.
    fn given_up(&self, _: &Line, why: GivenUp) -> Turn {
        let rest = if why == GivenUp::Stopping { Duration::ZERO } else { TROUBLE };
        Turn { undone: Some(rest), ..Turn::default() }
    }

    async fn record(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, line: &Line, turn: &Turn) -> Result<Ended> {
        let answers: Vec<Answer> = turn.sent.iter().map(|sent| sent.answer.clone()).collect();
        let health = line.health.after(&answers, ctx.now);
        let disabled = health.disabled(&answers, ctx.now, self.settings.disable_after());
        let delivered = answers.iter().any(|answer| matches!(answer, Answer::Accepted { .. }));
        // First, because it locks the row: whatever is added to the line from here on comes after its next time was found.
        line.give_back(ctx, tx, health, delivered, disabled).await?;
        for sent in turn.sent.chunks(OUTCOMES_AT_ONCE) {
            let ends: Vec<End> = sent.iter().map(|sent| End::of(ctx, sent, &self.settings)).collect();
            let statements: Vec<Statement<'_>> =
                sent.iter().zip(&ends).map(|(sent, end)| (END, end.params(ctx, line, sent))).collect();
            tx.execute_all(&statements).await?;
        }
        if disabled.is_none() {
            line.set_due(ctx, tx, turn.undone.unwrap_or_else(|| health.rest(&answers))).await?;
        }
        let all_well = turn.undone.is_none() && answers.iter().all(|answer| matches!(answer, Answer::Accepted { .. }));
        Ok(if all_well { Ended::Done } else { Ended::Failed })
    }

    fn recorded(&self, _: &Line, turn: &Turn) {
        for sent in &turn.sent {
            let outcome = if sent.answer.error().is_none() { "delivered" } else { "failed" };
            ::metrics::counter!(metrics::ATTEMPTS, "outcome" => outcome).increment(1);
        }
    }
}

const END: &str = "UPDATE webhook_deliveries SET state = $4, attempts = attempts + 1, next_at = $5, last_attempt_at = $6, \
                   last_status = $7, last_error = $8, ended_at = $9, keep_until = coalesce($10, keep_until) \
                   WHERE tenant = $1 AND webhook_id = $2 AND delivery_id = $3";

/// What an answer makes of its delivery.
struct End {
    state: State,
    error: Option<String>,
    keep_until: Option<Time>,
}

impl End {
    fn of(ctx: &Ctx<'_>, sent: &Sent, settings: &Settings) -> Self {
        // From the call's ids, so that a second run of the same call waits for as long.
        let [.., a, b, c, d] = *ctx.ids.next().as_bytes();
        let (delivery, chance) = (&sent.delivery, u32::from_be_bytes([a, b, c, d]));
        let state = rules::after(&sent.answer, delivery.attempts + 1, ctx.now, delivery.gives_up_at, chance);
        let keep_until = match state {
            State::Pending { .. } => None,
            State::Delivered | State::Failed => Some(ctx.now.after(settings.retention())),
        };
        Self { state, error: sent.answer.error(), keep_until }
    }

    fn params<'a>(&'a self, ctx: &Ctx<'_>, line: &'a Line, sent: &'a Sent) -> Vec<Value<'a>> {
        let next_at = match self.state {
            State::Pending { next_at } => Some(next_at),
            State::Delivered | State::Failed => None,
        };
        let ended_at = if next_at.is_some() { None } else { Some(ctx.now) };
        vec![
            Value::from(line.tenant.0),
            webhook::value(&line.webhook_id),
            Value::from(sent.delivery.delivery_id.as_bytes()),
            Value::from(self.state.as_str()),
            Value::from(next_at),
            Value::from(ctx.now),
            Value::from(sent.answer.status().map(i64::from)),
            Value::from(self.error.as_deref()),
            Value::from(ended_at),
            Value::from(self.keep_until),
        ]
    }
}

impl Line {
    fn read(row: &Row) -> Result<Self> {
        Ok(Self {
            tenant: Tenant(row.int(0)?),
            webhook_id: WebhookId::from_slice(row.bytes(1)?)?,
            claim: row.int(2)?,
            url: row.text(3)?.to_owned(),
            secret: row.bytes(4)?.to_vec(),
            health: Health { failures: row.int(5)?, failing_since: row.time_opt(6)? },
        })
    }

    /// Under the number of the claim: a line that was claimed again, or whose webhook is gone, takes nothing.
    async fn give_back(
        &self,
        ctx: &Ctx<'_>,
        tx: &mut Tx<'_>,
        health: Health,
        delivered: bool,
        disabled: Option<Disabled>,
    ) -> Result<()> {
        const GIVE_BACK: &str = "UPDATE webhooks SET held = 0, due_at = NULL, ailing = $4, failures = $5, failing_since = $6, \
            last_delivered_at = coalesce($7, last_delivered_at), disabled_at = $8, disabled_reason = $9 \
            WHERE tenant = $1 AND webhook_id = $2 AND claim = $3 AND held = 1";
        let params = [
            Value::from(self.tenant.0),
            webhook::value(&self.webhook_id),
            Value::from(self.claim),
            Value::from(health.failures > 0),
            Value::from(health.failures),
            Value::from(health.failing_since),
            Value::from(delivered.then_some(ctx.now)),
            Value::from(disabled.map(|_| ctx.now)),
            Value::from(disabled.map(Disabled::reason)),
        ];
        if tx.execute(GIVE_BACK, &params).await? == 1 {
            return Ok(());
        }
        Err(Error::new(Code::LeaseInvalidOrExpired, "The claim is not the latest one of this webhook."))
    }

    /// When the line is next due: with its first delivery, and not before its rest is over.
    async fn set_due(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, rest: Duration) -> Result<()> {
        const FIRST: &str = "SELECT next_at FROM webhook_deliveries \
            WHERE tenant = $1 AND webhook_id = $2 AND next_at IS NOT NULL ORDER BY next_at LIMIT 1";
        const SET: &str = "UPDATE webhooks SET due_at = $3 WHERE tenant = $1 AND webhook_id = $2";
        let (tenant, id) = (Value::from(self.tenant.0), webhook::value(&self.webhook_id));
        let Some(row) = tx.query_opt(FIRST, &[tenant, id]).await? else { return Ok(()) };
        let due_at = row.time(0)?.max(ctx.now.after(rest));
        tx.execute(SET, &[tenant, id, Value::from(due_at)]).await?;
        tx.wake(webhook::topic(), u32::MAX);
        Ok(())
    }
}

struct FindDue {
    tenant: Tenant,
    webhook_id: WebhookId,
    limit: i64,
}

impl Work for FindDue {
    type Output = Vec<Due>;

    fn mode(&self) -> Mode {
        Mode::Read
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Vec<Due>> {
        const SELECT: &str = "SELECT delivery_id, receipt_id, attempts, keep_until, receipt_type FROM webhook_deliveries \
            WHERE tenant = $1 AND webhook_id = $2 AND next_at <= $3 ORDER BY next_at LIMIT $4";
        let params = [
            Value::from(self.tenant.0),
            webhook::value(&self.webhook_id),
            Value::from(ctx.now),
            Value::from(self.limit),
        ];
        let read = |row: &Row| {
            Ok(Due {
                delivery_id: DeliveryId::from_slice(row.bytes(0)?)?,
                subject: Uuid::from_slice(row.bytes(1)?).map_err(Error::internal)?,
                kind: row.text(4)?.to_owned(),
                attempts: row.int(2)?,
                gives_up_at: row.time(3)?,
            })
        };
        tx.query(SELECT, &params).await?.iter().map(read).collect()
    }
}

/// Both kinds of lines.
pub(crate) fn all(settings: &Settings) -> [Deliver; 2] {
    [Lines::Healthy, Lines::Ailing].map(|lines| Deliver::new(lines, settings))
}
