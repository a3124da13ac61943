//! The vocabulary every other crate speaks: ids, time, principals, operations, errors, and the pure rules that
//! more than one domain needs. No I/O beyond the operating system's clock and entropy, no async runtime.

pub mod base62;
pub mod bucket;
pub mod clock;
pub mod cursor;
pub mod entropy;
pub mod error;
#[cfg(test)]
mod fuzz;
pub mod hex;
pub mod id;
pub mod idempotency;
pub mod json;
pub mod key_id;
pub mod operation;
pub mod principal;
pub mod ranges;
pub mod request;
pub mod rest;
pub mod time;
pub mod visible;

pub use clock::Clock;
pub use entropy::Entropy;
pub use error::{Code, Error, Result};
pub use id::{IdSource, Tenant};
pub use json::Json;
pub use key_id::KeyId;
pub use operation::{Example, Method, Mode, OperationSpec, Profile, Resource, Route};
pub use principal::{Caller, Principal, PrincipalKind, Role, Roles, Scope, Scopes};
pub use request::RequestId;
pub use time::Time;
