//! Dead letters that a task moves, as far as one store goes. They are taken as by a receive, so that those who receive from the
//! queue at the same time neither wait nor get them twice.

use std::collections::BTreeMap;
use std::time::Duration;

use waybill_kernel::{Result, Tenant, Time};
use waybill_store::{Ctx, Tx, Value};

use crate::dead_letters::{Fate, transfer};
use crate::ends::end_all;
use crate::fifo::{self, Held, Settled, Want};
use crate::flights::{self, Stored, Taken, Takes};
use crate::move_tasks::{COMPLETED, FAILED};
use crate::queue::{Part, Queue, topic};
use crate::rules::handle::Token;
use crate::shards::depart;

/// Messages that one transaction takes, whatever becomes of them. Each may wake its own queue, and a transaction wakes 128
/// at most.
pub(crate) const BATCH: i64 = 50;
/// How long messages would be invisible if they were not moved in the same transaction.
const HELD: Duration = Duration::from_secs(30);

/// Nobody knows where the message came from: it was sent to the queue itself.
const NO_SOURCE: &str = "CouldNotDetermineMessageSource";
const NO_QUEUE: &str = "AWS.SimpleQueueService.NonExistentQueue";

/// Incarnation and generation of a queue.
pub(crate) type Life = (i64, i64);

/// What home has said of queues by their names a moment ago, none for one that there is not.
pub(crate) type Told = BTreeMap<String, Option<Life>>;

/// Messages by the name of the queue they go to.
type Targets = BTreeMap<Option<String>, Vec<i64>>;

/// What one store needs to know to move messages of a queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mover<'a> {
    pub tenant: Tenant,
    pub source: &'a str,
    /// Without one each message goes to the queue it came from.
    pub destination: Option<&'a str>,
    /// How home has the source, where its messages are in several stores.
    pub expected: Option<Life>,
    /// For a store that has no catalog of its own.
    pub told: Option<&'a Told>,
}

/// What has been done, and how it has ended.
#[derive(Debug)]
pub(crate) struct Moved {
    pub taken: i64,
    pub moved: i64,
    pub outcome: Outcome,
}

#[derive(Debug)]
pub(crate) enum Outcome {
    /// There may be more.
    Going,
    /// Nothing can be taken before what is on its way to another store has arrived there.
    Waiting,
    /// There is nothing left to move.
    Completed,
    Failed(&'static str),
    /// Home has to say whether there are these queues.
    Asking(Vec<String>),
    /// The store has the source otherwise than home.
    Behind,
}

impl Outcome {
    /// Status and reason of a task that is over.
    pub(crate) fn end(&self) -> Option<(&'static str, Option<&'static str>)> {
        match self {
            Self::Completed => Some((COMPLETED, None)),
            Self::Failed(reason) => Some((FAILED, Some(*reason))),
            Self::Going | Self::Waiting | Self::Asking(_) | Self::Behind => None,
        }
    }
}

/// Where messages go.
enum Target {
    /// `here` is the queue as this store has it, where that can be relied on.
    Queue {
        name: String,
        here: Option<Box<Queue>>,
    },
    Nowhere(&'static str),
    /// Home has not said.
    Unknown(String),
}

/// Up to ten messages of one part, in the hands of this transaction.
struct Hand<'a> {
    part: &'a Part,
    takes: Takes,
    taken: Vec<Taken>,
    /// With their groups, where the queue has them.
    members: Vec<(String, i64)>,
}

impl Mover<'_> {
    /// Moves up to `allowed` messages, and takes up to `most`: those that are older than they are kept are taken and not moved.
    pub(crate) async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, allowed: i64, most: i64) -> Result<Moved> {
        let (mut taken, mut moved) = (0, 0);
        loop {
            let wanted = (allowed - moved).min(most - taken).min(flights::MESSAGES_MAX as i64);
            if wanted <= 0 {
                return Ok(Moved { taken, moved, outcome: Outcome::Going });
            }
            let step = self.step(ctx, tx, usize::try_from(wanted).unwrap_or(0)).await?;
            taken += step.taken;
            moved += step.moved;
            if !matches!(step.outcome, Outcome::Going) {
                return Ok(Moved { taken, moved, outcome: step.outcome });
            }
        }
    }

    /// Up to ten messages, of the first partition that has any.
    async fn step(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, wanted: usize) -> Result<Moved> {
        let over = |outcome| Moved { taken: 0, moved: 0, outcome };
        let found = Queue::find(tx, self.source).await?;
        let queue = match (found, self.expected) {
            (Some(queue), None) => queue,
            (Some(queue), Some(life)) if life_of(&queue) == life => queue,
            (_, Some(_)) => return Ok(over(Outcome::Behind)),
            (None, None) => return Ok(over(Outcome::Failed(NO_QUEUE))),
        };
        for part in queue.parts() {
            if let Some(step) = self.step_in(ctx, tx, (&queue, part), wanted).await? {
                return Ok(step);
            }
        }
        let is_waiting = queue.is_fifo() && is_on_the_way(tx, &queue).await?;
        Ok(over(if is_waiting { Outcome::Waiting } else { Outcome::Completed }))
    }

    /// None when there is nothing to take.
    async fn step_in(
        &self,
        ctx: &Ctx<'_>,
        tx: &mut Tx<'_>,
        (queue, part): (&Queue, &Part),
        wanted: usize,
    ) -> Result<Option<Moved>> {
        let hand = Hand::take(ctx, tx, (queue, part), wanted).await?;
        if hand.taken.is_empty() {
            return Ok(None);
        }
        let rows = hand.takes.fetch(tx, &hand.taken).await?;
        let (targets, expired) = self.targets(&rows, queue.kept_since(ctx.now))?;
        hand.end(tx, queue, &expired).await?;
        let (mut moved, mut given_back, mut failure, mut unknown) = (0, 0, None, Vec::new());
        for (name, mids) in targets {
            match self.target(tx, name.as_deref()).await? {
                Target::Queue { name, here } => {
                    self.send_off(ctx, tx, &hand, (&name, here.as_deref()), &mids).await?;
                    moved += mids.len();
                    continue;
                }
                Target::Nowhere(reason) => failure = Some(reason),
                Target::Unknown(name) => unknown.push(name),
            }
            hand.takes.give_back(tx, &mids).await?;
            given_back += mids.len();
        }
        let settled = match queue.is_fifo() {
            true => fifo::settle(tx, part, &hand.members, ctx.now).await?,
            false => {
                hand.takes.tidy(tx).await?;
                Settled { ready: u32::try_from(given_back).unwrap_or(u32::MAX), due: None }
            }
        };
        // Whoever has looked meanwhile has not seen them.
        settled.announce(tx, topic(self.tenant, &queue.name), ctx.now);
        let outcome = match failure {
            Some(reason) => Outcome::Failed(reason),
            None if unknown.is_empty() => Outcome::Going,
            None => Outcome::Asking(unknown),
        };
        Ok(Some(Moved { taken: hand.taken.len() as i64, moved: moved as i64, outcome }))
    }

    /// Which messages go where, None for those of which nobody knows, and which are older than they are kept.
    fn targets(&self, rows: &[Stored], kept_since: Time) -> Result<(Targets, Vec<i64>)> {
        let (mut targets, mut expired) = (Targets::new(), Vec::new());
        for row in rows {
            let mid = row.mid()?;
            let name = match self.destination {
                Some(name) => Some(name.to_owned()),
                None => row.source()?.map(str::to_owned),
            };
            match row.sent_at()? > kept_since {
                true => targets.entry(name).or_default().push(mid),
                false => expired.push(mid),
            }
        }
        Ok((targets, expired))
    }

    /// A copy of a queue's row that is not as home has it may be of a queue that has ended: messages that were put there would
    /// end with it. So they take the way to another store, at the end of which somebody looks again.
    async fn target(&self, tx: &mut Tx<'_>, name: Option<&str>) -> Result<Target> {
        let Some(name) = name else { return Ok(Target::Nowhere(NO_SOURCE)) };
        let life = match self.told.map(|told| told.get(name)) {
            None => None,
            Some(None) => return Ok(Target::Unknown(name.to_owned())),
            Some(Some(None)) => return Ok(Target::Nowhere(NO_QUEUE)),
            Some(Some(Some(life))) => Some(*life),
        };
        let here = Queue::find_for_messages(tx, name).await?;
        if life.is_none() && here.is_none() {
            return Ok(Target::Nowhere(NO_QUEUE));
        }
        let here = here.filter(|queue| life.is_none_or(|life| life_of(queue) == life));
        Ok(Target::Queue { name: name.to_owned(), here: here.map(Box::new) })
    }

    /// To the queue `name`, which this store has as `here` if at all.
    async fn send_off(
        &self,
        ctx: &Ctx<'_>,
        tx: &mut Tx<'_>,
        hand: &Hand<'_>,
        (name, here): (&str, Option<&Queue>),
        mids: &[i64],
    ) -> Result<()> {
        let is_near = |mid: &i64| here.is_some_and(|to| !to.is_spread() || hand.is_of_group_in(*mid, to));
        let (near, far): (Vec<i64>, Vec<i64>) = mids.iter().partition(|mid| is_near(mid));
        if let Some(to) = here.filter(|_| !near.is_empty()) {
            transfer(ctx, tx, self.tenant, (hand.part, &near), to, Fate::Alive).await?;
        }
        if !far.is_empty() {
            depart(ctx, tx, hand.part, &far, name, Fate::Alive).await?;
        }
        Ok(())
    }
}

impl<'a> Hand<'a> {
    async fn take(
        ctx: &Ctx<'_>,
        tx: &mut Tx<'_>,
        (queue, part): (&Queue, &'a Part),
        wanted: usize,
    ) -> Result<Hand<'a>> {
        let token: Token = ctx.ids.next().into_bytes();
        let until = ctx.now.after(HELD);
        let mut takes = Takes::new(*part, ctx.now, token, until);
        if !queue.is_fifo() {
            let taken = takes.take(tx, wanted).await?;
            return Ok(Self { part, takes, taken, members: Vec::new() });
        }
        let want = Want { messages: wanted, held: Held::WaitFor, looks: 0, but: &[] };
        let picked = fifo::take(tx, part, (ctx.now, &token, until), want).await?;
        let members = picked.iter().map(|(group, taken)| (group.clone(), taken.mid)).collect();
        let taken = picked.into_iter().map(|(_, taken)| taken).collect();
        Ok(Self { part, takes, taken, members })
    }

    /// Messages that are kept no longer.
    async fn end(&self, tx: &mut Tx<'_>, queue: &Queue, expired: &[i64]) -> Result<()> {
        if expired.is_empty() {
            return Ok(());
        }
        if !queue.is_fifo() {
            return end_all(tx, self.part, expired).await;
        }
        let over: Vec<_> = self.members.iter().filter(|(_, mid)| expired.contains(mid)).cloned().collect();
        fifo::end(tx, self.part, &over).await
    }

    /// Is the message of a group whose partition in the queue is in this store?
    fn is_of_group_in(&self, mid: i64, queue: &Queue) -> bool {
        self.members.iter().any(|(group, of)| *of == mid && queue.has_here(group))
    }
}

fn life_of(queue: &Queue) -> Life {
    (queue.incarnation, queue.generation)
}

/// Are messages of this store's parts on their way to another store? Their groups wait for them.
async fn is_on_the_way(tx: &mut Tx<'_>, queue: &Queue) -> Result<bool> {
    const LEAVING: &str = "SELECT 1 FROM parts p JOIN transfers t ON t.tenant = $1 AND t.part = p.part \
                           WHERE p.tenant = $1 AND p.queue = $2 AND p.generation = $3 AND t.refused = 0 LIMIT 1";
    let params = [Value::from(&queue.name), queue.generation.into()];
    Ok(tx.query_opt(LEAVING, &params).await?.is_some())
}
