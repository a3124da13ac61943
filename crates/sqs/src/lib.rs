//! The SQS protocol over the queues domain: who signed a request, in which of two encodings it came, what it asks for.

pub mod query;
pub mod signature;
pub mod wire;
