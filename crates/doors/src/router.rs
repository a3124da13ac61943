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
use waybill_kernel::{Caller, Code, Error, Method, RequestId, Result, Route};
use waybill_store::Store;

use crate::auth::Gatekeeper;
use crate::body::Bodies;
use crate::commons::Commons;
use crate::driver::Driver;
use crate::events::Streams;
use crate::health::{self, MoreFigures, MoreHealth, Readiness};
use crate::mount::{Mount, Refusal};
use crate::rest::Endpoint;
use crate::routes::Routes;
use crate::{Settings, docs, mcp, openapi, reply};

/// What the doors of every domain open on.
pub struct Doors<'a> {
    pub driver: &'a Driver,
    pub store: Store,
    pub gatekeeper: Gatekeeper,
    pub metrics: PrometheusHandle,
    pub more_figures: Arc<MoreFigures>,
    pub more_health: Arc<MoreHealth>,
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
    /// The short way for most of them.
    routes: Routes<Arc<Endpoint>>,
    gatekeeper: Gatekeeper,
}

impl Http {
    pub fn new(doors: Doors<'_>) -> Self {
        let Doors { driver, store, gatekeeper, metrics, more_figures, more_health, settings, commons, stopping } =
            doors;
        let readiness = Readiness::new(store, Duration::from_millis(settings.probe_ms));
        tell_when_stopping(readiness.clone(), driver.clone(), stopping.clone());
        let bodies = commons.bodies();
        let streams = Streams::new(driver.clone(), gatekeeper.clone(), settings, stopping);
        let endpoints = endpoints(driver, bodies);
        let kept = operations(&endpoints)
            .merge(events(driver, &streams))
            .merge(mcp::router(driver, bodies, settings))
            .route(
                "/metrics",
                get(move |request: Request<Body>| figures(metrics.clone(), Arc::clone(&more_figures), request)),
            )
            .fallback(any(|| async { unknown_path() }))
            .method_not_allowed_fallback(|| async { refused_method() });
        let mut routes = Routes::default();
        for endpoint in endpoints {
            let route = endpoint.spec().route;
            routes.add(route.method, route.path, endpoint);
        }
        Self { open: documents(driver, readiness, more_health), kept, routes, gatekeeper }
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
        if let Some(endpoint) = self.routes.find(request.method(), request.uri().path()) {
            return endpoint.handle(&caller, request).await;
        }
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
fn documents(driver: &Driver, readiness: Readiness, more: Arc<MoreHealth>) -> Router {
    let document = Bytes::from(openapi::document(driver.registry()).to_string());
    let page = Bytes::from(docs::page(driver.registry()));
    let alive = move || async move { health::alive(more.as_ref()) };
    Router::new()
        .route("/", get(|| async { Html(docs::FRONT_PAGE) }))
        .route("/healthz", get(alive.clone()))
        .route("/v1/health", get(alive))
        .route("/readyz", get(move || async move { readiness.answer().await }))
        .route("/openapi.json", get(move || async move { reply::json(StatusCode::OK, document) }))
        .route("/docs", get(move || async move { Html(page) }))
        .method_not_allowed_fallback(|| async { refused_method() })
}

fn endpoints(driver: &Driver, bodies: &Bodies) -> Vec<Arc<Endpoint>> {
    let entries = driver.registry().entries();
    entries.map(|entry| Arc::new(Endpoint::new(driver.clone(), Arc::clone(entry), bodies.clone()))).collect()
}

fn operations(endpoints: &[Arc<Endpoint>]) -> Router {
    let mut routes: BTreeMap<&'static str, MethodRouter> = BTreeMap::new();
    for endpoint in endpoints {
        let Route { method, path } = endpoint.spec().route;
        let filter = match method {
            Method::Get => axum::routing::MethodFilter::GET,
            Method::Post => axum::routing::MethodFilter::POST,
            Method::Put => axum::routing::MethodFilter::PUT,
            Method::Delete => axum::routing::MethodFilter::DELETE,
        };
        let endpoint = Arc::clone(endpoint);
        let handler = move |request: Request<Body>| async move {
            match request.extensions().get::<Arc<Caller>>().cloned() {
                Some(caller) => endpoint.handle(&caller, request).await,
                None => reply::error(&Error::internal("a request came past the gatekeeper")),
            }
        };
        let route = routes.remove(path).unwrap_or_default();
        routes.insert(path, route.merge(on(filter, handler)));
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
fn tell_when_stopping(readiness: Readiness, driver: Driver, stopping: CancellationToken) {
    tokio::spawn(async move {
        stopping.cancelled().await;
        readiness.stop();
        driver.stop_waiting();
    });
}

async fn figures(handle: PrometheusHandle, more: Arc<MoreFigures>, request: Request<Body>) -> Response {
    match request.extensions().get::<Arc<Caller>>() {
        Some(caller) => health::figures(&handle, more.as_ref(), caller),
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
