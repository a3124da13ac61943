//! Messages that go from one queue to another: dead letters, and those that are moved back.

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
