//! The one way from a door to an operation: authorise from SPEC, run, wait.

use std::sync::Arc;
use std::time::Duration;

use waybill_kernel::{Caller, Code, Error, Result};
use waybill_store::{Answer, Entry, Registry, Store};

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

impl Driver {
    pub fn new(registry: Registry, store: Store, gatekeeper: Gatekeeper, answer_max: Duration) -> Self {
        let meters = OperationMeters::new(&registry);
        Self(Arc::new(Inner { registry, store, gatekeeper, answer_max, meters }))
    }

    pub fn registry(&self) -> &Registry {
        &self.0.registry
    }

    pub fn store(&self) -> &Store {
        &self.0.store
    }

    /// `input` is the object of arguments, from whichever door; the reader of JSON has passed it.
    pub async fn call(&self, entry: &dyn Entry, caller: &Caller, input: &str) -> Result<Answer> {
        let outcome = self.run(entry, caller, input).await;
        if let Err(error) = &outcome {
            log::refusal(entry.spec().name, caller, error);
        }
        self.0.meters.count(entry.spec().name, outcome.as_ref().err().map(Error::code));
        outcome
    }

    async fn run(&self, entry: &dyn Entry, caller: &Caller, input: &str) -> Result<Answer> {
        entry.spec().authorise(caller)?;
        let call = self.0.gatekeeper.while_allowed(caller, entry.call(&self.0.store, caller, input));
        tokio::time::timeout(self.0.answer_max, call).await.unwrap_or_else(|_| {
            let message = "The answer took too long; the write may or may not have been made.";
            Err(Error::new(Code::Unavailable, message))
        })
    }
}
