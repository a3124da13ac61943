//! The doors: decode, run the operation, encode. No rules live here, and nothing else names axum or rmcp.

mod address;
mod auth;
mod body;
mod commons;
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
mod listener;
mod log;
pub mod mcp;
mod metrics;
mod mount;
mod openapi;
mod reply;
mod rest;
mod router;
mod routes;
mod server;
mod settings;
mod unproven;
mod wire;

pub use auth::Gatekeeper;
pub use axum::body::Body;
pub use body::{Bodies, Read};
pub use commons::Commons;
pub use driver::{Admitted, Driver};
pub use json::Checked;
pub use listener::Listener;
pub use log::Answers;
pub use log::header_of;
pub use metrics::{install as install_metrics, keep as keep_metrics};
pub use metrics_exporter_prometheus::PrometheusHandle as MetricsHandle;
pub use mount::{Mount, Refusal};
pub use openapi::document as openapi_document;
pub use reply::log_cause;
pub use router::{Doors, Http};
pub use server::Server;
pub use settings::Settings;
pub use unproven::Unproven;
