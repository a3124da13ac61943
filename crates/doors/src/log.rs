//! One line per request, and an id to find it by.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use http::header::{HeaderName, HeaderValue};
use http::{Extensions, HeaderMap, Method, Request};
use percent_encoding::percent_decode_str;
use waybill_kernel::{Caller, Code, Entropy, Error, RequestId};

use crate::metrics::HttpMeters;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const REQUEST_ID_CHARS_MAX: usize = 64;
const PATH_CHARS_MAX: usize = 200;
/// This many letters and digits in a row count as a secret. A key without its prefix has 50, a UUID without dashes 32.
const SECRET_CHARS_MIN: usize = 40;
/// How our keys begin.
const KEY_PREFIX: &str = "aga_";

/// What the lines of all requests share. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Lines(Arc<Inner>);

struct Inner {
    meters: HttpMeters,
    /// Behind a proxy the client's address is in a header.
    trusted_proxy: bool,
    /// Ids are this run's random part and a number.
    run: u32,
    count: AtomicU64,
}

impl Lines {
    pub(crate) fn new(trusted_proxy: bool, entropy: &dyn Entropy) -> Self {
        let mut run = [0; 4];
        entropy.fill(&mut run);
        let run = u32::from_be_bytes(run);
        Self(Arc::new(Inner { meters: HttpMeters::new(), trusted_proxy, run, count: AtomicU64::new(0) }))
    }

    pub(crate) fn begin<B>(&self, request: &Request<B>, peer: IpAddr) -> Line {
        Line {
            lines: self.clone(),
            id: self.id(request.headers()),
            method: request.method().clone(),
            path: request.uri().path().to_owned(),
            peer: self.client(request.headers(), peer),
            caller: None,
            began: Instant::now(),
            is_written: false,
        }
    }

    /// One more request has a caller and a place.
    pub(crate) fn open(&self) -> Open {
        let gauge = self.0.meters.open.clone();
        gauge.increment(1.0);
        Open(gauge)
    }

    /// The caller's own id when it is harmless to repeat, else a new one.
    fn id(&self, headers: &HeaderMap) -> RequestId {
        let is_harmless = |id: &&str| {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
            let fits = !id.is_empty() && id.len() <= REQUEST_ID_CHARS_MAX && id.bytes().all(plain);
            fits && !may_be_secret(id)
        };
        if let Some(id) = headers.get(REQUEST_ID).and_then(|id| id.to_str().ok()).filter(is_harmless) {
            return RequestId::new(id);
        }
        let count = self.0.count.fetch_add(1, Ordering::Relaxed);
        RequestId::new(&format!("{:08x}-{count:x}", self.0.run))
    }

    /// The proxy appends the address that it saw. Everything before it is the client's own claim.
    fn client(&self, headers: &HeaderMap, peer: IpAddr) -> IpAddr {
        if !self.0.trusted_proxy {
            return peer;
        }
        let last = headers.get_all(FORWARDED_FOR).iter().next_back().and_then(|value| value.to_str().ok());
        last.and_then(|list| list.rsplit(',').next()?.trim().parse().ok()).unwrap_or(peer)
    }
}

/// As a header of the answer.
pub fn header_of(id: &RequestId) -> HeaderValue {
    HeaderValue::from_str(id.as_str()).unwrap_or(HeaderValue::from_static("-"))
}

/// People paste keys where ids belong, and logs are kept for long.
fn may_be_secret(text: &str) -> bool {
    let mut runs = text.split(|char: char| !char.is_ascii_alphanumeric());
    text.to_ascii_lowercase().contains(KEY_PREFIX) || runs.any(|run| run.len() >= SECRET_CHARS_MIN)
}

/// The path as a line shows it.
fn shown(path: &str) -> Cow<'_, str> {
    let decoded = percent_decode_str(path).decode_utf8_lossy();
    if !may_be_secret(&decoded) && decoded.len() <= PATH_CHARS_MAX {
        return Cow::Borrowed(path);
    }
    let part = |part: &str| if may_be_secret(part) { "…".to_owned() } else { part.to_owned() };
    let text = decoded.split('/').map(part).collect::<Vec<_>>().join("/");
    Cow::Owned(text.chars().take(PATH_CHARS_MAX).collect())
}

/// Counted down when dropped, because a caller may leave before its answer.
pub(crate) struct Open(metrics::Gauge);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

/// In a response: which operation it answers, where the path does not say.
#[derive(Clone)]
pub struct Answers(pub Cow<'static, str>);

/// Logs a refusal: who was refused what. Not the message, which may repeat what was sent.
pub(crate) fn refusal(operation: impl FnOnce() -> Cow<'static, str>, caller: &Caller, error: &Error) {
    if error.code() == Code::Forbidden {
        let operation = &*operation();
        tracing::info!(operation, principal = %caller.principal, code = error.code().entry().code, "refused");
    }
}

/// The status that nginx logs for a client that closed its connection before the answer.
const CLIENT_LEFT: u16 = 499;

/// The line of one request. It is written even if the caller has gone, because what it asked for may have been done.
pub(crate) struct Line {
    lines: Lines,
    id: RequestId,
    method: Method,
    path: String,
    pub(crate) peer: IpAddr,
    pub(crate) caller: Option<Arc<Caller>>,
    began: Instant,
    is_written: bool,
}

impl Line {
    pub(crate) fn id(&self) -> RequestId {
        self.id.clone()
    }

    /// The client finds the line by this header.
    pub(crate) fn name(&self, headers: &mut HeaderMap) {
        headers.insert(REQUEST_ID, header_of(&self.id));
    }

    /// `found` is what the response carries for this line.
    pub(crate) fn write(&mut self, status: u16, found: &Extensions) {
        self.say(status, found.get::<Answers>().map(|answers| &*answers.0), "answered");
    }

    fn say(&mut self, status: u16, operation: Option<&str>, what: &'static str) {
        self.is_written = true;
        let took = self.began.elapsed();
        self.lines.0.meters.count(status, took);
        let caller = self.caller.as_deref();
        tracing::info!(
            target: "request",
            {
                request.id = self.id.as_str(),
                http.method = self.method.as_str(),
                http.path = &*shown(&self.path),
                http.status = status,
                duration_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
                peer = %self.peer,
                operation,
                tenant = caller.map(|caller| tracing::field::display(&caller.tenant_id)),
                key_id = caller.and_then(|caller| caller.key).map(tracing::field::display),
                principal = caller.map(|caller| tracing::field::display(&caller.principal)),
            },
            "{what}"
        );
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if !self.is_written {
            self.say(CLIENT_LEFT, None, "the caller left before the answer");
        }
    }
}

#[cfg(test)]
mod tests {
    use waybill_kernel::entropy::SeededEntropy;

    use super::*;

    const KEY: &str = "aga_0123456789AB0123456789ABCDEFGHIJKLMNOPQRSTUVgnpLRq";

    #[test]
    fn a_key_in_a_path_is_not_shown_however_it_is_written() {
        assert_eq!(shown("/v1/tasks"), "/v1/tasks");
        let task = "/v1/tasks/019a8d5e-0000-7000-8000-000000000000/cancel";
        assert_eq!(shown(task), task);
        let without_prefix = &KEY[4..];
        let escaped = KEY.replace('_', "%5f");
        for secret in [KEY, without_prefix, &escaped, "aga_012", "AGA_012"] {
            assert_eq!(shown(&format!("/admin/keys/{secret}/revoke")), "/admin/keys/…/revoke");
        }
        assert_eq!(shown(&"/x".repeat(500)).len(), PATH_CHARS_MAX);
    }

    #[test]
    fn a_key_is_not_taken_for_a_request_id() {
        let lines = Lines::new(false, &SeededEntropy::new(1));
        let given = |id: &str| lines.id(&HeaderMap::from_iter([(REQUEST_ID, id.parse().unwrap())]));
        assert_eq!(given("abc-1.2_Z").as_str(), "abc-1.2_Z");
        assert_eq!(given("0af7651916cd43dd8448eb211c80319c").as_str(), "0af7651916cd43dd8448eb211c80319c");
        for secret in [KEY, &KEY[4..], "x-aga_0", "a b"] {
            assert_ne!(given(secret).as_str(), secret);
        }
    }

    #[test]
    fn only_a_trusted_proxy_says_who_the_client_is() {
        let peer = IpAddr::from([10, 0, 0, 1]);
        let headers = HeaderMap::from_iter([(FORWARDED_FOR, "1.2.3.4, 5.6.7.8".parse().unwrap())]);
        assert_eq!(Lines::new(false, &SeededEntropy::new(1)).client(&headers, peer), peer);
        assert_eq!(Lines::new(true, &SeededEntropy::new(1)).client(&headers, peer), IpAddr::from([5, 6, 7, 8]));
        assert_eq!(Lines::new(true, &SeededEntropy::new(1)).client(&HeaderMap::new(), peer), peer);
    }
}
