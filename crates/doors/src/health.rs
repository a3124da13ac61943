//! Alive, ready, and the figures.
//!
//! Readiness is a real write and a read of it, because nothing less proves that a write would be kept; all who ask within
//! one interval share one probe.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::CONTENT_TYPE;
use metrics_exporter_prometheus::PrometheusHandle;
use serde_json::{Map, Value as Json, json};
use tokio::sync::Mutex;
use waybill_access::DEFAULT_TENANT;
use waybill_kernel::principal::{forbidden, out_of_scope};
use waybill_kernel::{Caller, Mode, Role, Scope};
use waybill_store::{Health, Store};

use crate::reply;

/// A disk or a database that takes longer is not one to send work to.
const PROBE_MAX: Duration = Duration::from_secs(5);

/// Adds figures that are read when somebody looks, in the text that Prometheus reads.
pub type MoreFigures = dyn Fn(&mut String) + Send + Sync;

/// Adds what parts of the program have to say of themselves.
pub type MoreHealth = dyn Fn(&mut Map<String, Json>) + Send + Sync;

#[derive(Clone)]
pub(crate) struct Readiness(Arc<Inner>);

struct Inner {
    store: Store,
    share: Duration,
    last: Mutex<Option<(Instant, Health)>>,
    stopping: AtomicBool,
}

impl Readiness {
    pub(crate) fn new(store: Store, share: Duration) -> Self {
        Self(Arc::new(Inner { store, share, last: Mutex::new(None), stopping: AtomicBool::new(false) }))
    }

    /// No longer ready: said first when the program stops, so that balancers look elsewhere.
    pub(crate) fn stop(&self) {
        self.0.stopping.store(true, Ordering::Relaxed);
    }

    pub(crate) async fn answer(&self) -> Response {
        if self.0.stopping.load(Ordering::Relaxed) {
            return unready("the server is stopping");
        }
        match self.health().await {
            Health { writable: true, checking: true, .. } => {
                reply::json(StatusCode::OK, json!({ "ready": true, "checking": true }).to_string())
            }
            Health { writable: true, .. } => reply::json(StatusCode::OK, json!({ "ready": true }).to_string()),
            Health { detail, .. } => unready(detail.as_deref().unwrap_or("the database does not take writes")),
        }
    }

    async fn health(&self) -> Health {
        let mut last = self.0.last.lock().await;
        if let Some((at, health)) = last.as_ref()
            && at.elapsed() < self.0.share
        {
            return health.clone();
        }
        let probe = tokio::time::timeout(PROBE_MAX, self.0.store.system().probe()).await;
        let health = probe.unwrap_or_else(|_| Health {
            writable: false,
            detail: Some(format!("a write did not reach the disk within {} s", PROBE_MAX.as_secs())),
            checking: false,
        });
        *last = Some((Instant::now(), health.clone()));
        health
    }
}

fn unready(why: &str) -> Response {
    reply::json(StatusCode::SERVICE_UNAVAILABLE, json!({ "ready": false, "message": why }).to_string())
}

pub(crate) fn alive(more: &MoreHealth) -> Response {
    let mut health = Map::new();
    health.insert("status".to_owned(), "ok".into());
    health.insert("version".to_owned(), env!("CARGO_PKG_VERSION").into());
    more(&mut health);
    reply::json(StatusCode::OK, Json::Object(health).to_string())
}

/// Figures of all tenants: for operators.
pub(crate) fn figures(handle: &PrometheusHandle, more: &MoreFigures, caller: &Caller) -> Response {
    let allowed = [Role::Admin, Role::System];
    if caller.tenant != DEFAULT_TENANT || !caller.roles.contains_any(&allowed) {
        let message = "Metrics are of all tenants, and so for operators: the default tenant's.";
        return reply::error(&forbidden(message, &allowed, &caller.roles));
    }
    if !caller.may_use(&[Scope::AdminRead], Mode::Read) {
        let message = format!("Metrics need the scope {}.", Scope::AdminRead);
        return reply::error(&out_of_scope(message, &[Scope::AdminRead], &caller.scopes));
    }
    handle.run_upkeep();
    let mut text = handle.render();
    more(&mut text);
    ([(CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response()
}
