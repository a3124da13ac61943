//! The doors: decode, run the operation, encode. No rules live here, and nothing else names axum or rmcp.

mod auth;
mod body;
mod connections;
mod docs;
mod driver;
mod events;
mod front;
#[cfg(test)]
mod fuzz;
mod health;
mod held;
mod json;
mod log;
pub mod mcp;
mod metrics;
mod openapi;
mod reply;
mod rest;
mod router;
mod server;
mod settings;

pub use auth::Gatekeeper;
pub use driver::Driver;
pub use front::Front;
pub use metrics::{install as install_metrics, keep as keep_metrics};
pub use openapi::document as openapi_document;
pub use router::{Doors, front};
pub use server::{Listener, serve};
pub use settings::Settings;
