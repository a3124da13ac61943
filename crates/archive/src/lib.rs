//! The archive of mail: repositories that people read by git, and the same files for those who browse with an editor. Two layers: `repo`
//! writes windows of changes to a project's repository and files, `layout` says what the files are called and what is in them.
//! Neither knows a database.

pub mod error;
pub mod layout;
pub mod names;
pub mod repo;

pub use error::{Error, Result};
