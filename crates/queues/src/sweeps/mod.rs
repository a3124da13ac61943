//! What recurs about queues.

mod drain;
mod moves;
mod upkeep;

use waybill_store::effects::Runner;

pub use drain::Drain;
pub use moves::Moves;
pub use upkeep::Upkeep;

use crate::Settings;

pub(crate) fn start(runner: Runner, settings: &Settings) -> Runner {
    runner.with(Drain::new(settings)).with(Upkeep::new(settings)).with(Moves::new(settings))
}
