//! What stands behind a listener: a protocol with its own way to say who is asking, and its own way to say no.
//!
//! Everything else (bounds, places, the log's line, the end of a connection) is the same for all of them and is in `front.rs`.

use std::net::IpAddr;
use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use http::Request;
use waybill_kernel::{Caller, Error, RequestId, Result};

/// How an error is told, in the protocol of whoever is told.
pub type Refusal = fn(&Error, &RequestId) -> Response;

/// One protocol.
pub trait Mount: Send + Sync + 'static {
    /// A request whose caller is known, with whatever was read of it to know that.
    type Asked: Send;

    /// Decided by the head alone, because everything after it may fail.
    fn refusal(&self, request: &Request<Body>) -> Refusal;

    /// True for what everybody may ask, also of a full server.
    fn is_open(&self, request: &Request<Body>) -> bool;

    fn answer_open(&self, request: Request<Body>) -> impl Future<Output = Response> + Send;

    /// Who is asking. `from` is the client's address.
    fn identify(
        &self,
        request: Request<Body>,
        from: IpAddr,
    ) -> impl Future<Output = Result<(Arc<Caller>, Self::Asked)>> + Send;

    /// The caller has a place.
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

/// Two protocols at one listener, told apart by the path: each with its own callers and its own refusals.
///
/// What `rest` does costs no more for the other's sake: the other's futures and what it has read are in boxes of their own.
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
