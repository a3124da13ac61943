//! One receive from the partitions of several stores: each store is a step, beginning with another one each time, and all
//! share one deadline.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout};
use waybill_kernel::{Code, Error, Result};
use waybill_store::{Answered, Flow, Reply, Store, Until, Waiting};

use super::messages::{at_home, is_of_store};
use super::placed::OnShards;
use super::route::Route;
use super::step::{At, Calls, What};
use crate::large::complete;
use crate::message::Message;
use crate::ops::ReceiveMessage;
use crate::ops::receive_message::{Fill, Received};
use crate::queue::topic;
use crate::rules::names::{is_fifo, queue_name};
use crate::rules::partitions;
use crate::throttle::Ticket;

/// How long a receive waits for a store that did not answer when it was asked last: the others have messages, too. What it
/// gives out in vain is visible again in its time.
const SUSPECT_MAX: Duration = Duration::from_millis(250);

impl OnShards for ReceiveMessage {
    async fn dispatch(self, flow: &Flow<'_>) -> Answered<Received> {
        // Of almost every receive there are none.
        let names = self.message_attribute_names.clone();
        if !flow.stores.has_shards() || !queue_name(&self.queue_url).is_ok_and(is_fifo) {
            let reply = flow.run(flow.home(), self).await?;
            return whole(flow, flow.home(), reply, &names).await;
        }
        Box::pin(dispatch_receive(self, flow)).await
    }
}

/// With what its messages lack.
async fn whole(flow: &Flow<'_>, store: &Store, reply: Reply<Received>, names: &[String]) -> Answered<Received> {
    match reply {
        Reply::Done(mut received) if received.messages.iter().any(|message| message.unread.is_some()) => {
            let turn = Box::pin(complete(flow, store, &mut received.messages, names)).await?;
            Ok((Reply::Done(received), turn))
        }
        reply => Ok((reply, None)),
    }
}

async fn dispatch_receive(mut request: ReceiveMessage, flow: &Flow<'_>) -> Answered<Received> {
    let queue = queue_name(&request.queue_url)?.to_owned();
    let Some(calls) = Calls::of(flow, &queue).await? else {
        let names = request.message_attribute_names.clone();
        let (reply, _) = at_home(request, flow, &queue).await?;
        return whole(flow, flow.home(), reply, &names).await;
    };
    request.ticket = Ticket::shared();
    Ok((Receive { request, calls, was_cut_off: false }.run().await?, None))
}

struct Receive<'a> {
    request: ReceiveMessage,
    calls: Calls<'a>,
    /// The look before has not come to all stores.
    was_cut_off: bool,
}

/// What one look at all stores has found.
#[derive(Default)]
struct Pass {
    messages: Vec<Message>,
    /// Of one answer, whichever stores it comes from.
    fill: Fill,
    /// What each store knows of the time to come; nothing of one that could not be asked.
    until: Vec<Option<Until>>,
    /// Those that have given something.
    satisfied: Vec<usize>,
    failure: Option<Error>,
    has_answer: bool,
    /// How long the queue wants to be waited for.
    at_most: Option<Duration>,
    is_cut_off: bool,
    /// It gives again what was given before, or forgets it, and takes nothing.
    is_again: bool,
    /// What was answered before cannot be answered as it was.
    is_over: bool,
    /// The first partition that the latest step did not come to.
    next: Option<i64>,
}

impl Receive<'_> {
    async fn run(mut self) -> Result<Reply<Received>> {
        let caller = self.calls.flow.caller;
        let wait = self.request.patience(caller);
        let entered = Instant::now();
        let mut deadline = entered + wait.map_or(Duration::ZERO, |wait| wait.at_most);
        loop {
            let route = Arc::clone(&self.calls.route);
            let names = route.stores(0);
            let stores = names.iter().map(|name| self.calls.store(name)).collect::<Result<Vec<_>>>()?;
            let mut waiting = Waiting::new(stores, topic(caller.tenant, &self.calls.queue));
            while route == self.calls.route {
                let pass = self.look(&names).await?;
                pass.satisfied.iter().for_each(|index| waiting.satisfied(*index));
                if let Some(failure) = pass.failure.filter(|_| !pass.has_answer) {
                    return Err(failure);
                }
                if !pass.messages.is_empty() {
                    return Ok(Reply::Done(Received::new(pass.messages)));
                }
                if let (Some(wait), Some(at_most)) = (wait, pass.at_most) {
                    deadline = entered + wait.at_most.min(at_most);
                }
                if Instant::now() >= deadline || waiting.is_over() {
                    return Ok(Reply::Empty { answer: Received::new(Vec::new()), until: Until::default() });
                }
                self.was_cut_off = pass.is_cut_off;
                if !pass.is_cut_off && route == self.calls.route {
                    waiting.pause(&pass.until, deadline).await;
                }
            }
        }
    }

    /// Asks one store after another until there are enough messages.
    async fn look(&mut self, names: &[&str]) -> Result<Pass> {
        let (process, tenant) = (self.calls.process, self.calls.flow.caller.tenant);
        let begin = process.turn(tenant, &self.calls.queue);
        let Some(attempt) = self.request.receive_request_attempt_id.clone() else {
            return self.ask(names, begin & self.calls.route.spread(), What::New).await;
        };
        let alone = process.attempt(tenant, &self.calls.queue, &attempt).await;
        // Whoever makes the same attempt elsewhere takes from the same stores, in the same order.
        let first = partitions::hash(&attempt) & self.calls.route.spread();
        // What was answered before may be in any of them, and comes before what is new. Without the answer of one of them
        // nobody knows what that was.
        let mut before = self.ask(names, first, What::Before).await?;
        if let Some(failure) = before.failure.take() {
            return Err(failure);
        }
        if !before.messages.is_empty() && !before.is_over {
            return Ok(before);
        }
        if before.is_over {
            // In those that give nothing now it would stand beside the answer, which could not be given again.
            let mut forgotten = self.ask(names, first, What::Forget).await?;
            if let Some(failure) = forgotten.failure.take() {
                return Err(failure);
            }
        }
        let what = if before.is_over { What::New } else { What::First };
        let begin = if self.was_cut_off { begin } else { first };
        let pass = self.ask(names, begin & self.calls.route.spread(), what).await;
        drop(alone);
        pass
    }

    async fn ask(&mut self, names: &[&str], begin: i64, what: What) -> Result<Pass> {
        let route = Arc::clone(&self.calls.route);
        let (process, tenant) = (self.calls.process, self.calls.flow.caller.tenant);
        let limit = usize::try_from(self.request.max_number_of_messages.unwrap_or(1)).unwrap_or(0).max(1);
        let is_again = matches!(what, What::Before | What::Forget);
        let mut pass = Pass { until: vec![None; names.len()], is_again, ..Pass::default() };
        let (began, mut next) = (Instant::now(), None);
        let mut order = route.stores(begin);
        // Those that may not answer come last.
        order.sort_by_key(|name| process.is_failing(name));
        for (number, name) in order.into_iter().enumerate() {
            let is_late = number > 0 && began.elapsed() >= process.pass_max();
            // A part of what was given before is not what was given before, however long the rest takes.
            if !is_again && (is_late || pass.messages.len() >= limit || pass.fill.is_full) {
                pass.is_cut_off |= is_late && pass.messages.is_empty();
                next = (begin..=begin + route.spread()).find(|partition| route.of_partition(*partition) == name);
                // The store before it may have partitions left that come first.
                next = next.into_iter().chain(pass.next).min_by_key(|partition| (partition - begin) & route.spread());
                break;
            }
            let index = names.iter().position(|known| *known == name).unwrap_or(usize::MAX);
            let rest =
                Some(limit.saturating_sub(pass.messages.len())).filter(|_| !is_again && !pass.messages.is_empty());
            let outcome = self.step(name, (begin, what), rest, pass.fill).await;
            self.note(name, outcome, index, &mut pass)?;
        }
        next = next.or(pass.next);
        if !is_again {
            process.set_turn(tenant, &self.calls.queue, next.unwrap_or(begin + 1) & route.spread());
        }
        Ok(pass)
    }

    /// The first step says what is wrong with the request, the others ask for what is missing.
    async fn step(
        &mut self,
        name: &str,
        (begin, what): (i64, What),
        rest: Option<usize>,
        fill: Fill,
    ) -> Result<Reply<Received>> {
        let is_suspect = self.calls.process.is_failing(name);
        let request = &self.request;
        let step = |route: &Route| {
            let at = At::to_receive(route, begin, what, fill);
            let mut step = ReceiveMessage { at: at.clone(), ..request.clone() };
            if let Some(rest) = rest {
                step.max_number_of_messages = i64::try_from(rest).ok();
            }
            (at, step)
        };
        let (flow, store) = (self.calls.flow, self.calls.store(name)?);
        let names = &request.message_attribute_names;
        let work = async {
            let reply = self.calls.one(|_| name.to_owned(), step).await?;
            Ok(whole(flow, store, reply, names).await?.0)
        };
        if !is_suspect {
            return work.await;
        }
        let late = |_| Err(Error::new(Code::StoreUnavailable, Code::StoreUnavailable.entry().title));
        timeout(SUSPECT_MAX, work).await.unwrap_or_else(late)
    }

    fn note(&self, name: &str, outcome: Result<Reply<Received>>, index: usize, pass: &mut Pass) -> Result<()> {
        match outcome {
            Ok(Reply::Done(some) | Reply::Replay(some)) => {
                pass.has_answer = true;
                pass.satisfied.push(index);
                (pass.next, pass.fill) = (some.step.next, some.step.fill);
                pass.messages.extend(some.messages);
            }
            Ok(Reply::Empty { until, answer }) => {
                pass.has_answer = true;
                (pass.next, pass.fill) = (answer.step.next, answer.step.fill);
                pass.is_over |= answer.step.is_over;
                pass.at_most = until.at_most.or(pass.at_most);
                pass.is_cut_off |= answer.step.is_cut_off;
                if let Some(known) = pass.until.get_mut(index) {
                    *known = Some(until);
                }
            }
            Err(error) if is_of_store(&error) => {
                if self.calls.process.set_failing(name, true) {
                    let cause = error.cause().unwrap_or_default();
                    tracing::warn!(store = name, %error, cause, "a store does not answer; others go on");
                }
                pass.failure = Some(error);
                return Ok(());
            }
            // What was taken elsewhere is given out.
            Err(_) if !pass.messages.is_empty() && !pass.is_again => return Ok(()),
            Err(error) => return Err(error),
        }
        if self.calls.process.set_failing(name, false) {
            tracing::info!(store = name, "a store answers again");
        }
        Ok(())
    }
}
