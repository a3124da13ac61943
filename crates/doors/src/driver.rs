//! The one way from any door to an operation or a procedure: authorise from SPEC, run, wait, count.
//!
//! A door first has a call admitted, before it reads the body, and then makes it: by name with JSON text in and out (REST, MCP), as one
//! turn of a stream, or with the operation's own types (a protocol of one domain).

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use waybill_kernel::{Caller, Code, Error, OperationSpec, Result};
use waybill_store::shares::Share;
use waybill_store::{
    Answer, Entry, Flow, Procedure, Registry, Reply, Store, Stored, StoredCaps, Stores, StreamEntry, Turn,
};

use crate::auth::Gatekeeper;
use crate::log;
use crate::metrics::OperationMeters;

/// A call that takes longer than this is counted as one that waits.
const STAYS_AFTER: Duration = Duration::from_millis(100);

#[derive(Clone)]
pub struct Driver(Arc<Inner>);

struct Inner {
    registry: Registry,
    stores: Stores,
    gatekeeper: Gatekeeper,
    answer_max: Duration,
    meters: OperationMeters,
    caps: StoredCaps,
}

/// A call that this caller may make.
#[must_use]
pub struct Admitted<'a> {
    driver: &'a Inner,
    spec: &'static OperationSpec,
    caller: &'a Caller,
}

impl Driver {
    pub fn new(registry: Registry, stores: impl Into<Stores>, gatekeeper: Gatekeeper, answer_max: Duration) -> Self {
        let (stores, meters) = (stores.into(), OperationMeters::default());
        let caps = StoredCaps::of(stores.home().settings());
        Self(Arc::new(Inner { registry, stores, gatekeeper, answer_max, meters, caps }))
    }

    pub fn registry(&self) -> &Registry {
        &self.0.registry
    }

    /// Ends all waits, in every store, because the program stops: each call answers with what there is.
    pub fn stop_waiting(&self) {
        self.0.stores.stop_waiting();
    }

    /// Decided before the input is looked at, so that a caller without the right learns nothing about its shape.
    pub fn admit<'a>(&'a self, spec: &'static OperationSpec, caller: &'a Caller) -> Result<Admitted<'a>> {
        let admitted = Admitted { driver: &self.0, spec, caller };
        if let Err(refusal) = spec.authorise(caller).and_then(|()| self.0.check_room(spec, caller)) {
            return admitted.counted(Err(refusal));
        }
        Ok(admitted)
    }
}

impl Inner {
    /// Decided by what the process knows, without a statement. As many calls as are under way at once may pass the cap together.
    fn check_room(&self, spec: &OperationSpec, caller: &Caller) -> Result<()> {
        if !spec.stores || !self.caps.has(Stored::Rows) {
            return Ok(());
        }
        let used = self.stores.all().map(|store: &Store| store.stored_bytes(caller.tenant, Stored::Rows)).sum();
        self.caps.check(Stored::Rows, used, 1)
    }
}

impl Admitted<'_> {
    /// `input` is the object of arguments; the reader of JSON has passed it.
    pub async fn call(self, entry: &dyn Entry, input: &str) -> Result<Answer> {
        self.watched(entry.call(&self.driver.stores, self.caller, input).as_mut()).await
    }

    pub async fn turn(self, entry: &dyn StreamEntry, input: &str) -> Result<Turn> {
        self.watched(entry.turn(self.driver.stores.home(), self.caller, input).as_mut()).await
    }

    /// Also gives the turn of a read, which the caller keeps until there is room for the answer.
    pub async fn run<P: Procedure>(self, procedure: P) -> Result<(Reply<P::Output>, Option<Share>)> {
        self.watched(pin!(procedure.call(&Flow::new(self.caller, &self.driver.stores)))).await
    }

    /// Ends when the caller's key does or when the call takes too long. Most calls are over before either has to be checked.
    async fn watched<T>(&self, mut work: Pin<&mut (impl Future<Output = Result<T>> + ?Sized)>) -> Result<T> {
        let outcome = match timeout(STAYS_AFTER, work.as_mut()).await {
            Ok(outcome) => outcome,
            Err(_) => Box::pin(self.watched_long(work)).await,
        };
        self.counted(outcome)
    }

    async fn watched_long<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let rest = self.driver.answer_max.saturating_sub(STAYS_AFTER);
        let work = self.driver.gatekeeper.while_allowed(self.caller, work);
        timeout(rest, work).await.unwrap_or_else(|_| {
            let message = "The answer took too long; the write may or may not have been made.";
            Err(Error::new(Code::Unavailable, message))
        })
    }

    fn counted<T>(&self, outcome: Result<T>) -> Result<T> {
        let Self { driver, spec, caller } = self;
        let id = || driver.registry.id(spec);
        if let Err(error) = &outcome {
            log::refusal(id, caller, error);
        }
        driver.meters.count(spec, outcome.as_ref().err().map(Error::code), id);
        outcome
    }
}
