//! Where the mesh stands on a listener: who signed a request, which paths need no signature, and the way to a socket.

use std::net::IpAddr;
use std::sync::Arc;

use http::header::{AUTHORIZATION, CACHE_CONTROL, HeaderMap, HeaderValue};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use serde_json::{Value as Json, json};
use tokio_util::sync::CancellationToken;
use waybill_doors::{
    Answers, Bodies, Body, Commons, Driver, Mount, Read, Refusal, Takeover, error_response, json_response,
};
use waybill_kernel::id::Uuid;
use waybill_kernel::{Caller, Code, Error, Principal, PrincipalKind, RequestId, Result, Roles, Scopes, Tenant};
use waybill_mesh::ops::members::{AskToJoin, JoinMesh};
use waybill_mesh::{Membership, Standing};
use waybill_mesh_protocol::request_signature::{RequestClaim, SCHEME, Signed};
use waybill_mesh_protocol::{Edition, Invite, MeshId};
use waybill_store::{Procedure, Reply, Store};

use crate::door::Door;
use crate::files::{self, Upload};
use crate::keeper::Keeper;
use crate::socket::greeting::offered;
use crate::{Settings, handshake, metrics, requests, socket};

/// Everything below it is the mesh's.
pub const PREFIX: &str = "/mesh/";
const SOCKET: &str = "/mesh/ws";
const COMPAT: &str = "/mesh/v1/compat";
const CHALLENGE: &str = "/mesh/v1/join/challenge";
const JOIN: &str = "/mesh/v1/join";
const OPEN_PATHS: [&str; 4] = [SOCKET, COMPAT, CHALLENGE, JOIN];
const FILES: &str = "/mesh/v1/files";
const MESSAGES: &str = "/mesh/v1/messages";

/// Of a request that nobody has signed: an invite, two keys and their proofs.
const OPEN_BODY_BYTES_MAX: usize = 8 << 10;

/// What the door opens on.
pub struct Opening {
    pub driver: Driver,
    /// Home.
    pub store: Store,
    pub commons: Commons,
    pub settings: Settings,
    /// What members may be offered.
    pub edition: Edition,
    /// Cancelled when the server has stopped, and its last socket with it.
    pub stopped: CancellationToken,
}

pub struct Mesh {
    door: Arc<Door>,
    commons: Commons,
    signed_bodies: Bodies,
    open_bodies: Bodies,
    /// Who is charged for what nobody has signed.
    nobody: Caller,
    compat: String,
}

impl Mesh {
    /// Before the listener: what is left of connections that a killed process had is forgotten. Also starts what keeps the
    /// connections of members known as such.
    pub async fn new(opening: Opening) -> Result<Self> {
        let Opening { driver, store, commons, settings, edition, stopped } = opening;
        metrics::describe();
        let compat = json!({
            "broker_version": env!("CARGO_PKG_VERSION"),
            "protocols": [1],
            "features": offered(store.settings().get()).advertised(&edition)?,
        });
        match waybill_mesh::forget_connections(&store).await {
            Ok(0) => {}
            Ok(forgotten) => tracing::info!(forgotten, "connections of members had outlived their server"),
            // They end with their leases.
            Err(error) => tracing::warn!(%error, "connections from before could not be forgotten"),
        }
        let door = Door::new(driver, store, settings, edition);
        tokio::spawn(Keeper::run(Arc::clone(&door), stopped));
        Ok(Self {
            signed_bodies: commons.bodies().clone(),
            open_bodies: commons.bodies().up_to(OPEN_BODY_BYTES_MAX),
            nobody: nobody()?,
            compat: compat.to_string(),
            door,
            commons,
        })
    }

    fn open_socket(&self, mut request: Request<Body>) -> Response<Body> {
        let response = match handshake::accept(&request) {
            Ok(response) => response,
            Err(refusal) => return *refusal,
        };
        let Some(takeover) = Takeover::of(&mut request) else { return handshake::upgrade_required() };
        let (door, place) = (Arc::clone(&self.door), self.door.unfinished.enter(takeover.peer()));
        takeover.begin(move |taken| socket::serve(door, taken, place));
        response
    }

    async fn joining(&self, request: Request<Body>) -> Result<Response<Body>> {
        let (parts, body) = request.into_parts();
        if parts.method != Method::POST {
            return Err(Error::new(Code::MethodNotAllowed, Code::MethodNotAllowed.entry().title));
        }
        let read = self.open_bodies.read(&parts.headers, body, &self.nobody);
        let Read { bytes, .. } = self.commons.unproven().read(read).await?;
        let fields = requests::object(&bytes)?;
        let unreadable = |error| Error::invalid(format!("The request cannot be read: {error}."));
        if parts.uri.path() == CHALLENGE {
            let ask: AskToJoin = serde_json::from_value(Json::Object(fields)).map_err(unreadable)?;
            let guest = self.guest(ask.mesh).await?;
            return self.run(&guest, ask).await;
        }
        let join: JoinMesh = serde_json::from_value(Json::Object(fields)).map_err(unreadable)?;
        // Only to find the tenant: the operation verifies it again.
        let invite = Invite::parse_and_verify(&join.invite, self.door.store.now())?;
        let guest = self.guest(invite.mesh).await?;
        self.run(&guest, join).await
    }

    async fn guest(&self, mesh: MeshId) -> Result<Caller> {
        let guest = waybill_mesh::guest(&self.door.store, mesh).await?;
        guest.ok_or_else(|| Error::not_found("mesh"))
    }

    async fn run<P: Procedure>(&self, caller: &Caller, procedure: P) -> Result<Response<Body>> {
        let (reply, _) = self.door.driver.admit(const { &P::SPEC }, caller)?.run(procedure).await?;
        let status = if matches!(reply, Reply::Done(_)) { P::SPEC.status } else { 200 };
        let text = serde_json::to_string(&crate::door::output(reply)).map_err(Error::internal)?;
        let mut response = json_response(StatusCode::from_u16(status).map_err(Error::internal)?, text);
        response.extensions_mut().insert(Answers(P::SPEC.name.into()));
        Ok(response)
    }

    /// Who claims to have signed. It proves nothing yet.
    async fn claimed(&self, parts: &Parts) -> Result<(RequestClaim, Membership)> {
        let claim = claim(&parts.headers)?;
        claim.check_time(self.door.store.now())?;
        let found = waybill_mesh::authenticate(&self.door.store, claim.mesh, claim.key).await?;
        let unknown = || Error::new(Code::Unauthorized, "The key that signed the request is of no member of the mesh.");
        Ok((claim, found.ok_or_else(unknown)?))
    }

    /// The signature covers what came with it; each request counts once.
    fn prove(&self, claim: &RequestClaim, signed: Signed<'_>) -> Result<()> {
        claim.check_signature(signed)?;
        self.door.replays.note(claim, self.door.store.now())
    }
}

/// What a signed request asks for, with whatever was read of it.
pub enum Asked {
    Whole { member: Membership, parts: Parts, read: Read },
    Upload(Upload),
}

impl Mount for Mesh {
    type Asked = Asked;

    fn refusal(&self, _: &Request<Body>) -> Refusal {
        |error, _| error_response(error)
    }

    fn is_open(&self, request: &Request<Body>) -> bool {
        OPEN_PATHS.contains(&request.uri().path())
    }

    async fn answer_open(&self, request: Request<Body>) -> Response<Body> {
        match request.uri().path() {
            SOCKET => self.open_socket(request),
            COMPAT if *request.method() == Method::GET => {
                let mut response = json_response(StatusCode::OK, self.compat.clone());
                response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
                response
            }
            COMPAT => error_response(&Error::new(Code::MethodNotAllowed, Code::MethodNotAllowed.entry().title)),
            _ => self.joining(request).await.unwrap_or_else(|error| error_response(&error)),
        }
    }

    async fn identify(&self, request: Request<Body>, _: IpAddr) -> Result<(Arc<Caller>, Asked)> {
        let (parts, body) = request.into_parts();
        let (claim, member) = self.claimed(&parts).await?;
        let caller = Arc::new(crate::door::charged(&member));
        let signed = |body| Signed { method: parts.method.as_str(), target: files::target(&parts), body };
        if parts.method == Method::POST && parts.uri.path() == FILES {
            let said = files::said(&parts.headers)?;
            if let Some(said) = said {
                self.prove(&claim, signed(said))?;
            }
            check_standing(&member)?;
            return Ok((caller, Asked::Upload(Upload { member, claim, parts, body, said })));
        }
        let read = self.signed_bodies.read(&parts.headers, body, &caller);
        let read = self.commons.unproven().read(read).await?;
        self.prove(&claim, Signed::new(parts.method.as_str(), files::target(&parts), &read.bytes))?;
        // What was accepted stays so, whatever has become of its sender.
        if parts.uri.path() != MESSAGES {
            check_standing(&member)?;
        }
        Ok((caller, Asked::Whole { member, parts, read }))
    }

    async fn answer(&self, _: Arc<Caller>, asked: Asked, _: RequestId) -> Response<Body> {
        let outcome = match asked {
            Asked::Upload(upload) => upload.store(&self.door).await,
            Asked::Whole { member, parts, read } => {
                let id = parts.uri.path().strip_prefix(FILES).and_then(|rest| rest.strip_prefix('/'));
                match id.filter(|_| parts.method == Method::GET) {
                    Some(id) => files::download(&self.door, &member, id).await,
                    None => {
                        let (door, body) = (&*self.door, &read.bytes[..]);
                        requests::Request { door, member: &member, parts: &parts, body }.answer().await
                    }
                }
            }
        };
        outcome.unwrap_or_else(|error| error_response(&error))
    }
}

fn claim(headers: &HeaderMap) -> Result<RequestClaim> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let (first, second) = (values.next(), values.next());
    let text = first.filter(|_| second.is_none()).and_then(|value| value.to_str().ok());
    let missing = || {
        let cure = format!("Sign the request with the member's key: `Authorization: {SCHEME} …`.");
        Error::new(Code::Unauthorized, "The request is not signed by a member.").with_cure(cure)
    };
    RequestClaim::parse(text.ok_or_else(missing)?)
}

fn check_standing(member: &Membership) -> Result<()> {
    match member.standing {
        Standing::Live => Ok(()),
        _ => Err(Error::new(Code::MemberRevoked, Code::MemberRevoked.entry().title)),
    }
}

fn nobody() -> Result<Caller> {
    Ok(Caller {
        tenant: Tenant::DEFAULT,
        tenant_id: Uuid::nil(),
        principal: Principal::new(PrincipalKind::Agent, "mesh/guest")?,
        roles: Roles::new([]),
        scopes: Scopes::new([]),
        key: None,
    })
}
