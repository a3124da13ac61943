//! A call on its way through a database thread, with its type erased so that one queue carries all of them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use tokio::sync::oneshot;
use waybill_kernel::{Error, RequestId, Result, Time, request};

use super::Connection;
use crate::Tx;
use crate::operation::{Call, Reach, Work};
use crate::turns::{Owned, Owner};
use crate::tx::Backend;
use crate::waits::Waits;
use crate::wake::{Hub, Wake};

pub(crate) trait Job: Owned + Send {
    /// The caller has gone: nobody would hear the answer.
    fn is_abandoned(&self) -> bool;
    /// Gives room or ends work, and so is run on a full disk too.
    fn relieves(&self) -> bool;
    /// Runs inside the open transaction and keeps the outcome; true when there is something to keep in the database.
    fn perform(&mut self, connection: &mut Connection, now: Time) -> bool;
    /// The transaction is durable (or had nothing to write): answer, and wake those who wait.
    fn answer(self: Box<Self>);
    fn fail(self: Box<Self>, error: Error);
}

pub(crate) struct Pending<W: Work> {
    call: Arc<Call<W>>,
    reply: oneshot::Sender<Result<W::Output>>,
    hub: Hub,
    outcome: Option<Result<W::Output>>,
    wakes: Vec<Wake>,
    /// Whoever serves the batch, what each call tells the log bears the id of its own request.
    request: Option<RequestId>,
    waits: Arc<Waits>,
    owner: Owner,
    /// None once it has been run.
    asked: Option<Instant>,
}

impl<W: Work> Pending<W> {
    pub(crate) fn new(
        call: Arc<Call<W>>,
        reply: oneshot::Sender<Result<W::Output>>,
        hub: Hub,
        waits: Arc<Waits>,
    ) -> Self {
        let (request, asked) = (request::current(), Some(Instant::now()));
        let owner = call.owner();
        Self { call, reply, hub, outcome: None, wakes: Vec::new(), request, waits, owner, asked }
    }

    fn poll_once(&self, connection: &mut Connection, now: Time) -> Result<(W::Output, Vec<Wake>)> {
        let tenant = (self.call.reach == Reach::Tenant).then_some(self.call.caller.tenant);
        let ctx = self.call.ctx(now);
        let mut tx = Tx::new(Backend::Sqlite(connection), tenant);
        let polled = {
            let run = pin!(self.call.work.run(&ctx, &mut tx));
            run.poll(&mut Context::from_waker(Waker::noop()))
        };
        match polled {
            Poll::Ready(output) => Ok((output?, tx.into_wakes()?)),
            Poll::Pending => Err(Error::internal("an operation awaited something other than its transaction")),
        }
    }
}

impl<W: Work> Owned for Pending<W> {
    fn owner(&self) -> Owner {
        self.owner
    }
}

impl Owned for Box<dyn Job> {
    fn owner(&self) -> Owner {
        self.as_ref().owner()
    }
}

impl<W: Work> Job for Pending<W> {
    fn is_abandoned(&self) -> bool {
        self.reply.is_closed()
    }

    fn relieves(&self) -> bool {
        self.call.work.relieves()
    }

    fn perform(&mut self, connection: &mut Connection, now: Time) -> bool {
        let waits = Arc::clone(&self.waits);
        let _in_use = self.asked.take().map(|asked| waits.got(asked));
        // A panic is one caller's internal error: its neighbours in the batch have done nothing wrong.
        let mut id = self.request.take();
        let run = AssertUnwindSafe(|| request::scope(&mut id, || self.poll_once(connection, now)));
        let outcome = catch_unwind(run).unwrap_or_else(|panic| Err(Error::internal(panic_text(panic.as_ref()))));
        self.request = id;
        let (outcome, wakes) = match outcome {
            Ok((output, wakes)) => (Ok(output), wakes),
            Err(error) => (Err(error), Vec::new()),
        };
        self.wakes = wakes;
        self.outcome.insert(outcome).is_ok()
    }

    fn answer(self: Box<Self>) {
        let outcome = self.outcome.unwrap_or_else(|| Err(Error::internal("a call was answered before it ran")));
        // Waiters are woken before the caller gets its reply, so that a caller can rely on it: after the reply to a revocation the key
        // is refused everywhere.
        self.hub.release(&self.wakes);
        let _ = self.reply.send(outcome);
    }

    fn fail(self: Box<Self>, error: Error) {
        // Nobody may know whether it was kept, and a wake in vain does no harm.
        self.hub.release(&self.wakes);
        let _ = self.reply.send(Err(error));
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text =
        panic.downcast_ref::<&str>().map(ToString::to_string).or_else(|| panic.downcast_ref::<String>().cloned());
    format!("an operation panicked: {}", text.unwrap_or_default())
}
