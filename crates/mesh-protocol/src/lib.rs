//! What daemons and the broker say to each other: envelopes, frames, invites, signatures, boxes. No I/O, no clock, no
//! generator of its own: times and randomness are handed in.
//!
//! Whatever is read here was written by somebody who may lie, on either side of the wire. A reader checks size and depth before
//! it builds anything, and gives back either a value that keeps its type's promises or an error.

mod bytes;
pub mod challenge;
pub mod close;
mod crypto;
pub mod edition;
pub mod envelope;
pub mod epoch;
pub mod file;
pub mod fingerprint;
pub mod frames;
#[cfg(test)]
mod fuzz;
pub mod identity;
pub mod ids;
pub mod invite;
pub mod join;
mod json;
pub mod keys;
pub mod max_age;
pub mod meta;
pub mod names;
pub mod negotiation;
pub mod passphrase;
pub mod plain;
pub mod request_signature;
pub mod rotation;
pub mod seal;
#[cfg(test)]
mod tests;

pub use bytes::Base64;
pub use close::CloseCode;
pub use edition::Edition;
pub use envelope::{Destination, DestinationKind, Envelope, Priority};
pub use epoch::{EpochBox, EpochKey};
pub use file::{FileKey, FileOpener, FileSealer};
pub use fingerprint::Fingerprint;
pub use frames::{ClientFrame, FRAME_BYTES_MAX, Framed, ServerFrame};
pub use identity::{BoxSecret, Context, Identity, MemberKeys};
pub use ids::{DeliveryId, FileId, HistoryId, InviteId, MemberId, MeshId, MessageId};
pub use invite::Invite;
pub use keys::{BoxPublicKey, KeyId, PublicKey, Signature};
pub use max_age::outbox_max_age;
pub use meta::Meta;
pub use names::{ClientMessageId, MemberName, Slug, TopicName};
pub use plain::{Carrier, Plain};
pub use request_signature::{RequestClaim, sign_request};
pub use seal::{Nonce, SharedKey, TopicKey};

/// How far the clocks of two hosts may be apart, in seconds.
pub const SKEW_SECONDS_MAX: i64 = 60;
/// What a body may have without being a file, where the broker says nothing else.
pub const INLINE_BYTES: u64 = 65_536;
/// What a file may have, where the broker says nothing else.
pub const BLOB_BYTES: u64 = 524_288_000;
