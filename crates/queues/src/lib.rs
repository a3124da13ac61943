//! Queues: the SQS API on standard queues, without its wire format.
//!
//! A message is one row, written by its send and deleted by its end. A receive gives it a flight, a small row with
//! the time at which the message is visible again and the token of the latest receive; the message itself is not
//! touched. The protocol crate turns requests into the operations here and names into URLs.

mod flights;
mod message;
pub mod ops;
mod queue;
pub mod rules;

pub use message::{Blob, Message, MessageAttribute, MessageId};
pub use rules::names::{account_of, check_account, queue_name};
use waybill_store::effects::Runner;
use waybill_store::{Domain, Migration, Registry, Settings};

pub const DOMAIN: Domain = Domain { name: NAME, migrations: MIGRATIONS, register, sweeps };

const NAME: &str = "queues";

const MIGRATIONS: &[Migration] =
    &[Migration { version: 15, name: "queues", sql: include_str!("../schema/V0015__queues.sql") }];

/// None: only the protocol of queues calls their operations.
fn register(registry: Registry) -> Registry {
    registry
}

/// None: expired messages are deleted by whoever meets them.
fn sweeps(runner: Runner, _: &Settings) -> Runner {
    runner
}
