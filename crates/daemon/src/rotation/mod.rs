mod archive;
pub use archive::{Archive, ArchivedKey, Malformed};
