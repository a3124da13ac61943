//! The daemon from outside: over its socket and its TCP port, and its outbox against a model.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

mod accept_table;
mod admin;
mod advance;
mod bad_input;
mod concurrency;
mod disk;
mod guarded;
mod inbox;
mod link;
mod link_broker;
mod link_learnt;
mod link_lists;
mod link_rotation;
mod link_sealed;
mod link_signed;
mod model;
mod offline;
mod order;
mod rotated;
mod start;
mod streams;
mod support;
