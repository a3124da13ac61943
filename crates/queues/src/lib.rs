//! Queues: the SQS API on standard queues, without its wire format.
//!
//! A message is one row, written by its send and deleted by its end. A receive gives it a flight, a small row with
//! the time at which the message is visible again and the token of the latest receive; the message itself is not
//! touched. The protocol crate turns requests into the operations here and names into URLs.

mod catalog;
mod counts;
mod dead_letters;
mod ends;
mod flights;
mod message;
mod move_tasks;
pub mod ops;
mod parts;
mod queue;
pub mod rules;
mod sends;
mod settings;
pub mod sweeps;
mod visibility;

pub use message::{Blob, Message, MessageAttribute, MessageId};
pub use rules::names::{account_of, check_account, queue_name};
pub use sends::Known;
pub use settings::Settings;
use waybill_store::effects::Runner;
use waybill_store::{Domain, Migration, Registry};

pub const DOMAIN: Domain = Domain { name: NAME, migrations: MIGRATIONS, register, sweeps: start_sweeps };

const NAME: &str = "queues";

const MIGRATIONS: &[Migration] =
    &[Migration { version: 15, name: "queues", sql: include_str!("../schema/V0015__queues.sql") }];

/// None: only the protocol of queues calls their operations.
fn register(registry: Registry) -> Registry {
    registry
}

fn start_sweeps(runner: Runner, settings: &waybill_store::Settings) -> Runner {
    match settings.find::<Settings>() {
        Some(settings) => sweeps::start(runner, settings),
        None => sweeps::start(runner, &Settings::default()),
    }
}
