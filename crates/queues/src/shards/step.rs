//! A call that is made in the store of a partition.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use waybill_kernel::{Code, Error, Result};
use waybill_store::stores::HOME;
use waybill_store::{Flow, Operation, Reply, Store};

use super::follow::{Follow, unknown_shard};
use super::route::{Record, Route, Routes};
use crate::Process;
use crate::catalog::too_busy;
use crate::ops::receive_message::Fill;
use crate::queue::Queue;
use crate::rules::names::unknown_queue;

/// Times that a call is made because the queue was found to be otherwise than thought.
const TRIES_MAX: usize = 4;

/// What a step of a receive gives that may have been made before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// Only what was given then.
    Before,
    /// Nothing. What was given then is over, and would be taken for a part of what is given now.
    Forget,
    /// No store had been asked for this attempt a moment ago: who has asked since shares the answer.
    First,
    /// Whatever was given before: it is over, or nobody named an attempt.
    New,
}

/// What a call has been sent to a store by. Left alone by whoever makes a request.
#[derive(Clone, Debug, Default)]
pub struct At(Option<Arc<Sent>>);

#[derive(Debug)]
struct Sent {
    incarnation: i64,
    generation: i64,
    /// Entries of the whole batch.
    entries: Option<usize>,
    /// The partition that a receive begins with.
    begin: i64,
    /// What a receive is to give.
    what: What,
    /// What other stores have put into the answer of a receive.
    fill: Fill,
    /// The store has said otherwise.
    is_other: AtomicBool,
}

impl At {
    pub(crate) fn new(route: &Route) -> Self {
        Self(Some(Arc::new(Sent {
            incarnation: route.incarnation,
            generation: route.generation,
            entries: None,
            begin: 0,
            what: What::New,
            fill: Fill::default(),
            is_other: AtomicBool::new(false),
        })))
    }

    /// As a part of a batch of so many entries.
    pub(crate) fn of_batch(route: &Route, entries: usize) -> Self {
        Self::new(route).with(|sent| sent.entries = Some(entries))
    }

    pub(crate) fn to_receive(route: &Route, begin: i64, what: What, fill: Fill) -> Self {
        Self::new(route).with(|sent| (sent.begin, sent.what, sent.fill) = (begin, what, fill))
    }

    fn with(mut self, change: impl FnOnce(&mut Sent)) -> Self {
        if let Some(sent) = self.0.as_mut().and_then(Arc::get_mut) {
            change(sent);
        }
        self
    }

    /// In the transaction, when the queue has been read: is it what the call was sent here for?
    pub(crate) fn check(&self, queue: &Queue) -> Result<()> {
        let is_right = match &self.0 {
            Some(sent) => (queue.incarnation, queue.generation) == (sent.incarnation, sent.generation),
            // A call that does not know of other stores would miss what is there.
            None => !queue.is_spread(),
        };
        if is_right {
            return Ok(());
        }
        if let Some(sent) = &self.0 {
            sent.is_other.store(true, Ordering::Relaxed);
        }
        Err(too_busy())
    }

    fn is_other(&self) -> bool {
        self.0.as_ref().is_some_and(|sent| sent.is_other.load(Ordering::Relaxed))
    }

    /// Is it a step of a call that other stores may answer as well?
    pub(crate) fn is_step(&self) -> bool {
        self.0.is_some()
    }

    pub(crate) fn entries(&self, own: usize) -> usize {
        self.0.as_ref().and_then(|sent| sent.entries).unwrap_or(own)
    }

    pub(crate) fn begin(&self) -> Option<i64> {
        self.0.as_ref().map(|sent| sent.begin)
    }

    pub(crate) fn fill(&self) -> Fill {
        self.0.as_ref().map(|sent| sent.fill).unwrap_or_default()
    }

    /// None where the receive is no step.
    pub(crate) fn what(&self) -> Option<What> {
        self.0.as_ref().map(|sent| sent.what)
    }
}

/// The steps of one call about a queue.
pub(crate) struct Calls<'a> {
    pub flow: &'a Flow<'a>,
    pub queue: String,
    pub route: Arc<Route>,
    pub process: &'a Process,
}

impl<'a> Calls<'a> {
    /// None where the queue is in home alone, or there is none.
    pub(crate) async fn of(flow: &'a Flow<'a>, queue: &str) -> Result<Option<Self>> {
        let process = Process::of(flow);
        let route = process.routes().find(flow.stores, flow.caller.tenant, queue).await?;
        Ok(route.map(|route| Self { flow, queue: queue.to_owned(), route, process }))
    }

    /// Another line of steps of the same call.
    pub(crate) fn again(&self) -> Self {
        let (flow, queue, route, process) = (self.flow, self.queue.clone(), Arc::clone(&self.route), self.process);
        Self { flow, queue, route, process }
    }

    pub(crate) fn store(&self, name: &str) -> Result<&'a Store> {
        self.flow.stores.find(name).ok_or_else(|| unknown_shard(name))
    }

    /// One step, in the store that `shard` picks.
    pub(crate) async fn one<O: Operation>(
        &mut self,
        shard: impl Fn(&Route) -> String + Send,
        step: impl Fn(&Route) -> (At, O) + Send,
    ) -> Result<Reply<O::Output>> {
        for _ in 0..TRIES_MAX {
            let name = shard(&self.route);
            let store = self.store(&name)?;
            let (at, operation) = step(&self.route);
            match self.flow.run(store, operation).await {
                Err(error) if self.learns(&at, &error, &name).await? => {}
                outcome => return outcome,
            }
        }
        Err(too_busy())
    }

    /// True where the step has failed because the store or this process did not know the queue as it is, and knows it now.
    async fn learns(&mut self, at: &At, error: &Error, shard: &str) -> Result<bool> {
        let may_be_behind = at.is_other() || matches!(error.code(), Code::QueueDoesNotExist | Code::Internal);
        if !may_be_behind {
            return Ok(false);
        }
        let tenant = self.flow.caller.tenant;
        let record = Record::read(self.flow.home(), tenant, &self.queue).await?;
        let followed = match (shard, &record) {
            (HOME, _) | (_, None) => false,
            (_, Some(record)) => {
                let follow = Follow::new(tenant, &self.queue, shard, Some(record.clone()), 0);
                self.store(shard)?.system().run(follow).await?
            }
        };
        let routes: &Routes = self.process.routes();
        match routes.learn(self.flow.stores, tenant, &self.queue).await? {
            Some(route) => {
                let is_new = route != self.route;
                self.route = route;
                Ok(is_new || followed)
            }
            // It is in home alone now: whoever calls again finds it there.
            None if record.is_some() => Err(too_busy()),
            None => Err(unknown_queue(&self.queue)),
        }
    }
}
