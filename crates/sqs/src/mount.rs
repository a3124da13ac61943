//! The listener of SQS clients: who signed a request, which action it asks for.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use http::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderValue};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use waybill_access::{Access, Signer};
use waybill_doors::{Body, Commons, Driver, Gatekeeper, Mount, Read, Refusal, RequestId};
use waybill_kernel::{Caller, Clock, Code, Error, Result};

use crate::actions::{self, Asked};
use crate::json;
use crate::settings::Settings;
use crate::signature::{Claim, Refused, Secret, SigningKeys};
use crate::urls::Urls;

const HEALTH: [&str; 2] = ["/sqs_health", "/sqs_leader_health"];
/// What every node of this build can serve, in the words of those who ask before they make a queue that needs it.
const CAPABILITIES: &str = r#"{"status":"ok","capabilities":[]}"#;
const TARGET_PREFIX: &str = "AmazonSQS.";

/// What the door opens on.
pub struct Opening {
    pub driver: Driver,
    pub access: Access,
    pub gatekeeper: Gatekeeper,
    pub commons: Commons,
    pub clock: Arc<Clock>,
    pub settings: Settings,
    pub trusted_proxy: bool,
}

pub struct Sqs {
    opening: Opening,
    bodies: waybill_doors::Bodies,
    keys: SigningKeys,
    actions: HashMap<&'static str, Handler>,
}

type Handler = for<'a> fn(Asked<'a>) -> BoxFuture<'a, Result<Response<Body>>>;

impl Sqs {
    pub fn new(opening: Opening) -> Self {
        let bodies = opening.commons.bodies().up_to(opening.settings.body_bytes_max);
        Self { opening, bodies, keys: SigningKeys::default(), actions: actions::all() }
    }

    /// Proves that the body, too, is the signer's.
    async fn proven(&self, claim: &Claim, parts: &Parts, body: Body) -> Result<(Arc<Caller>, Read)> {
        let Opening { access, commons, clock, settings, .. } = &self.opening;
        claim.in_region(&settings.region)?;
        let Signer { caller, secret } =
            access.signer(claim.access_key_id()).await?.ok_or(Refused::InvalidClientTokenId)?;
        let read = commons.unproven().read(self.bodies.read(&parts.headers, body, &caller)).await?;
        let secret = Secret::new(secret.expose());
        claim.verify(parts, &read.bytes, &secret, clock.now(), &settings.region, &self.keys)?;
        Ok((caller, read))
    }

    async fn run(&self, caller: &Caller, parts: Parts, read: Read, id: &RequestId) -> Result<Response<Body>> {
        let Opening { driver, settings, trusted_proxy, .. } = &self.opening;
        if parts.method != Method::POST {
            return Ok(refused_method("POST"));
        }
        let action = target(&parts)?;
        let unknown = || Error::new(Code::InvalidAction, format!("The action {action:?} is not offered."));
        let handler = self.actions.get(action).ok_or_else(unknown)?;
        let urls = Urls::of(&parts, caller, settings.endpoint.as_deref(), *trusted_proxy);
        drop(parts);
        handler(Asked { driver, caller, urls, read, id }).await
    }
}

impl Mount for Sqs {
    type Asked = (Parts, Read);

    fn refusal(&self, _: &Request<Body>) -> Refusal {
        json::error
    }

    fn is_open(&self, request: &Request<Body>) -> bool {
        HEALTH.contains(&request.uri().path())
    }

    /// Any node serves any queue: whoever is alive is as good as a leader.
    async fn answer_open(&self, request: Request<Body>) -> Response<Body> {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return refused_method("GET, HEAD");
        }
        let accepts = request.headers().get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or("");
        let (text, media) = match accepts.contains("application/json") {
            true => (CAPABILITIES, "application/json"),
            false => ("ok\n", "text/plain; charset=utf-8"),
        };
        let mut response = Response::new(Body::from(text));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media));
        response
    }

    async fn identify(&self, request: Request<Body>, _: IpAddr) -> Result<(Arc<Caller>, Self::Asked)> {
        let (parts, body) = request.into_parts();
        let claim = Claim::of(&parts)?;
        if let Some(developer) = self.opening.gatekeeper.developer(&parts.headers, &parts.uri)? {
            let read = self.bodies.read(&parts.headers, body, &developer).await?;
            return Ok((developer, (parts, read)));
        }
        let claim = claim.ok_or(Refused::MissingAuthenticationToken)?;
        let (caller, read) = Box::pin(self.proven(&claim, &parts, body)).await?;
        Ok((caller, (parts, read)))
    }

    async fn answer(&self, caller: Arc<Caller>, (parts, read): Self::Asked, id: RequestId) -> Response<Body> {
        let outcome = self.run(&caller, parts, read, &id).await;
        outcome.unwrap_or_else(|error| json::error(&error, &id))
    }
}

fn target(parts: &Parts) -> Result<&str> {
    let target = parts.headers.get(json::TARGET).and_then(|target| target.to_str().ok());
    let action = target.and_then(|target| target.strip_prefix(TARGET_PREFIX));
    action.ok_or_else(|| {
        let message = "The request names no action: X-Amz-Target must be like AmazonSQS.SendMessage.";
        Error::new(Code::MissingAction, message)
    })
}

fn refused_method(allowed: &'static str) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    response
}
