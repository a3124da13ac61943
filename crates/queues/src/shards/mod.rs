//! Queues whose partitions are in several stores.
//!
//! Home has the catalog, and says which store each partition is in. Every other store that holds partitions of a queue has a
//! copy of the queue's row, its fence: who writes there is fenced by it in the same transaction. No transaction spans two
//! stores, so a change of a queue is first made in home, together with a note for each of the other stores; then they
//! follow, and their notes go (`follow.rs`). Whoever changed the queue is answered when all have followed. What was cut off
//! in between is finished at the next start, by `tend.rs`, and by whoever comes upon it.
//!
//! A call about messages goes straight to the store of their partition (`step.rs`). It takes along what it knows of the
//! queue; where the fence says otherwise the call learns from home, brings the store up to date if that is behind, and is
//! made again. Almost every queue is in home alone: for these nothing of this is asked.

mod catalog;
mod fences;
mod figures;
mod follow;
mod messages;
mod moves;
mod peek;
mod placed;
mod receive;
mod route;
mod start;
mod step;
mod tend;
mod transfers;

use waybill_store::Flow;

use crate::Process;

pub use fences::{FENCES, Fence, PLACED};
pub(crate) use figures::{Elsewhere, held};
pub(crate) use follow::note_change;
pub use moves::move_once;
pub(crate) use placed::all_at_home;
pub use placed::{OnShards, Placed};
pub(crate) use route::{Route, Routes, partitions_in, read_shards};
pub use start::check_placement;
pub use step::At;
pub(crate) use step::What;
pub use tend::{tend, tend_once};
pub(crate) use transfers::{depart, forget_arrivals, forget_refusals, forget_refused, turned_away};

fn process<'a>(flow: &Flow<'a>) -> &'a Process {
    Process::of(flow)
}
