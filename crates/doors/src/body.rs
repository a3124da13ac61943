//! Reading the body of a request: bounded in bytes, in time, and in how many bytes all bodies together may have.

use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use http_body_util::BodyExt;
use waybill_kernel::{Caller, Code, Error, Result};

use crate::Settings;
use waybill_store::shares::{Limits, Share, Shares};

/// Bodies up to this size need no room: the places for requests bound their number.
const SMALL_BYTES_MAX: usize = 4 << 10;
/// The unit in which room is counted.
const UNIT_BYTES: usize = 1 << 10;

/// Cheap to clone.
#[derive(Clone)]
pub struct Bodies {
    bytes_max: usize,
    patience: Duration,
    room: Shares,
}

/// A whole body, with the room that it takes until the work on it is done.
pub struct Read {
    pub bytes: Bytes,
    pub room: Option<Share>,
}

impl Bodies {
    pub(crate) fn new(settings: &Settings) -> Self {
        let limits = Limits {
            what: "room for request bodies, in KiB",
            // One body of the largest size fits into a key's part, whatever the settings say.
            whole: settings.bodies_bytes_max.max(settings.body_bytes_max * 100 / settings.key_share_percent.max(1))
                / UNIT_BYTES,
            kept_for_admins: 0,
            key_percent: settings.key_share_percent,
            tenant_percent: settings.tenant_share_percent,
        };
        let patience = Duration::from_millis(settings.body_read_ms);
        Self { bytes_max: settings.body_bytes_max, patience, room: Shares::new(limits) }
    }

    /// Shares the room, with another bound for one body, which is at most a key's part of that room.
    #[must_use]
    pub fn up_to(&self, bytes_max: usize) -> Self {
        Self { bytes_max, ..self.clone() }
    }

    /// A body whose announced length is too large is refused before a byte of it is read.
    pub async fn read(&self, headers: &HeaderMap, body: Body, caller: &Caller) -> Result<Read> {
        let said = length(headers);
        if said.is_some_and(|bytes| bytes > self.bytes_max) {
            return Err(self.too_large());
        }
        let late = |_| Error::new(Code::RequestTimeout, Code::RequestTimeout.entry().title);
        tokio::time::timeout(self.patience, self.collect(said, body, caller)).await.map_err(late)?
    }

    async fn collect(&self, said: Option<usize>, mut body: Body, caller: &Caller) -> Result<Read> {
        let mut room = None;
        let mut whole = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let frame =
                frame.map_err(|error| Error::invalid("The body could not be read to its end.").because(error))?;
            let Ok(data) = frame.into_data() else { continue };
            if whole.len() + data.len() > self.bytes_max {
                return Err(self.too_large());
            }
            if room.is_none() && whole.len() + data.len() > SMALL_BYTES_MAX {
                // All of it at once: two bodies with half each would wait for each other.
                let wanted = said.unwrap_or(self.bytes_max);
                room = Some(self.room.take(caller, wanted.div_ceil(UNIT_BYTES)).await?);
                whole.reserve(wanted - whole.len());
            }
            whole.extend_from_slice(&data);
        }
        Ok(Read { bytes: whole.freeze(), room })
    }

    fn too_large(&self) -> Error {
        let message = format!("The body has more than {} bytes.", self.bytes_max);
        Error::new(Code::PayloadTooLarge, message).with("limit_bytes", self.bytes_max)
    }
}

fn length(headers: &HeaderMap) -> Option<usize> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}
