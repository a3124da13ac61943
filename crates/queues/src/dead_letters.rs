//! Messages that go from one queue to another: dead letters, and those that are moved back.

use std::collections::BTreeMap;

use waybill_kernel::{Code, Error, Result, Tenant};
use waybill_store::{Ctx, Sql, Stored, Tx, Value};

use crate::Settings;
use crate::ends::{end_all, ids};
use crate::fifo;
use crate::queue::{Part, Queue, topic};
use crate::rules::arn::Arns;
use crate::rules::attributes::Attributes;
use crate::rules::names::is_fifo;
use crate::rules::redrive::{REDRIVE_POLICY, RedrivePolicy};
use crate::sends::{no_number, number_postgres, number_sqlite};

/// Where the messages of a queue go that were received too often.
#[derive(Clone, Debug)]
pub(crate) struct DeadLetters {
    pub receives_max: i64,
    target: String,
}

impl DeadLetters {
    /// None without a policy, and where the policy names nothing that could be a queue of this tenant.
    pub(crate) fn of(ctx: &Ctx<'_>, queue: &Queue) -> Option<Self> {
        let policy = queue.attributes.redrive()?;
        let target = Settings::arns(ctx).name(&policy.target_arn)?.to_owned();
        Some(Self { receives_max: policy.receives_max, target })
    }

    /// Where they go. Nowhere when the queue is gone, or does not take them any more: then whoever receives them gets them
    /// once more. Nobody else is kept waiting for what is wrong with it.
    pub(crate) async fn target(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, source: &Queue) -> Result<Target> {
        let source_arn = Settings::arns(ctx).arn(&source.name);
        Ok(match Queue::find_for_messages(tx, &self.target).await? {
            Some(queue) if queue.attributes.redrive_allow().allows(&source_arn) => Target::Here(Box::new(queue)),
            // This store knows only queues that have partitions in it.
            None if source.is_spread() => Target::Elsewhere,
            _ => Target::Nowhere,
        })
    }

    pub(crate) fn name(&self) -> &str {
        &self.target
    }
}

/// Where dead letters go, as far as this store knows.
#[derive(Debug)]
pub(crate) enum Target {
    /// Some of its partitions may be in other stores.
    Here(Box<Queue>),
    Elsewhere,
    Nowhere,
}

/// What became of messages that were received too often. Those that are in no list are with the dead letters already.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Buried {
    /// Nobody takes them: they are delivered once more.
    pub kept: Vec<i64>,
    /// They go to another store.
    pub far: Vec<i64>,
    /// They wait for an earlier one of their group, which is kept or goes far.
    pub behind: Vec<i64>,
}

impl Buried {
    /// Of messages whose place is in another store, each with its group and in their order. Those that were turned away there
    /// before are kept. A group begins with one kind or the other, and all that follows the first of the other kind is behind:
    /// a message that goes could arrive before one that is kept has died again, and one that goes may be turned away, too, and
    /// must then be delivered before those that are kept.
    pub(crate) fn sort(leaving: &[(&str, i64)], turned_away: &[i64]) -> Self {
        let mut buried = Self::default();
        // Whether all of a group so far are kept, or none; None when it has changed.
        let mut groups: BTreeMap<&str, Option<bool>> = BTreeMap::new();
        for (group, mid) in leaving {
            let is_kept = turned_away.contains(mid);
            let all = groups.entry(*group).or_insert(Some(is_kept));
            if *all != Some(is_kept) {
                *all = None;
            }
            match *all {
                Some(true) => buried.kept.push(*mid),
                Some(false) => buried.far.push(*mid),
                None => buried.behind.push(*mid),
            }
        }
        buried
    }
}

/// The queue that a new policy points to, if it may.
pub(crate) async fn check_policy(tx: &mut Tx<'_>, arns: &Arns, source: &str, policy: &RedrivePolicy) -> Result<String> {
    const TARGET: &str = "SELECT attributes FROM queues WHERE tenant = $1 AND name = $2";
    let refused = |why: &str| Error::new(Code::InvalidAttributeValue, format!("{REDRIVE_POLICY} {why}."));
    let Some(target) = arns.name(&policy.target_arn) else {
        return Err(refused("must point to a queue of this account and region"));
    };
    if target == source {
        return Err(refused("must point to another queue"));
    }
    if is_fifo(target) != is_fifo(source) {
        return Err(refused("must point to a queue of the same kind: FIFO or standard"));
    }
    let Some(row) = tx.query_opt(TARGET, &[Value::from(target)]).await? else {
        return Err(refused("points to a queue that does not exist"));
    };
    if !Attributes::from_stored(row.text(0)?)?.redrive_allow().allows(&arns.arn(source)) {
        return Err(refused("points to a queue whose RedriveAllowPolicy does not allow it"));
    }
    Ok(target.to_owned())
}

/// What becomes of messages on their way.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fate<'a> {
    /// Dead letters: they keep the time they were sent at and remember where they come from.
    Dead { source: &'a str },
    /// Back to life, as if they were sent now.
    Alive,
}

/// `$5` is the new time of sending or NULL, `$6` the source or NULL, from `$7` on the ids.
macro_rules! copy {
    ($number:expr) => {
        concat!(
            "INSERT INTO messages (mid, tenant, id, body, md5, attributes, trace, sent_at, sender, grp, source) \
             SELECT next.mid, $1, next.id, next.body, next.md5, next.attributes, next.trace, \
             coalesce($5, next.sent_at), next.sender, next.grp, $6 FROM (SELECT ",
            $number,
            " AS mid, o.id, o.body, o.md5, o.attributes, o.trace, o.sent_at, o.sender, o.grp FROM (SELECT old.* \
             FROM messages old WHERE old.tenant = $1 \
             AND old.mid IN ($7, $8, $9, $10, $11, $12, $13, $14, $15, $16) ORDER BY old.mid) AS o) AS next \
             WHERE next.mid >= $4 AND next.mid < $3 \
             RETURNING CAST(octet_length(body) + coalesce(octet_length(attributes), 0) AS BIGINT)"
        )
    };
}

const COPY: Sql = Sql {
    sqlite: copy!(concat!(number_sqlite!(), " + row_number() OVER (ORDER BY o.mid) - 1")),
    postgres: copy!(number_postgres!()),
};
const MIX: &str = "UPDATE parts SET mixed = 1 WHERE tenant = $1 AND part = $2";

/// Takes up to ten messages, which the caller has taken, from one part to the queue `to`, which must have been found for
/// messages.
pub(crate) async fn transfer(
    ctx: &Ctx<'_>,
    tx: &mut Tx<'_>,
    tenant: Tenant,
    (from, mids): (&Part, &[i64]),
    to: &Queue,
    fate: Fate<'_>,
) -> Result<()> {
    if to.is_fifo() {
        return fifo::transfer(ctx, tx, tenant, (from, mids), to, fate).await;
    }
    let (sent_at, source) = match fate {
        Fate::Dead { source } => (None, Some(source)),
        Fate::Alive => (Some(ctx.now), None),
    };
    let (begin, end, floor) = (to.part.begin().into(), to.part.end().into(), to.part.floor().into());
    let mut params = vec![begin, end, floor, sent_at.into(), Value::from(source)];
    params.extend(ids(mids.iter().copied()));
    let copied = tx.query(tx.text(COPY), &params).await?;
    if copied.len() != mids.len() {
        return Err(no_number());
    }
    for row in &copied {
        tx.add(Stored::Rows, usize::try_from(row.int(0)?).map_err(Error::internal)?);
    }
    if sent_at.is_none() && !to.part.mixed {
        tx.execute(MIX, &[to.part.number.into()]).await?;
    }
    end_all(tx, from, mids).await?;
    tx.wake(topic(tenant, &to.name), u32::try_from(mids.len()).unwrap_or(u32::MAX));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn none_of_a_group_passes_another_on_its_way_to_another_store() {
        let buried = |kept: &[i64], far: &[i64], behind: &[i64]| Buried {
            kept: kept.to_vec(),
            far: far.to_vec(),
            behind: behind.to_vec(),
        };
        for (leaving, turned_away, expected) in [
            (&[("a", 1), ("a", 2)][..], &[1, 2][..], buried(&[1, 2], &[], &[])),
            (&[("a", 1), ("a", 2)], &[], buried(&[], &[1, 2], &[])),
            // Also one that is as the first was.
            (&[("a", 1), ("a", 2), ("a", 3)], &[1, 3], buried(&[1], &[], &[2, 3])),
            (&[("a", 1), ("a", 2), ("a", 3)], &[2], buried(&[], &[1], &[2, 3])),
            // Each group is looked at by itself.
            (&[("a", 1), ("a", 3), ("b", 2), ("b", 4)], &[1, 4], buried(&[1], &[2], &[3, 4])),
        ] {
            assert_eq!(Buried::sort(leaving, turned_away), expected, "{leaving:?} {turned_away:?}");
        }
    }
}
