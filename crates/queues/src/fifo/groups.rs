//! Groups: locked, brought up to date, ended with their last message.

use std::collections::BTreeSet;

use waybill_kernel::{Result, Time};
use waybill_store::{Row, Sql, Statement, Topic, Tx, Value};

use crate::ends::{by_ids, end_all, ids};
use crate::flights::MESSAGES_MAX;
use crate::queue::Part;

const HOLD: Sql = Sql {
    sqlite: "",
    postgres: "SELECT g.grp FROM fifo_groups g WHERE g.tenant = $1 AND g.part = $2 \
               AND g.grp IN ($3, $4, $5, $6, $7, $8, $9, $10, $11, $12) ORDER BY g.grp FOR UPDATE",
};
const HOLD_FREE: Sql = Sql {
    sqlite: "",
    postgres: "SELECT g.grp FROM fifo_groups g WHERE g.tenant = $1 AND g.part = $2 \
               AND g.grp IN ($3, $4, $5, $6, $7, $8, $9, $10, $11, $12) ORDER BY g.grp FOR UPDATE SKIP LOCKED",
};
/// A receive takes no more than this from the front of a group, so what is in flight of it is here.
const FRONT: &str = "SELECT l.mid, f.visible_at, f.receives FROM fifo_lines l LEFT JOIN flights f ON f.tenant = $1 \
                     AND f.mid = l.mid WHERE l.tenant = $1 AND l.part = $2 AND l.grp = $3 ORDER BY l.mid LIMIT $4";
const SET: &str = "UPDATE fifo_groups SET head = $4, ready_at = $5 WHERE tenant = $1 AND part = $2 AND grp = $3";
const END: &str = "DELETE FROM fifo_groups WHERE tenant = $1 AND part = $2 \
                   AND grp IN ($3, $4, $5, $6, $7, $8, $9, $10, $11, $12)";
const LEAVE: &str = "DELETE FROM fifo_lines WHERE tenant = $1 AND part = $2 AND grp = $3 AND mid = $4";
const PUT_OFF: &str = "UPDATE fifo_groups SET ready_at = $3 WHERE tenant = $1 AND part = $2 \
                       AND grp IN ($4, $5, $6, $7, $8, $9, $10, $11, $12, $13)";

/// A message in its group, and its flight if it has one.
#[derive(Clone, Copy, Debug)]
pub(super) struct GroupEntry {
    pub mid: i64,
    pub visible_at: Option<Time>,
    pub receives: i64,
}

impl GroupEntry {
    fn read(row: &Row) -> Result<Self> {
        Ok(Self { mid: row.int(0)?, visible_at: row.time_opt(1)?, receives: row.int_opt(2)?.unwrap_or(0) })
    }

    /// Never received, and its delay is not over.
    pub(super) fn is_delayed(&self, now: Time) -> bool {
        self.receives == 0 && self.visible_at.is_some_and(|at| at > now)
    }
}

/// What groups have for those who wait, when their rows have been brought up to date.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Settled {
    /// So many can be received now.
    pub ready: u32,
    /// When the first of the others can be. It may be sooner than those who wait have heard.
    pub due: Option<Time>,
}

impl Settled {
    /// Wakes those who wait for the queue with this topic.
    pub(crate) fn announce(self, tx: &mut Tx<'_>, topic: Topic, now: Time) {
        if self.ready > 0 {
            tx.wake(topic, self.ready);
        }
        if let Some(at) = self.due {
            tx.wake_at(topic, now, at);
        }
    }
}

/// The groups that messages are of, each with those of its messages that there are.
pub(crate) async fn groups_of(tx: &mut Tx<'_>, mids: &[i64]) -> Result<Vec<(String, i64)>> {
    const GROUPS: &str = by_ids!("SELECT grp, mid FROM messages");
    let rows = tx.query(GROUPS, &ids(mids.iter().copied())).await?;
    rows.iter().map(|row| Ok((row.text(0)?.to_owned(), row.int(1)?))).collect()
}

/// Nobody else adds, takes, changes or deletes messages of these groups until the transaction ends. At most ten, locked
/// in the same order by everybody.
pub(crate) async fn hold(tx: &mut Tx<'_>, part: &Part, members: &[(String, i64)]) -> Result<()> {
    let sql = tx.text(HOLD);
    if sql.is_empty() || members.is_empty() {
        return Ok(());
    }
    let mut params = vec![part.number.into()];
    params.extend(names(members.iter().map(|(group, _)| group.as_str())));
    tx.query(sql, &params).await.map(drop)
}

/// As `hold`, without those that somebody else holds: nobody is waited for. Answers with the rest.
pub(crate) async fn hold_free(
    tx: &mut Tx<'_>,
    part: &Part,
    mut members: Vec<(String, i64)>,
) -> Result<Vec<(String, i64)>> {
    let sql = tx.text(HOLD_FREE);
    if sql.is_empty() || members.is_empty() {
        return Ok(members);
    }
    let mut params = vec![part.number.into()];
    params.extend(names(members.iter().map(|(group, _)| group.as_str())));
    let held = tx.query(sql, &params).await?;
    let held = held.iter().map(|row| row.text(0).map(str::to_owned)).collect::<Result<BTreeSet<String>>>()?;
    members.retain(|(group, _)| held.contains(group));
    Ok(members)
}

/// The first messages of each group.
pub(super) async fn fronts(
    tx: &mut Tx<'_>,
    part: &Part,
    groups: &[String],
    limit: usize,
) -> Result<Vec<Vec<GroupEntry>>> {
    let limit = Value::from(limit as i64);
    let statements: Vec<Statement<'_>> =
        groups.iter().map(|group| (FRONT, vec![part.number.into(), Value::from(group), limit])).collect();
    let answers = tx.query_all(&statements).await?;
    answers.iter().map(|rows| rows.iter().map(GroupEntry::read).collect()).collect()
}

/// Writes down anew what the first message of each group is and when it can be received, and ends groups that have none.
pub(crate) async fn settle(tx: &mut Tx<'_>, part: &Part, members: &[(String, i64)], now: Time) -> Result<Settled> {
    let groups: BTreeSet<&String> = members.iter().map(|(group, _)| group).collect();
    let groups: Vec<String> = groups.into_iter().cloned().collect();
    if groups.is_empty() {
        return Ok(Settled::default());
    }
    let fronts = fronts(tx, part, &groups, MESSAGES_MAX).await?;
    let (statements, settled) = changes(part, &groups, &fronts, now);
    tx.execute_together(&statements).await?;
    Ok(settled)
}

/// First the groups that go on, then all that end, by one statement: PostgreSQL keeps a plan for each text that several
/// statements become together, and so there are few of them whichever groups end.
fn changes<'a>(
    part: &Part,
    groups: &'a [String],
    fronts: &[Vec<GroupEntry>],
    now: Time,
) -> (Vec<Statement<'a>>, Settled) {
    let (mut statements, mut over, mut settled) = (Vec::with_capacity(groups.len()), Vec::new(), Settled::default());
    for (group, front) in groups.iter().zip(fronts) {
        match ready_at(front, now) {
            None => over.push(group.as_str()),
            Some((head, ready_at)) => {
                match ready_at <= now {
                    true => settled.ready += 1,
                    false => settled.due = settled.due.into_iter().chain([ready_at]).min(),
                }
                let name = Value::from(group.as_str());
                statements.push((SET, vec![part.number.into(), name, Value::from(head), ready_at.into()]));
            }
        }
    }
    if !over.is_empty() {
        let mut params = vec![part.number.into()];
        params.extend(names(over.into_iter()));
        statements.push((END, params));
    }
    (statements, settled)
}

/// The first message, and when it can be received: not while it is delayed, nor while one that was received is invisible.
fn ready_at(front: &[GroupEntry], now: Time) -> Option<(i64, Time)> {
    let head = front.first()?;
    let blocked = front.iter().filter(|entry| entry.receives > 0).filter_map(|entry| entry.visible_at).max();
    let delayed = head.visible_at.filter(|_| head.receives == 0);
    Some((head.mid, blocked.max(delayed).unwrap_or(now)))
}

/// Nobody gets messages of these groups before this time.
pub(crate) async fn put_off(tx: &mut Tx<'_>, part: &Part, members: &[(String, i64)], until: Time) -> Result<()> {
    let mut params = vec![part.number.into(), until.into()];
    params.extend(names(members.iter().map(|(group, _)| group.as_str())));
    tx.execute(PUT_OFF, &params).await.map(drop)
}

/// Up to ten messages of groups that are held: their rows go, and they leave their lines.
pub(crate) async fn end(tx: &mut Tx<'_>, part: &Part, members: &[(String, i64)]) -> Result<()> {
    if members.is_empty() {
        return Ok(());
    }
    let mids: Vec<i64> = members.iter().map(|(_, mid)| *mid).collect();
    let statements: Vec<Statement<'_>> = members
        .iter()
        .map(|(group, mid)| (LEAVE, vec![part.number.into(), Value::from(group), Value::from(*mid)]))
        .collect();
    tx.execute_together(&statements).await?;
    end_all(tx, part, &mids).await
}

/// Up to ten names, each once; those that are left over are NULL.
pub(super) fn names<'a>(groups: impl Iterator<Item = &'a str>) -> Vec<Value<'a>> {
    let groups: BTreeSet<&str> = groups.collect();
    groups.into_iter().map(Some).chain(std::iter::repeat(None)).take(MESSAGES_MAX).map(Value::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time::from_micros(1_000);

    fn entry(mid: i64, visible_at: Option<i64>, receives: i64) -> GroupEntry {
        GroupEntry { mid, visible_at: visible_at.map(Time::from_micros), receives }
    }

    #[test]
    fn a_group_waits_for_all_of_it_that_is_in_flight_and_for_the_delay_of_its_head() {
        for (front, ready) in [
            (vec![], None),
            (vec![entry(7, None, 0), entry(8, None, 0)], Some((7, 1_000))),
            (vec![entry(7, Some(5_000), 0)], Some((7, 5_000))),
            // A delay behind the head is no matter of the head.
            (vec![entry(7, None, 0), entry(8, Some(5_000), 0)], Some((7, 1_000))),
            (vec![entry(7, Some(2_000), 1), entry(8, Some(9_000), 2), entry(9, None, 0)], Some((7, 9_000))),
            (vec![entry(8, Some(500), 2), entry(9, None, 0)], Some((8, 500))),
            // The one before it was deleted.
            (vec![entry(7, None, 0), entry(8, Some(9_000), 1)], Some((7, 9_000))),
        ] {
            let found = ready_at(&front, NOW).map(|(head, at)| (head, at.micros()));
            assert_eq!(found, ready, "{front:?}");
        }
        assert!(entry(7, Some(2_000), 0).is_delayed(NOW) && !entry(7, Some(2_000), 1).is_delayed(NOW));
        assert!(!entry(7, Some(500), 0).is_delayed(NOW) && !entry(7, None, 0).is_delayed(NOW));
    }

    #[test]
    fn settled_groups_say_when_the_first_of_those_that_are_not_ready_will_be() {
        let names: Vec<String> = (0..4).map(|number| format!("g{number}")).collect();
        let fronts = [
            vec![entry(7, Some(9_000), 1)],
            vec![entry(8, None, 0)],
            vec![entry(9, Some(5_000), 0)],
            vec![entry(10, Some(i64::MAX), 1)],
        ];
        let (_, settled) = changes(&Part::default(), &names, &fronts, NOW);
        assert_eq!(settled, Settled { ready: 1, due: Some(Time::from_micros(5_000)) });
    }

    #[test]
    fn few_texts_settle_any_groups() {
        let names: Vec<String> = (0..MESSAGES_MAX).map(|number| format!("g{number}")).collect();
        let mut texts = BTreeSet::new();
        for which in 1_u32..1 << MESSAGES_MAX {
            // A bit for each group that goes on.
            let front = |number: usize| if which >> number & 1 == 1 { vec![entry(7, None, 0)] } else { vec![] };
            let fronts: Vec<_> = (0..MESSAGES_MAX).map(front).collect();
            let (statements, settled) = changes(&Part::default(), &names, &fronts, NOW);
            assert_eq!(settled, Settled { ready: which.count_ones(), due: None });
            let over: Vec<_> = statements.iter().filter(|(sql, _)| *sql == END).flat_map(|(_, of)| &of[1..]).collect();
            let named = over.iter().filter(|name| matches!(name, Value::Text(Some(_)))).count();
            assert_eq!(named, MESSAGES_MAX - settled.ready as usize);
            texts.insert(statements.iter().map(|(sql, _)| *sql).collect::<Vec<_>>());
        }
        assert_eq!(texts.len(), MESSAGES_MAX);
    }
}
