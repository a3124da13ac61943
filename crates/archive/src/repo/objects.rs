//! Objects: ids, digests, compression and reading, all of gix that is used here. gix changes its interfaces monthly; whatever changes,
//! changes in this file.
//!
//! The plumbing crates are named instead of `gix` itself: they never look at a configuration, an environment variable or a hook, so
//! none can be obeyed. Refs, trees and packs are written by this crate, since what is written is small and has to be synced in an order
//! of our own.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::path::Path;

use bytes::Bytes;
use gix_object::Find;
use gix_zlib::stream::deflate;

use crate::error::{Error, Result};

const HASH: gix_hash::Kind = gix_hash::Kind::Sha1;
/// Bytes of one object that are read into memory.
const OBJECT_BYTES_MAX: usize = 64 << 20;
/// Bytes of trees that an open repository remembers.
const TREES_BYTES_MAX: usize = 4 << 20;
/// Packs that there is room for at least: twice as many as are there before small ones are merged.
const INDEXES_MIN: usize = 48;

/// The id of an object.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Oid([u8; Self::LEN]);

impl Oid {
    pub const LEN: usize = 20;

    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// From 40 small hexadecimal digits.
    pub fn from_hex(text: &str) -> Option<Self> {
        let digits = text.as_bytes();
        if digits.len() != 2 * Self::LEN || !digits.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')) {
            return None;
        }
        let mut id = [0; Self::LEN];
        for (at, byte) in id.iter_mut().enumerate() {
            *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()?;
        }
        Some(Self(id))
    }

    pub fn as_bytes(&self) -> &[u8; Self::LEN] {
        &self.0
    }
}

impl std::fmt::Display for Oid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl std::fmt::Debug for Oid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Blob,
    Tree,
    Commit,
}

impl Kind {
    const fn gix(self) -> gix_object::Kind {
        match self {
            Kind::Blob => gix_object::Kind::Blob,
            Kind::Tree => gix_object::Kind::Tree,
            Kind::Commit => gix_object::Kind::Commit,
        }
    }

    /// Its number in the header of a pack's entry.
    pub const fn in_pack(self) -> u8 {
        match self {
            Kind::Commit => 1,
            Kind::Tree => 2,
            Kind::Blob => 3,
        }
    }
}

/// An object to be written.
#[derive(Clone, Debug)]
pub struct Object {
    pub kind: Kind,
    pub id: Oid,
    pub data: Bytes,
}

impl Object {
    pub fn new(kind: Kind, data: Bytes) -> Result<Self> {
        let id = gix_object::compute_hash(HASH, kind.gix(), &data).map_err(Error::damaged)?;
        let id = Oid::from_bytes(id.as_bytes()).ok_or_else(|| Error::damaged("an id of another length"))?;
        Ok(Self { kind, id, data })
    }
}

/// A SHA-1 under way.
pub struct Digest(gix_hash::Hasher);

impl Digest {
    pub fn new() -> Self {
        Self(gix_hash::hasher(HASH))
    }

    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub fn end(self) -> Result<Oid> {
        let digest = self.0.try_finalize().map_err(Error::damaged)?;
        Oid::from_bytes(digest.as_bytes()).ok_or_else(|| Error::damaged("a digest of another length"))
    }
}

/// Compresses one object after another with one set of tables, which are a quarter of a megabyte.
pub struct Deflater(deflate::Compress);

impl Deflater {
    pub fn new() -> Self {
        Self(deflate::Compress::new(gix_zlib::Compression::BEST_SPEED))
    }

    /// Appends the compressed bytes.
    pub fn append(&mut self, data: &[u8], out: &mut Vec<u8>) -> Result<()> {
        const STEP: usize = 1 << 15;
        self.0.reset();
        let (mut taken, mut end) = (0, out.len());
        loop {
            out.resize(end + STEP, 0);
            let (before_in, before_out) = (self.0.total_in(), self.0.total_out());
            let status = self.0.compress(&data[taken..], &mut out[end..], deflate::FlushCompress::Finish);
            let status = status.map_err(|error| Error::damaged(format!("compressing failed: {error}")))?;
            taken += usize::try_from(self.0.total_in() - before_in).unwrap_or_default();
            let made = usize::try_from(self.0.total_out() - before_out).unwrap_or_default();
            end += made;
            if status == gix_zlib::Status::StreamEnd {
                out.truncate(end);
                return Ok(());
            }
            if made == 0 {
                return Err(Error::damaged("compressing an object came to a standstill"));
            }
        }
    }
}

/// The objects of a repository, for reading, with the trees that were used lately.
pub struct Objects {
    store: gix_odb::HandleArc,
    buffer: Vec<u8>,
    trees: HashMap<Oid, Bytes>,
    /// In the order in which they came.
    order: VecDeque<Oid>,
    bytes: usize,
}

impl Objects {
    pub fn open(objects: &Path) -> Result<Self> {
        let options = gix_odb::store::init::Options {
            // Counted when it is opened; with too many more it is opened anew.
            slots: gix_odb::store::init::Slots::AsNeededByDiskState { multiplier: 1.5, minimum: INDEXES_MIN },
            alloc_limit_bytes: Some(OBJECT_BYTES_MAX),
            ..gix_odb::store::init::Options::default()
        };
        let store = gix_odb::Store::at_opts(objects.to_owned(), HASH, &mut std::iter::empty(), options);
        let store = std::sync::Arc::new(store.map_err(Error::io("opening the objects", objects))?);
        let store = gix_odb::Cache::from(store.to_handle_arc());
        Ok(Self { store, buffer: Vec::new(), trees: HashMap::new(), order: VecDeque::new(), bytes: 0 })
    }

    /// After packs were replaced, so that the old ones are let go of. The trees stay: an id never changes its meaning.
    pub fn reopen(&mut self, objects: &Path) -> Result<()> {
        self.store = Self::open(objects)?.store;
        Ok(())
    }

    /// The bytes of an object, which must be there.
    pub fn read(&mut self, kind: Kind, id: Oid) -> Result<Bytes> {
        let gix_id = gix_hash::ObjectId::from_bytes_or_panic(id.as_bytes());
        let found = self.store.try_find(&gix_id, &mut self.buffer).map_err(|error| {
            trouble(error.downcast_any_ref::<io::Error>()).unwrap_or_else(|| Error::damaged(format!("{id}: {error}")))
        })?;
        match found {
            Some(object) if object.kind == kind.gix() => {
                let data = Bytes::copy_from_slice(object.data);
                // Whatever a disk has made of it: an object is what its id says.
                if Object::new(kind, data.clone())?.id != id {
                    return Err(Error::damaged(format!("the object {id} has another content than its id says")));
                }
                Ok(data)
            }
            Some(object) => Err(Error::damaged(format!("the object {id} is a {}", object.kind))),
            None => Err(Error::damaged(format!("the object {id} is missing"))),
        }
    }

    /// The bytes of a tree, remembered.
    pub fn tree(&mut self, id: Oid) -> Result<Bytes> {
        if let Some(tree) = self.trees.get(&id) {
            return Ok(tree.clone());
        }
        let tree = self.read(Kind::Tree, id)?;
        self.remember(id, tree.clone());
        Ok(tree)
    }

    pub fn remember(&mut self, id: Oid, tree: Bytes) {
        let size = tree.len();
        if size > TREES_BYTES_MAX || self.trees.insert(id, tree).is_some() {
            return;
        }
        self.bytes += size;
        self.order.push_back(id);
        while self.bytes > TREES_BYTES_MAX {
            let Some(oldest) = self.order.pop_front() else { break };
            self.bytes -= self.trees.remove(&oldest).map_or(0, |tree| tree.len());
        }
    }
}

/// What says nothing about the repository: no permission, no more files, a disk that fails. The rest is damage.
fn trouble(error: Option<&io::Error>) -> Option<Error> {
    use io::ErrorKind::{InvalidData, InvalidInput, NotFound, Other, UnexpectedEof};
    let error =
        error.filter(|error| !matches!(error.kind(), NotFound | UnexpectedEof | InvalidData | InvalidInput | Other))?;
    let source = error.raw_os_error().map_or_else(|| io::Error::from(error.kind()), io::Error::from_raw_os_error);
    Some(Error::io("reading an object", Path::new("objects"))(source))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_those_of_git() {
        let empty = Object::new(Kind::Blob, Bytes::new()).unwrap();
        assert_eq!(empty.id.to_string(), "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
        assert_eq!(Oid::from_hex(&empty.id.to_string()), Some(empty.id));
        for wrong in ["", "e69", "E69de29bb2d1d6434b8b29ae775ad8c2e48c5391", "+69de29bb2d1d6434b8b29ae775ad8c2e48c5391"]
        {
            assert_eq!(Oid::from_hex(wrong), None);
        }
    }
}
