//! Calls that share a transaction. BEGIN, COMMIT, the flush of the log and the round trips between them cost as much as the
//! statements of a small operation; while many call at once, several pay for them together. A call that comes alone is alone.
//!
//! Only operations that say so come here ([`crate::Operation::sharing`]), and only calls of one tenant share. They run one after
//! another, each seeing what those before it have written, so that the outcome is as if each had been committed by itself. Nobody
//! is answered before the commit. If anything but a refusal without a trace happens, nothing of the transaction is kept and each
//! call is run by itself: what is wrong with one of them is its own affair. So is what one of them would have to wait for.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use futures_util::FutureExt;
use tokio::sync::oneshot;
use waybill_kernel::request::{self, RequestId};
use waybill_kernel::{Error, Mode, Result, Tenant};

use super::Core;
use super::erased::Erased;
use super::failure::{self, Failure};
use super::transaction::Transaction;
use crate::Tx;
use crate::store::overloaded;
use crate::turns::{Owned, Owner, Turns};
use crate::tx::Backend;
use crate::wake::Wake;

/// Calls of one transaction. With more the first would wait long for the last, and keep its rows from others meanwhile.
const CALLS_MAX: usize = 8;
/// Of the lanes one in so many carries calls that share: few, or there would be nobody to share with. A carrier that had to stand
/// in the line of single calls would keep its own there, whose turn it is, behind whoever brings many of those.
const LANES_PER_CARRIER: usize = 4;
/// Of the carriers one in so many carries calls about one thing. Two at a time hide each other's round trips; more would hold
/// more of its rows at once, and where a thing is spread over several databases make more transactions than there are cores.
const CARRIERS_PER_THING: usize = 2;
/// A call that has to wait for somebody else's lock waits by itself, not with seven others behind it. It also ends at once
/// what would be a deadlock, which the server looks for after a second only.
const LOCK_WAIT_MS: u32 = 100;

pub(super) struct Shared {
    line: Mutex<Line>,
    carriers_max: usize,
}

struct Line {
    /// By tenant, and within it by what they are about.
    waiting: Turns<Waiting>,
    /// Tasks that take calls from the line. There are none while it is empty for longer.
    carriers: usize,
    /// Transactions under way.
    carried: HashMap<Owner, usize>,
    /// Of the next call.
    number: u64,
}

struct Waiting {
    number: u64,
    tenant: Tenant,
    owner: Owner,
    order: String,
    call: Arc<dyn Erased>,
    request: Option<RequestId>,
    asked: Instant,
    answer: oneshot::Sender<Verdict>,
}

impl Owned for Waiting {
    fn owner(&self) -> Owner {
        self.owner
    }
}

enum Verdict {
    Settled(Result<()>),
    /// Nothing was kept: the call is to be run by itself.
    Alone,
}

impl Shared {
    pub(super) fn new(lanes: usize) -> Self {
        let line = Line { waiting: Turns::new(), carriers: 0, carried: HashMap::new(), number: 0 };
        Self { line: Mutex::new(line), carriers_max: (lanes / LANES_PER_CARRIER).max(1) }
    }

    pub(super) fn carriers_max(&self) -> usize {
        self.carriers_max
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next calls that share. None ends the carrier that asks: whatever still waits is for those under way.
    fn take(&self) -> Option<(Vec<Waiting>, Carried<'_>)> {
        let mut line = self.line();
        let Line { waiting, carried, .. } = &mut *line;
        let of_a_thing = (self.carriers_max / CARRIERS_PER_THING).max(1);
        let may = |owner: Owner| {
            let is_about_nothing = owner == Owner::new(Tenant(owner.tenant), None::<&str>);
            is_about_nothing || carried.get(&owner).is_none_or(|carriers| *carriers < of_a_thing)
        };
        let mut calls = Vec::new();
        while calls.is_empty() {
            calls = waiting.take(CALLS_MAX, may);
            if calls.is_empty() {
                break;
            }
            calls.retain(|call| !call.answer.is_closed());
        }
        let Some(owner) = calls.first().map(Owned::owner) else {
            line.carriers -= 1;
            return None;
        };
        *carried.entry(owner).or_default() += 1;
        drop(line);
        calls.sort_by(|one, other| one.order.cmp(&other.order));
        Some((calls, Carried { shared: self, owner }))
    }

    /// False when a carrier has taken it already.
    fn withdraw(&self, owner: Owner, number: u64) -> bool {
        self.line().waiting.withdraw(owner, |waiting| waiting.number == number).is_some()
    }
}

/// A transaction that is under way.
struct Carried<'a> {
    shared: &'a Shared,
    owner: Owner,
}

impl Drop for Carried<'_> {
    fn drop(&mut self) {
        let mut line = self.shared.line();
        if let Some(carriers) = line.carried.get_mut(&self.owner) {
            *carriers -= 1;
            if *carriers == 0 {
                line.carried.remove(&self.owner);
            }
        }
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
    pub(super) async fn share(
        self: &Arc<Self>,
        call: &Arc<dyn Erased>,
        tenant: Tenant,
        deadline: tokio::time::Instant,
    ) -> Result<bool> {
        let Some(sharing) = call.sharing() else { return Ok(false) };
        let owner = Owner::new(tenant, sharing.about);
        let (number, mut answer) = self.line_up(call, (tenant, owner), sharing.order)?;
        let verdict = match tokio::time::timeout_at(deadline, &mut answer).await {
            Ok(verdict) => verdict,
            Err(_) if self.shared.withdraw(owner, number) => {
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

    fn line_up(
        self: &Arc<Self>,
        call: &Arc<dyn Erased>,
        (tenant, owner): (Tenant, Owner),
        order: &str,
    ) -> Result<(u64, oneshot::Receiver<Verdict>)> {
        let (answer, answered) = oneshot::channel();
        let mut line = self.shared.line();
        if line.waiting.len() >= self.options.queue_max {
            return Err(overloaded());
        }
        let number = line.number;
        line.number += 1;
        let (call, request, order) = (Arc::clone(call), request::current(), order.to_owned());
        line.waiting.push(Waiting { number, tenant, owner, order, call, request, asked: Instant::now(), answer });
        if line.carriers < self.shared.carriers_max {
            line.carriers += 1;
            tokio::spawn(Arc::clone(self).carry());
        }
        Ok((number, answered))
    }

    async fn carry(self: Arc<Self>) {
        let mut carrier = Carrier(Some(&self.shared));
        while let Some((calls, _under_way)) = self.shared.take() {
            self.run_together(calls).await;
        }
        carrier.0 = None;
    }

    async fn run_together(&self, calls: Vec<Waiting>) {
        let Some(tenant) = calls.first().map(|call| call.tenant) else { return };
        let Ok(client) = self.pool.get().await else { return alone(calls) };
        let _in_use = self.waits.got_together(calls.iter().map(|call| call.asked));
        let statements = Arc::clone(&self.statements);
        let patience = self.options.patience();
        let mut transaction = Transaction::new(client, statements, Mode::Write, Some(tenant), None, patience);
        transaction.wait_for_locks(LOCK_WAIT_MS);
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
