//! The store's promises, kept by both engines: conformance, isolation of tenants, void batches, races, faults.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![expect(clippy::print_stdout, reason = "a failed test says how far it came")]

mod conclude;
mod conformance;
mod crowd;
mod damage;
mod effects;
mod fair;
mod faults;
mod feeds;
mod holds;
mod model;
mod race;
mod rls;
mod shared_transaction;
mod stored;
mod support;
mod tasks;
mod void_batch;
