//! What a door calls: one operation, or several that are composed, over one store or more.
//!
//! An [`Operation`] is one transaction in home. The few calls that need more (several stores, or something between two
//! transactions) are written as a [`Procedure`]. Both go through the same admission, bounds, counters and log.

use std::future::Future;
use std::time::Duration;

use futures_util::future::{BoxFuture, select_all};
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep_until};
use waybill_kernel::{Caller, OperationSpec, Result};

use crate::operation::{Operation, Reply, Until};
use crate::shares::Share;
use crate::stores::Stores;
use crate::wake::Subscription;
use crate::{Store, Stored, Topic};

/// # Contract
/// Each step is durable when it answers, and the program may end between any two. Whoever writes in several stores first
/// writes down in one of them what the others have to follow.
pub trait Procedure: DeserializeOwned + JsonSchema + Send + Sync + 'static {
    const SPEC: OperationSpec;
    type Output: Serialize + JsonSchema + Send + 'static;

    /// As those of [`Operation`].
    const SUCCESSOR: Option<&'static str> = None;
    const REPLAYS: bool = false;

    /// With the turn of a read: until it is dropped, the answer counts as not yet taken.
    fn call(self, flow: &Flow<'_>) -> impl Future<Output = Answered<Self::Output>> + Send;
}

pub type Answered<T> = Result<(Reply<T>, Option<Share>)>;

/// What a procedure is called with. The caller has been authorised.
#[derive(Clone, Copy)]
pub struct Flow<'a> {
    pub caller: &'a Caller,
    pub stores: &'a Stores,
}

impl<'a> Flow<'a> {
    pub fn new(caller: &'a Caller, stores: &'a Stores) -> Self {
        Self { caller, stores }
    }

    pub fn home(&self) -> &'a Store {
        self.stores.home()
    }

    /// Bytes of rows that the caller's tenant has in other stores than home.
    pub(crate) fn stored_beside(&self) -> i64 {
        self.stores.shards().map(|(_, store)| store.stored_bytes(self.caller.tenant, Stored::Rows)).sum()
    }

    /// One operation as a step, in one of the stores.
    pub fn run<O: Operation>(
        &self,
        store: &Store,
        operation: O,
    ) -> impl Future<Output = Result<Reply<O::Output>>> + Send {
        store.run(operation, self.caller.clone())
    }
}

/// Waits for one topic in several stores at once. To be made before the first look, so that nothing is missed in between.
pub struct Waiting<'a> {
    subscriptions: Vec<(&'a Store, Subscription)>,
}

impl<'a> Waiting<'a> {
    pub fn new(stores: impl IntoIterator<Item = &'a Store>, topic: Topic) -> Self {
        Self { subscriptions: stores.into_iter().map(|store| (store, store.subscribe(topic))).collect() }
    }

    /// Ends with a wake in any of the stores, when what `until` says of one of them is due, or at the deadline. `until` has
    /// one for each store, in their order; none for one that could not be asked, which is looked at again soon.
    pub async fn pause(&mut self, until: &[Option<Until>], deadline: Instant) {
        const LOOK_AGAIN: Duration = Duration::from_secs(1);
        let mut moment = deadline;
        for ((store, subscription), until) in self.subscriptions.iter_mut().zip(until) {
            store.found_nothing(subscription, *until);
            moment = moment.min(match until {
                Some(until) => store.look_again_at(subscription, *until, deadline),
                None => Instant::now() + LOOK_AGAIN,
            });
        }
        let wakes: Vec<BoxFuture<'_, ()>> = self
            .subscriptions
            .iter_mut()
            .map(|(_, subscription)| -> BoxFuture<'_, ()> { Box::pin(subscription.woken()) })
            .collect();
        if wakes.is_empty() {
            return sleep_until(moment).await;
        }
        tokio::select! {
            _ = select_all(wakes) => {}
            () = sleep_until(moment) => {}
        }
    }

    /// The store at this index has given what was waited for.
    pub fn satisfied(&mut self, index: usize) {
        if let Some((_, subscription)) = self.subscriptions.get_mut(index) {
            subscription.satisfied();
        }
    }

    /// The program stops, and nobody waits any more.
    pub fn is_over(&self) -> bool {
        self.subscriptions.iter().any(|(store, _)| store.is_stopping())
    }
}
