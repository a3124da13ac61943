//! From the files of an archive to the rows of a database: the import of an archive that the Python server has written, and the
//! way back from our own when the database is gone.
//!
//! Numbers, times and names are kept. What is there already stays as it is, so a second run writes nothing. Files that are broken, that
//! contradict each other, or that stand against what the database has, are refused one by one and told in the [`Report`].

mod directory;
mod report;
mod rest;
mod run;
mod source;
mod tenants;

pub use report::{Refused, Report, Tally};
pub use run::{Options, Progress, reindex};
pub use source::Source;
pub use tenants::tenants;
use waybill_kernel::{Code, Error};

/// An archive that cannot be read at all.
fn unreadable(error: &waybill_archive::Error) -> Error {
    Error::new(Code::PathUnusable, format!("The archive cannot be read: {error}."))
}
