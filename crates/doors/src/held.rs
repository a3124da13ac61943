//! An answer that keeps the place and the bytes it was admitted with until its client has read it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use http_body::{Frame, SizeHint};

use crate::connections::{Connection, UnderWay, Unread};
use waybill_store::shares::Share;

/// Given back when the socket has taken the last byte, or the connection is gone.
#[expect(dead_code, reason = "they are held for the sake of their ends")]
pub(crate) struct Kept {
    pub(crate) place: Option<Share>,
    pub(crate) bytes: Option<Share>,
    pub(crate) under_way: UnderWay,
    pub(crate) open: Option<crate::log::Open>,
}

pub(crate) struct Held {
    body: Body,
    connection: Arc<Connection>,
    kept: Arc<Kept>,
    /// Here when it is the socket's turn: from the start until the first look at the body.
    unread: Option<Unread>,
}

impl Held {
    pub(crate) fn new(body: Body, connection: Arc<Connection>, kept: Kept) -> Self {
        let unread = Some(connection.unread());
        Self { body, connection, kept: Arc::new(kept), unread }
    }
}

impl http_body::Body for Held {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let unread = self.unread.take();
        let frame = match Pin::new(&mut self.body).poll_frame(context) {
            Poll::Ready(Some(Ok(frame))) => frame,
            other => return other,
        };
        let unread = unread.unwrap_or_else(|| self.connection.unread());
        let kept = Arc::clone(&self.kept);
        let frame = frame.map_data(|bytes| Bytes::from_owner(Part { bytes, _unread: unread, _kept: kept }));
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Some bytes of it, on their way through HTTP's buffers: dropped when the socket has them.
struct Part {
    bytes: Bytes,
    _unread: Unread,
    _kept: Arc<Kept>,
}

impl AsRef<[u8]> for Part {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}
