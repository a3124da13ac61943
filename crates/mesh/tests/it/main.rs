//! The broker on both stores.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod accept;
mod check;
mod connections;
mod deliveries;
mod files;
mod invites;
mod members;
mod queues;
mod support;
mod sweeps;
mod tenants;
mod topics;
