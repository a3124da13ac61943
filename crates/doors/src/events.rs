//! Events: what comes for a principal, over one connection that stays open.
//!
//! A stream is an operation that is run again and again, each turn from where the one before has ended. A turn waits for
//! something to send. One that found nothing becomes a comment, which keeps proxies from closing the connection; a client that
//! hears no comments knows that the server is gone. The key is checked before every turn, so that a revoked key ends its streams.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use futures_util::stream::{iter, unfold};
use http::{HeaderMap, HeaderName, Request, Uri};
use serde_json::Value as Json;
use tokio_util::sync::CancellationToken;
use waybill_kernel::{Caller, Error, RequestId, Result, request};
use waybill_store::{StreamEntry, Turn};

use crate::address::{Input, query_fields};
use crate::auth::Gatekeeper;
use crate::driver::Driver;
use crate::reply;
use crate::settings::Settings;
use waybill_store::shares::{Limits, Share, Shares};

/// Where a stream begins: in the query, or in the header that an EventSource sends when it connects again.
const POSITION: &str = "last_event_id";
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// How long a client waits before it connects again.
const RETRY: Duration = Duration::from_secs(1);

/// All open streams of the server.
#[derive(Clone)]
pub(crate) struct Streams(Arc<Inner>);

struct Inner {
    driver: Driver,
    gatekeeper: Gatekeeper,
    places: Shares,
    heartbeat_s: u64,
    stopping: CancellationToken,
}

/// One of them.
struct Open {
    streams: Streams,
    entry: Arc<dyn StreamEntry>,
    headers: HeaderMap,
    uri: Uri,
    /// What the client asked for, but for the position.
    input: Input,
    position: String,
    ended: bool,
    /// Of the request that opened it. Whatever goes wrong in a later turn is logged under the same id.
    id: Option<RequestId>,
    _place: Share,
}

impl Streams {
    pub(crate) fn new(
        driver: Driver,
        gatekeeper: Gatekeeper,
        settings: &Settings,
        stopping: CancellationToken,
    ) -> Self {
        let places = Shares::new(Limits {
            what: "places for streams of events",
            whole: settings.streams_max,
            kept_for_admins: settings.admin_places,
            key_percent: settings.key_share_percent,
            tenant_percent: settings.tenant_share_percent,
        });
        Self(Arc::new(Inner { driver, gatekeeper, places, heartbeat_s: settings.heartbeat_s, stopping }))
    }

    pub(crate) async fn open(self, entry: Arc<dyn StreamEntry>, request: Request<Body>) -> Response {
        match self.start(entry, request).await {
            Ok(response) => response,
            Err(error) => reply::error(&error),
        }
    }

    /// The first turn does not wait, so that a wrong request is refused by an answer and not within the stream.
    async fn start(self, entry: Arc<dyn StreamEntry>, request: Request<Body>) -> Result<Response> {
        let caller = request.extensions().get::<Arc<Caller>>();
        let caller = caller.ok_or_else(|| Error::internal("a request came past the gatekeeper"))?;
        let place = self.0.places.try_take(caller, 1)?;
        let (parts, _) = request.into_parts();
        let mut input = Input::default();
        let mut given = None;
        for (name, text) in query_fields(parts.uri.query().unwrap_or(""))? {
            if name != POSITION {
                input.add(&name, &Json::String(text))?;
            } else if given.replace(text).is_some() {
                return Err(Error::invalid(format!("{POSITION} is given twice.")));
            }
        }
        let mut position = given.unwrap_or_default();
        if let Some(id) = parts.headers.get(LAST_EVENT_ID) {
            id.to_str().map_err(|_| Error::invalid("The Last-Event-ID header is not text."))?.clone_into(&mut position);
        }
        let (headers, uri) = (parts.headers, parts.uri);
        let mut open = Open {
            streams: self,
            entry,
            headers,
            uri,
            input,
            position,
            ended: false,
            id: request::current(),
            _place: place,
        };
        let first = open.turn(0).await?;
        let mut events = vec![Event::default().retry(RETRY).id(&open.position).comment("connected")];
        events.extend(first.events.into_iter().map(event));
        let later = unfold(open, Open::next).flat_map(iter);
        Ok(Sse::new(iter(events).chain(later).map(Ok::<_, Infallible>)).into_response())
    }
}

impl Open {
    async fn next(mut self) -> Option<(Vec<Event>, Self)> {
        let (stopping, id) = (self.streams.0.stopping.clone(), self.id.clone());
        let heartbeat_s = self.streams.0.heartbeat_s;
        if self.ended || stopping.is_cancelled() {
            return None;
        }
        let turn = tokio::select! {
            turn = request::during(id, self.turn(heartbeat_s)) => turn,
            // The client connects again, with the id of the last event it has.
            () = stopping.cancelled() => return None,
        };
        let events = match turn {
            Ok(turn) if turn.events.is_empty() => vec![Event::default().comment("nothing new")],
            Ok(turn) => turn.events.into_iter().map(event).collect(),
            Err(error) => {
                self.ended = true;
                request::scope(&mut self.id, || reply::log_cause(&error));
                vec![Event::default().event("error").data(error.to_json().to_string())]
            }
        };
        Some((events, self))
    }

    async fn turn(&mut self, wait_s: u64) -> Result<Turn> {
        let caller = self.streams.0.gatekeeper.identify(&self.headers, &self.uri).await?;
        let turn = self.turn_of(&caller, wait_s).await?;
        self.position.clone_from(&turn.position);
        Ok(turn)
    }

    async fn turn_of(&self, caller: &Caller, wait_s: u64) -> Result<Turn> {
        let admitted = self.streams.0.driver.admit(self.entry.spec(), caller)?;
        let mut input = self.input.clone();
        if !self.position.is_empty() {
            input.add(POSITION, &Json::from(self.position.as_str()))?;
        }
        input.add("wait_seconds", &Json::from(wait_s))?;
        admitted.turn(self.entry.as_ref(), &input.text()).await
    }
}

fn event(event: waybill_store::Event) -> Event {
    Event::default().event(event.kind).id(event.id).data(event.data)
}
