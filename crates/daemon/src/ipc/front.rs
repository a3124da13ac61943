//! What every request passes, on its way in and on its way back.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use hyper::body::Incoming;
use metrics::{Counter, Histogram};
use serde_json::json;
use tokio::sync::Semaphore;
use waybill_kernel::bucket::{self, Grant, Limit};
use waybill_kernel::{Code, Error, Result};

use super::guard::{self, Credential, Refusal, Via};
use super::reply::{Body, Reply, refusal};
use super::routes::{self, Endpoint};
use super::{Local, admin, body, files, read, send, status, stream};
use crate::events::EventKind;
use crate::hooks::capability::{Grant as Capability, PREFIX};
use crate::metrics as figures;

pub struct Front {
    local: Arc<Local>,
    in_flight: Semaphore,
    streams: Arc<Semaphore>,
    /// Of callers over TCP.
    rate: Mutex<bucket::State>,
    limit: Limit,
    meters: Meters,
}

impl Front {
    pub fn new(local: Arc<Local>) -> Self {
        let ipc = &local.settings.ipc;
        let window = Duration::from_secs_f64(f64::from(ipc.rate_burst) / f64::from(ipc.rate_per_s.max(1)));
        let limit = Limit { capacity: ipc.rate_burst, window };
        Self {
            in_flight: Semaphore::new(ipc.in_flight_max),
            streams: Arc::new(Semaphore::new(ipc.streams_max)),
            rate: Mutex::new(bucket::State::full(limit, local.clock.now())),
            limit,
            meters: Meters::default(),
            local,
        }
    }

    pub async fn answer(
        &self,
        via: Via,
        request: Request<Incoming>,
    ) -> std::result::Result<Response<Body>, Infallible> {
        let began = Instant::now();
        let (parts, incoming) = request.into_parts();
        let found = routes::find(via, &parts.method, parts.uri.path());
        let endpoint = found.as_ref().ok().copied();
        let answered = match self.admit(via, &parts, endpoint) {
            Ok(capability) => match found {
                Ok(endpoint) => self.run(endpoint, &parts, incoming, capability).await,
                Err(error) => Err(error),
            },
            Err(error) => Err(error),
        };
        let response = answered.unwrap_or_else(|error| refusal(&error));
        self.meters.count(endpoint, response.status().as_u16(), began.elapsed());
        Ok(response)
    }

    /// Who asks, and may they ask now?
    fn admit(&self, via: Via, parts: &Parts, endpoint: Option<Endpoint>) -> Result<Option<Capability>> {
        let origins = &self.local.settings.ipc.origins;
        if let Err(Refusal { kind, error }) = guard::judge(via, &parts.method, &parts.uri, &parts.headers, origins) {
            self.suspicious(kind);
            return Err(error);
        }
        if via == Via::Tcp {
            self.pace()?;
        }
        let is_public = endpoint == Some(Endpoint::Health) && self.local.settings.ipc.public_health_check;
        let now = || self.local.clock.now();
        match (via, guard::credential(&parts.headers)) {
            // A hook that comes with its token is held to it, also where it would need none.
            (_, Credential::Bearer(token)) if token.starts_with(PREFIX) => {
                self.local.hooks.capabilities().grant(token, now()).map(Some)
            }
            (Via::Socket, _) => Ok(None),
            (Via::Tcp, Credential::Bearer(token)) if self.local.tokens.accepts(token, now()) => Ok(None),
            (Via::Tcp, Credential::None) if is_public => Ok(None),
            (Via::Tcp, _) => Err(Error::new(Code::Unauthorized, "Callers over TCP need the local token.")
                .with_cure("Send `Authorization: Bearer` with what the daemon's file local_token holds.")),
        }
    }

    fn pace(&self) -> Result<()> {
        let now = self.local.clock.now();
        let mut state = self.rate.lock().unwrap_or_else(PoisonError::into_inner);
        match bucket::take(*state, self.limit, 1, now) {
            Grant::Granted { state: rest, .. } => {
                *state = rest;
                Ok(())
            }
            Grant::Denied { retry_after } => {
                let seconds = retry_after.map_or(1, |wait| wait.as_secs() + 1);
                let error = Error::new(Code::RateLimitExceeded, Code::RateLimitExceeded.entry().title);
                Err(error.with("retry_after", seconds))
            }
        }
    }

    /// A request that only a mistake or an attack makes.
    pub(super) fn suspicious(&self, kind: &'static str) {
        figures::security(kind);
        tracing::warn!(security.kind = kind, "a local request was refused");
        self.local.events.publish(EventKind::Security, self.local.clock.now(), json!({ "kind": kind }));
    }

    async fn run(
        &self,
        endpoint: Endpoint,
        parts: &Parts,
        incoming: Incoming,
        capability: Option<Capability>,
    ) -> Result<Response<Body>> {
        // Streams have places of their own: they stay, and would leave none for requests.
        if endpoint == Endpoint::Events {
            refuse_capability(capability.as_ref(), endpoint)?;
            let place = Arc::clone(&self.streams).try_acquire_owned();
            let place = place.map_err(|_| Error::new(Code::TooManyStreams, Code::TooManyStreams.entry().title))?;
            return stream::events(&self.local, &parts.headers, place);
        }
        let place = self.in_flight.try_acquire();
        let _place = place.map_err(|_| Error::new(Code::DaemonBusy, Code::DaemonBusy.entry().title))?;
        let ipc = &self.local.settings.ipc;
        let patience = Duration::from_millis(ipc.body_read_ms);
        let body = body::read(&parts.headers, incoming, ipc.body_bytes_max, patience).await?;
        match capability {
            Some(capability) if matches!(endpoint, Endpoint::Send | Endpoint::TopicPost) => {
                capability.permits(endpoint.path(), &body::decode(&body)?)?;
            }
            capability => refuse_capability(capability.as_ref(), endpoint)?,
        }
        self.call(endpoint, parts, &body).await.map(Reply::into_response)
    }

    async fn call(&self, endpoint: Endpoint, parts: &Parts, body: &Bytes) -> Result<Reply> {
        let (local, query) = (self.local.as_ref(), parts.uri.query());
        match endpoint {
            Endpoint::Send => send::send(local, &parts.headers, body).await,
            Endpoint::TopicPost => send::post(local, &parts.headers, body).await,
            Endpoint::TopicSubscribe => read::subscribe(local, body).await,
            Endpoint::TopicUnsubscribe => read::unsubscribe(local, body).await,
            Endpoint::TopicList => read::topics(local).await,
            Endpoint::Inbox => read::inbox(local, query).await,
            Endpoint::InboxSearch => read::search(local, query).await,
            Endpoint::Peers => read::peers(local),
            Endpoint::Profile => read::profile(local, &parts.method, body).await,
            Endpoint::FileShare => files::share(local, body).await,
            Endpoint::FileGet => files::get(local, query).await,
            Endpoint::FileList => files::list(local, query).await,
            // Answered before a body is read.
            Endpoint::Events => Err(Error::internal("a stream was called as a request")),
            Endpoint::Health => status::health(local).await,
            Endpoint::Metrics => status::metrics(local).await,
            Endpoint::Version => status::version(local),
            Endpoint::Compat => status::compat(local),
            Endpoint::Heartbeat => status::heartbeat(local),
            Endpoint::OutboxList => admin::list(local, query).await,
            Endpoint::OutboxInspect => admin::inspect(local, query).await,
            Endpoint::OutboxRequeue => admin::requeue(local, body).await,
            Endpoint::OutboxPrune => admin::prune(local, body).await,
            Endpoint::RotateToken => admin::rotate_token(local),
            Endpoint::RotateKeypair => admin::rotate_keypair(local).await,
            Endpoint::ArchiveCleanup => admin::archive_cleanup(local).await,
            Endpoint::Backup => admin::backup(local, body).await,
            Endpoint::Reload => admin::reload(local),
            Endpoint::Shutdown => admin::shutdown(local),
        }
    }
}

/// A capability is for sending, and says to whom.
fn refuse_capability(capability: Option<&Capability>, endpoint: Endpoint) -> Result<()> {
    capability.map_or(Ok(()), |capability| capability.permits(endpoint.path(), &serde_json::Value::Null))
}

/// Handles are made once each, so that counting costs no look-up.
#[derive(Default)]
struct Meters {
    counters: [[OnceLock<Counter>; CLASSES]; ENDPOINTS],
    seconds: OnceLock<Histogram>,
}

const CLASSES: usize = 4;
/// Those that there are, and one for paths that are none.
const ENDPOINTS: usize = Endpoint::ALL.len() + 1;

impl Meters {
    fn count(&self, endpoint: Option<Endpoint>, status: u16, took: Duration) {
        let index = endpoint.map_or(ENDPOINTS - 1, |endpoint| endpoint as usize);
        let class = usize::from(status / 100).clamp(2, 5) - 2;
        let word = endpoint.map_or("unknown", Endpoint::word);
        self.counters[index][class].get_or_init(|| figures::ipc_requests(word, status)).increment(1);
        self.seconds.get_or_init(figures::ipc_seconds).record(took.as_secs_f64());
    }
}
