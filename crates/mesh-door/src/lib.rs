//! The mesh's door: the WebSocket of daemons and the requests that members sign, on the main listener beside REST and MCP.
//!
//! A member is not a bearer of a key: it signs a challenge or a request with its own, and what it may do is what its membership
//! says. So this protocol has callers and refusals of its own, and shares everything else with the other doors.

mod broker;
mod door;
mod files;
mod handshake;
mod hub;
mod keeper;
mod metrics;
mod mount;
pub mod redis;
mod replays;
mod requests;
mod settings;
mod socket;
mod unfinished;

pub use mount::{Mesh, Opening, PREFIX};
pub use settings::Settings;
