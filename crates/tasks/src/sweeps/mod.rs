//! What recurs about tasks.

mod anomalies;
mod expired_leases;
mod instances;
mod seal;

pub use anomalies::Anomalies;
pub use expired_leases::ExpiredLeases;
pub use seal::Seal;
pub(crate) use seal::content;
