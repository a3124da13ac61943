//! Merges small packs of ours into larger ones, so that a repository has few however many windows it has seen.
//!
//! The sizes of the packs form a ladder: each is at least twice as large as all smaller ones together. When there are too many, the
//! smallest ones that break the ladder become one. An object is so copied once per rung, and never unpacked. Packs that somebody else's
//! git has made are left alone: they may hold differences between objects, which cannot be copied one by one.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;

use super::disk::Folder;
use super::objects::Oid;
use super::pack::{self, HEADER_LEN, Located, Pack, Writer};
use crate::error::{Error, Result};

/// So many packs may be there before the small ones are merged.
const PACKS_MAX: usize = 24;
/// Larger packs are left as they are, so that no merge takes long.
const MERGED_BYTES_MAX: u64 = 64 << 20;
/// Of one entry, by which differences are told.
const DELTA_KINDS: [u8; 2] = [6, 7];
/// Files that git keeps beside packs it has made.
const FOREIGN: &[&str] = &["rev", "bitmap", "mtimes", "promisor", "keep"];

/// Our own packs, smallest first. None while somebody else has the packs in hand.
fn own(folder: &Folder, git: &Folder) -> Result<Option<Vec<Pack>>> {
    // An index over several packs names them, and `git gc` has read their list.
    if folder.look("multi-pack-index")?.is_some() || git.look("gc.pid")?.is_some() {
        return Ok(None);
    }
    let names: BTreeSet<String> = folder.list()?.into_iter().map(|(name, _)| name).collect();
    let mut packs = Vec::new();
    for index in names.iter().filter_map(|name| name.strip_suffix(".idx")) {
        if FOREIGN.iter().any(|ending| names.contains(&format!("{index}.{ending}"))) {
            continue;
        }
        let Some(seen) = folder.look(&format!("{index}.pack"))? else { continue };
        packs.push(Pack { name: index.to_owned(), bytes: seen.size, objects: 0 });
    }
    packs.sort_by_key(|pack| pack.bytes);
    Ok(Some(packs))
}

/// How many of the smallest packs are to become one, by their sizes in ascending order.
fn rungs(sizes: &[u64], max: usize) -> usize {
    if sizes.len() <= max {
        return 0;
    }
    let mut merged = 0;
    let mut sum = 0_u64;
    for (at, size) in sizes.iter().enumerate() {
        if sum + size > MERGED_BYTES_MAX {
            break;
        }
        if *size < sum.saturating_mul(2) || at == 0 {
            merged = at + 1;
        }
        sum += size;
    }
    if merged < 2 { 0 } else { merged }
}

/// Merges if there are too many. Answers with the number of packs that became one.
pub fn tidy(git: &Folder, folder: &Folder, sync: bool) -> Result<usize> {
    tidy_beyond(git, folder, sync, PACKS_MAX)
}

fn tidy_beyond(git: &Folder, folder: &Folder, sync: bool, max: usize) -> Result<usize> {
    let Some(packs) = own(folder, git)? else { return Ok(0) };
    let sizes: Vec<u64> = packs.iter().map(|pack| pack.bytes).collect();
    let mut sources = Vec::new();
    for pack in &packs[..rungs(&sizes, max)] {
        sources.extend(Source::open(folder, &pack.name)?);
    }
    if sources.len() < 2 {
        return Ok(0);
    }
    let merged = merge(folder, &sources, sync)?;
    for source in sources.iter().filter(|source| source.name != merged.name) {
        pack::remove(folder, &source.name)?;
    }
    pack::release(folder, &merged)?;
    Ok(sources.len())
}

/// A pack to copy from.
struct Source {
    name: String,
    file: File,
    entries: Vec<Located>,
    /// Where the last entry ends.
    end: u64,
}

impl Source {
    /// None for a pack that is not of our making.
    fn open(folder: &Folder, name: &str) -> Result<Option<Self>> {
        let Some(entries) = pack::read_index(folder, name)? else { return Ok(None) };
        let Some(file) = folder.open(&format!("{name}.pack"))? else { return Ok(None) };
        let size = file.metadata().map_err(Error::io("looking at a pack", folder.path()))?.len();
        let end = size.saturating_sub(Oid::LEN as u64);
        let source = Self { name: name.to_owned(), file, entries, end };
        for (at, entry) in source.entries.iter().enumerate() {
            let (from, to) = source.span(at);
            let mut first = [0];
            let read =
                if from >= HEADER_LEN && to > from { source.file.read_at(&mut first, entry.offset).ok() } else { None };
            if read != Some(1) || DELTA_KINDS.contains(&((first[0] >> 4) & 7)) {
                return Ok(None);
            }
        }
        Ok(Some(source))
    }

    fn span(&self, at: usize) -> (u64, u64) {
        let to = self.entries.get(at + 1).map_or(self.end, |next| next.offset);
        (self.entries[at].offset, to)
    }
}

fn merge(folder: &Folder, sources: &[Source], sync: bool) -> Result<Pack> {
    let mut seen = BTreeSet::new();
    let count = sources.iter().flat_map(|source| &source.entries).filter(|entry| seen.insert(entry.id)).count();
    let mut writer = Writer::begin(folder, count)?;
    let mut bytes = Vec::new();
    for source in sources {
        for (at, entry) in source.entries.iter().enumerate() {
            if !seen.remove(&entry.id) {
                continue;
            }
            let (from, to) = source.span(at);
            bytes.resize(usize::try_from(to - from).unwrap_or_default(), 0);
            let read = source.file.read_exact_at(&mut bytes, from);
            read.map_err(Error::io("reading a pack", folder.path()))?;
            if crc32fast::hash(&bytes) != entry.crc {
                return Err(Error::damaged(format!("{} has an entry that is not what its index says", source.name)));
            }
            writer.entry(entry.id, entry.crc, &bytes)?;
        }
    }
    writer.end(sync)
}

#[cfg(test)]
mod tests {
    use super::super::objects::{Kind, Object};
    use super::*;

    #[test]
    fn the_ladder_is_kept_with_few_rungs() {
        for (sizes, max, expected) in [
            (vec![1, 1, 1], 3, 0),
            (vec![1, 1, 1, 1], 3, 4),
            (vec![1, 1, 1, 100], 3, 3),
            (vec![1, 2, 6, 18], 3, 0),
            (vec![1, 1, 4, 12, 36], 3, 2),
        ] {
            assert_eq!(rungs(&sizes, max), expected, "{sizes:?}");
        }
        let large = vec![MERGED_BYTES_MAX; 40];
        assert_eq!(rungs(&large, 3), 0, "large packs are left alone");
    }

    #[test]
    fn however_many_windows_there_were_there_are_few_packs() {
        let temp = tempfile::tempdir().unwrap();
        let git = Folder::create(temp.path()).unwrap();
        let folder = git.enter("objects/pack").unwrap();
        for n in 0..200_u32 {
            let object = Object::new(Kind::Blob, format!("blob {n} {}", "x".repeat(500)).into_bytes().into()).unwrap();
            let again = Object::new(Kind::Blob, b"the same each time".to_vec().into()).unwrap();
            let pack = pack::write(&folder, &[object, again], false).unwrap();
            pack::release(&folder, &pack).unwrap();
            tidy_beyond(&git, &folder, false, 4).unwrap();
        }
        let packs = own(&folder, &git).unwrap().unwrap();
        assert!(packs.len() <= 12, "{} packs", packs.len());
        let ids: BTreeSet<Oid> = packs
            .iter()
            .flat_map(|pack| pack::read_index(&folder, &pack.name).unwrap().unwrap())
            .map(|at| at.id)
            .collect();
        assert_eq!(ids.len(), 201);
    }

    #[test]
    fn packs_that_git_has_made_are_left_alone() {
        let temp = tempfile::tempdir().unwrap();
        let git = Folder::create(temp.path()).unwrap();
        let folder = git.enter("objects/pack").unwrap();
        for n in 0..6_u32 {
            let object = Object::new(Kind::Blob, format!("{n}").into_bytes().into()).unwrap();
            let pack = pack::write(&folder, &[object], false).unwrap();
            pack::release(&folder, &pack).unwrap();
            folder.write_new(&format!("{}.rev", pack.name), b"", false).unwrap();
        }
        assert_eq!(tidy_beyond(&git, &folder, false, 2).unwrap(), 0);
        folder.write_new("multi-pack-index", b"", false).unwrap();
        assert!(own(&folder, &git).unwrap().is_none());
    }
}
