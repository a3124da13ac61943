//! What one call carries from its admission to its transaction and back.
//!
//! ```text
//!            ┌──────────── admit ────────────┐          ┌──── settle, in the transaction ────┐
//! new ───────┼─▶ free     nothing remembered ─┼──────────┼─▶ settled    it was right            │
//!            ├─▶ paid     tokens were taken  ─┼──────────┤                                     │
//!            └─▶ doubted  refused by a memory ┼──────────┼─▶ refused    it was right            │
//!                         that may be old     │          └─▶ misjudged  it was not: admit anew ─┘
//! ```
//!
//! A settled call is never charged again, however often it runs: reruns after a serialization failure or a voided batch,
//! and the passes of a long poll, are one call.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use waybill_kernel::{Code, Error, Result};
use waybill_store::Ctx;

use super::Limiter;
use super::known::{Known, Truth};
use crate::catalog::too_busy;
use crate::queue::Queue;
use crate::rules::names::queue_name;
use crate::rules::throttle::Action;

/// Left alone by whoever makes a request.
#[derive(Debug)]
pub struct Ticket(Slot);

/// A call that has several steps has one ticket for all of them; almost every call has one step.
#[derive(Debug)]
enum Slot {
    Own(Mutex<State>),
    Shared(Arc<Mutex<State>>),
}

impl Default for Ticket {
    fn default() -> Self {
        Self(Slot::Own(Mutex::default()))
    }
}

impl Clone for Ticket {
    /// Of one call, whose other steps have the clones.
    fn clone(&self) -> Self {
        Self(match &self.0 {
            Slot::Own(_) => Slot::Own(Mutex::new(self.lock().clone())),
            Slot::Shared(state) => Slot::Shared(Arc::clone(state)),
        })
    }
}

/// What a call wants of its queue's bucket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask<'a> {
    pub url: &'a str,
    pub action: Action,
    pub tokens: u32,
    /// Of the message that is sent: one that is too large for the queue is refused for nothing.
    pub bytes: usize,
}

#[derive(Clone, Debug, Default)]
enum State {
    #[default]
    New,
    /// By what was known, if anything was.
    Free(Option<Arc<Known>>),
    Paid(Arc<Known>),
    Doubted(Arc<Known>, u64),
    Misjudged(Truth),
    Settled,
}

impl Ticket {
    /// Whose clones are one.
    pub(crate) fn shared() -> Self {
        Self(Slot::Shared(Arc::default()))
    }

    /// Before each transaction that is not known to be the same call's rerun, and outside of it: tokens may be kept
    /// elsewhere than in this process, and a transaction waits for nothing but its database.
    pub(crate) async fn admit(&self, ctx: &Ctx<'_>, ask: Ask<'_>) -> Result<()> {
        // What is wrong with the name is said by the operation.
        let Ok(queue) = queue_name(ask.url) else { return Ok(()) };
        let limiter = Limiter::of(ctx);
        let before = self.lock().clone();
        match before {
            // By an earlier step of the same call.
            State::Settled | State::Paid(_) => return Ok(()),
            State::Misjudged(truth) => limiter.learn(ctx.caller, queue, truth),
            State::New | State::Free(_) | State::Doubted(..) => {}
        }
        let state = Self::judged(ctx, limiter, queue, ask).await?;
        *self.lock() = state;
        Ok(())
    }

    async fn judged(ctx: &Ctx<'_>, limiter: &Limiter, queue: &str, ask: Ask<'_>) -> Result<State> {
        let Some(known) = limiter.known(ctx.caller.tenant, queue) else { return Ok(State::Free(None)) };
        let Some(bucket) = known.throttle.bucket(ask.action) else { return Ok(State::Free(Some(known))) };
        if ask.bytes > known.message_bytes_max {
            return Ok(State::Free(None));
        }
        Ok(match limiter.take(&known, bucket, ask.tokens, ctx.now).await {
            super::Decision::Taken => State::Paid(known),
            super::Decision::Outdated => State::Free(None),
            super::Decision::Refused { retry_after_s } if known.is_trusted(ctx.now) => {
                return Err(limiter.refusal(&known, bucket.0, retry_after_s));
            }
            super::Decision::Refused { retry_after_s } => State::Doubted(known, retry_after_s),
        })
    }

    /// In the transaction, when the queue has been read and nothing has been written: was the call admitted by what is
    /// true? Fails when it was not, and the call is admitted anew.
    pub(crate) fn settle(&self, ctx: &Ctx<'_>, queue: &Queue, action: Action) -> Result<()> {
        let mut state = self.lock();
        if matches!(*state, State::Settled) {
            return Ok(());
        }
        let truth = Truth::new((queue.incarnation, queue.version), &queue.attributes, ctx.now)?;
        let bucket = truth.throttle.as_ref().and_then(|throttle| throttle.bucket(action));
        let is_same_bucket =
            |known: &Known| known.incarnation == truth.incarnation && known.throttle.bucket(action) == bucket;
        // A store that has not followed a change yet, or a transaction that began before it, is told nothing new.
        let was_right = match &*state {
            State::New | State::Misjudged(_) => bucket.is_none(),
            State::Free(known) => bucket.is_none() || known.as_ref().is_some_and(|known| known.outranks(&truth)),
            State::Paid(known) => is_same_bucket(known) || known.outranks(&truth),
            State::Doubted(known, _) => known.is(&truth) || known.outranks(&truth),
            State::Settled => true,
        };
        if !was_right {
            *state = State::Misjudged(truth);
            return Err(too_busy());
        }
        if let State::Paid(known) | State::Doubted(known, _) = &*state
            && known.is(&truth)
        {
            known.confirm(&truth);
        }
        if let State::Doubted(known, retry_after_s) = &*state
            && let Some((action, _)) = known.throttle.bucket(action)
        {
            return Err(Limiter::of(ctx).refusal(known, action, *retry_after_s));
        }
        *state = State::Settled;
        Ok(())
    }

    pub(crate) fn is_misjudged(&self) -> bool {
        matches!(*self.lock(), State::Misjudged(_))
    }

    /// Nobody is charged for this call any more.
    pub(crate) fn is_settled(&self) -> bool {
        matches!(*self.lock(), State::Settled)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        let state = match &self.0 {
            Slot::Own(state) => state,
            Slot::Shared(state) => state,
        };
        state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Refused by the bucket for `action`.
pub(super) fn throttling(queue: &str, action: Action, retry_after_s: u64) -> Error {
    let message = format!("Rate exceeded for the queue {queue:?}: its bucket {:?} is empty.", action.as_str());
    Error::new(Code::Throttling, message).with("retry_after", retry_after_s)
}
