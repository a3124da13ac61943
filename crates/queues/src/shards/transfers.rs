//! Messages that go to a queue in another store: dead letters, and those that are moved back to life.
//!
//! 1. In the transaction that takes a message, it is noted with a number of its own, and made invisible until it is gone: its
//!    group waits.
//! 2. The other store takes it in, unless it has taken that number before.
//! 3. It ends where it was, with its note.
//!
//! The first step is the receive's own. The others follow at once, and are made again until they have been: a message may be
//! on its way for long, but it is neither lost nor there twice. One that there is nowhere to take to is delivered once more.

use std::collections::BTreeSet;
use std::time::Duration;

use waybill_kernel::id::Uuid;
use waybill_kernel::{Error, Mode, Result, Tenant, Time};
use waybill_store::stores::HOME;
use waybill_store::{Ctx, Row, Store, Stores, Topic, Tx, Value, Work};

use super::follow::{Follow, unknown_shard};
use super::messages::is_of_store;
use super::route::Record;
use crate::Settings;
use crate::dead_letters::Fate;
use crate::ends::ids;
use crate::fifo::{self, Arriving};
use crate::message::MessageId;
use crate::queue::{Part, Queue, topic};
use crate::rules::attributes::Attributes;
use crate::rules::partitions;

/// Between two attempts.
const PAUSE: Duration = Duration::from_secs(5);
/// Messages that one round takes.
pub(super) const ROUND_MAX: usize = 100;
/// Parts that they come from.
const PARTS_MAX: usize = 20;
/// No message is kept for longer, nor is a move that could still come again.
const REMEMBERED_FOR: Duration = Duration::from_secs(15 * 86_400);

/// Woken when messages of a store begin their way.
pub(super) fn departed() -> Topic {
    Topic::new("queue transfers", Tenant(0), b"")
}

/// The first step, for up to ten messages that the caller has taken; their groups must be settled before the transaction
/// ends. Of dead letters none may be among them that was turned away before; what a task moves goes once more.
pub(crate) async fn depart(
    ctx: &Ctx<'_>,
    tx: &mut Tx<'_>,
    part: &Part,
    mids: &[i64],
    target: &str,
    fate: Fate<'_>,
) -> Result<()> {
    const NOTE: &str = "INSERT INTO transfers (mid, tenant, part, move, target, source, source_arn, next_at) \
                        VALUES ($2, $1, $3, $4, $5, $6, $7, $8)";
    const HIDE: &str = "UPDATE flights SET visible_at = $3, token = NULL WHERE tenant = $1 AND mid = $2";
    let source = match fate {
        Fate::Dead { source } => Some(source),
        Fate::Alive => {
            forget_refusals(tx, mids).await?;
            None
        }
    };
    let arn = source.map(|source| Settings::arns(ctx).arn(source));
    for mid in mids {
        let id: Uuid = ctx.ids.next();
        let params = [
            Value::from(*mid),
            part.number.into(),
            Value::from(&id.as_bytes()[..]),
            Value::from(target),
            Value::from(source),
            Value::from(arn.as_deref()),
            ctx.now.into(),
        ];
        tx.execute(NOTE, &params).await?;
        tx.execute(HIDE, &[Value::from(*mid), Value::from(i64::MAX)]).await?;
    }
    tx.wake(departed(), 1);
    Ok(())
}

/// Of up to ten messages those that were turned away when they went before, and have not been delivered since.
pub(crate) async fn turned_away(tx: &mut Tx<'_>, mids: &[i64]) -> Result<Vec<i64>> {
    const TURNED_AWAY: &str = "SELECT mid FROM transfers WHERE tenant = $1 \
                               AND mid IN ($2, $3, $4, $5, $6, $7, $8, $9, $10, $11) AND refused = 1";
    let rows = tx.query(TURNED_AWAY, &ids(mids.iter().copied())).await?;
    rows.iter().map(|row| row.int(0)).collect()
}

/// Up to ten messages that were turned away may go once more.
pub(crate) async fn forget_refusals(tx: &mut Tx<'_>, mids: &[i64]) -> Result<()> {
    const FORGET: &str = "DELETE FROM transfers WHERE tenant = $1 \
                          AND mid IN ($2, $3, $4, $5, $6, $7, $8, $9, $10, $11) AND refused = 1";
    tx.execute(FORGET, &ids(mids.iter().copied())).await.map(drop)
}

/// The second and third steps for what is due in one store. Answers with how many messages it had to do with, at least
/// [`ROUND_MAX`] where there may be more, and with what went wrong. What one store cannot take in keeps only those behind it
/// in their part, so that groups keep their order.
pub(super) async fn carry(stores: &Stores, from: &Store) -> (usize, Option<Error>) {
    let (due, is_more) = match from.system().run(Due).await {
        Ok(due) => due,
        Err(error) => return (0, Some(error)),
    };
    let mut round = Round { stores, from, stuck: BTreeSet::new(), away: BTreeSet::new(), failure: None };
    for transfer in &due {
        if !round.stuck.contains(&transfer.part)
            && let Err(error) = round.carry(transfer).await
        {
            return (0, Some(error));
        }
    }
    (if is_more { due.len().max(ROUND_MAX) } else { due.len() }, round.failure)
}

/// What was found out while the messages of one store were carried.
struct Round<'a> {
    stores: &'a Stores,
    from: &'a Store,
    /// Parts with a message that could not be carried.
    stuck: BTreeSet<i64>,
    /// Stores that have failed. Each is asked once: on PostgreSQL it takes seconds until one is given up.
    away: BTreeSet<String>,
    /// The latest.
    failure: Option<Error>,
}

impl Round<'_> {
    /// Fails where nothing can be carried, because home or the store that the messages are in does not answer.
    async fn carry(&mut self, transfer: &Transfer) -> Result<()> {
        let (home, from) = (self.stores.home(), self.from);
        let message = match from.system().run(TakeUp { transfer: transfer.clone() }).await? {
            Found::Message(message) => *message,
            Found::Nothing => return from.system().run(transfer.end(Ending::Gone, None)).await,
            // Another server has been quicker, and has all that is behind it as well.
            Found::Others => {
                self.stuck.insert(transfer.part);
                return Ok(());
            }
        };
        let group = Some(message.group.clone());
        let record = Record::read(home, transfer.tenant, &transfer.target).await?;
        let Some(record) = record.filter(|record| transfer.is_allowed(record)) else {
            return from.system().run(transfer.end(Ending::TurnedAway, group)).await;
        };
        let name = record.store_of(&message.group).to_owned();
        if self.away.contains(&name) {
            self.stuck.insert(transfer.part);
            return Ok(());
        }
        if let Err(error) = transfer.arrive(self.stores, &name, &record, message).await {
            self.stuck.insert(transfer.part);
            if is_of_store(&error) {
                self.away.insert(name);
            }
            self.failure = Some(error);
            return Ok(());
        }
        // That it has arrived stays noted: another server may have taken up the same message, and come later.
        from.system().run(transfer.end(Ending::Arrived, group)).await
    }
}

/// One message on its way.
#[derive(Clone, Debug)]
struct Transfer {
    tenant: Tenant,
    mid: i64,
    part: i64,
    id: Vec<u8>,
    target: String,
    source: Option<String>,
    source_arn: Option<String>,
    /// Nobody else takes it up before this time.
    until: Time,
}

/// Those whose time has come, and which nobody else has taken up a moment ago.
struct Due;

impl Work for Due {
    /// True where there may be more.
    type Output = (Vec<Transfer>, bool);

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Self::Output> {
        // Each part by its first message. A part whose first message has failed before comes behind those that have not.
        const PARTS: &str = "WITH RECURSIVE busy (part) AS (SELECT min(t.part) FROM transfers t WHERE t.refused = 0 \
                             UNION ALL SELECT (SELECT min(t.part) FROM transfers t WHERE t.refused = 0 AND t.part > busy.part) \
                             FROM busy WHERE busy.part IS NOT NULL) SELECT f.part FROM busy JOIN transfers f ON f.mid = \
                             (SELECT min(t.mid) FROM transfers t WHERE t.refused = 0 AND t.part = busy.part) \
                             WHERE f.next_at <= $1 ORDER BY f.next_at, f.mid LIMIT $2";
        const DUE: &str = "WITH due (found) AS MATERIALIZED (SELECT t.mid FROM transfers t WHERE t.refused = 0 \
                           AND t.part = $4 AND t.next_at <= $1 AND NOT EXISTS (SELECT 1 FROM transfers o \
                           WHERE o.part = t.part AND o.mid < t.mid AND o.refused = 0 AND o.next_at > $1) \
                           ORDER BY t.mid LIMIT $3 FOR UPDATE SKIP LOCKED) \
                           UPDATE transfers SET next_at = $2 FROM due WHERE mid = found \
                           RETURNING mid, tenant, part, move, target, source, source_arn";
        one_at_a_time(tx).await?;
        let parts = tx.query(PARTS, &[ctx.now.into(), Value::from(PARTS_MAX as i64)]).await?;
        // Each has its own share: one with many messages does not keep the others waiting.
        let share = ROUND_MAX / parts.len().max(1);
        let (mut due, mut is_more) = (Vec::new(), parts.len() == PARTS_MAX);
        let until = ctx.now.after(PAUSE);
        for part in &parts {
            let params = [ctx.now.into(), until.into(), Value::from(share as i64), part.int(0)?.into()];
            let rows = tx.query(DUE, &params).await?;
            is_more |= rows.len() == share;
            for row in &rows {
                due.push(Transfer::read(row, until)?);
            }
        }
        // In the order in which they were sent: within a group they arrive in it.
        due.sort_by_key(|transfer| transfer.mid);
        Ok((due, is_more))
    }
}

/// Until the transaction ends nobody else looks for messages that are due, or has one for longer: who passed over the row of
/// one that is held would take up a later one of its group.
async fn one_at_a_time(tx: &mut Tx<'_>) -> Result<()> {
    tx.in_turn(departed()).await
}

/// The message of a transfer, read just before it is needed: as many as are due would fill the memory. Also has it for some
/// time more, so that a long round is not taken up by others before it ends.
struct TakeUp {
    transfer: Transfer,
}

enum Found {
    Message(Box<Arriving>),
    /// It was deleted meanwhile, or purged.
    Nothing,
    /// It has arrived, or another server has taken it up.
    Others,
}

impl Work for TakeUp {
    type Output = Found;

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Found> {
        const HAVE: &str = "UPDATE transfers SET next_at = $5 WHERE tenant = $1 AND mid = $2 AND move = $3 AND refused = 0 \
                            AND next_at = $4";
        const MESSAGE: &str = "SELECT m.id, m.body, m.md5, m.attributes, m.trace, m.sender, m.grp FROM messages m \
                               WHERE m.tenant = $1 AND m.mid = $2 AND EXISTS (SELECT 1 FROM parts p WHERE p.tenant = $1 \
                               AND p.part = $3 AND p.dead_at IS NULL)";
        let Transfer { tenant, mid, part, id, source, until, .. } = &self.transfer;
        one_at_a_time(tx).await?;
        let tx = &mut *tx.as_tenant(*tenant);
        let params = [Value::from(*mid), Value::from(&id[..]), (*until).into(), ctx.now.after(PAUSE).into()];
        if tx.execute(HAVE, &params).await? == 0 {
            return Ok(Found::Others);
        }
        let Some(row) = tx.query_opt(MESSAGE, &[Value::from(*mid), Value::from(*part)]).await? else {
            return Ok(Found::Nothing);
        };
        Ok(Found::Message(Box::new(Arriving {
            id: MessageId::from_slice(row.bytes(0)?)?,
            body: row.text(1)?.to_owned(),
            md5: row.bytes(2)?.to_vec(),
            attributes: row.text_opt(3)?.map(str::to_owned),
            trace: row.text_opt(4)?.map(str::to_owned),
            sender: row.text(5)?.to_owned(),
            group: row.text_opt(6)?.unwrap_or_default().to_owned(),
            source: source.clone(),
        })))
    }
}

impl Transfer {
    fn read(row: &Row, until: Time) -> Result<Self> {
        Ok(Self {
            mid: row.int(0)?,
            tenant: Tenant(row.int(1)?),
            part: row.int(2)?,
            id: row.bytes(3)?.to_vec(),
            target: row.text(4)?.to_owned(),
            source: row.text_opt(5)?.map(str::to_owned),
            source_arn: row.text_opt(6)?.map(str::to_owned),
            until,
        })
    }

    /// The second step.
    async fn arrive(&self, stores: &Stores, name: &str, record: &Record, message: Arriving) -> Result<()> {
        let to = stores.find(name).ok_or_else(|| unknown_shard(name))?;
        if name != HOME {
            // Its copy may be behind.
            to.system().run(Follow::new(self.tenant, &self.target, name, Some(record.clone()), 0)).await?;
        }
        to.system().run(Arrive { transfer: self.clone(), message }).await
    }

    fn end(&self, ending: Ending, group: Option<String>) -> End {
        End { transfer: self.clone(), ending, group }
    }

    fn is_allowed(&self, record: &Record) -> bool {
        let Some(arn) = &self.source_arn else { return true };
        Attributes::from_stored(&record.attributes).is_ok_and(|attributes| attributes.redrive_allow().allows(arn))
    }
}

impl Record {
    fn store_of(&self, group: &str) -> &str {
        let partition = usize::try_from(partitions::route(group, self.spread)).unwrap_or(0);
        self.shards.as_ref().and_then(|shards| shards.get(partition)).map_or(HOME, String::as_str)
    }
}

/// The second step, in the store that the message goes to.
struct Arrive {
    transfer: Transfer,
    message: Arriving,
}

impl Work for Arrive {
    type Output = ();

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<()> {
        const ONCE: &str = "INSERT INTO arrivals (tenant, move, arrived_at) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING";
        let Transfer { tenant, id, target, .. } = &self.transfer;
        let tx = &mut *tx.as_tenant(*tenant);
        let queue = Queue::find_for_messages(tx, target).await?;
        let queue = queue.ok_or_else(|| Error::internal("a queue is gone that a message was on its way to"))?;
        if tx.execute(ONCE, &[Value::from(&id[..]), ctx.now.into()]).await? == 0 {
            return Ok(());
        }
        fifo::arrive(ctx, tx, *tenant, &queue, &self.message).await
    }
}

/// The third step, in the store that the message was in.
struct End {
    transfer: Transfer,
    ending: Ending,
    /// None where the message is gone.
    group: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Arrived,
    /// The message was deleted meanwhile: by a purge, or because it is kept no longer.
    Gone,
    /// Nobody takes it: it is visible again.
    TurnedAway,
}

impl Work for End {
    type Output = ();

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<()> {
        const END: &str = "DELETE FROM transfers WHERE tenant = $1 AND mid = $2 AND move = $3";
        const TURN_AWAY: &str = "UPDATE transfers SET refused = 1 WHERE tenant = $1 AND mid = $2 AND move = $3";
        const SHOW: &str = "UPDATE flights SET visible_at = $3 WHERE tenant = $1 AND mid = $2";
        const PART: &str = "SELECT counted, queue FROM parts WHERE tenant = $1 AND part = $2";
        let Transfer { tenant, mid, part, id, .. } = &self.transfer;
        let tx = &mut *tx.as_tenant(*tenant);
        let sql = if self.ending == Ending::TurnedAway { TURN_AWAY } else { END };
        // Whoever was quicker has done the rest.
        if tx.execute(sql, &[Value::from(*mid), Value::from(&id[..])]).await? == 0 {
            return Ok(());
        }
        let (Some(group), Some(row)) = (&self.group, tx.query_opt(PART, &[Value::from(*part)]).await?) else {
            return Ok(());
        };
        let mut part = Part { number: *part, ..Part::default() };
        part.counted = part.begin() + row.int(0)?;
        let members = [(group.clone(), *mid)];
        fifo::hold(tx, &part, &members).await?;
        match self.ending {
            Ending::TurnedAway => tx.execute(SHOW, &[Value::from(*mid), ctx.now.into()]).await.map(drop)?,
            Ending::Arrived | Ending::Gone => fifo::end(tx, &part, &members).await?,
        }
        let settled = fifo::settle(tx, &part, &members, ctx.now).await?;
        if let Some(queue) = row.text_opt(1)? {
            settled.announce(tx, topic(*tenant, queue), ctx.now);
        }
        Ok(())
    }
}

/// Moves of long ago, which cannot come again.
pub(crate) async fn forget_arrivals(tx: &mut Tx<'_>, now: Time, limit: i64) -> Result<u64> {
    const OLD: &str = "DELETE FROM arrivals WHERE (tenant, move) IN (SELECT a.tenant, a.move FROM arrivals a \
                       WHERE a.arrived_at <= $1 ORDER BY a.arrived_at LIMIT $2)";
    let before =
        Time::from_micros(now.micros().saturating_sub(i64::try_from(REMEMBERED_FOR.as_micros()).unwrap_or(i64::MAX)));
    tx.execute(OLD, &[before.into(), limit.into()]).await
}

/// Messages that were turned away, delivered once more, and are gone.
pub(crate) async fn forget_refused(tx: &mut Tx<'_>, limit: i64) -> Result<u64> {
    const GONE: &str = "DELETE FROM transfers WHERE mid IN (SELECT t.mid FROM transfers t WHERE t.refused = 1 \
                        AND NOT EXISTS (SELECT 1 FROM messages m WHERE m.mid = t.mid) ORDER BY t.mid LIMIT $1)";
    tx.execute(GONE, &[limit.into()]).await
}
