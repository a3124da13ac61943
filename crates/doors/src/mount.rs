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

#[cfg(test)]
mod tests {
    use http::StatusCode;
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
