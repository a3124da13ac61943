//! The archiver of mail: takes what the database says is to be archived and gives it to `waybill_archive`. The database decides, the
//! archive follows; nothing that goes wrong here reaches the caller of a tool.
//!
//! Files are functions of rows: whatever is written is read from the database at that moment, never remembered from the time of the call.
//! So a window may be written twice, and an older state never replaces a newer one.

mod breaker;
mod disk;
mod draft;
mod history;
mod metrics;
mod probe;
mod read;
pub mod reconcile;
mod rows;
mod run;
mod settings;
mod slot;
mod turn;
mod walk;

pub use draft::{Draft, Item, Owner};
pub use run::Archivist;
pub use settings::Settings;
