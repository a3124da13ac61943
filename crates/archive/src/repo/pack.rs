//! Packs: a pack holds many objects in one file, an index beside it says where. One pack is written per window, instead of a file per
//! object; small ones are merged ([`super::merge`]), so their number stays small.
//!
//! Every object is written whole, never as a difference from another: an entry can then be copied from one pack to another as it is. A
//! `git gc` that somebody runs makes differences of them, and those packs are read like any others and never merged.
//!
//! A pack is complete before it has its name, and its index comes last: git looks for indexes. Until a ref leads to its objects it has
//! a `.keep` beside it, which `git gc` heeds.

use std::fs::File;
use std::io::{BufWriter, Write};

use super::disk::Folder;
use super::objects::{Deflater, Digest, Kind, Object, Oid};
use crate::error::{Error, Result};

/// Names of packs under way begin with this, and not with `tmp_`: `git gc --prune=now` removes those whoever is writing them.
const TEMPORARY: &str = "waybill_pack_";
/// What our `.keep` files say.
const KEEP: &[u8] = b"waybill\n";
const MAGIC: &[u8; 4] = b"PACK";
const INDEX_MAGIC: [u8; 4] = [0xff, b't', b'O', b'c'];
const VERSION: u32 = 2;
pub const HEADER_LEN: u64 = 12;
/// Beyond it an index needs wide offsets, which ours do not have.
const PACK_BYTES_MAX: u64 = 1 << 31;
const INDEX_BYTES_MAX: usize = 256 << 20;

/// A pack that is in its folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pack {
    /// Without an ending: `pack-` and a digest.
    pub name: String,
    pub bytes: u64,
    pub objects: usize,
}

/// Where an object is in a pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Located {
    pub id: Oid,
    pub crc: u32,
    pub offset: u64,
}

/// A pack being written.
pub struct Writer<'a> {
    folder: &'a Folder,
    temporary: String,
    file: BufWriter<File>,
    digest: Digest,
    at: u64,
    located: Vec<Located>,
    count: usize,
}

impl<'a> Writer<'a> {
    /// For `count` objects, no more and no less.
    pub fn begin(folder: &'a Folder, count: usize) -> Result<Self> {
        let temporary = format!("{TEMPORARY}{}", std::process::id());
        folder.remove(&temporary)?;
        let file = BufWriter::with_capacity(1 << 16, folder.create_new(&temporary)?);
        let mut writer =
            Self { folder, temporary, file, digest: Digest::new(), at: 0, located: Vec::with_capacity(count), count };
        let objects = u32::try_from(count).map_err(|_| Error::Format(format!("{count} objects in one pack")))?;
        writer.write(MAGIC)?;
        writer.write(&VERSION.to_be_bytes())?;
        writer.write(&objects.to_be_bytes())?;
        Ok(writer)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.digest.update(bytes);
        self.at += bytes.len() as u64;
        let path = self.folder.path();
        self.file.write_all(bytes).map_err(Error::io("writing a pack", path))
    }

    /// An entry as it stands in a pack.
    pub fn entry(&mut self, id: Oid, crc: u32, bytes: &[u8]) -> Result<()> {
        self.located.push(Located { id, crc, offset: self.at });
        if self.at + bytes.len() as u64 >= PACK_BYTES_MAX {
            return Err(Error::Format("a pack of more than 2 GiB".to_owned()));
        }
        self.write(bytes)
    }

    pub fn object(&mut self, object: &Object, deflater: &mut Deflater, entry: &mut Vec<u8>) -> Result<()> {
        entry.clear();
        entry_header(object.kind, object.data.len(), entry);
        deflater.append(&object.data, entry)?;
        let crc = crc32fast::hash(entry);
        self.entry(object.id, crc, entry)
    }

    /// Gives it its name, kept from `git gc` until [`release`] is called.
    pub fn end(mut self, sync: bool) -> Result<Pack> {
        if self.located.len() != self.count {
            return Err(Error::Format(format!("{} objects for a pack of {}", self.located.len(), self.count)));
        }
        let digest = std::mem::replace(&mut self.digest, Digest::new()).end()?;
        let path = self.folder.path().to_owned();
        let written = self.file.write_all(digest.as_bytes()).and_then(|()| self.file.flush());
        written.map_err(Error::io("writing a pack", &path))?;
        if sync {
            self.file.get_ref().sync_all().map_err(Error::io("syncing a pack", &path))?;
        }
        let name = format!("pack-{digest}");
        self.located.sort_unstable_by_key(|located| located.id);
        let index = index(&self.located, digest)?;
        let keep = format!("{name}.keep");
        if self.folder.look(&keep)?.is_none() {
            self.folder.write_new(&keep, KEEP, false)?;
        }
        self.folder.rename(&self.temporary, &format!("{name}.pack"))?;
        self.folder.remove(&self.temporary)?;
        let made = self.folder.write_new(&self.temporary, &index, sync);
        made.and_then(|()| self.folder.rename(&self.temporary, &format!("{name}.idx")))?;
        if sync {
            self.folder.sync()?;
        }
        Ok(Pack { name, bytes: self.at + Oid::LEN as u64, objects: self.count })
    }
}

/// A window's objects in one pack.
pub fn write(folder: &Folder, objects: &[Object], sync: bool) -> Result<Pack> {
    let mut writer = Writer::begin(folder, objects.len())?;
    let (mut deflater, mut entry) = (Deflater::new(), Vec::new());
    for object in objects {
        writer.object(object, &mut deflater, &mut entry)?;
    }
    writer.end(sync)
}

/// A ref leads to it now.
pub fn release(folder: &Folder, pack: &Pack) -> Result<()> {
    folder.remove(&format!("{}.keep", pack.name)).map(drop)
}

/// Removes a pack that nothing leads to, or whose objects are elsewhere. The index goes first: without it nobody looks for the pack.
pub fn remove(folder: &Folder, name: &str) -> Result<()> {
    for ending in ["idx", "pack", "keep"] {
        folder.remove(&format!("{name}.{ending}"))?;
    }
    Ok(())
}

/// Removes what a crash has left: packs under way, and our own `.keep` files.
pub fn clean(folder: &Folder) -> Result<()> {
    for (name, _) in folder.list()? {
        let left =
            name.starts_with(TEMPORARY) || name.ends_with(".keep") && folder.read(&name)?.as_deref() == Some(KEEP);
        if left {
            folder.remove(&name)?;
        }
    }
    Ok(())
}

fn entry_header(kind: Kind, size: usize, out: &mut Vec<u8>) {
    let mut byte = (kind.in_pack() << 4) | u8::try_from(size & 0x0f).unwrap_or_default();
    let mut rest = size >> 4;
    while rest > 0 {
        out.push(byte | 0x80);
        byte = u8::try_from(rest & 0x7f).unwrap_or_default();
        rest >>= 7;
    }
    out.push(byte);
}

/// An index of version 2 over entries in the order of their ids.
fn index(located: &[Located], pack: Oid) -> Result<Vec<u8>> {
    let mut out = Vec::with_capacity(1032 + located.len() * 28 + 2 * Oid::LEN);
    out.extend_from_slice(&INDEX_MAGIC);
    out.extend_from_slice(&VERSION.to_be_bytes());
    let mut upto = 0;
    for first in 0..=255_u8 {
        while located.get(upto).is_some_and(|entry| entry.id.as_bytes()[0] <= first) {
            upto += 1;
        }
        out.extend_from_slice(&u32::try_from(upto).unwrap_or(u32::MAX).to_be_bytes());
    }
    located.iter().for_each(|entry| out.extend_from_slice(entry.id.as_bytes()));
    located.iter().for_each(|entry| out.extend_from_slice(&entry.crc.to_be_bytes()));
    for entry in located {
        let offset = u32::try_from(entry.offset).map_err(|_| Error::Format("a pack of more than 2 GiB".to_owned()))?;
        out.extend_from_slice(&offset.to_be_bytes());
    }
    out.extend_from_slice(pack.as_bytes());
    let mut digest = Digest::new();
    digest.update(&out);
    out.extend_from_slice(digest.end()?.as_bytes());
    Ok(out)
}

/// The entries of an index, in the order of their offsets. None for an index of another shape.
pub fn read_index(folder: &Folder, name: &str) -> Result<Option<Vec<Located>>> {
    let Some(index) = folder.read(&format!("{name}.idx"))? else { return Ok(None) };
    Ok(if index.len() > INDEX_BYTES_MAX { None } else { parse_index(&index) })
}

fn parse_index(index: &[u8]) -> Option<Vec<Located>> {
    let word = |at: usize| index.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_be_bytes);
    if index.get(..4)? != INDEX_MAGIC || word(4)? != VERSION {
        return None;
    }
    let count = usize::try_from(word(8 + 255 * 4)?).ok()?;
    let (ids, crcs) = (8 + 256 * 4, 8 + 256 * 4 + count * Oid::LEN);
    let offsets = crcs + count * 4;
    if index.len() != offsets + count * 4 + 2 * Oid::LEN {
        return None;
    }
    let mut located = Vec::with_capacity(count);
    for at in 0..count {
        let id = Oid::from_bytes(index.get(ids + at * Oid::LEN..ids + (at + 1) * Oid::LEN)?)?;
        located.push(Located { id, crc: word(crcs + at * 4)?, offset: u64::from(word(offsets + at * 4)?) });
    }
    located.sort_unstable_by_key(|entry| entry.offset);
    Some(located)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_of_an_entry_is_written_in_groups_of_bits() {
        for (size, expected) in
            [(0_usize, vec![0x30]), (15, vec![0x3f]), (16, vec![0xb0, 0x01]), (3000, vec![0xb8, 0xbb, 0x01])]
        {
            let mut out = Vec::new();
            entry_header(Kind::Blob, size, &mut out);
            assert_eq!(out, expected, "{size}");
        }
    }

    #[test]
    fn an_index_comes_back_and_nonsense_does_not() {
        let temp = tempfile::tempdir().unwrap();
        let folder = Folder::create(temp.path()).unwrap();
        let objects: Vec<Object> =
            (0..300_u32).map(|n| Object::new(Kind::Blob, format!("blob {n}").into_bytes().into()).unwrap()).collect();
        let pack = write(&folder, &objects, false).unwrap();
        let located = read_index(&folder, &pack.name).unwrap().unwrap();
        assert_eq!(located.len(), 300);
        assert_eq!(located[0].offset, HEADER_LEN);
        let ids: Vec<Oid> = located.iter().map(|entry| entry.id).collect();
        assert_eq!(ids, objects.iter().map(|object| object.id).collect::<Vec<_>>());
        let index = folder.read(&format!("{}.idx", pack.name)).unwrap().unwrap();
        for cut in [0, 4, 7, 1031, 1032, index.len() - 1] {
            assert_eq!(parse_index(&index[..cut]), None, "{cut}");
        }
        clean(&folder).unwrap();
        assert_eq!(folder.list().unwrap().len(), 2, "pack and index stay, the keep goes");
    }
}
