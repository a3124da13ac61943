//! Access as the rest of the program sees it: through [`waybill_access::Access`] and the operations.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod authenticate;
mod flood;
mod keys;
mod tenants;
mod world;
