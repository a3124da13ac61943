//! The Query protocol of SQS, as bytes: a form or an address in, XML out. No socket and no store.
//!
//! SDKs before the end of 2023 speak it, and whoever writes a request by hand. Its requests and answers are those of the JSON
//! protocol under other names (`names.rs`), so the same types serve both: parameters are read into a request by serde, and
//! an answer is written by serde, neither by way of JSON.
//!
//! ```text
//! Params::read(query, body)         decoded, bounded, sorted
//!   params.action()                 none: Code::MissingAction
//!   params.or_queue(path)           for old SDKs, which name the queue by the path alone
//!   read(action, &params)           the typed request
//! write(action, &output, id)        the answer
//! error(&error, id)                 or an error
//! ```

mod complaint;
mod error;
#[cfg(test)]
mod fuzz;
mod names;
mod node;
mod params;
mod read;
#[cfg(test)]
mod tests;
mod write;
mod xml;

pub use error::error;
pub use params::{NAME_BYTES_MAX, NAME_PARTS_MAX, PAIRS_MAX, Params};
pub use read::read;
pub use write::write;

/// Of every answer and every error.
pub const CONTENT_TYPE: &str = "text/xml; charset=utf-8";
