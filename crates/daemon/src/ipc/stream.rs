//! `/v1/events`: what happens, as server-sent events. A reader that comes back names the last event it has seen.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Response};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Either, StreamBody};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;
use waybill_kernel::{Error, Result};

use super::Local;
use super::reply::Body;
use crate::events::{Subscription, Told};

const LAST_EVENT_ID: &str = "last-event-id";

struct Reader {
    subscription: Subscription,
    comment_every: Duration,
    stop: CancellationToken,
    /// Its place among the streams, given back with the reader.
    _place: OwnedSemaphorePermit,
    /// The head is sent at once: a client that waits for an event knows that it is heard.
    is_new: bool,
}

pub fn events(local: &Local, headers: &HeaderMap, place: OwnedSemaphorePermit) -> Result<Response<Body>> {
    let after = match headers.get(LAST_EVENT_ID) {
        None => None,
        Some(id) => {
            let id = id.to_str().ok().and_then(|id| id.trim().parse().ok());
            Some(id.ok_or_else(|| Error::invalid("Last-Event-ID is none that this daemon has given."))?)
        }
    };
    let reader = Reader {
        subscription: local.events.subscribe(after),
        comment_every: Duration::from_millis(local.settings.ipc.stream_comment_ms),
        stop: local.stop.clone(),
        _place: place,
        is_new: true,
    };
    let frames = stream::unfold(reader, |mut reader| async move {
        let text = reader.next().await?;
        Some((Ok::<_, Infallible>(Frame::data(Bytes::from(text))), reader))
    });
    let mut response = Response::new(Either::Right(UnsyncBoxBody::new(StreamBody::new(frames).boxed_unsync())));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

impl Reader {
    /// None when the daemon stops.
    async fn next(&mut self) -> Option<String> {
        if std::mem::take(&mut self.is_new) {
            return Some(": open\n\n".to_owned());
        }
        tokio::select! {
            () = self.stop.cancelled() => None,
            told = self.subscription.next() => told.map(|told| text(&told)),
            () = tokio::time::sleep(self.comment_every) => Some(": alive\n\n".to_owned()),
        }
    }
}

/// The text of an event is one line of JSON, so it needs no splitting.
fn text(told: &Told) -> String {
    let event = &told.event;
    let missed = if told.missed { ": events before this one are gone; read the inbox\n" } else { "" };
    format!("{missed}id: {}\nevent: {}\ndata: {}\n\n", event.id, event.kind.name(), event.text)
}
