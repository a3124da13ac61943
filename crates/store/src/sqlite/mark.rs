//! The mark beside the database: the newest commit that was made durable, kept outside SQLite's files.
//!
//! A write-ahead log that is damaged or cut loses every commit behind the damage and SQLite, which takes them for a torn
//! end, reports nothing; an older copy of the file looks sound as well. The mark is what remembers that there was more.
//!
//! It is written at most every 100 ms, without fsync and only after COMMIT has returned: it may fall behind the database, which
//! costs a little of what it can notice, but never runs ahead of it. Two slots are written in turn, each on a page of
//! its own, so that a write that is torn leaves the other one.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, PoisonError};

use sha2::{Digest, Sha256};
use waybill_kernel::{Code, Error, Result, Time};

use super::inspect::Marked;
use super::open::Meta;
use crate::private;
#[cfg(feature = "sabotage")]
use crate::sabotage;

const SLOT_OFFSETS: [usize; 2] = [0, 4096];
const FILE_BYTES: usize = 8192;
const MAGIC: &[u8; 8] = b"waymark1";
/// Magic, database id, commit_seq, clock_us; the check follows.
const BODY_BYTES: usize = 8 + 16 + 8 + 8;
const CHECK_BYTES: usize = 8;
const SLOT_BYTES: usize = BODY_BYTES + CHECK_BYTES;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot {
    database_id: [u8; 16],
    commit_seq: i64,
    clock_us: i64,
}

impl Slot {
    fn encode(&self) -> [u8; SLOT_BYTES] {
        let mut bytes = [0; SLOT_BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..24].copy_from_slice(&self.database_id);
        bytes[24..32].copy_from_slice(&self.commit_seq.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.clock_us.to_le_bytes());
        let check = Sha256::digest(&bytes[..BODY_BYTES]);
        bytes[BODY_BYTES..].copy_from_slice(&check[..CHECK_BYTES]);
        bytes
    }

    /// None when it was never written, or torn.
    fn decode(bytes: &[u8]) -> Option<Self> {
        let slot = Self {
            database_id: bytes.get(8..24)?.try_into().ok()?,
            commit_seq: i64::from_le_bytes(bytes.get(24..32)?.try_into().ok()?),
            clock_us: i64::from_le_bytes(bytes.get(32..40)?.try_into().ok()?),
        };
        (bytes.get(..SLOT_BYTES)? == slot.encode()).then_some(slot)
    }
}

/// What a mark file tells about one database.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    Nothing,
    /// The newest slot, and where it stands.
    Ours(usize, Slot),
    OtherDatabase,
    Damaged,
}

/// Without an id, of whichever database it is.
fn find(bytes: &[u8], database_id: Option<&[u8; 16]>) -> Found {
    let slots = SLOT_OFFSETS.map(|at| bytes.get(at..).and_then(Slot::decode));
    let ours = slots.iter().enumerate().filter_map(|(at, slot)| slot.map(|slot| (at, slot)));
    let wanted = |slot: &Slot| database_id.is_none_or(|id| slot.database_id == *id);
    let newest = ours.filter(|(_, slot)| wanted(slot)).max_by_key(|(_, slot)| slot.commit_seq);
    match newest {
        Some((at, slot)) => Found::Ours(at, slot),
        None if slots.iter().any(Option::is_some) => Found::OtherDatabase,
        // Made, but nothing committed since.
        None if bytes.iter().all(|byte| *byte == 0) => Found::Nothing,
        None => Found::Damaged,
    }
}

pub(super) fn beside(database: &Path) -> PathBuf {
    database.with_extension("mark")
}

/// None where there is none.
pub(super) fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    match private::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unusable(path, &error)),
    }
}

/// Refuses a database that knows of fewer commits than its mark. Without meta it knows of none: it is new, unless the mark
/// says otherwise. A young database stands in its log alone, and a log that is damaged at its beginning leaves nothing.
pub(super) fn compare(path: &Path, meta: Option<&Meta>) -> Result<()> {
    #[cfg(feature = "sabotage")]
    if sabotage::planted("mark-not-compared") {
        return Ok(());
    }
    judge(path, read(path)?.as_deref(), meta)
}

/// As `compare`, with what was read before.
pub(super) fn judge(path: &Path, bytes: Option<&[u8]>, meta: Option<&Meta>) -> Result<()> {
    let Some(bytes) = bytes else { return Ok(()) };
    let path = path.display();
    let newest = meta.map_or(0, |meta| meta.commit_seq);
    match find(bytes, meta.map(|meta| &meta.database_id)) {
        Found::Ours(_, slot) if slot.commit_seq > newest => {
            let message = format!(
                "The database has lost {} commits: {path} remembers commit {}, made at {}, and the database's newest is {}. \
                 Its write-ahead log may have been damaged or cut, or the file is an older copy. Restore a backup; or, \
                 to go on without the lost commits, delete {path} and start again.",
                slot.commit_seq - newest,
                slot.commit_seq,
                Time::from_micros(slot.clock_us),
                newest,
            );
            return Err(Error::new(Code::DatabaseUnusable, message));
        }
        Found::Ours(..) | Found::Nothing => {}
        Found::OtherDatabase => tracing::warn!(%path, "the mark is of another database; a new one is begun"),
        Found::Damaged => tracing::warn!(%path, "the mark is damaged: nobody can say whether commits were lost"),
    }
    Ok(())
}

/// What the mark says, for those who only look.
pub(super) fn standing(bytes: Option<&[u8]>, meta: Option<&Meta>) -> Marked {
    let Some(bytes) = bytes else { return Marked::Nothing };
    let known = meta.map_or(0, |meta| meta.commit_seq);
    match find(bytes, meta.map(|meta| &meta.database_id)) {
        Found::Ours(_, slot) if slot.commit_seq > known => Marked::Missing {
            commits: slot.commit_seq - known,
            newest: slot.commit_seq,
            at: Time::from_micros(slot.clock_us),
        },
        Found::Ours(..) => Marked::Whole,
        Found::Nothing | Found::OtherDatabase => Marked::Nothing,
        Found::Damaged => Marked::Damaged,
    }
}

/// The first mark of a database whose newest commit is known to be on the disk.
pub(super) fn begin(path: &Path, meta: &Meta) -> Result<()> {
    let slot = Slot { database_id: meta.database_id, commit_seq: meta.commit_seq, clock_us: meta.clock_us };
    let write = || -> io::Result<()> {
        let file = private::open(File::options().write(true).create_new(true).mode(0o600), path)?;
        file.set_len(FILE_BYTES as u64)?;
        file.write_all_at(&slot.encode(), SLOT_OFFSETS[0] as u64)?;
        file.sync_all()
    };
    write().map_err(|error| unusable(path, &error))
}

/// The mark of the open database.
pub(super) struct Mark {
    database_id: [u8; 16],
    commit_seq: AtomicI64,
    clock_us: AtomicI64,
    slots: Mutex<Slots>,
}

struct Slots {
    file: File,
    /// Where the next one goes: never over the newest.
    next: usize,
    written: i64,
    /// A failure is logged when it begins, not ten times a second.
    failing: bool,
}

impl Mark {
    /// Nothing is written yet: a commit found at start may be in the kernel's memory only, left there by a killed
    /// process. The first commit of this one takes it to the disk as well.
    pub(super) fn open(path: &Path, meta: &Meta) -> Result<Self> {
        let open = || -> io::Result<(File, Found)> {
            let mut options = File::options();
            options.read(true).write(true).create(true).truncate(false).mode(0o600);
            let file = private::open(&mut options, path)?;
            let found = find(&private::read(path)?, Some(&meta.database_id));
            if !matches!(found, Found::Ours(..)) {
                file.set_len(0)?;
            }
            file.set_len(FILE_BYTES as u64)?;
            Ok((file, found))
        };
        let (file, found) = open().map_err(|error| unusable(path, &error))?;
        let next = if matches!(found, Found::Ours(0, _)) { 1 } else { 0 };
        Ok(Self {
            database_id: meta.database_id,
            commit_seq: AtomicI64::new(meta.commit_seq),
            clock_us: AtomicI64::new(meta.clock_us),
            slots: Mutex::new(Slots { file, next, written: meta.commit_seq, failing: false }),
        })
    }

    /// Called by the writer after COMMIT has returned, never before.
    pub(super) fn publish(&self, commit_seq: i64, clock_us: i64) {
        self.clock_us.store(clock_us, Ordering::Relaxed);
        self.commit_seq.store(commit_seq, Ordering::Release);
    }

    pub(super) fn write_if_changed(&self) {
        let commit_seq = self.commit_seq.load(Ordering::Acquire);
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        if slots.written == commit_seq {
            return;
        }
        let slot = Slot { database_id: self.database_id, commit_seq, clock_us: self.clock_us.load(Ordering::Relaxed) };
        #[cfg(feature = "sabotage")]
        if sabotage::planted("mark-not-written") {
            return;
        }
        #[cfg(feature = "sabotage")]
        sabotage::point("before_mark");
        match slots.file.write_all_at(&slot.encode(), SLOT_OFFSETS[slots.next] as u64) {
            Ok(()) => {
                slots.next = 1 - slots.next;
                slots.written = commit_seq;
                slots.failing = false;
                #[cfg(feature = "sabotage")]
                sabotage::point("after_mark");
            }
            Err(error) if !slots.failing => {
                tracing::warn!(%error, "the mark cannot be written; lost commits may go unnoticed");
                slots.failing = true;
            }
            Err(_) => {}
        }
    }
}

fn unusable(path: &Path, error: &io::Error) -> Error {
    let message = format!("The mark file {} cannot be used: {error}. Check who owns it.", path.display());
    Error::new(Code::DatabaseUnusable, message)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn meta(commit_seq: i64) -> Meta {
        Meta { database_id: [7; 16], commit_seq, clock_us: 0 }
    }

    /// A mark file after commits 1 to `last`, each written.
    fn marked(folder: &tempfile::TempDir, last: i64) -> PathBuf {
        let path = folder.path().join("waybill.mark");
        let mark = Mark::open(&path, &meta(0)).unwrap();
        for commit_seq in 1..=last {
            mark.publish(commit_seq, 1_700_000_000_000_000);
            mark.write_if_changed();
        }
        path
    }

    fn spoil(path: &Path, slot: usize) {
        let file = File::options().write(true).open(path).unwrap();
        file.write_all_at(b"torn", SLOT_OFFSETS[slot] as u64 + 22).unwrap();
    }

    fn newest(path: &Path) -> Option<i64> {
        match find(&fs::read(path).unwrap(), Some(&[7; 16])) {
            Found::Ours(_, slot) => Some(slot.commit_seq),
            _ => None,
        }
    }

    #[test]
    fn a_torn_slot_leaves_the_other() {
        let folder = tempfile::tempdir().unwrap();
        // Five commits from slot 0 on: the newest stands in slot 0, the one before it in slot 1.
        let path = marked(&folder, 5);
        assert_eq!(newest(&path), Some(5));
        spoil(&path, 0);
        assert_eq!(newest(&path), Some(4));
        spoil(&path, 1);
        assert_eq!(find(&fs::read(&path).unwrap(), Some(&[7; 16])), Found::Damaged);
        compare(&path, Some(&meta(0))).unwrap();
    }

    #[test]
    fn every_flipped_bit_of_a_slot_is_noticed() {
        let slot = Slot { database_id: [7; 16], commit_seq: 5, clock_us: 9 }.encode();
        assert!(Slot::decode(&slot).is_some());
        for bit in 0..SLOT_BYTES * 8 {
            let mut flipped = slot;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Slot::decode(&flipped), None, "bit {bit}");
        }
        assert!((0..SLOT_BYTES).all(|bytes| Slot::decode(&slot[..bytes]).is_none()));
    }

    #[test]
    fn fewer_commits_than_the_mark_are_refused_with_the_way_out() {
        let folder = tempfile::tempdir().unwrap();
        let path = marked(&folder, 5);
        compare(&path, Some(&meta(5))).unwrap();
        compare(&path, Some(&meta(6))).unwrap();
        let error = compare(&path, Some(&meta(2))).unwrap_err();
        assert_eq!(error.code(), Code::DatabaseUnusable);
        for part in ["lost 3 commits", "delete", &path.display().to_string(), "2023-11-14"] {
            assert!(error.message().contains(part), "{part} is not in: {error}");
        }
        fs::remove_file(&path).unwrap();
        compare(&path, Some(&meta(2))).unwrap();
    }

    #[test]
    fn the_mark_of_another_database_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = marked(&folder, 5);
        let other = Meta { database_id: [8; 16], commit_seq: 0, clock_us: 0 };
        compare(&path, Some(&other)).unwrap();
        let mark = Mark::open(&path, &other).unwrap();
        mark.publish(1, 0);
        mark.write_if_changed();
        assert!(matches!(find(&fs::read(&path).unwrap(), Some(&[8; 16])), Found::Ours(0, Slot { commit_seq: 1, .. })));
        assert_eq!(newest(&path), None);
    }

    #[test]
    fn an_opened_mark_is_continued_in_the_older_slot() {
        let folder = tempfile::tempdir().unwrap();
        for last in [4, 5] {
            let path = marked(&folder, last);
            let mark = Mark::open(&path, &meta(last)).unwrap();
            assert_eq!(newest(&path), Some(last), "opening alone writes nothing");
            mark.publish(last + 1, 0);
            mark.write_if_changed();
            let kept: Vec<_> = SLOT_OFFSETS.map(|at| Slot::decode(&fs::read(&path).unwrap()[at..])).into();
            let mut kept: Vec<_> = kept.into_iter().flatten().map(|slot| slot.commit_seq).collect();
            kept.sort_unstable();
            assert_eq!(kept, [last, last + 1]);
            fs::remove_file(path).unwrap();
        }
    }
}
