//! The doors: decode, run the operation, encode. No rules live here, and nothing else names axum or rmcp.

mod auth;
mod docs;
mod driver;
mod events;
#[cfg(test)]
mod fuzz;
mod health;
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
pub use metrics::{install as install_metrics, keep as keep_metrics};
pub use openapi::document as openapi_document;
pub use router::{Doors, router};
pub use server::{Listener, serve};
pub use settings::Settings;
