//! Signature version 4, from the side that checks it. Nothing here reads a socket, a store or a clock.
//!
//! How it works. A client that holds an access key id and its secret turns the request into a *canonical request* (method,
//! path, sorted query, the headers it names, SHA-256 of the body), hashes that, and signs the hash together with the time
//! and a *scope* (`20150830/us-east-1/sqs/aws4_request`). The key of that HMAC is derived from the secret and the scope, so
//! it lives for one day. The claim travels in the `Authorization` header, or in the query of a presigned address.
//!
//! ```text
//! Claim::of(parts)                      parse, algorithm, service
//!   claim.in_region(region)             region
//!   claim.access_key_id()               the caller finds the secret; none: Refused::InvalidClientTokenId
//!   claim.verify(parts, body, …)        date, body hash, canonical request, signature
//! ```
//!
//! The steps stand in the order in which a request is refused. The caller needs no body before it knows the key.
//!
//! The derivation of keys is that of `aws-sigv4`. The canonical request is built here, because that crate builds it only for
//! what it signs itself.

mod canonical;
mod claim;
mod credential;
#[cfg(test)]
mod fuzz;
mod header;
mod hex;
mod keys;
mod path;
mod presigned;
mod query;
mod refused;
mod stamp;
#[cfg(test)]
mod tests;
mod verify;

pub use claim::Claim;
pub use header::AUTHORIZATION_BYTES_MAX;
pub use keys::{SIGNING_KEYS_MAX, Secret, SigningKeys};
pub use presigned::EXPIRES_SECONDS_MAX;
pub use query::PAIRS_MAX;
pub use refused::Refused;
pub use verify::SKEW_MAX;

/// The service that a scope must name.
const SERVICE: &str = "sqs";
/// The one algorithm. The variant with elliptic curves is for requests that go to several regions at once.
const ALGORITHM: &str = "AWS4-HMAC-SHA256";
