//! Reservations, search, threads, build slots and products: their operations, and what sending a message asks of them.

use waybill_store::Registry;

use crate::ops::{files, find, products, slots};
pub(crate) use crate::reservations::SharedFiles;
pub(crate) use crate::search::index::index_message;

pub(crate) fn register_files_and_search(registry: Registry) -> Registry {
    let registry = find::register(files::register(registry));
    products::register(slots::register(registry))
}
