//! Do the rows of messages belong together? Everything that a message consists of is committed in one transaction, so whatever lacks
//! its counterpart was damaged, or is a bug of ours.

mod nightly;
mod walks;

pub use nightly::NightlyCheck;
use schemars::JsonSchema;
use serde::Serialize;
pub(crate) use walks::{Step, Walk, step};

/// A row that lacks what was to be committed with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct Finding {
    pub kind: &'static str,
    /// The client message id of a dedupe row, the id of a message; of others what they are about.
    pub id: String,
}

pub(crate) const DEDUPE_WITHOUT_MESSAGE: &str = "dedupe_without_message";
pub(crate) const DEDUPE_OF_ANOTHER_MESSAGE: &str = "dedupe_of_another_message";
pub(crate) const PRUNED_MESSAGE_THERE: &str = "pruned_message_there";
pub(crate) const MESSAGE_WITHOUT_DEDUPE: &str = "message_without_dedupe";
pub(crate) const MESSAGE_WITHOUT_HISTORY: &str = "message_without_history";
pub(crate) const MENTIONS_DIFFER: &str = "mentions_differ";
pub(crate) const HISTORY_WITHOUT_MESSAGE: &str = "history_without_message";
pub(crate) const DELIVERY_WITHOUT_MESSAGE: &str = "delivery_without_message";
pub(crate) const DELIVERY_WITHOUT_DEDUPE: &str = "delivery_without_dedupe";
pub(crate) const MENTION_WITHOUT_MESSAGE: &str = "mention_without_message";
