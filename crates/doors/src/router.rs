//! Which path leads where. Operations come from the registry; the rest is written out here.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::{Html, Response};
use axum::routing::{MethodRouter, any, get, on};
use bytes::Bytes;
use http::{Request, StatusCode};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio_util::sync::CancellationToken;
use tower::Service as _;
use waybill_kernel::{Caller, Code, Error, Method, Result};
use waybill_store::Store;

use crate::auth::Gatekeeper;
use crate::body::Bodies;
use crate::commons::Commons;
use crate::driver::Driver;
use crate::events::Streams;
use crate::health::{self, Readiness};
use crate::mount::{Mount, Refusal, RequestId};
use crate::rest::Endpoint;
use crate::{Settings, docs, mcp, openapi, reply};

/// What the doors of every domain open on.
pub struct Doors<'a> {
    pub driver: &'a Driver,
    pub store: Store,
    pub gatekeeper: Gatekeeper,
    pub metrics: PrometheusHandle,
    pub settings: &'a Settings,
    pub commons: &'a Commons,
    /// Cancelled when the program begins to stop.
    pub stopping: CancellationToken,
}

/// What is for everybody.
const OPEN_PATHS: &[&str] = &["/", "/healthz", "/v1/health", "/readyz", "/openapi.json", "/docs"];

/// REST, MCP, event streams and documents, on one listener.
pub struct Http {
    open: Router,
    /// For callers.
    kept: Router,
    gatekeeper: Gatekeeper,
}

impl Http {
    pub fn new(doors: Doors<'_>) -> Self {
        let Doors { driver, store, gatekeeper, metrics, settings, commons, stopping } = doors;
        let readiness = Readiness::new(store.clone(), Duration::from_millis(settings.probe_ms));
        tell_when_stopping(readiness.clone(), store, stopping.clone());
        let bodies = commons.bodies();
        let streams = Streams::new(driver.clone(), gatekeeper.clone(), settings, stopping);
        let kept = operations(driver, bodies)
            .merge(events(driver, &streams))
            .merge(mcp::router(driver, bodies, settings))
            .route("/metrics", get(move |request: Request<Body>| figures(metrics.clone(), request)))
            .fallback(any(|| async { unknown_path() }))
            .method_not_allowed_fallback(|| async { refused_method() });
        Self { open: documents(driver, readiness), kept, gatekeeper }
    }
}

impl Mount for Http {
    type Asked = Request<Body>;

    fn refusal(&self, _: &Request<Body>) -> Refusal {
        |error, _| reply::error(error)
    }

    fn is_open(&self, request: &Request<Body>) -> bool {
        OPEN_PATHS.contains(&request.uri().path())
    }

    async fn answer_open(&self, request: Request<Body>) -> Response {
        routed(&self.open, request).await
    }

    async fn identify(&self, request: Request<Body>, _: IpAddr) -> Result<(Arc<Caller>, Request<Body>)> {
        Ok((self.gatekeeper.identify(request.headers(), request.uri()).await?, request))
    }

    async fn answer(&self, caller: Arc<Caller>, mut request: Request<Body>, _: RequestId) -> Response {
        request.extensions_mut().insert(caller);
        routed(&self.kept, request).await
    }
}

async fn routed(router: &Router, request: Request<Body>) -> Response {
    match router.clone().call(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}

/// The texts are made once and shared by all who read them.
fn documents(driver: &Driver, readiness: Readiness) -> Router {
    let document = Bytes::from(openapi::document(driver.registry()).to_string());
    let page = Bytes::from(docs::page(driver.registry()));
    Router::new()
        .route("/", get(|| async { Html(docs::FRONT_PAGE) }))
        .route("/healthz", get(|| async { health::alive() }))
        .route("/v1/health", get(|| async { health::alive() }))
        .route("/readyz", get(move || async move { readiness.answer().await }))
        .route("/openapi.json", get(move || async move { reply::json(StatusCode::OK, document) }))
        .route("/docs", get(move || async move { Html(page) }))
        .method_not_allowed_fallback(|| async { refused_method() })
}

fn operations(driver: &Driver, bodies: &Bodies) -> Router {
    let mut routes: BTreeMap<&'static str, MethodRouter> = BTreeMap::new();
    for entry in driver.registry().entries() {
        let spec = entry.spec();
        let endpoint = Arc::new(Endpoint::new(driver.clone(), Arc::clone(entry), bodies.clone()));
        let filter = match spec.route.method {
            Method::Get => axum::routing::MethodFilter::GET,
            Method::Post => axum::routing::MethodFilter::POST,
        };
        let handler = move |request: Request<Body>| async move { endpoint.handle(request).await };
        let route = routes.remove(spec.route.path).unwrap_or_default();
        routes.insert(spec.route.path, route.merge(on(filter, handler)));
    }
    routes.into_iter().fold(Router::new(), |router, (path, route)| router.route(path, route))
}

fn events(driver: &Driver, streams: &Streams) -> Router {
    driver.registry().streams().fold(Router::new(), |router, entry| {
        let (streams, entry) = (streams.clone(), Arc::clone(entry));
        let path = entry.spec().route.path;
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
