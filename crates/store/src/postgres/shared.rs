//! Calls that share a transaction. BEGIN, COMMIT, the flush of the log and the round trips between them cost as much as the
//! statements of a small operation; while many call at once, several pay for them together. A call that comes alone is alone.
//!
//! Only operations that say so come here ([`crate::Operation::SHARES`]), and only calls of one tenant share. They run one after
//! another, each seeing what those before it have written, so that the outcome is as if each had been committed by itself. Nobody
//! is answered before the commit. If anything but a refusal without a trace happens, nothing of the transaction is kept and each
//! call is run by itself: what is wrong with one of them is its own affair.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use futures_util::FutureExt;
use tokio::sync::oneshot;
use waybill_kernel::request::{self, RequestId};
use waybill_kernel::{Error, Mode, Result, Tenant};

use super::erased::Erased;
use super::failure::{self, Failure};
use super::transaction::Transaction;
use super::{Core, overloaded};
use crate::Tx;
use crate::tx::Backend;
use crate::wake::Wake;

/// Calls of one transaction. With more the first would wait long for the last, and keep its rows from others meanwhile.
const CALLS_MAX: usize = 8;
/// Of the lanes one in so many carries calls that share: few, or there would be nobody to share with.
const LANES_PER_CARRIER: usize = 4;

pub(super) struct Shared {
    line: Mutex<Line>,
    carriers_max: usize,
}

#[derive(Default)]
struct Line {
    waiting: VecDeque<Waiting>,
    /// Tasks that take calls from the line. There are none while it is empty for longer.
    carriers: usize,
    /// Of the next call.
    number: u64,
}

struct Waiting {
    number: u64,
    tenant: Tenant,
    call: Arc<dyn Erased>,
    request: Option<RequestId>,
    asked: Instant,
    answer: oneshot::Sender<Verdict>,
}

enum Verdict {
    Settled(Result<()>),
    /// Nothing was kept: the call is to be run by itself.
    Alone,
}

impl Shared {
    pub(super) fn new(lanes: usize) -> Self {
        Self { line: Mutex::default(), carriers_max: (lanes / LANES_PER_CARRIER).max(1) }
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next calls of one tenant, in the order of their arrival. None ends the carrier that asks.
    fn take(&self) -> Option<Vec<Waiting>> {
        let mut line = self.line();
        let Some(first) = line.waiting.pop_front() else {
            line.carriers -= 1;
            return None;
        };
        let tenant = first.tenant;
        let mut calls = vec![first];
        let mut at = 0;
        while calls.len() < CALLS_MAX && at < line.waiting.len() {
            if line.waiting[at].tenant == tenant {
                calls.extend(line.waiting.remove(at));
            } else {
                at += 1;
            }
        }
        Some(calls)
    }

    /// False when a carrier has taken it already.
    fn withdraw(&self, number: u64) -> bool {
        let mut line = self.line();
        let Ok(at) = line.waiting.binary_search_by_key(&number, |waiting| waiting.number) else { return false };
        line.waiting.remove(at);
        true
    }
}

/// A carrier that panics leaves its place to another.
struct Carrier<'a>(Option<&'a Shared>);

impl Drop for Carrier<'_> {
    fn drop(&mut self) {
        if let Some(shared) = self.0 {
            shared.line().carriers -= 1;
        }
    }
}

impl Core {
    /// True when the call has been settled with others; it is to be run by itself otherwise.
    pub(super) async fn share(self: &Arc<Self>, call: &Arc<dyn Erased>, tenant: Tenant) -> Result<bool> {
        let deadline = tokio::time::Instant::now() + self.options.retry_for;
        let (number, mut answer) = self.line_up(call, tenant)?;
        let verdict = match tokio::time::timeout_at(deadline, &mut answer).await {
            Ok(verdict) => verdict,
            Err(_) if self.shared.withdraw(number) => {
                self.waits.failed();
                return Err(overloaded());
            }
            // It is under way, and ends in bounded time.
            Err(_) => answer.await,
        };
        match verdict {
            Ok(Verdict::Settled(outcome)) => outcome.map(|()| true),
            Ok(Verdict::Alone) => Ok(false),
            Err(_) => Err(Error::internal("a call that shared the transaction has panicked")),
        }
    }

    fn line_up(self: &Arc<Self>, call: &Arc<dyn Erased>, tenant: Tenant) -> Result<(u64, oneshot::Receiver<Verdict>)> {
        let (answer, answered) = oneshot::channel();
        let mut line = self.shared.line();
        if line.waiting.len() >= self.options.queue_max {
            return Err(overloaded());
        }
        let number = line.number;
        line.number += 1;
        let (call, request) = (Arc::clone(call), request::current());
        line.waiting.push_back(Waiting { number, tenant, call, request, asked: Instant::now(), answer });
        if line.carriers < self.shared.carriers_max {
            line.carriers += 1;
            tokio::spawn(Arc::clone(self).carry());
        }
        Ok((number, answered))
    }

    async fn carry(self: Arc<Self>) {
        let mut carrier = Carrier(Some(&self.shared));
        while let Some(calls) = self.shared.take() {
            self.run_together(calls).await;
        }
        carrier.0 = None;
    }

    async fn run_together(&self, calls: Vec<Waiting>) {
        // With a lane of its own like any other transaction. Where there is none in time each waits for one by itself.
        let entered = tokio::time::timeout(self.options.retry_for, self.enter(&self.writes)).await;
        let (Ok(Ok(_lane)), Some(tenant)) = (entered, calls.first().map(|call| call.tenant)) else {
            return alone(calls);
        };
        let Ok(client) = self.pool.get().await else { return alone(calls) };
        let _in_use = self.waits.got_together(calls.iter().map(|call| call.asked));
        let statements = Arc::clone(&self.statements);
        let patience = self.options.patience();
        let mut transaction = Transaction::new(client, statements, Mode::Write, Some(tenant), None, patience);
        let mut ran = Vec::with_capacity(calls.len());
        let mut wakes = Vec::new();
        let mut calls = calls.into_iter();
        while let Some(call) = calls.next() {
            let before = transaction.mark();
            let run = AssertUnwindSafe(self.run_one(&call, &mut transaction, &mut wakes)).catch_unwind().await;
            let is_void = match &run {
                Ok(Ok(())) => false,
                Ok(Err(_)) => !transaction.is_as_at(before),
                Err(_) => true,
            };
            let outcome = run.unwrap_or_else(|_| Err(Error::internal("an operation panicked")));
            ran.push((call, outcome));
            if is_void {
                drop(transaction.roll_back(Error::internal("void")).await);
                return alone(ran.into_iter().map(|(call, _)| call).chain(calls));
            }
        }
        self.conclude_together(transaction, ran, &wakes).await;
    }

    async fn run_one(&self, call: &Waiting, transaction: &mut Transaction, wakes: &mut Vec<Wake>) -> Result<()> {
        let mut tx = Tx::new(Backend::Postgres(transaction), Some(call.tenant));
        request::during(call.request.clone(), call.call.run(self.clock.now(), &mut tx)).await?;
        wakes.extend(tx.into_wakes()?);
        Ok(())
    }

    async fn conclude_together(&self, transaction: Transaction, ran: Vec<(Waiting, Result<()>)>, wakes: &[Wake]) {
        let committed = transaction.commit().await;
        let added = match committed {
            Ok(added) => added,
            Err(Failure::Unknown(error)) => {
                // It may have been made, and a wake in vain does no harm.
                self.hub.release(wakes);
                let cause = error.to_string();
                for (call, _) in ran {
                    call.settle(Err(failure::unknown(&cause).into_error()));
                }
                return;
            }
            Err(_) => return alone(ran.into_iter().map(|(call, _)| call)),
        };
        self.hub.release(wakes);
        self.stored.committed(&added);
        self.meters.ops.increment(ran.len() as u64);
        self.meters.commits.increment(1);
        for (call, outcome) in ran {
            call.settle(outcome);
        }
    }
}

fn alone(calls: impl IntoIterator<Item = Waiting>) {
    for call in calls {
        // Nobody listens when the caller has gone.
        drop(call.answer.send(Verdict::Alone));
    }
}

impl Waiting {
    fn settle(self, outcome: Result<()>) {
        drop(self.answer.send(Verdict::Settled(outcome)));
    }
}
