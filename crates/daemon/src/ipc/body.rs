//! Reading the body of a request: bounded in bytes and in time.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde::de::DeserializeOwned;
use waybill_kernel::{Code, Error, Result};

/// A body that says it is too large is refused before a byte of it is read.
pub async fn read(headers: &HeaderMap, mut body: Incoming, bytes_max: usize, patience: Duration) -> Result<Bytes> {
    let said = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    if said.is_some_and(|bytes| bytes > bytes_max) {
        return Err(too_large(bytes_max));
    }
    let collect = async {
        // Most bodies come in one piece, which is then taken as it is.
        let mut first: Option<Bytes> = None;
        let mut more = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let frame =
                frame.map_err(|error| Error::invalid("The body could not be read to its end.").because(error))?;
            let Ok(data) = frame.into_data() else { continue };
            let so_far = first.as_ref().map_or(0, Bytes::len).max(more.len());
            if so_far + data.len() > bytes_max {
                return Err(too_large(bytes_max));
            }
            match &first {
                None => first = Some(data),
                Some(begin) => {
                    if more.is_empty() {
                        more.extend_from_slice(begin);
                    }
                    more.extend_from_slice(&data);
                }
            }
        }
        Ok(if more.is_empty() { first.unwrap_or_default() } else { more.freeze() })
    };
    let late = |_| Error::new(Code::RequestTimeout, Code::RequestTimeout.entry().title);
    tokio::time::timeout(patience, collect).await.map_err(late)?
}

fn too_large(bytes_max: usize) -> Error {
    let message = format!("The body has more than {bytes_max} bytes.");
    Error::new(Code::PayloadTooLarge, message).with("limit_bytes", bytes_max)
}

pub fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T> {
    serde_json::from_slice(body).map_err(|error| Error::invalid(format!("The body cannot be read: {error}.")))
}

/// As [`decode`], where no body at all means no field at all.
pub fn decode_or_default<T: DeserializeOwned + Default>(body: &[u8]) -> Result<T> {
    if body.is_empty() { Ok(T::default()) } else { decode(body) }
}
