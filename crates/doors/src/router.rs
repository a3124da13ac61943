//! Which path leads where: to which protocol, and within HTTP to which endpoint. Operations come from the registry; the rest is
//! written out here.

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

/// What the doors need, whichever domains are registered.
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

/// Routes for everybody, with or without a key.
const OPEN_PATHS: &[&str] = &["/", "/healthz", "/v1/health", "/readyz", "/openapi.json", "/docs"];

/// REST, MCP, event streams and documents, on one listener.
pub struct Http {
    open: Router,
    /// Routes for callers with a key.
    kept: Router,
    /// Finds most operations without the router.
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

/// The documents are built once and shared by all requests.
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

/// When the program stops, waiting calls answer with what they have instead of using up their deadline.
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

/// Two protocols at one listener, told apart by the path: each with its own callers and its own refusals.
///
/// The futures and the state of `below` are boxed, so that requests to `rest` do not pay for their size.
pub struct Beside<A, B> {
    /// The one below this prefix.
    pub prefix: &'static str,
    pub below: B,
    pub rest: A,
}

pub enum Either<A, B> {
    Rest(A),
    Below(Box<B>),
}

impl<A, B> Beside<A, B> {
    fn is_below(&self, request: &Request<Body>) -> bool {
        request.uri().path().starts_with(self.prefix)
    }
}

impl<A: Mount, B: Mount> Mount for Beside<A, B> {
    type Asked = Either<A::Asked, B::Asked>;

    fn refusal(&self, request: &Request<Body>) -> Refusal {
        if self.is_below(request) { self.below.refusal(request) } else { self.rest.refusal(request) }
    }

    fn is_open(&self, request: &Request<Body>) -> bool {
        if self.is_below(request) { self.below.is_open(request) } else { self.rest.is_open(request) }
    }

    async fn answer_open(&self, request: Request<Body>) -> Response {
        match self.is_below(&request) {
            true => Box::pin(self.below.answer_open(request)).await,
            false => self.rest.answer_open(request).await,
        }
    }

    async fn identify(&self, request: Request<Body>, from: IpAddr) -> Result<(Arc<Caller>, Self::Asked)> {
        if self.is_below(&request) {
            let (caller, asked) = Box::pin(self.below.identify(request, from)).await?;
            return Ok((caller, Either::Below(Box::new(asked))));
        }
        let (caller, asked) = self.rest.identify(request, from).await?;
        Ok((caller, Either::Rest(asked)))
    }

    async fn answer(&self, caller: Arc<Caller>, asked: Self::Asked, id: RequestId) -> Response {
        match asked {
            Either::Rest(asked) => self.rest.answer(caller, asked, id).await,
            Either::Below(asked) => Box::pin(self.below.answer(caller, *asked, id)).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use waybill_kernel::id::Uuid;
    use waybill_kernel::{Code, Principal, PrincipalKind, Roles, Scopes, Tenant};

    use super::*;

    /// Answers everything with its own number.
    struct Numbered(u16);

    fn numbered(number: u16) -> Response {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::from_u16(number).unwrap();
        response
    }

    impl Mount for Numbered {
        type Asked = u16;

        fn refusal(&self, _: &Request<Body>) -> Refusal {
            match self.0 {
                201 => |_, _| numbered(401),
                _ => |_, _| numbered(402),
            }
        }

        fn is_open(&self, request: &Request<Body>) -> bool {
            self.0 == 201 && request.uri().path().ends_with("open")
        }

        async fn answer_open(&self, _: Request<Body>) -> Response {
            numbered(self.0 + 10)
        }

        async fn identify(&self, _: Request<Body>, _: IpAddr) -> Result<(Arc<Caller>, u16)> {
            let caller = Caller {
                tenant: Tenant(self.0.into()),
                tenant_id: Uuid::nil(),
                principal: Principal::new(PrincipalKind::Agent, "a")?,
                roles: Roles::new([]),
                scopes: Scopes::new([]),
                key: None,
            };
            Ok((Arc::new(caller), self.0))
        }

        async fn answer(&self, _: Arc<Caller>, asked: u16, _: RequestId) -> Response {
            assert_eq!(asked, self.0);
            numbered(self.0)
        }
    }

    #[tokio::test]
    async fn each_path_has_its_own_protocol_for_everything() {
        let both = Beside { prefix: "/mesh/", below: Numbered(201), rest: Numbered(202) };
        let request = |path: &str| Request::builder().uri(path).body(Body::empty()).unwrap();
        let id = RequestId::new("x");
        let error = Error::new(Code::Forbidden, "no");
        for (path, number, refused) in
            [("/mesh/x", 201, 401), ("/mesh", 202, 402), ("/", 202, 402), ("/meshes/", 202, 402)]
        {
            assert_eq!(both.refusal(&request(path))(&error, &id).status(), refused, "{path}");
            let from = IpAddr::from([127, 0, 0, 1]);
            let (caller, asked) = both.identify(request(path), from).await.unwrap();
            assert_eq!(caller.tenant, Tenant(i64::from(number)), "{path}");
            assert_eq!(both.answer(caller, asked, id.clone()).await.status(), number, "{path}");
        }
        assert!(both.is_open(&request("/mesh/open")) && !both.is_open(&request("/open")));
        assert_eq!(both.answer_open(request("/mesh/open")).await.status(), 211);
    }
}
