//! Messages that go to a queue in another store: dead letters, and those that are moved back to life.
//!
//! 1. In the transaction that takes a message, it is noted with a number of its own, and made invisible until it is gone: its
//!    group waits.
//! 2. The other store takes it in, unless it has taken that number before.
//! 3. It ends where it was, with its note.
//!
//! The first step is the receive's own. The others follow at once, and are made again until they have been: a message may be
//! on its way for long, but it is neither lost nor there twice. One that there is nowhere to take to is delivered once more.

use std::time::Duration;

use waybill_kernel::id::Uuid;
use waybill_kernel::{Error, Mode, Result, Tenant, Time};
use waybill_store::stores::HOME;
use waybill_store::{Ctx, Row, Store, Stores, Topic, Tx, Value, Work};

use super::follow::{Follow, unknown_shard};
use super::route::Record;
use crate::Settings;
use crate::dead_letters::Fate;
use crate::fifo::{self, Arriving};
use crate::message::MessageId;
use crate::queue::{Part, Queue, topic};
use crate::rules::attributes::Attributes;
use crate::rules::partitions;

/// Between two attempts.
const PAUSE: Duration = Duration::from_secs(5);
/// Messages that one round takes.
pub(super) const ROUND_MAX: i64 = 100;
/// No message is kept for longer, nor is a move that could still come again.
const REMEMBERED_FOR: Duration = Duration::from_secs(15 * 86_400);

/// Woken when messages of a store begin their way.
pub(super) fn departed() -> Topic {
    Topic::new("queue transfers", Tenant(0), b"")
}

/// The first step, for up to ten messages that the caller has taken; their groups must be settled before the transaction
/// ends. Answers with those that were turned away before.
pub(crate) async fn depart(
    ctx: &Ctx<'_>,
    tx: &mut Tx<'_>,
    part: &Part,
    mids: &[i64],
    target: &str,
    fate: Fate<'_>,
) -> Result<Vec<i64>> {
    const NOTE: &str = "INSERT INTO transfers (mid, tenant, part, move, target, source, source_arn, next_at) \
                        VALUES ($2, $1, $3, $4, $5, $6, $7, $8)";
    const HIDE: &str = "UPDATE flights SET visible_at = $3, token = NULL WHERE tenant = $1 AND mid = $2";
    const TURNED_AWAY: &str = "DELETE FROM transfers WHERE tenant = $1 AND mid IN ($2, $3, $4, $5, $6, $7, $8, $9, $10, $11) \
                               AND refused = 1 RETURNING mid";
    let turned_away = tx.query(TURNED_AWAY, &crate::ends::ids(mids.iter().copied())).await?;
    let turned_away = turned_away.iter().map(|row| row.int(0)).collect::<Result<Vec<i64>>>()?;
    let source = match fate {
        Fate::Dead { source } => Some(source),
        Fate::Alive => None,
    };
    let arn = source.map(|source| Settings::arns(ctx).arn(source));
    for mid in mids.iter().filter(|mid| !turned_away.contains(mid)) {
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
    Ok(turned_away)
}

/// The second and third steps for what is due in one store. Answers with how many messages it had to do with.
pub(super) async fn carry(stores: &Stores, from: &Store) -> Result<usize> {
    let due = from.system().run(Due).await?;
    for transfer in &due {
        transfer.carry(stores, from).await?;
    }
    Ok(due.len())
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
    /// None where it is gone meanwhile.
    message: Option<Arriving>,
}

/// Those whose time has come, and which nobody else has taken up a moment ago.
struct Due;

impl Work for Due {
    type Output = Vec<Transfer>;

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Vec<Transfer>> {
        const DUE: &str = "WITH due (found) AS MATERIALIZED (SELECT t.mid FROM transfers t WHERE t.refused = 0 \
                           AND t.next_at <= $1 AND NOT EXISTS (SELECT 1 FROM transfers o WHERE o.part = t.part AND o.mid < t.mid \
                           AND o.refused = 0 AND o.next_at > $1) ORDER BY t.mid LIMIT $3 FOR UPDATE SKIP LOCKED) \
                           UPDATE transfers SET next_at = $2 FROM due WHERE mid = found \
                           RETURNING mid, tenant, part, move, target, source, source_arn";
        const MESSAGE: &str = "SELECT id, body, md5, attributes, trace, sender, grp FROM messages \
                               WHERE tenant = $1 AND mid = $2";
        // One at a time, so that of a group nobody takes up a later message while an earlier one is on its way.
        tx.alone(departed()).await?;
        let rows = tx.query(DUE, &[ctx.now.into(), ctx.now.after(PAUSE).into(), ROUND_MAX.into()]).await?;
        let mut due = Vec::with_capacity(rows.len());
        for row in &rows {
            let mut transfer = Transfer::read(row)?;
            let tx = &mut *tx.as_tenant(transfer.tenant);
            if let Some(row) = tx.query_opt(MESSAGE, &[transfer.mid.into()]).await? {
                transfer.message = Some(arriving(&row, transfer.source.clone())?);
            }
            due.push(transfer);
        }
        // In the order in which they were sent: within a group they arrive in it.
        due.sort_by_key(|transfer| transfer.mid);
        Ok(due)
    }
}

fn arriving(row: &Row, source: Option<String>) -> Result<Arriving> {
    Ok(Arriving {
        id: MessageId::from_slice(row.bytes(0)?)?,
        body: row.text(1)?.to_owned(),
        md5: row.bytes(2)?.to_vec(),
        attributes: row.text_opt(3)?.map(str::to_owned),
        trace: row.text_opt(4)?.map(str::to_owned),
        sender: row.text(5)?.to_owned(),
        group: row.text_opt(6)?.unwrap_or_default().to_owned(),
        source,
    })
}

impl Transfer {
    fn read(row: &Row) -> Result<Self> {
        Ok(Self {
            mid: row.int(0)?,
            tenant: Tenant(row.int(1)?),
            part: row.int(2)?,
            id: row.bytes(3)?.to_vec(),
            target: row.text(4)?.to_owned(),
            source: row.text_opt(5)?.map(str::to_owned),
            source_arn: row.text_opt(6)?.map(str::to_owned),
            message: None,
        })
    }

    async fn carry(&self, stores: &Stores, from: &Store) -> Result<()> {
        let end = |ending: Ending| End { transfer: self.clone(), ending };
        let Some(message) = &self.message else { return from.system().run(end(Ending::Gone)).await };
        let record = Record::read(stores.home(), self.tenant, &self.target).await?;
        let Some(record) = record.filter(|record| self.is_allowed(record)) else {
            return from.system().run(end(Ending::TurnedAway)).await;
        };
        let name = record.store_of(&message.group);
        let to = stores.find(name).ok_or_else(|| unknown_shard(name))?;
        if name != HOME {
            // Its copy may be behind.
            to.system().run(Follow::new(self.tenant, &self.target, name, Some(record.clone()), 0)).await?;
        }
        to.system().run(Arrive { transfer: self.clone(), message: message.clone() }).await?;
        // That it has arrived stays noted: another server may have taken up the same message, and come later.
        from.system().run(end(Ending::Arrived)).await
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
        let Transfer { tenant, mid, part, id, message, .. } = &self.transfer;
        let tx = &mut *tx.as_tenant(*tenant);
        let sql = if self.ending == Ending::TurnedAway { TURN_AWAY } else { END };
        // Whoever was quicker has done the rest.
        if tx.execute(sql, &[Value::from(*mid), Value::from(&id[..])]).await? == 0 {
            return Ok(());
        }
        let (Some(message), Some(row)) = (message, tx.query_opt(PART, &[Value::from(*part)]).await?) else {
            return Ok(());
        };
        let mut part = Part { number: *part, ..Part::default() };
        part.counted = part.begin() + row.int(0)?;
        let members = [(message.group.clone(), *mid)];
        fifo::hold(tx, &part, &members).await?;
        match self.ending {
            Ending::TurnedAway => tx.execute(SHOW, &[Value::from(*mid), ctx.now.into()]).await.map(drop)?,
            Ending::Arrived | Ending::Gone => fifo::end(tx, &part, &members).await?,
        }
        let ready = fifo::settle(tx, &part, &members, ctx.now).await?;
        if let Some(queue) = row.text_opt(1)?.filter(|_| ready > 0) {
            tx.wake(topic(*tenant, queue), ready);
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
