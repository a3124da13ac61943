//! Effects that reach outside: a webhook, a push, an archive. What is due is claimed in one transaction, done outside of any,
//! and its outcome recorded in another.
//!
//! # Contract
//! A claim has a number, raised by every claim, and an end: what a vanished node had in hand is claimed again. Whoever records
//! an outcome shows the number and is refused when it is not the latest, together with everything else in the same
//! transaction. So a thing may be done more than once, and its outcome is recorded once.
//!
//! Nobody polls: a runner sleeps until the first thing is due or its topic is woken, and looks once in [`LOOK_AGAIN`] besides,
//! for what another node has left.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use waybill_kernel::{Code, Error, Mode, Result, Time};

use crate::{Ctx, Store, Topic, Tx, Work, metrics};

/// However long nothing is due and nobody wakes it, a runner looks this often.
const LOOK_AGAIN: Duration = Duration::from_secs(30);
/// After something due could not be taken, because others hold it or the store fails.
const PAUSE: Duration = Duration::from_millis(100);
/// When the program stops, what is in hand may still end by itself for this long.
const GRACE: Duration = Duration::from_secs(2);
/// An outcome that the store does not take is offered again this often, after pauses that double from the first.
const RECORDINGS_MAX: u32 = 5;
const RECORDING_PAUSE: Duration = Duration::from_millis(200);

/// What is done outside of transactions, of one kind.
pub trait Outward: Send + Sync + 'static {
    /// In the hands of one runner, with the number of its claim.
    type Claimed: Send + Sync + 'static;
    type Outcome: Send + Sync + 'static;

    /// Its label in metrics and the log: unique in the program.
    fn name(&self) -> &'static str;

    /// Woken when something may be due sooner than was known.
    fn topic(&self) -> Topic;

    fn bounds(&self) -> Bounds;

    /// When the first thing is due, those in hand included, whose time is the end of their claim. A read.
    fn due(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> impl Future<Output = Result<Option<Time>>> + Send;

    /// Claims what is due, `room` things at most.
    fn take(
        &self,
        ctx: &Ctx<'_>,
        tx: &mut Tx<'_>,
        room: usize,
    ) -> impl Future<Output = Result<Taken<Self::Claimed>>> + Send;

    /// One attempt, outside of any transaction. It may have been made before, with or without success.
    fn attempt(&self, store: &Store, claimed: &Self::Claimed) -> impl Future<Output = Self::Outcome> + Send;

    /// Of an attempt that has no outcome of its own.
    fn given_up(&self, claimed: &Self::Claimed, why: GivenUp) -> Self::Outcome;

    /// Writes down what the attempt came to, under the number of the claim: LEASE_INVALID_OR_EXPIRED when it is not the
    /// latest. The contract of [`crate::Operation`] holds: no effect but through `tx`, and it may be run again.
    fn record(
        &self,
        ctx: &Ctx<'_>,
        tx: &mut Tx<'_>,
        claimed: &Self::Claimed,
        outcome: &Self::Outcome,
    ) -> impl Future<Output = Result<Ended>> + Send;

    /// After the commit of a record: for metrics of its own.
    fn recorded(&self, _claimed: &Self::Claimed, _outcome: &Self::Outcome) {}
}

#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Attempts at a time on one node.
    pub at_once: usize,
    /// An attempt is given up after this; shorter than a claim holds.
    pub attempt_max: Duration,
}

#[derive(Debug)]
pub struct Taken<C> {
    pub claimed: Vec<C>,
    /// Those that had no attempt left, and were ended instead of given out.
    pub dead: usize,
}

/// Why an attempt has no outcome of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GivenUp {
    /// It took longer than it may.
    TooLong,
    /// A fault of ours.
    Panicked,
    /// The program stops. It says nothing about what was attempted.
    Stopping,
}

/// What a recorded attempt came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Done,
    /// Later again.
    Failed,
    /// Failed for the last time.
    Dead,
}

/// What one round came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Round {
    pub claimed: usize,
    pub done: usize,
    pub failed: usize,
    pub dead: usize,
    /// Recorded too late: it had been claimed again.
    pub superseded: usize,
}

impl Round {
    fn count(&mut self, seen: Option<Ended>) {
        match seen {
            Some(Ended::Done) => self.done += 1,
            Some(Ended::Failed) => self.failed += 1,
            Some(Ended::Dead) => self.dead += 1,
            None => self.superseded += 1,
        }
    }
}

/// Claims what is due, up to what may be attempted at a time, and sees it through.
///
/// # Cancel safety
/// Dropped, it gives up the attempts under way; what they had in hand is claimed again when the claims end.
pub async fn reach_once<O: Outward>(store: &Store, outward: &Arc<O>) -> Result<Round> {
    let mut hands = Hands::new(store.clone(), Arc::clone(outward));
    let mut round = hands.take().await?;
    let mut trouble = None;
    while let Some(ended) = hands.under_way.join_next().await {
        match ended.map_err(Error::internal).flatten() {
            Ok(seen) => round.count(seen),
            // Told when the others have ended: theirs is not this one's trouble.
            Err(error) => trouble = Some(error),
        }
    }
    trouble.map_or(Ok(round), Err)
}

/// Until it is stopped. What is in hand then is given back.
pub(super) async fn keep_reaching<O: Outward>(store: Store, outward: Arc<O>, stopping: CancellationToken) {
    let mut hands = Hands::new(store, outward);
    while !stopping.is_cancelled() {
        // Before the look: what is woken after it is seen.
        let flag = hands.store.flag(hands.outward.topic());
        let wait = match hands.look_and_take().await {
            Ok(wait) => wait,
            Err(error) => {
                let (kind, cause) = (hands.outward.name(), error.cause().unwrap_or_default());
                tracing::warn!(job.kind = kind, %error, cause, "what is due could not be taken; it is tried again");
                Some(PAUSE)
            }
        };
        tokio::select! {
            () = stopping.cancelled() => break,
            Some(ended) = hands.under_way.join_next() => hands.told(ended),
            () = flag.wait(), if wait.is_some() => {}
            () = tokio::time::sleep(wait.unwrap_or(LOOK_AGAIN)) => {}
        }
    }
    hands.lay_down().await;
}

/// What a runner has in hand.
struct Hands<O: Outward> {
    store: Store,
    outward: Arc<O>,
    bounds: Bounds,
    /// None for what was claimed again meanwhile.
    under_way: JoinSet<Result<Option<Ended>>>,
    /// Ends the attempts that are under way.
    enough: CancellationToken,
}

impl<O: Outward> Hands<O> {
    fn new(store: Store, outward: Arc<O>) -> Self {
        let bounds = outward.bounds();
        Self { store, outward, bounds, under_way: JoinSet::new(), enough: CancellationToken::new() }
    }

    fn room(&self) -> usize {
        self.bounds.at_once.max(1).saturating_sub(self.under_way.len())
    }

    /// How long there is nothing to take; None while the hands are full.
    async fn look_and_take(&mut self) -> Result<Option<Duration>> {
        if self.room() == 0 {
            return Ok(None);
        }
        let due = self.store.system().run(Look(Arc::clone(&self.outward))).await?;
        let now = self.store.now();
        let lag = due.map_or(Duration::ZERO, |due| now.since(due));
        ::metrics::gauge!(metrics::JOB_LAG, "kind" => self.outward.name()).set(lag.as_secs_f64());
        match due {
            Some(due) if due <= now => {
                let taken = self.take().await?;
                // Looked for again at once, unless others were quicker.
                Ok(Some(if taken.claimed + taken.dead > 0 { Duration::ZERO } else { PAUSE }))
            }
            Some(due) => Ok(Some(due.since(now).min(LOOK_AGAIN))),
            None => Ok(Some(LOOK_AGAIN)),
        }
    }

    async fn take(&mut self) -> Result<Round> {
        let take = Take { outward: Arc::clone(&self.outward), room: self.room() };
        let taken = self.store.system().run(take).await?;
        let round = Round { claimed: taken.claimed.len(), dead: taken.dead, ..Round::default() };
        if taken.dead > 0 {
            count(self.outward.name(), "dead", taken.dead);
        }
        for claimed in taken.claimed {
            let hand = Hand {
                store: self.store.clone(),
                outward: Arc::clone(&self.outward),
                claimed: Arc::new(claimed),
                attempt_max: self.bounds.attempt_max,
            };
            self.under_way.spawn(hand.see_through(self.enough.clone()));
        }
        Ok(round)
    }

    fn told(&self, ended: std::result::Result<Result<Option<Ended>>, tokio::task::JoinError>) {
        if let Err(error) = ended.map_err(Error::internal).flatten() {
            let (kind, cause) = (self.outward.name(), error.cause().unwrap_or_default());
            tracing::warn!(job.kind = kind, %error, cause, "what came of an attempt could not be recorded; it is made again");
        }
    }

    /// What ends soon is recorded; the rest is given up and back.
    async fn lay_down(mut self) {
        let enough = self.enough.clone();
        let patience = async {
            tokio::time::sleep(GRACE).await;
            enough.cancel();
            std::future::pending::<()>().await;
        };
        let ends = async {
            while let Some(ended) = self.under_way.join_next().await {
                self.told(ended);
            }
        };
        tokio::select! {
            () = ends => {}
            () = patience => {}
        }
    }
}

/// One thing in hand.
struct Hand<O: Outward> {
    store: Store,
    outward: Arc<O>,
    claimed: Arc<O::Claimed>,
    attempt_max: Duration,
}

impl<O: Outward> Hand<O> {
    async fn see_through(self, enough: CancellationToken) -> Result<Option<Ended>> {
        let outcome = Arc::new(self.outcome(&enough).await);
        let mut pause = RECORDING_PAUSE;
        for recording in 1.. {
            let record = Record {
                outward: Arc::clone(&self.outward),
                claimed: Arc::clone(&self.claimed),
                outcome: Arc::clone(&outcome),
            };
            match self.store.system().run(record).await {
                Ok(ended) => {
                    self.outward.recorded(&self.claimed, &outcome);
                    count(self.outward.name(), ended.as_str(), 1);
                    return Ok(Some(ended));
                }
                Err(error) if error.code() == Code::LeaseInvalidOrExpired => {
                    count(self.outward.name(), "superseded", 1);
                    return Ok(None);
                }
                Err(error) if recording == RECORDINGS_MAX || enough.is_cancelled() => return Err(error),
                Err(_) => tokio::time::sleep(pause).await,
            }
            pause *= 2;
        }
        Err(Error::internal("an outcome was neither recorded nor refused"))
    }

    /// In a task of its own, aborted with its set: a panic is a failed attempt and nobody else's trouble.
    async fn outcome(&self, enough: &CancellationToken) -> O::Outcome {
        let (store, outward, claimed) = (self.store.clone(), Arc::clone(&self.outward), Arc::clone(&self.claimed));
        let mut attempt = JoinSet::new();
        attempt.spawn(async move { outward.attempt(&store, &claimed).await });
        let why = tokio::select! {
            ended = attempt.join_next() => match ended {
                Some(Ok(outcome)) => return outcome,
                Some(Err(panic)) => {
                    tracing::error!(job.kind = self.outward.name(), error = %panic, "an attempt panicked");
                    GivenUp::Panicked
                }
                None => GivenUp::Panicked,
            },
            () = tokio::time::sleep(self.attempt_max) => GivenUp::TooLong,
            () = enough.cancelled() => GivenUp::Stopping,
        };
        self.outward.given_up(&self.claimed, why)
    }
}

impl Ended {
    const fn as_str(self) -> &'static str {
        match self {
            Ended::Done => "done",
            Ended::Failed => "failed",
            Ended::Dead => "dead",
        }
    }
}

fn count(kind: &'static str, outcome: &'static str, count: usize) {
    ::metrics::counter!(metrics::JOBS, "kind" => kind, "outcome" => outcome).increment(count as u64);
}

struct Look<O>(Arc<O>);

impl<O: Outward> Work for Look<O> {
    type Output = Option<Time>;

    fn mode(&self) -> Mode {
        Mode::Read
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Option<Time>> {
        self.0.due(ctx, tx).await
    }
}

struct Take<O> {
    outward: Arc<O>,
    room: usize,
}

impl<O: Outward> Work for Take<O> {
    type Output = Taken<O::Claimed>;

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Taken<O::Claimed>> {
        self.outward.take(ctx, tx, self.room).await
    }
}

struct Record<O: Outward> {
    outward: Arc<O>,
    claimed: Arc<O::Claimed>,
    outcome: Arc<O::Outcome>,
}

impl<O: Outward> Work for Record<O> {
    type Output = Ended;

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Ended> {
        self.outward.record(ctx, tx, &self.claimed, &self.outcome).await
    }
}
