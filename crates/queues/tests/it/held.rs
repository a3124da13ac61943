//! Calls that stand still in the middle, as on a machine that does. On PostgreSQL others go on meanwhile.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::timeout;
use waybill_kernel::Result;
use waybill_store::{Gate, Operation, Reply};
use waybill_testkit::stores::TestStore;

use crate::support::FAILED;

/// A call that is held before one of its statements.
pub struct Held<T> {
    gate: Arc<Gate>,
    task: JoinHandle<Result<Reply<T>>>,
}

impl<T: Send + 'static> Held<T> {
    /// After so many statements, of which those that are sent together are one.
    pub async fn after<O: Operation<Output = T>>(on: &TestStore, operation: O, statements: usize) -> Self {
        let (gate, mut arrivals) = Gate::new();
        let gate = Arc::new(gate);
        let (store, caller, at_gate) = (on.store.clone(), on.admin.clone(), Arc::clone(&gate));
        let task = tokio::spawn(async move { store.run_gated(operation, caller, Some(at_gate)).await });
        for _ in 0..statements {
            arrivals.recv().await.unwrap();
            gate.step();
        }
        arrivals.recv().await.unwrap();
        Self { gate, task }
    }

    pub async fn end(self) -> Result<Reply<T>> {
        self.gate.open();
        timeout(FAILED, self.task).await.unwrap().unwrap()
    }
}

pub fn spawn<O: Operation>(on: &TestStore, operation: O) -> JoinHandle<Result<Reply<O::Output>>> {
    let (store, caller) = (on.store.clone(), on.admin.clone());
    tokio::spawn(async move { store.run(operation, caller).await })
}

pub async fn is_waiting<T>(task: &mut JoinHandle<T>) -> bool {
    timeout(Duration::from_millis(500), task).await.is_err()
}
