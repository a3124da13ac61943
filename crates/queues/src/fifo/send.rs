//! Adding messages to groups: the groups are held, numbers are drawn, duplicates are found, and what is left is stored.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use waybill_kernel::{Error, Result, Tenant, Time};
use waybill_store::{Ctx, Sql, Statement, Stored, Tx, Value};

use super::groups::{end, names};
use crate::dead_letters::Fate;
use crate::flights::MESSAGES_MAX;
use crate::message::MessageId;
use crate::queue::{Part, Queue, is_alone, topic};
use crate::sends::{DELAY, Outgoing, no_number};

/// From the first message under an id on, also when that one is gone.
const DUPLICATES_FOR: Duration = Duration::from_secs(300);

/// A message that is in the queue, by this send or by an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Accepted {
    pub id: MessageId,
    pub mid: i64,
    pub is_new: bool,
}

/// Makes the groups that there are not, and locks the others. One that was made has no head yet.
const JOIN: &str = "INSERT INTO fifo_groups (tenant, part, grp, head, ready_at) WITH given (grp) AS (VALUES ($4), ($5), ($6), \
                    ($7), ($8), ($9), ($10), ($11), ($12), ($13)) SELECT $1, $2, given.grp, CAST(NULL AS BIGINT), $3 \
                    FROM given WHERE given.grp IS NOT NULL \
                    ON CONFLICT (tenant, part, grp) DO UPDATE SET grp = excluded.grp RETURNING grp, head";
/// As many numbers as messages. On SQLite it answers with the one after the last.
const NUMBERS: Sql = Sql {
    sqlite: "UPDATE parts SET next = next + $3 WHERE tenant = $1 AND part = $2 RETURNING next",
    postgres: "SELECT nextval('message_numbers') FROM generate_series(1, $3)",
};
/// Answers with the ids that were free.
const CLAIM: &str = "INSERT INTO fifo_duplicates (tenant, part, scope, dedup, id, mid, until) \
                     WITH given (scope, dedup, id, mid) AS (VALUES ($5, $6, $7, $8), ($9, $10, $11, $12), \
                     ($13, $14, $15, $16), ($17, $18, $19, $20), ($21, $22, $23, $24), ($25, $26, $27, $28), \
                     ($29, $30, $31, $32), ($33, $34, $35, $36), ($37, $38, $39, $40), ($41, $42, $43, $44)) \
                     SELECT $1, $2, given.scope, given.dedup, given.id, given.mid, $3 FROM given \
                     WHERE given.dedup IS NOT NULL ON CONFLICT (tenant, part, scope, dedup) DO UPDATE SET \
                     id = excluded.id, mid = excluded.mid, until = excluded.until WHERE fifo_duplicates.until <= $4 \
                     RETURNING scope, dedup";
const FIRST: &str = "SELECT id, mid FROM fifo_duplicates WHERE tenant = $1 AND part = $2 AND scope = $3 AND dedup = $4";
const INSERT: &str = "INSERT INTO messages (mid, tenant, id, body, md5, attributes, trace, sent_at, sender, grp, dedup) \
                      VALUES ($2, $1, $3, $4, $5, $6, $7, $8, $9, $10, $11)";
const STAND: &str = "INSERT INTO fifo_lines (tenant, part, grp, mid) WITH given (grp, mid) AS (VALUES ($3, $4), ($5, $6), \
                     ($7, $8), ($9, $10), ($11, $12), ($13, $14), ($15, $16), ($17, $18), ($19, $20), ($21, $22)) \
                     SELECT $1, $2, given.grp, given.mid FROM given WHERE given.mid IS NOT NULL";
const BEGIN: &str = "UPDATE fifo_groups SET head = $4, ready_at = $5 WHERE tenant = $1 AND part = $2 AND grp = $3";
const UNDO: &str = "DELETE FROM fifo_groups WHERE tenant = $1 AND part = $2 \
                    AND grp IN ($3, $4, $5, $6, $7, $8, $9, $10, $11, $12) AND head IS NULL";

/// Places in the groups of a part, held and numbered.
struct Berths {
    /// Ascending.
    mids: Vec<i64>,
    /// Groups that had no messages.
    made: BTreeSet<String>,
}

/// Numbers are drawn when the groups are held, by the statement that follows.
async fn berths(tx: &mut Tx<'_>, part: &Part, groups: &[&str]) -> Result<Berths> {
    let mut join = vec![part.number.into(), Value::from(i64::MAX)];
    join.extend(names(groups.iter().copied()));
    let numbers = vec![part.number.into(), Value::from(groups.len() as i64)];
    let is_alone = is_alone(tx);
    let answers = tx.query_all(&[(JOIN, join), (tx.text(NUMBERS), numbers)]).await?;
    let [joined, numbers] = answers.as_slice() else { return Err(no_number()) };
    let mut made = BTreeSet::new();
    for row in joined {
        if row.int_opt(1)?.is_none() {
            made.insert(row.text(0)?.to_owned());
        }
    }
    let count = groups.len() as i64;
    let mut mids = Vec::with_capacity(groups.len());
    for row in numbers {
        let number = part.begin() + row.int(0)?;
        if is_alone {
            mids.extend(number - count..number);
        } else {
            mids.push(number);
        }
    }
    mids.sort_unstable();
    if mids.len() != groups.len() || mids.iter().any(|mid| !part.holds(*mid)) {
        return Err(no_number());
    }
    Ok(Berths { mids, made })
}

/// Stores up to ten messages, each unless its deduplication id is known. Answers for each with what is in the queue.
pub(crate) async fn send(
    ctx: &Ctx<'_>,
    tx: &mut Tx<'_>,
    queue: &Queue,
    messages: &[Outgoing<'_>],
) -> Result<Vec<Accepted>> {
    let groups = messages.iter().map(|message| message.draft.group.unwrap_or_default());
    let mut accepted = vec![None; messages.len()];
    for (part, indexes) in by_part(queue, groups)? {
        let some: Vec<Outgoing<'_>> = indexes.iter().map(|index| messages[*index]).collect();
        let stored = send_to(ctx, tx, queue, part, &some).await?;
        for (index, stored) in indexes.into_iter().zip(stored) {
            accepted[index] = Some(stored);
        }
    }
    let new = accepted.iter().flatten().filter(|accepted| accepted.is_new).count();
    let topic = topic(ctx.caller.tenant, &queue.name);
    match messages.first().and_then(|message| message.visible_at(queue, ctx.now)) {
        _ if new == 0 => {}
        None => tx.wake(topic, u32::try_from(new).unwrap_or(u32::MAX)),
        Some(at) => tx.wake_at(topic, ctx.now, at),
    }
    accepted.into_iter().collect::<Option<Vec<_>>>().ok_or_else(no_number)
}

/// Each part that some of the groups belong to, with the indexes of those in the list. In the order of partitions: everybody
/// locks groups in the same order.
fn by_part<'q, 'g>(queue: &'q Queue, groups: impl Iterator<Item = &'g str>) -> Result<Vec<(&'q Part, Vec<usize>)>> {
    let mut parts: BTreeMap<i64, (&Part, Vec<usize>)> = BTreeMap::new();
    for (index, group) in groups.enumerate() {
        let part = queue.part_for(group)?;
        parts.entry(part.partition).or_insert_with(|| (part, Vec::new())).1.push(index);
    }
    Ok(parts.into_values().collect())
}

/// Messages of one partition.
async fn send_to(
    ctx: &Ctx<'_>,
    tx: &mut Tx<'_>,
    queue: &Queue,
    part: &Part,
    messages: &[Outgoing<'_>],
) -> Result<Vec<Accepted>> {
    let groups: Vec<&str> = messages.iter().map(|message| message.draft.group.unwrap_or_default()).collect();
    let berths = berths(tx, part, &groups).await?;
    let accepted = claim(ctx.now, tx, (queue, part), messages, &berths.mids).await?;
    let sender = ctx.caller.principal.to_string();
    let new: Vec<(&Outgoing<'_>, &str, i64)> = messages
        .iter()
        .zip(&groups)
        .zip(&accepted)
        .filter(|(_, accepted)| accepted.is_new)
        .map(|((message, group), accepted)| (message, *group, accepted.mid))
        .collect();
    let mut statements = Vec::new();
    for (message, _, mid) in &new {
        statements.push((INSERT, message.fifo_row(queue, *mid, ctx.now, &sender)?));
    }
    tx.add(Stored::Rows, new.iter().map(|(message, ..)| message.stored_bytes()).sum());
    let visible_at = messages.first().and_then(|message| message.visible_at(queue, ctx.now));
    let members: Vec<(&str, i64)> = new.iter().map(|(_, group, mid)| (*group, *mid)).collect();
    let ready_at = visible_at.unwrap_or(ctx.now);
    line_up(tx, part, statements, (&members, &berths.made), ready_at, visible_at).await?;
    Ok(accepted)
}

/// Which messages are new, and which were sent before.
async fn claim(
    now: Time,
    tx: &mut Tx<'_>,
    (queue, part): (&Queue, &Part),
    messages: &[Outgoing<'_>],
    mids: &[i64],
) -> Result<Vec<Accepted>> {
    let scoped = queue.attributes.is_scoped_to_groups();
    let key = |message: &Outgoing<'_>| -> Result<(String, String)> {
        let scope = if scoped { message.draft.group.unwrap_or_default() } else { "" };
        Ok((scope.to_owned(), message.deduplication(queue)?.to_owned()))
    };
    // The first under each key, in the order of keys: everybody claims them in the same order.
    let mut first: BTreeMap<(String, String), Accepted> = BTreeMap::new();
    let mut keys = Vec::with_capacity(messages.len());
    for (message, mid) in messages.iter().zip(mids) {
        let key = key(message)?;
        first.entry(key.clone()).or_insert(Accepted { id: message.id, mid: *mid, is_new: true });
        keys.push(key);
    }
    let mut params = vec![part.number.into(), Value::from(now.after(DUPLICATES_FOR)), now.into()];
    for ((scope, dedup), accepted) in &first {
        params.extend([Value::from(scope), Value::from(dedup), accepted.id.as_bytes().into(), accepted.mid.into()]);
    }
    let none = [Value::Text(None), Value::Text(None), Value::Bytes(None), Value::Int(None)];
    params.extend(std::iter::repeat_n(none, MESSAGES_MAX.saturating_sub(first.len())).flatten());
    let mut free = BTreeSet::new();
    for row in &tx.query(CLAIM, &params).await? {
        free.insert((row.text(0)?.to_owned(), row.text(1)?.to_owned()));
    }
    drop(params);
    for (key, accepted) in first.iter_mut().filter(|(key, _)| !free.contains(*key)) {
        let params = [part.number.into(), Value::from(&key.0), Value::from(&key.1)];
        let row = tx.query_opt(FIRST, &params).await?;
        let row = row.ok_or_else(|| Error::internal("a deduplication id was taken by nobody"))?;
        *accepted = Accepted { id: MessageId::from_slice(row.bytes(0)?)?, mid: row.int(1)?, is_new: false };
    }
    // Of two in one batch the second is a duplicate of the first.
    let mut seen = BTreeSet::new();
    let of = |key: &(String, String)| {
        let is_first = seen.insert(key.clone());
        first.get(key).map(|accepted| Accepted { is_new: accepted.is_new && is_first, ..*accepted })
    };
    keys.iter().map(of).collect::<Option<Vec<_>>>().ok_or_else(no_number)
}

/// The last writes: `statements`, the lines of the new members, their delays, and what groups that were made begin with.
async fn line_up(
    tx: &mut Tx<'_>,
    part: &Part,
    mut statements: Vec<Statement<'_>>,
    (members, made): (&[(&str, i64)], &BTreeSet<String>),
    ready_at: Time,
    visible_at: Option<Time>,
) -> Result<()> {
    if !members.is_empty() {
        let mut line = vec![part.number.into()];
        line.extend(members.iter().flat_map(|(group, mid)| [Value::from(*group), Value::from(*mid)]));
        let none = [Value::Text(None), Value::Int(None)];
        line.extend(std::iter::repeat_n(none, MESSAGES_MAX.saturating_sub(members.len())).flatten());
        statements.push((STAND, line));
    }
    if let Some(visible_at) = visible_at.filter(|_| !members.is_empty()) {
        let mut delays = vec![part.number.into()];
        delays.extend(members.iter().flat_map(|(_, mid)| [Value::from(*mid), visible_at.into()]));
        delays.resize(1 + 2 * MESSAGES_MAX, Value::Int(None));
        statements.push((DELAY, delays));
    }
    // As with groups that are settled: few texts, whichever groups begin.
    let mut known = Vec::new();
    for group in made {
        let name = Value::from(group.as_str());
        match members.iter().find(|(of, _)| of == group) {
            Some((_, mid)) => {
                statements.push((BEGIN, vec![part.number.into(), name, Value::from(*mid), ready_at.into()]));
            }
            // All that was sent to it was known.
            None => known.push(group.as_str()),
        }
    }
    if !known.is_empty() {
        let mut undo = vec![part.number.into()];
        undo.extend(names(known.into_iter()));
        statements.push((UNDO, undo));
    }
    for some in statements.chunks(STATEMENTS_AT_ONCE) {
        tx.execute_together(some).await?;
    }
    Ok(())
}

/// As many as become one statement on PostgreSQL.
const STATEMENTS_AT_ONCE: usize = 16;

/// Takes up to ten messages, whose groups the caller holds, from one part to the FIFO queue `to`, which must have been
/// found for messages. There they are the last of their groups, in the partitions that the groups have there, sent now, and
/// have ids that nobody else has given.
pub(crate) async fn transfer(
    ctx: &Ctx<'_>,
    tx: &mut Tx<'_>,
    tenant: Tenant,
    (from, mids): (&Part, &[i64]),
    to: &Queue,
    fate: Fate<'_>,
) -> Result<()> {
    const LEAVING: &str = crate::ends::by_ids!(
        "SELECT mid, grp, id, CAST(octet_length(body) + coalesce(octet_length(attributes), 0) AS BIGINT) FROM messages"
    );
    let mut leaving = tx
        .query(LEAVING, &crate::ends::ids(mids.iter().copied()))
        .await?
        .iter()
        .map(|row| {
            let dedup = MessageId::from_slice(row.bytes(2)?)?.to_string();
            let bytes = usize::try_from(row.int(3)?).map_err(Error::internal)?;
            Ok(Leaving { mid: row.int(0)?, group: row.text(1)?.to_owned(), dedup, bytes })
        })
        .collect::<Result<Vec<_>>>()?;
    leaving.sort_by_key(|message| message.mid);
    // The copies count; the trigger counts what ends.
    tx.add(Stored::Rows, leaving.iter().map(|message| message.bytes).sum());
    for (part, indexes) in by_part(to, leaving.iter().map(|message| message.group.as_str()))? {
        let some: Vec<&Leaving> = indexes.into_iter().map(|index| &leaving[index]).collect();
        copy_to(ctx, tx, part, &some, fate).await?;
    }
    let members: Vec<(String, i64)> = leaving.into_iter().map(|message| (message.group, message.mid)).collect();
    end(tx, from, &members).await?;
    tx.wake(topic(tenant, &to.name), u32::try_from(members.len()).unwrap_or(u32::MAX));
    Ok(())
}

/// A message that comes from another store.
#[derive(Clone, Debug)]
pub(crate) struct Arriving {
    pub id: MessageId,
    pub body: String,
    pub md5: Vec<u8>,
    pub attributes: Option<String>,
    pub trace: Option<String>,
    pub sender: String,
    pub group: String,
    /// The queue that it is a dead letter of.
    pub source: Option<String>,
}

/// As `transfer`, for a message that is not in this store yet.
pub(crate) async fn arrive(
    ctx: &Ctx<'_>,
    tx: &mut Tx<'_>,
    tenant: Tenant,
    to: &Queue,
    message: &Arriving,
) -> Result<()> {
    const ARRIVE: &str = "INSERT INTO messages (mid, tenant, id, body, md5, attributes, trace, sent_at, sender, grp, source, \
                          dedup) VALUES ($2, $1, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)";
    let part = to.part_for(&message.group)?;
    let berths = berths(tx, part, &[&message.group]).await?;
    let mid = berths.mids.first().copied().ok_or_else(no_number)?;
    let dedup = message.id.to_string();
    let params = vec![
        mid.into(),
        message.id.as_bytes().into(),
        Value::from(&message.body),
        Value::from(&message.md5[..]),
        Value::from(message.attributes.as_deref()),
        Value::from(message.trace.as_deref()),
        ctx.now.into(),
        Value::from(&message.sender),
        Value::from(&message.group),
        Value::from(message.source.as_deref()),
        Value::from(&dedup),
    ];
    tx.add(Stored::Rows, message.body.len() + message.attributes.as_ref().map_or(0, String::len));
    let members = [(message.group.as_str(), mid)];
    line_up(tx, part, vec![(ARRIVE, params)], (&members, &berths.made), ctx.now, None).await?;
    tx.wake(topic(tenant, &to.name), 1);
    Ok(())
}

/// A message that goes to another queue, and the deduplication id that it has there.
struct Leaving {
    mid: i64,
    group: String,
    dedup: String,
    bytes: usize,
}

/// Messages that go to one partition.
async fn copy_to(ctx: &Ctx<'_>, tx: &mut Tx<'_>, part: &Part, leaving: &[&Leaving], fate: Fate<'_>) -> Result<()> {
    const COPY: &str = "INSERT INTO messages (mid, tenant, id, body, md5, attributes, trace, sent_at, sender, grp, source, \
                        dedup) SELECT $2, $1, m.id, m.body, m.md5, m.attributes, m.trace, $3, m.sender, m.grp, $4, $5 \
                        FROM messages m WHERE m.tenant = $1 AND m.mid = $6";
    let groups: Vec<&str> = leaving.iter().map(|message| message.group.as_str()).collect();
    let berths = berths(tx, part, &groups).await?;
    let source = match fate {
        Fate::Dead { source } => Some(source),
        Fate::Alive => None,
    };
    let mut copies: Vec<Statement<'_>> = Vec::with_capacity(leaving.len());
    for (message, mid) in leaving.iter().zip(&berths.mids) {
        let (dedup, old) = (Value::from(&message.dedup), Value::from(message.mid));
        copies.push((COPY, vec![Value::from(*mid), ctx.now.into(), Value::from(source), dedup, old]));
    }
    let members: Vec<(&str, i64)> = groups.iter().copied().zip(berths.mids.iter().copied()).collect();
    line_up(tx, part, copies, (&members, &berths.made), ctx.now, None).await
}
