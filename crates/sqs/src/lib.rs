//! The SQS protocol over the queues domain: who signed a request, in which of two encodings it came, what it asks for.

mod actions;
mod json;
mod mount;
mod settings;
pub mod signature;
mod urls;

pub use mount::{Opening, Sqs};
pub use settings::Settings;
