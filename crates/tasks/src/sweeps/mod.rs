//! What recurs about tasks.

mod anomalies;
mod archive;
mod expired_leases;
mod instances;
mod seal;

pub use anomalies::Anomalies;
pub use archive::Archive;
pub(crate) use archive::BATCHES as ARCHIVE_BATCHES;
pub(crate) use expired_leases::BATCHES as LEASE_BATCHES;
pub use expired_leases::ExpiredLeases;
#[cfg(test)]
pub(crate) use expired_leases::REQUEUE;
pub use seal::Seal;
pub(crate) use seal::content;
