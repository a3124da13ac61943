//! The one way from any door to an operation: authorise from SPEC, run, wait, count.
//!
//! A door first has a call admitted, before it reads what came with it, and then has it made: by name with JSON text on both
//! sides (REST, MCP), as one turn of a stream, or with the operation's own types (a protocol of one domain).

use std::sync::Arc;
use std::time::Duration;

use waybill_kernel::{Caller, Code, Error, OperationSpec, Result};
use waybill_store::shares::Share;
use waybill_store::{Answer, Entry, Operation, Registry, Reply, Store, StreamEntry, Turn};

use crate::auth::Gatekeeper;
use crate::log;
use crate::metrics::OperationMeters;

#[derive(Clone)]
pub struct Driver(Arc<Inner>);

struct Inner {
    registry: Registry,
    store: Store,
    gatekeeper: Gatekeeper,
    answer_max: Duration,
    meters: OperationMeters,
}

/// A call that this caller may make.
#[must_use]
pub struct Admitted<'a> {
    driver: &'a Inner,
    spec: &'static OperationSpec,
    caller: &'a Caller,
}

impl Driver {
    pub fn new(registry: Registry, store: Store, gatekeeper: Gatekeeper, answer_max: Duration) -> Self {
        let meters = OperationMeters::default();
        Self(Arc::new(Inner { registry, store, gatekeeper, answer_max, meters }))
    }

    pub fn registry(&self) -> &Registry {
        &self.0.registry
    }

    /// Before anything of the input is looked at: a caller without the right learns nothing about its shape.
    pub fn admit<'a>(&'a self, spec: &'static OperationSpec, caller: &'a Caller) -> Result<Admitted<'a>> {
        let admitted = Admitted { driver: &self.0, spec, caller };
        if let Err(refusal) = spec.authorise(caller) {
            return admitted.counted(Err(refusal));
        }
        Ok(admitted)
    }
}

impl Admitted<'_> {
    /// `input` is the object of arguments; the reader of JSON has passed it.
    pub async fn call(self, entry: &dyn Entry, input: &str) -> Result<Answer> {
        self.watched(entry.call(&self.driver.store, self.caller, input)).await
    }

    pub async fn turn(self, entry: &dyn StreamEntry, input: &str) -> Result<Turn> {
        self.watched(entry.turn(&self.driver.store, self.caller, input)).await
    }

    /// With the turn of a read, to be kept until there is room for its answer.
    pub async fn run<O: Operation>(self, operation: O) -> Result<(Reply<O::Output>, Option<Share>)> {
        self.watched(self.driver.store.run_in_turn(operation, self.caller.clone())).await
    }

    /// Ends with the caller's key, and when it takes too long.
    async fn watched<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let work = self.driver.gatekeeper.while_allowed(self.caller, work);
        let outcome = tokio::time::timeout(self.driver.answer_max, work).await.unwrap_or_else(|_| {
            let message = "The answer took too long; the write may or may not have been made.";
            Err(Error::new(Code::Unavailable, message))
        });
        self.counted(outcome)
    }

    fn counted<T>(&self, outcome: Result<T>) -> Result<T> {
        let Self { driver, spec, caller } = self;
        if let Err(error) = &outcome {
            log::refusal(spec.name, caller, error);
        }
        driver.meters.count(spec.name, outcome.as_ref().err().map(Error::code));
        outcome
    }
}
