//! Which path leads where. Operations come from the registry; the rest is written out here.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{MethodRouter, any, get, on};
use http::{Request, StatusCode};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio_util::sync::CancellationToken;
use waybill_kernel::{Caller, Code, Door, Error, Method};
use waybill_store::{Registry, Store};

use crate::auth::{self, Gatekeeper};
use crate::driver::Driver;
use crate::events::Streams;
use crate::health::{self, Readiness};
use crate::log::{self, Requests};
use crate::rest::Endpoint;
use crate::{Settings, docs, mcp, openapi, reply};

/// What the doors open on.
pub struct Doors {
    pub registry: Registry,
    pub store: Store,
    pub gatekeeper: Gatekeeper,
    pub metrics: PrometheusHandle,
    pub settings: Settings,
    /// Cancelled when the program begins to stop.
    pub stopping: CancellationToken,
}

pub fn router(doors: Doors) -> Router {
    let Doors { registry, store, gatekeeper, metrics, settings, stopping } = doors;
    let readiness = Readiness::new(store.clone(), Duration::from_millis(settings.probe_ms));
    tell_when_stopping(readiness.clone(), store.clone(), stopping.clone());

    let driver = Driver::new(registry, store.clone(), Duration::from_millis(settings.answer_ms));
    let requests = Requests::new(settings.requests_max, store.entropy().as_ref());
    let tools = Router::new()
        .route_service("/mcp", mcp::service(driver.clone(), None, &settings))
        .route_service("/mcp/tasks", mcp::service(driver.clone(), Some(Door::Tasks), &settings))
        .layer(from_fn_with_state(settings.clone(), mcp::check_body));
    let streams = Streams::new(store.clone(), gatekeeper.clone(), &settings, stopping.clone());
    let kept = operations(&driver, &settings)
        .merge(events(&driver, &streams))
        .merge(tools)
        .route("/metrics", get(move |request: Request<Body>| figures(metrics.clone(), request)))
        // Inside the layer: which methods a path has is not for those without a key.
        .method_not_allowed_fallback(|| async { refused_method() })
        .layer(from_fn_with_state(gatekeeper, auth::authenticate))
        .layer(from_fn_with_state(requests.clone(), log::admit));

    let document: Arc<str> = openapi::document(driver.registry()).to_string().into();
    let page: Arc<str> = docs::page(driver.registry()).into();
    let open = Router::new()
        .route("/", get(|| async { Html(docs::FRONT_PAGE) }))
        .route("/healthz", get(|| async { health::alive() }))
        .route("/v1/health", get(|| async { health::alive() }))
        .route("/readyz", get(move || async move { readiness.answer().await }))
        .route("/openapi.json", get(move || async move { reply::json(StatusCode::OK, document.to_string()) }))
        .route("/docs", get(move || async move { Html(page.to_string()) }));

    open.merge(kept)
        .fallback(any(|| async { unknown_path() }))
        .method_not_allowed_fallback(|| async { refused_method() })
        .layer(from_fn(no_sniffing))
        .layer(from_fn_with_state(requests, log::account))
}

fn operations(driver: &Driver, settings: &Settings) -> Router {
    let mut routes: BTreeMap<&'static str, MethodRouter> = BTreeMap::new();
    for entry in driver.registry().entries() {
        let spec = entry.spec();
        let endpoint = Arc::new(Endpoint::new(driver.clone(), Arc::clone(entry), settings));
        let filter = match spec.method {
            Method::Get => axum::routing::MethodFilter::GET,
            Method::Post => axum::routing::MethodFilter::POST,
        };
        let handler = move |request: Request<Body>| async move { endpoint.handle(request).await };
        let route = routes.remove(spec.path).unwrap_or_default();
        routes.insert(spec.path, route.merge(on(filter, handler)));
    }
    routes.into_iter().fold(Router::new(), |router, (path, route)| router.route(path, route))
}

fn events(driver: &Driver, streams: &Streams) -> Router {
    driver.registry().streams().fold(Router::new(), |router, entry| {
        let (streams, entry) = (streams.clone(), Arc::clone(entry));
        let path = entry.spec().path;
        router.route(path, get(move |request: Request<Body>| streams.open(entry, request)))
    })
}

/// Waiting calls answer with what they have; nobody is kept until the deadline.
fn tell_when_stopping(readiness: Readiness, store: Store, stopping: CancellationToken) {
    tokio::spawn(async move {
        stopping.cancelled().await;
        readiness.stop();
        store.stop_waiting();
    });
}

async fn figures(handle: PrometheusHandle, request: Request<Body>) -> Response {
    match request.extensions().get::<Arc<Caller>>() {
        Some(caller) => health::figures(&handle, caller),
        None => reply::error(&Error::internal("a request came past the gatekeeper")),
    }
}

fn unknown_path() -> Response {
    let error = Error::new(Code::NotFound, "There is nothing at this path.");
    reply::error(&error.with_cure("Check the spelling of the path: /docs and /openapi.json have every one there is."))
}

fn refused_method() -> Response {
    reply::error(&Error::new(Code::MethodNotAllowed, Code::MethodNotAllowed.entry().title))
}

/// Answers hold what callers sent: no browser may take them for something else.
async fn no_sniffing(request: Request<Body>, next: axum::middleware::Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    headers.insert(http::header::X_CONTENT_TYPE_OPTIONS, http::HeaderValue::from_static("nosniff"));
    headers.insert(http::header::CACHE_CONTROL, http::HeaderValue::from_static("no-store"));
    response.into_response()
}
