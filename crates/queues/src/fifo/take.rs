//! Taking messages from the fronts of groups.

use waybill_kernel::{Result, Time};
use waybill_store::{Row, Sql, Tx, Value};

use super::groups::fronts;
use crate::ends::ids;
use crate::flights::Taken;
use crate::queue::{Part, is_alone};
use crate::rules::handle::Token;

/// How many of the first groups have `$4` messages together. Whoever locks more than it takes from keeps them from others,
/// who would be told that there is nothing. Groups that others hold are counted as well: nobody knows which those are.
macro_rules! needed {
    () => {
        "SELECT count(*) FROM (SELECT sum(first.waiting) OVER (ORDER BY first.ready_at, first.head) - first.waiting \
         AS before FROM (SELECT o.ready_at, o.head, (SELECT count(*) FROM (SELECT 1 FROM fifo_lines l \
         WHERE l.tenant = $1 AND l.part = $2 AND l.grp = o.grp LIMIT $4) AS line) AS waiting FROM fifo_groups o \
         WHERE o.tenant = $1 AND o.part = $2 AND o.ready_at <= $3 ORDER BY o.ready_at, o.head LIMIT $4) AS first) \
         AS groups WHERE groups.before < $4"
    };
}

const READY: Sql = Sql {
    sqlite: "SELECT g.grp FROM fifo_groups g WHERE g.tenant = $1 AND g.part = $2 AND g.ready_at <= $3 \
             ORDER BY g.ready_at, g.head LIMIT $4",
    postgres: concat!(
        "SELECT g.grp FROM fifo_groups g WHERE g.tenant = $1 AND g.part = $2 AND g.ready_at <= $3 \
         ORDER BY g.ready_at, g.head LIMIT $6 + least($4, $5 * (",
        needed!(),
        ")) FOR UPDATE SKIP LOCKED"
    ),
};
/// One whose row somebody else holds at this moment, a sender as a rule: into a busy group nobody would ever come who
/// does not wait for it.
const READY_NEXT: Sql = Sql {
    sqlite: "",
    postgres: "SELECT g.grp FROM fifo_groups g WHERE g.tenant = $1 AND g.part = $2 AND g.ready_at <= $3 \
               ORDER BY g.ready_at, g.head LIMIT 1 FOR UPDATE",
};
const NEXT: &str = "SELECT g.ready_at FROM fifo_groups g WHERE g.tenant = $1 AND g.part = $2 AND g.ready_at > $3 \
                    ORDER BY g.ready_at LIMIT 1";
const TAKE: &str = "INSERT INTO flights (mid, tenant, part, visible_at, token, receives, first_at, taken_at) \
                    WITH given (mid) AS (VALUES ($6), ($7), ($8), ($9), ($10), ($11), ($12), ($13), ($14), ($15)) \
                    SELECT given.mid, $1, $2, $3, $4, 1, $5, $5 FROM given WHERE given.mid IS NOT NULL \
                    ON CONFLICT (mid) DO UPDATE SET visible_at = excluded.visible_at, \
                    token_before = flights.token, token = excluded.token, \
                    receives = flights.receives + 1, first_at = coalesce(flights.first_at, excluded.first_at), \
                    taken_at = excluded.taken_at RETURNING mid, receives, first_at";

/// What becomes of a group that is ready and that somebody else holds at this moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    Skip,
    WaitFor,
}

/// What a look at the groups is for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Want<'a> {
    pub messages: usize,
    pub held: Held,
    /// Looks before this one that were not enough. Each holds twice as many groups as the one before.
    pub looks: u32,
    /// Groups to be left alone.
    pub but: &'a [String],
}

/// Messages in the order of their groups, with the group of each. The groups are held, and must be put off or settled before
/// the transaction ends.
pub(crate) async fn take(
    tx: &mut Tx<'_>,
    part: &Part,
    (now, token, visible_at): (Time, &Token, Time),
    want: Want<'_>,
) -> Result<Vec<(String, Taken)>> {
    let Want { messages: wanted, but, .. } = want;
    let groups = ready(tx, part, now, want).await?;
    let groups: Vec<String> = groups.into_iter().filter(|group| !but.contains(group)).take(wanted).collect();
    if groups.is_empty() {
        return Ok(Vec::new());
    }
    let mut chosen: Vec<(String, i64)> = Vec::with_capacity(wanted);
    for (group, front) in groups.iter().zip(fronts(tx, part, &groups, wanted).await?) {
        let room = wanted - chosen.len();
        let run = front.iter().take_while(|entry| !entry.is_delayed(now)).take(room);
        chosen.extend(run.map(|entry| (group.clone(), entry.mid)));
    }
    let mut params = vec![part.number.into(), visible_at.into(), Value::from(&token[..]), now.into()];
    params.extend(ids(chosen.iter().map(|(_, mid)| *mid)));
    let rows = tx.query(TAKE, &params).await?;
    chosen.into_iter().map(|(group, mid)| Ok((group, taken(&rows, mid, now)?))).collect()
}

async fn ready(tx: &mut Tx<'_>, part: &Part, now: Time, want: Want<'_>) -> Result<Vec<String>> {
    let (messages, but) = (want.messages as i64, want.but.len() as i64);
    let mut params = vec![part.number.into(), now.into()];
    match is_alone(tx) {
        true => params.push(Value::from(messages + but)),
        false => params.extend([Value::from(messages), Value::from(1_i64 << want.looks), Value::from(but)]),
    }
    let mut rows = tx.query(tx.text(READY), &params).await?;
    let next = tx.text(READY_NEXT);
    if rows.is_empty() && !next.is_empty() && want.held == Held::WaitFor {
        rows = tx.query(next, &params[..2]).await?;
    }
    rows.iter().map(|row| row.text(0).map(str::to_owned)).collect()
}

fn taken(rows: &[Row], mid: i64, now: Time) -> Result<Taken> {
    for row in rows {
        if row.int(0)? == mid {
            return Ok(Taken { mid, receives: row.int(1)?, first_at: row.time(2)? });
        }
    }
    Ok(Taken { mid, receives: 1, first_at: now })
}

/// When the next group that is not ready now will be.
pub(crate) async fn next_ready(tx: &mut Tx<'_>, part: &Part, now: Time) -> Result<Option<Time>> {
    let row = tx.query_opt(NEXT, &[part.number.into(), now.into()]).await?;
    row.map(|row| row.time(0)).transpose()
}
