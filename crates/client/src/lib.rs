//! A Rust client of a Waybill server, over HTTP.
//!
//! It owns how a call is sent, how long it may take, when it is sent again, and how an answer becomes a value or an error
//! of the catalogue. It holds no rules of the domain and keeps no state between calls: a [`Client`] is cheap to clone and
//! may be used from many tasks at once.

mod backoff;
mod client;
mod tasks;

pub use backoff::Backoff;
pub use client::{Answer, Client, Options, Repeat, Request, told};
pub use tasks::{
    Claim, Completion, Created, Failed, Failure, Identity, Lease, LeaseRef, NewTask, Receipt, ReceiptPrincipal,
    Renewed, Task,
};
