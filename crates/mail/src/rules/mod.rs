//! Decisions without I/O.

pub mod addresses;
mod braces;
pub mod contact;
pub mod dates;
pub mod excerpt;
pub mod globs;
pub mod message;
pub mod names;
pub mod paths;
pub mod pictures;
pub mod projects;
pub mod query;
pub mod summary;
pub mod terms;
pub mod threads;
mod words;
