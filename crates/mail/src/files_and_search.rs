//! Reservations, search, threads, build slots and products: their operations, and what sending a message asks of them.

use waybill_kernel::Result;
use waybill_store::{Ctx, Registry, Tx};

use crate::acting::Project;
use crate::ops::{files, find, products, slots};
use crate::reservations;
pub(crate) use crate::search::index::index_message;

pub(crate) fn register_files_and_search(registry: Registry) -> Registry {
    let registry = find::register(files::register(registry));
    products::register(slots::register(registry))
}

/// Whether both agents hold active reservations in the project that overlap, of which not both are patterns: then they may write
/// to each other.
pub(crate) async fn share_files(
    ctx: &Ctx<'_>,
    tx: &mut Tx<'_>,
    project: &Project,
    one: i64,
    other: i64,
) -> Result<bool> {
    reservations::share_files(tx, ctx.now, project.id, one, other).await
}
