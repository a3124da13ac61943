//! The bytes of a file on their way: read, sealed and sent chunk by chunk, or received, opened and written.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use reqwest::{Body, Response};
use sha2::{Digest as _, Sha256};
use tokio::sync::mpsc;
use waybill_kernel::{Code, Entropy, Error, Result, hex};
use waybill_mesh_protocol::file::{CHUNK_BYTES, HEADER_BYTES, SEALED_CHUNK_BYTES};
use waybill_mesh_protocol::request_signature::BodyHash;
use waybill_mesh_protocol::{FileKey, FileOpener, FileSealer};

use super::FileRow;

/// Chunks between the thread that works on the file and the socket.
const CHUNKS_MAX: usize = 4;

/// A file to share. Both readings of it seal it alike: key and nonces are fixed when it is opened.
pub struct Source {
    path: PathBuf,
    key: FileKey,
    nonces: Fixed,
    bytes: u64,
}

/// What the first reading has found.
pub struct Digest {
    pub plain: String,
    pub plain_bytes: u64,
    pub sealed: BodyHash,
    pub sealed_bytes: u64,
}

/// Gives out the same bytes to every sealer.
#[derive(Clone)]
struct Fixed([u8; 32]);

impl Entropy for Fixed {
    fn fill(&self, bytes: &mut [u8]) {
        for (to, from) in bytes.iter_mut().zip(self.0.iter().cycle()) {
            *to = *from;
        }
    }
}

impl Source {
    pub async fn open(path: &Path, key: &FileKey, entropy: &dyn Entropy) -> Result<Self> {
        let metadata = tokio::fs::metadata(path).await.map_err(|error| unusable(path, &error))?;
        if !metadata.is_file() {
            return Err(Error::invalid(format!("{} is not a regular file.", path.display())));
        }
        let mut nonces = [0; 32];
        entropy.fill(&mut nonces);
        Ok(Self { path: path.to_owned(), key: key.clone(), nonces: Fixed(nonces), bytes: metadata.len() })
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Seals all of it and keeps the digests alone.
    pub async fn digest(&self) -> Result<Digest> {
        let (path, key, nonces) = (self.path.clone(), self.key.clone(), self.nonces.clone());
        let work = move || {
            let (mut plain, mut sealed) = (Sha256::new(), Sha256::new());
            let (mut plain_bytes, mut sealed_bytes) = (0, 0);
            seal(&path, &key, &nonces, &mut |piece| {
                match piece {
                    Piece::Plain(bytes) => {
                        plain.update(bytes);
                        plain_bytes += bytes.len() as u64;
                    }
                    Piece::Sealed(bytes) => {
                        sealed.update(&bytes);
                        sealed_bytes += bytes.len() as u64;
                    }
                }
                Ok(())
            })?;
            let plain: [u8; 32] = plain.finalize().into();
            let sealed = BodyHash::from_bytes(sealed.finalize().into());
            Ok(Digest { plain: hex::encode(&plain), plain_bytes, sealed, sealed_bytes })
        };
        tokio::task::spawn_blocking(work).await.map_err(Error::internal)?
    }

    /// Seals it again while it is sent. A file that has changed meanwhile has another digest than was signed, and is refused.
    pub fn body(self) -> Body {
        let (give, take) = mpsc::channel::<io::Result<Bytes>>(CHUNKS_MAX);
        tokio::task::spawn_blocking(move || {
            let sealed = seal(&self.path, &self.key, &self.nonces, &mut |piece| match piece {
                Piece::Plain(_) => Ok(()),
                // Nobody takes it any more: the request has ended.
                Piece::Sealed(bytes) => give.blocking_send(Ok(Bytes::from(bytes))).map_err(|_| gone()),
            });
            if let Err(error) = sealed {
                let _ = give.blocking_send(Err(io::Error::other(error.to_string())));
            }
        });
        Body::wrap_stream(futures_util::stream::unfold(take, |mut take| async {
            take.recv().await.map(|chunk| (chunk, take))
        }))
    }
}

enum Piece<'a> {
    Plain(&'a [u8]),
    Sealed(Vec<u8>),
}

/// Blocking. One chunk is read ahead: only then is it known which is the last.
fn seal(path: &Path, key: &FileKey, nonces: &Fixed, give: &mut dyn FnMut(Piece<'_>) -> Result<()>) -> Result<()> {
    let mut file = File::open(path).map_err(|error| unusable(path, &error))?;
    let mut sealer = FileSealer::new(key, nonces);
    give(Piece::Sealed(sealer.header().to_vec()))?;
    let mut chunk = read_chunk(&mut file).map_err(|error| unusable(path, &error))?;
    loop {
        let next = match chunk.len() {
            CHUNK_BYTES => read_chunk(&mut file).map_err(|error| unusable(path, &error))?,
            _ => Vec::new(),
        };
        give(Piece::Plain(&chunk))?;
        give(Piece::Sealed(sealer.chunk(&chunk, next.is_empty())?))?;
        if next.is_empty() {
            return Ok(());
        }
        chunk = next;
    }
}

fn read_chunk(file: &mut File) -> io::Result<Vec<u8>> {
    let mut chunk = Vec::with_capacity(CHUNK_BYTES);
    file.take(CHUNK_BYTES as u64).read_to_end(&mut chunk)?;
    Ok(chunk)
}

/// Where a file is written before it is whole: in the same folder, under a name that nobody else has.
pub fn part_beside(path: &Path, entropy: &dyn Entropy) -> PathBuf {
    let mut random = [0; 16];
    entropy.fill(&mut random);
    path.with_file_name(format!(".waybill-{}.part", hex::encode(&random)))
}

/// Writes what comes to `part`, and puts it at `path` when all of it is there and as it was shared.
pub async fn receive(mut response: Response, row: &FileRow, path: &Path, part: PathBuf) -> Result<()> {
    let (give, take) = mpsc::channel::<Bytes>(CHUNKS_MAX);
    let (row, path) = (row.clone(), path.to_owned());
    let writing = tokio::task::spawn_blocking(move || write(take, &row, &path, &part));
    let mut lost = None;
    loop {
        match response.chunk().await {
            Ok(Some(bytes)) => {
                if give.send(bytes).await.is_err() {
                    // It says itself what was wrong.
                    break;
                }
            }
            Ok(None) => break,
            Err(error) => {
                lost = Some(error.without_url().to_string());
                break;
            }
        }
    }
    drop(give);
    let written = writing.await.map_err(Error::internal)?;
    match lost {
        Some(cause) => Err(Error::new(Code::Unavailable, "The file did not come to its end.").because(cause)),
        None => written,
    }
}

/// Blocking.
fn write(mut take: mpsc::Receiver<Bytes>, row: &FileRow, path: &Path, part: &Path) -> Result<()> {
    // One that is there already is somebody's, and stays.
    let made = File::options().write(true).create_new(true).mode(0o600).open(part);
    let mut file = made.map_err(|error| unusable(part, &error))?;
    let written = write_part(&mut take, row, &mut file, part);
    let placed = written.and_then(|()| std::fs::rename(part, path).map_err(|error| unusable(path, &error)));
    if placed.is_err() {
        let _ = std::fs::remove_file(part);
    }
    placed
}

fn write_part(take: &mut mpsc::Receiver<Bytes>, row: &FileRow, file: &mut File, part: &Path) -> Result<()> {
    let broken = |error: io::Error| unusable(part, &error);
    let mut waiting: Vec<u8> = Vec::new();
    let (mut digest, mut count) = (Sha256::new(), 0_u64);
    let mut opener: Option<FileOpener> = None;
    let mut open = |opener: &mut FileOpener, sealed: &[u8], last: bool, file: &mut File| -> Result<()> {
        let plain = opener.chunk(sealed, last)?;
        count += plain.len() as u64;
        if count > row.bytes {
            return Err(not_as_shared());
        }
        digest.update(&plain);
        file.write_all(&plain).map_err(broken)
    };
    while let Some(bytes) = take.blocking_recv() {
        waiting.extend_from_slice(&bytes);
        if opener.is_none() && waiting.len() >= HEADER_BYTES {
            opener = Some(FileOpener::new(&row.key, &waiting[..HEADER_BYTES])?);
            waiting.drain(..HEADER_BYTES);
        }
        let Some(opener) = &mut opener else { continue };
        // The last chunk is known as such only when nothing follows.
        while waiting.len() > SEALED_CHUNK_BYTES {
            open(opener, &waiting[..SEALED_CHUNK_BYTES], false, file)?;
            waiting.drain(..SEALED_CHUNK_BYTES);
        }
    }
    let Some(mut opener) = opener else { return Err(not_as_shared()) };
    open(&mut opener, &waiting, true, file)?;
    let digest: [u8; 32] = digest.finalize().into();
    if count != row.bytes || hex::encode(&digest) != row.sha256 {
        return Err(not_as_shared());
    }
    file.sync_all().map_err(broken)
}

fn not_as_shared() -> Error {
    Error::new(Code::BoxUnreadable, "The file is not as it was shared.")
}

fn gone() -> Error {
    Error::new(Code::Unavailable, "The upload has ended.")
}

fn unusable(path: &Path, error: &io::Error) -> Error {
    Error::new(Code::PathUnusable, format!("{} cannot be used: {error}.", path.display()))
}
