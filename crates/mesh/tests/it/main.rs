//! The broker on both stores.

mod accept;
mod check;
mod connections;
mod deliveries;
mod files;
mod invites;
mod members;
mod support;
mod sweeps;
mod tenants;
mod topics;
