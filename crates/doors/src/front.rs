//! The steps that every request takes, whichever door it is for: check its head, identify its caller, give it a place, bound its
//! answer, and write one log line about it.
//!
//! One service instead of a stack of layers, because each step needs what the one before learned (the caller, the place), and each
//! layer would cost every request an allocation.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;

use axum::body::Body;
use http::header::{CACHE_CONTROL, HOST, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use http::{Request, Response, Version};
use http_body::Body as _;
use hyper::body::Incoming;
use waybill_kernel::{Caller, Code, Error, Result, request};
use waybill_store::shares::Share;

use crate::commons::{Commons, UNIT_BYTES};
use crate::connections::Connection;
use crate::held::{Held, Kept};
use crate::log::{Line, Open};
use crate::mount::Mount;
use crate::takeover::Sessions;

/// Answers up to this size are not counted in bytes: the places for requests bound their number.
const SMALL_BYTES_MAX: u64 = 4 << 10;
/// One protocol, on the bounds that all protocols share.
pub(crate) struct Front<M>(Arc<Inner<M>>);

struct Inner<M> {
    mount: M,
    commons: Commons,
    sessions: Sessions,
}

impl<M> Clone for Front<M> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

/// An answer with the place and the bytes that it holds until it has been sent.
struct Answered {
    response: axum::response::Response,
    place: Option<Share>,
    open: Option<Open>,
}

impl From<axum::response::Response> for Answered {
    fn from(response: axum::response::Response) -> Self {
        Self { response, place: None, open: None }
    }
}

impl<M: Mount> Front<M> {
    pub(crate) fn new(commons: Commons, sessions: Sessions, mount: M) -> Self {
        Self(Arc::new(Inner { mount, commons, sessions }))
    }

    async fn handle(
        self,
        request: Request<Incoming>,
        connection: Arc<Connection>,
    ) -> std::result::Result<Response<Held>, Infallible> {
        let under_way = connection.begin();
        let mut line = self.0.commons.lines.begin(&request, connection.peer);
        let mut asked = request.map(Body::new);
        self.0.sessions.offer(&mut asked, line.peer, &connection);
        let refusal = self.0.mount.refusal(&asked);
        let outcome = request::during(Some(line.id()), self.admitted(asked, &mut line)).await;
        let Answered { mut response, place, open } = outcome.unwrap_or_else(|error| refusal(&error, &line.id()).into());
        let bytes = match self.room_for(&response, line.caller.as_deref()) {
            Ok(bytes) => bytes,
            Err(error) => {
                response = refusal(&error, &line.id());
                None
            }
        };
        line.write(response.status().as_u16(), response.extensions());
        let headers = response.headers_mut();
        line.name(headers);
        // Answers repeat what callers sent, so no browser may guess another content type.
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        Ok(response.map(|body| Held::new(body, connection, Kept { place, bytes, under_way, open })))
    }

    async fn admitted(&self, request: Request<Body>, line: &mut Line) -> Result<Answered> {
        let Inner { mount, commons, .. } = &*self.0;
        check_head(&request)?;
        if mount.is_open(&request) {
            return Ok(mount.answer_open(request).await.into());
        }
        // Each step is boxed: a call may wait for long, and the state of the steps before it is dropped meanwhile.
        let (caller, asked) = Box::pin(mount.identify(request, line.peer)).await?;
        line.caller = Some(Arc::clone(&caller));
        let place = commons.places.try_take(&caller, 1)?;
        let open = commons.lines.open();
        let response = Box::pin(mount.answer(caller, asked, line.id())).await;
        Ok(Answered { response, place: Some(place), open: Some(open) })
    }

    /// Answers to callers without a key are small or shared; the table of connections counts them.
    fn room_for(&self, response: &axum::response::Response, caller: Option<&Caller>) -> Result<Option<Share>> {
        let bytes = response.body().size_hint().exact().unwrap_or(0);
        let Some(caller) = caller.filter(|_| bytes > SMALL_BYTES_MAX) else { return Ok(None) };
        let units = usize::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(usize::MAX);
        self.0.commons.answers.try_take(caller, units).map(Some).map_err(|_| {
            let message = "Too many answers are waiting to be read, so that there is no room for this one. What was \
                           asked for may have been done.";
            Error::new(Code::Unavailable, message)
        })
    }
}

/// The service of one connection.
pub(crate) struct Connected<M> {
    pub(crate) front: Front<M>,
    pub(crate) connection: Arc<Connection>,
}

impl<M: Mount> hyper::service::Service<Request<Incoming>> for Connected<M> {
    type Response = Response<Held>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = std::result::Result<Response<Held>, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let answer = self.front.clone().handle(request, Arc::clone(&self.connection));
        Box::pin(answer)
    }
}

/// A request must name its server once: of two names a proxy before us may have used the other.
fn check_head(request: &Request<Body>) -> Result<()> {
    let mut hosts = request.headers().get_all(HOST).iter();
    let (host, second) = (hosts.next(), hosts.next());
    if second.is_some() {
        return Err(Error::invalid("The request has more than one Host header."));
    }
    let authority = request.uri().authority().map(http::uri::Authority::as_str);
    match (host, authority, request.version()) {
        (None, None, Version::HTTP_11 | Version::HTTP_2) => Err(Error::invalid("The request names no Host.")),
        (Some(host), Some(authority), _) if host.as_bytes() != authority.as_bytes() => {
            Err(Error::invalid("The Host header and the address of the request name different servers."))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(uri: &str, version: Version, hosts: &[&'static str]) -> Result<()> {
        let mut request = Request::builder().uri(uri).version(version).body(Body::empty()).unwrap();
        for host in hosts {
            request.headers_mut().append(HOST, HeaderValue::from_static(host));
        }
        check_head(&request)
    }

    #[test]
    fn a_request_names_its_server_once() {
        checked("/x", Version::HTTP_11, &["a"]).unwrap();
        checked("/x", Version::HTTP_10, &[]).unwrap();
        checked("http://a/x", Version::HTTP_2, &[]).unwrap();
        checked("http://a/x", Version::HTTP_2, &["a"]).unwrap();
        assert!(checked("/x", Version::HTTP_11, &[]).is_err());
        assert!(checked("/x", Version::HTTP_11, &["a", "a"]).is_err());
        assert!(checked("http://a/x", Version::HTTP_2, &["b"]).is_err());
        assert!(checked("http://a/x", Version::HTTP_11, &["b"]).is_err());
    }
}
