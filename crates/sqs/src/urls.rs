//! The URLs by which a client is told of its queues, so that it reaches them.

use http::HeaderName;
use http::header::HOST;
use http::request::Parts;
use waybill_kernel::Caller;
use waybill_queues::account_of;

const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Of one request.
pub(crate) struct Urls {
    base: String,
    pub(crate) account: String,
}

impl Urls {
    /// By the name under which the client has reached us, unless the operator knows better.
    pub(crate) fn of(parts: &Parts, caller: &Caller, endpoint: Option<&str>, trusted_proxy: bool) -> Self {
        let account = account_of(caller);
        if let Some(endpoint) = endpoint {
            return Self { base: endpoint.to_owned(), account };
        }
        let named = parts.headers.get(HOST).and_then(|host| host.to_str().ok());
        let host = named.or_else(|| parts.uri.authority().map(http::uri::Authority::as_str)).unwrap_or("localhost");
        let told = parts.headers.get(FORWARDED_PROTO).filter(|_| trusted_proxy);
        let scheme = if told.is_some_and(|scheme| scheme == "https") { "https" } else { "http" };
        Self { base: format!("{scheme}://{host}"), account }
    }

    pub(crate) fn queue(&self, name: &str) -> String {
        format!("{}/{}/{name}", self.base, self.account)
    }
}
