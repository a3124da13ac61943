//! One line per request, an id to find it by, and the bound on requests at one time.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use axum::body::Body;
use axum::extract::State;
use axum::middleware::Next;
use axum::response::Response;
use http::header::{HeaderName, HeaderValue};
use http::{Extensions, HeaderMap, Method, Request};
use tokio::sync::Semaphore;
use tracing::Instrument;
use waybill_kernel::{Caller, Code, Entropy, Error};

use crate::metrics::HttpMeters;
use crate::reply;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const REQUEST_ID_CHARS_MAX: usize = 64;
const KEY_PREFIX: &str = "aga_";

#[derive(Clone)]
pub(crate) struct Requests(Arc<Inner>);

struct Inner {
    places: Semaphore,
    meters: HttpMeters,
    /// Ids are this run's random part and a number.
    run: u32,
    count: AtomicU64,
}

impl Requests {
    pub(crate) fn new(requests_max: usize, entropy: &dyn Entropy) -> Self {
        let mut run = [0; 4];
        entropy.fill(&mut run);
        Self(Arc::new(Inner {
            places: Semaphore::new(requests_max),
            meters: HttpMeters::new(),
            run: u32::from_be_bytes(run),
            count: AtomicU64::new(0),
        }))
    }

    /// The caller's own id when it is harmless to repeat, else a new one.
    fn id(&self, headers: &HeaderMap) -> HeaderValue {
        let harmless = |id: &&HeaderValue| {
            let bytes = id.as_bytes();
            let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
            !bytes.is_empty() && bytes.len() <= REQUEST_ID_CHARS_MAX && bytes.iter().all(plain)
        };
        if let Some(id) = headers.get(REQUEST_ID).filter(harmless) {
            return id.clone();
        }
        let count = self.0.count.fetch_add(1, Ordering::Relaxed);
        HeaderValue::from_str(&format!("{:08x}-{count:x}", self.0.run)).unwrap_or(HeaderValue::from_static("-"))
    }
}

/// People paste a whole key where its id belongs, and logs are kept.
fn without_keys(path: &str) -> Cow<'_, str> {
    if !path.contains(KEY_PREFIX) {
        return Cow::Borrowed(path);
    }
    let part = |part: &str| match part.split_once(KEY_PREFIX) {
        Some((before, _)) => format!("{before}{KEY_PREFIX}…"),
        None => part.to_owned(),
    };
    Cow::Owned(path.split('/').map(part).collect::<Vec<_>>().join("/"))
}

/// Not for health and documents: a full server is alive, and says so.
pub(crate) async fn admit(State(requests): State<Requests>, request: Request<Body>, next: Next) -> Response {
    let Ok(_place) = requests.0.places.try_acquire() else {
        return reply::error(&Error::new(Code::Overloaded, Code::Overloaded.entry().title));
    };
    let _open = Open::count(&requests.0.meters.open);
    next.run(request).await
}

/// Counted down when dropped, because a caller may leave before its answer.
struct Open<'a>(&'a metrics::Gauge);

impl<'a> Open<'a> {
    fn count(gauge: &'a metrics::Gauge) -> Self {
        gauge.increment(1.0);
        Self(gauge)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

pub(crate) async fn account(State(requests): State<Requests>, request: Request<Body>, next: Next) -> Response {
    let id = requests.id(request.headers());
    // At the level of errors, so that whatever lets an error be seen also shows whose it is.
    let span = tracing::error_span!("request", id = id.to_str().unwrap_or("-"));
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let mut line = Line { requests, id, method, path, began: Instant::now(), is_written: false };
    let mut response = next.run(request).instrument(span).await;
    line.write(response.status().as_u16(), response.extensions(), "answered");
    response.headers_mut().insert(REQUEST_ID, line.id.clone());
    response
}

/// In a response: which operation it answers, where the path does not say.
#[derive(Clone, Copy)]
pub(crate) struct Answers(pub(crate) &'static str);

/// A refusal is a decision, so it is kept: who was refused what. Not the message, which may repeat what was sent.
pub(crate) fn refusal(operation: &'static str, caller: &Caller, error: &Error) {
    if error.code() == Code::Forbidden {
        tracing::info!(operation, principal = %caller.principal, code = error.code().entry().code, "refused");
    }
}

/// What others call the status of an answer that nobody waited for.
const CLIENT_LEFT: u16 = 499;

/// The line of one request, also of one whose caller has gone: what it asked for may have been done.
struct Line {
    requests: Requests,
    id: HeaderValue,
    method: Method,
    path: String,
    began: Instant,
    is_written: bool,
}

impl Line {
    /// `found` is what the response carries for this line.
    fn write(&mut self, status: u16, found: &Extensions, what: &'static str) {
        self.is_written = true;
        let took = self.began.elapsed();
        self.requests.0.meters.count(status, took);
        let principal = found.get::<Arc<Caller>>().map(|caller| tracing::field::display(&caller.principal));
        let operation = found.get::<Answers>().map(|answers| answers.0);
        tracing::info!(
            target: "request",
            {
                request.id = self.id.to_str().unwrap_or("-"),
                http.method = self.method.as_str(),
                http.path = &*without_keys(&self.path),
                http.status = status,
                duration_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
                operation,
                principal
            },
            "{what}"
        );
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if !self.is_written {
            self.write(CLIENT_LEFT, &Extensions::new(), "the caller left before the answer");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_in_a_path_is_cut_short() {
        assert_eq!(without_keys("/v1/tasks"), "/v1/tasks");
        assert_eq!(without_keys("/admin/keys/aga_0123456789AB/revoke"), "/admin/keys/aga_…/revoke");
    }
}
