//! Files of members, whose bytes are stored and read while they cross the wire: nobody holds one as a whole.
//!
//! A signature covers the digest of the whole body. Whoever says the digest in a header is known before the first byte is stored;
//! of others everything is stored first and counts only once the signature was found to be good, so few of them may come at a time.
//! What is not finished is swept like any file that stopped arriving.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::stream::unfold;
use futures_util::{Stream, StreamExt};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Response, StatusCode};
use serde_json::{Map, Value as Json};
use sha2::{Digest, Sha256};
use tokio::sync::{Semaphore, SemaphorePermit};
use waybill_doors::{Answers, Body, json_response};
use waybill_kernel::id::Uuid;
use waybill_kernel::{Code, Error, Result};
use waybill_mesh::Membership;
use waybill_mesh::ops::files::{BeginFile, FinishFile, GetChunk, GetFile, PutChunk};
use waybill_mesh_protocol::FileId;
use waybill_mesh_protocol::request_signature::{BodyHash, RequestClaim, Signed};
use waybill_store::Procedure;
use waybill_store::shares::Share;

use crate::door::{Door, charged};

/// Lower-case hexadecimal digits.
const BODY_SHA256: HeaderName = HeaderName::from_static("waybill-body-sha256");
/// Uploads whose sender is not proven, at a time.
const UNPROVEN_MAX: usize = 8;
/// Uploads at a time. Each holds a chunk.
const UPLOADS_MAX: usize = 64;
/// Within this time the next chunk has come.
const CHUNK_WITHIN: Duration = Duration::from_secs(30);

/// Places for uploads.
pub(crate) struct Uploads {
    all: Semaphore,
    unproven: Semaphore,
}

impl Default for Uploads {
    fn default() -> Self {
        Self { all: Semaphore::new(UPLOADS_MAX), unproven: Semaphore::new(UNPROVEN_MAX) }
    }
}

/// One that is coming.
pub struct Upload {
    pub(crate) member: Membership,
    pub(crate) claim: RequestClaim,
    pub(crate) parts: Parts,
    pub(crate) body: Body,
    /// What its sender says of it, found to be signed.
    pub(crate) said: Option<BodyHash>,
}

/// The digest that a request says its body has.
pub(crate) fn said(headers: &HeaderMap) -> Result<Option<BodyHash>> {
    let Some(value) = headers.get(BODY_SHA256) else { return Ok(None) };
    let text = value.to_str().map_err(|_| Error::invalid("The digest of the body is not text."))?;
    text.parse().map(Some)
}

impl Uploads {
    fn place(&self, is_proven: bool) -> Result<(SemaphorePermit<'_>, Option<SemaphorePermit<'_>>)> {
        let full = |_| Error::new(Code::Overloaded, "Too many files are being uploaded.");
        let unproven = if is_proven { None } else { Some(self.unproven.try_acquire().map_err(full)?) };
        Ok((self.all.try_acquire().map_err(full)?, unproven))
    }
}

impl Upload {
    pub(crate) async fn store(self, door: &Door) -> Result<Response<Body>> {
        let _place = door.uploads.place(self.said.is_some())?;
        let Self { member, claim, parts, body, said } = self;
        let begin: BeginFile = begun(&member, &parts)?;
        let size = begin.size_bytes;
        let begun = door.run(&member.caller, begin).await?.0;
        let _room = door.room_for_frame(&charged(&member), chunk_bytes(begun.chunk_bytes)?).await?;
        let mut incoming =
            Incoming { stream: body.into_data_stream(), rest: Bytes::new(), hash: Sha256::new(), left: size };
        for position in 0..begun.chunks {
            let bytes = incoming.chunk(chunk_bytes(begun.chunk_bytes)?).await?;
            let put = PutChunk { mesh: member.mesh, member: member.member, file: begun.file_id, position, bytes };
            door.run(&member.caller, put).await?;
        }
        let found = BodyHash::from_bytes(incoming.end().await?);
        if said.is_some_and(|said| said != found) {
            return Err(Error::new(Code::SignatureDoesNotMatch, "The body is not the one that was signed."));
        }
        if said.is_none() {
            claim.check_signature(Signed { method: parts.method.as_str(), target: target(&parts), body: found })?;
            door.replays.note(&claim, door.store.now())?;
        }
        let finish = FinishFile { mesh: member.mesh, member: member.member, file: begun.file_id };
        let finished = door.run(&member.caller, finish).await?.0;
        let text = serde_json::to_string(&finished).map_err(Error::internal)?;
        let mut response = json_response(StatusCode::CREATED, text);
        response.extensions_mut().insert(Answers(<FinishFile as Procedure>::SPEC.name.into()));
        Ok(response)
    }
}

/// Path and query as they were sent.
pub(crate) fn target(parts: &Parts) -> &str {
    parts.uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str)
}

fn chunk_bytes(bytes: u64) -> Result<usize> {
    usize::try_from(bytes).map_err(Error::internal)
}

fn begun(member: &Membership, parts: &Parts) -> Result<BeginFile> {
    let length = parts.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    let Some(size) = length else {
        return Err(
            Error::invalid("The size of a file must be said before it comes.").with_cure("Send Content-Length.")
        );
    };
    let mut fields: Map<String, Json> = crate::requests::file_fields(parts)?;
    for (name, value) in [
        ("mesh", Json::String(member.mesh.to_string())),
        ("member", Json::String(member.member.to_string())),
        ("size_bytes", Json::from(size)),
    ] {
        fields.insert(name.to_owned(), value);
    }
    serde_json::from_value(Json::Object(fields))
        .map_err(|error| Error::invalid(format!("The request cannot be read: {error}.")))
}

/// A body on its way in.
struct Incoming<S> {
    stream: S,
    /// Read, and not yet of a chunk.
    rest: Bytes,
    hash: Sha256,
    left: u64,
}

impl<S, E> Incoming<S>
where
    S: Stream<Item = std::result::Result<Bytes, E>> + Unpin,
    E: std::fmt::Display,
{
    async fn chunk(&mut self, most: usize) -> Result<Vec<u8>> {
        let wanted = usize::try_from(self.left).unwrap_or(usize::MAX).min(most);
        let mut chunk = BytesMut::with_capacity(wanted);
        let late = |_| Error::new(Code::RequestTimeout, Code::RequestTimeout.entry().title);
        tokio::time::timeout(CHUNK_WITHIN, async {
            while chunk.len() < wanted {
                if self.rest.is_empty() {
                    self.rest = self.next().await?.ok_or_else(|| Error::invalid("The body ends before its length."))?;
                }
                let taken = self.rest.split_to(self.rest.len().min(wanted - chunk.len()));
                chunk.extend_from_slice(&taken);
            }
            Ok(())
        })
        .await
        .map_err(late)??;
        self.left -= chunk.len() as u64;
        self.hash.update(&chunk);
        Ok(chunk.into())
    }

    async fn next(&mut self) -> Result<Option<Bytes>> {
        let next = self.stream.next().await.transpose();
        next.map_err(|error| Error::invalid("The body could not be read to its end.").because(error))
    }

    /// Nothing may come after it.
    async fn end(mut self) -> Result<[u8; 32]> {
        let more = if self.rest.is_empty() { self.next().await? } else { Some(self.rest.clone()) };
        match more.filter(|more| !more.is_empty()) {
            None => Ok(self.hash.finalize().into()),
            Some(_) => Err(Error::invalid("The body is longer than it says.")),
        }
    }
}

/// All of a file, chunk by chunk, as fast as it is taken.
pub(crate) async fn download(door: &Arc<Door>, member: &Membership, id: &str) -> Result<Response<Body>> {
    let file = FileId(Uuid::try_parse(id).map_err(|_| Error::not_found("file"))?);
    let get = GetFile { mesh: member.mesh, member: member.member, file };
    let view = door.run(&member.caller, get).await?.0;
    let room = door.room_for_deliveries(&charged(member), 1 << 20).await?;
    let outgoing = Outgoing {
        door: Arc::clone(door),
        member: member.clone(),
        file,
        position: 0,
        left: view.size_bytes,
        _room: room,
    };
    let stream = unfold(outgoing, |outgoing| outgoing.next());
    let mut response = Response::new(Body::from_stream(stream));
    let headers = response.headers_mut();
    headers.insert(CONTENT_LENGTH, HeaderValue::from(view.size_bytes));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    response.extensions_mut().insert(Answers(<GetFile as Procedure>::SPEC.name.into()));
    Ok(response)
}

struct Outgoing {
    door: Arc<Door>,
    member: Membership,
    file: FileId,
    position: u64,
    left: u64,
    _room: Share,
}

impl Outgoing {
    /// An error cuts the answer off, which its length shows to whoever reads it.
    async fn next(mut self) -> Option<(Result<Bytes>, Self)> {
        if self.left == 0 {
            return None;
        }
        let get =
            GetChunk { mesh: self.member.mesh, member: self.member.member, file: self.file, position: self.position };
        let read = self.door.run(&self.member.caller, get).await;
        self.position += 1;
        match read {
            Ok((chunk, _)) => {
                self.left = self.left.saturating_sub(chunk.bytes.len() as u64);
                Some((Ok(chunk.bytes.into()), self))
            }
            Err(error) => {
                self.left = 0;
                Some((Err(error), self))
            }
        }
    }
}
