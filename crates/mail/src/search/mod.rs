//! Finding messages by their words. The index is written by the sender's transaction ([`index`]), asked by [`find`] and kept in
//! shape by [`merge`].

pub(crate) mod find;
pub(crate) mod index;
pub mod merge;
