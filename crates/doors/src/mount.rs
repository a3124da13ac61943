//! The protocol behind a listener: how it identifies a caller, and how it writes a refusal.
//!
//! Everything else (bounds, places, the log line, the end of a connection) is the same for all protocols and stands in `front.rs`.

use std::net::IpAddr;
use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use http::Request;
use waybill_kernel::{Caller, Error, RequestId, Result};

/// Writes an error in the protocol of the caller.
pub type Refusal = fn(&Error, &RequestId) -> Response;

/// One protocol.
pub trait Mount: Send + Sync + 'static {
    /// A request whose caller is known, with as much of it as had to be read for that.
    type Asked: Send;

    /// Decided by the head alone, because everything after it may fail.
    fn refusal(&self, request: &Request<Body>) -> Refusal;

    /// True for requests that anybody may make, even when the server is full.
    fn is_open(&self, request: &Request<Body>) -> bool;

    fn answer_open(&self, request: Request<Body>) -> impl Future<Output = Response> + Send;

    /// Identifies the caller. `from` is the client's address.
    fn identify(
        &self,
        request: Request<Body>,
        from: IpAddr,
    ) -> impl Future<Output = Result<(Arc<Caller>, Self::Asked)>> + Send;

    /// Answers the request. Its caller has a place.
    fn answer(&self, caller: Arc<Caller>, asked: Self::Asked, id: RequestId) -> impl Future<Output = Response> + Send;
}

/// One protocol at several listeners.
impl<M: Mount> Mount for Arc<M> {
    type Asked = M::Asked;

    fn refusal(&self, request: &Request<Body>) -> Refusal {
        (**self).refusal(request)
    }

    fn is_open(&self, request: &Request<Body>) -> bool {
        (**self).is_open(request)
    }

    fn answer_open(&self, request: Request<Body>) -> impl Future<Output = Response> + Send {
        (**self).answer_open(request)
    }

    fn identify(
        &self,
        request: Request<Body>,
        from: IpAddr,
    ) -> impl Future<Output = Result<(Arc<Caller>, Self::Asked)>> + Send {
        (**self).identify(request, from)
    }

    fn answer(&self, caller: Arc<Caller>, asked: Self::Asked, id: RequestId) -> impl Future<Output = Response> + Send {
        (**self).answer(caller, asked, id)
    }
}
