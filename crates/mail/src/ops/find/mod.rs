//! Finding messages again: by words, by thread, by number.

use waybill_store::Registry;

pub mod get_thread;
pub mod search_messages;
pub mod summarize_thread;

pub(crate) use super::files::READ;

pub(crate) fn register(registry: Registry) -> Registry {
    registry
        .with::<search_messages::SearchMessages>()
        .with::<summarize_thread::SummarizeThread>()
        .with::<get_thread::GetThread>()
}
