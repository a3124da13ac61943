//! The listener of SQS clients: who signed a request, which action it asks for.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use http::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderValue};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use serde_json::json;
use waybill_access::{Access, Signer};
use waybill_doors::{Body, Commons, Driver, Gatekeeper, Mount, Read, Refusal};
use waybill_kernel::{Caller, Clock, Code, Error, RequestId, Result};
use waybill_queues::{Capabilities, Meters};

use crate::actions::{self, Asked, Form, Handler};
use crate::query::Params;
use crate::reply::Protocol;
use crate::settings::Settings;
use crate::signature::{Claim, Refused, Secret, SigningKeys};
use crate::urls::Urls;
use crate::wire::{self, Unspoken, Wire};

const HEALTH: [&str; 2] = ["/sqs_health", "/sqs_leader_health"];
const TARGET_PREFIX: &str = "AmazonSQS.";
/// As much of an action that is not offered as an error repeats.
const SHOWN_CHARS_MAX: usize = 100;

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
    meters: Meters,
    /// What this node can serve, for those who ask before they make a queue that needs it.
    health: String,
}

impl Sqs {
    pub fn new(opening: Opening) -> Self {
        let bodies = opening.commons.bodies().up_to(opening.settings.body_bytes_max);
        let health = format!(r#"{{"status":"ok","capabilities":{}}}"#, json!(Capabilities::OWN.0));
        let (keys, meters) = (SigningKeys::default(), Meters::default());
        Self { opening, bodies, keys, actions: actions::all(), meters, health }
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

    async fn act(&self, caller: &Caller, parts: Parts, read: Read, id: &RequestId) -> Result<Response<Body>> {
        match Wire::pick(&parts.method, &parts.uri, &parts.headers) {
            Ok(Wire::Json { target }) => {
                let handler = self.targeted(target)?;
                let (urls, Read { bytes, room }) = (self.urls(&parts, caller), read);
                drop(parts);
                let Opening { driver, commons, .. } = &self.opening;
                let (meters, form) = (&self.meters, Form::Json(bytes));
                handler(Asked { driver, commons, caller, urls, meters, form, room, id }).await
            }
            Ok(Wire::Query) => {
                let Read { bytes, room } = read;
                let params = Params::read(parts.uri.query(), &bytes)?.or_queue(wire::queue_path(&parts));
                let handler = self.handler(params.action())?;
                let Opening { driver, commons, .. } = &self.opening;
                let (meters, urls, form) = (&self.meters, self.urls(&parts, caller), Form::Query(params));
                handler(Asked { driver, commons, caller, urls, meters, form, room, id }).await
            }
            Err(Unspoken::Method { allow }) => Ok(refused_method(allow)),
            Err(unspoken) => Err(unspoken.into()),
        }
    }

    /// What the header of the JSON protocol names: an action of ours, one of another service, or nothing.
    fn targeted(&self, target: &str) -> Result<Handler> {
        match target.strip_prefix(TARGET_PREFIX) {
            Some(action) => self.handler(Some(action)),
            None if target.is_empty() => self.handler(None),
            None => Err(unknown(target)),
        }
    }

    fn handler(&self, action: Option<&str>) -> Result<Handler> {
        let missing = || Error::new(Code::MissingAction, "The request names no action, such as SendMessage.");
        let action = action.ok_or_else(missing)?;
        self.actions.get(action).copied().ok_or_else(|| unknown(action))
    }

    fn urls(&self, parts: &Parts, caller: &Caller) -> Urls {
        let Opening { settings, trusted_proxy, .. } = &self.opening;
        Urls::of(parts, caller, settings.endpoint.as_deref(), *trusted_proxy)
    }
}

impl Mount for Sqs {
    type Asked = (Parts, Read);

    fn refusal(&self, request: &Request<Body>) -> Refusal {
        Protocol::of(request.method(), request.uri(), request.headers()).refusal()
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
            true => (self.health.clone(), "application/json"),
            false => ("ok\n".to_owned(), "text/plain; charset=utf-8"),
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
        let protocol = Protocol::of(&parts.method, &parts.uri, &parts.headers);
        let outcome = self.act(&caller, parts, read, &id).await;
        outcome.unwrap_or_else(|error| protocol.error(&error, &id))
    }
}

fn unknown(action: &str) -> Error {
    let action: String = action.chars().take(SHOWN_CHARS_MAX).collect();
    Error::new(Code::InvalidAction, format!("The action {action:?} is not offered."))
}

fn refused_method(allowed: &'static str) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    response
}
