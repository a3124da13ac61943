//! Refs of a repository: read as git reads them, moved by compare-and-swap under git's own lock files.
//!
//! A lock file is made by giving a prepared file a second name, so the next start can tell by the inode that a lock was left by
//! this program when it was killed, and removes it at once. Locks of others are judged by [`super::locks`].

use std::time::Duration;

use super::disk::Folder;
use super::locks;
use super::objects::Oid;
use crate::error::{Error, Result};

/// What people see.
pub const BRANCH: &str = "refs/heads/main";
/// The last commit that this program made. It tells a push of somebody else from our own work, and keeps our history from `git gc`
/// whatever becomes of the branch.
pub const OURS: &str = "refs/waybill/main";
/// The prepared file, in the repository itself: a stray file among the refs would be a broken ref to git.
const PREPARED: &str = "waybill-ref";
/// A lock that is held is tried again so often, after pauses that double from the first.
const TRIES: u32 = 6;
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// Bytes of `packed-refs` that are read.
const PACKED_MAX: usize = 16 << 20;

/// What a move came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    Done,
    /// It was not where it was expected to be.
    Elsewhere(Option<Oid>),
}

/// The commit a ref names, None where there is no such ref.
pub fn read(git: &Folder, name: &str) -> Result<Option<Oid>> {
    if let Some(id) = read_loose(git, name)? {
        return Ok(Some(id));
    }
    if let Some(id) = read_packed(git, name)? {
        return Ok(Some(id));
    }
    // `git pack-refs` writes the packed one before it removes the other: both were missed only if it was moved meanwhile.
    read_loose(git, name)
}

fn read_loose(git: &Folder, name: &str) -> Result<Option<Oid>> {
    let (folder, file) = name.rsplit_once('/').unwrap_or(("", name));
    let Some(folder) = git.find(folder)? else { return Ok(None) };
    let Some(content) = folder.read(file)? else { return Ok(None) };
    let text = String::from_utf8_lossy(&content);
    Oid::from_hex(text.trim_end()).map(Some).ok_or_else(|| Error::damaged(format!("the ref {name} is no commit's id")))
}

fn read_packed(git: &Folder, name: &str) -> Result<Option<Oid>> {
    let Some(content) = git.read("packed-refs")? else { return Ok(None) };
    if content.len() > PACKED_MAX {
        return Err(Error::damaged("packed-refs is too large"));
    }
    let text = String::from_utf8_lossy(&content);
    let line = text.lines().filter_map(|line| line.split_once(' ')).find(|(_, of)| *of == name);
    let Some((id, _)) = line else { return Ok(None) };
    Oid::from_hex(id).map(Some).ok_or_else(|| Error::damaged(format!("the packed ref {name} is no commit's id")))
}

/// Moves a ref from `from` to `to`, if it is at `from`.
pub fn swap(git: &Folder, name: &str, from: Option<Oid>, to: Oid, sync: bool, now_s: i64) -> Result<Moved> {
    let (folder, file) = name.rsplit_once('/').unwrap_or(("", name));
    let folder = git.enter(folder)?;
    let lock = format!("{file}.lock");
    git.remove(PREPARED)?;
    git.write_new(PREPARED, format!("{to}\n").as_bytes(), sync)?;
    let held = acquire(git, &folder, &lock, now_s);
    if held.is_err() {
        let _ = git.remove(PREPARED);
    }
    held?;
    // One that cannot be read is none: it is set again.
    let at = match read(git, name) {
        Err(Error::Damaged(_)) => Ok(None),
        at => at,
    };
    let ended = at.and_then(|at| {
        if at != from {
            return Ok(Moved::Elsewhere(at));
        }
        folder.rename(&lock, file)?;
        Ok(Moved::Done)
    });
    if !matches!(ended, Ok(Moved::Done)) {
        folder.remove(&lock)?;
    }
    git.remove(PREPARED)?;
    if sync {
        folder.sync()?;
    }
    ended
}

fn acquire(git: &Folder, folder: &Folder, lock: &str, now_s: i64) -> Result<()> {
    let mut pause = FIRST_PAUSE;
    for _ in 0..TRIES {
        if git.link(PREPARED, folder, lock)? {
            return Ok(());
        }
        if locks::heal(git, folder, lock, now_s)? {
            continue;
        }
        std::thread::sleep(pause);
        pause *= 2;
    }
    Err(Error::Locked { path: folder.path().join(lock) })
}

/// Removes the lock that this program held when it was killed. Only with the project's folder locked: no other of us is alive.
pub fn clean(git: &Folder) -> Result<()> {
    let Some(prepared) = git.look(PREPARED)? else { return Ok(()) };
    for name in [BRANCH, OURS] {
        let (folder, file) = name.rsplit_once('/').unwrap_or(("", name));
        let Some(folder) = git.find(folder)? else { continue };
        let lock = format!("{file}.lock");
        if folder.look(&lock)?.is_some_and(|seen| seen.inode == prepared.inode) {
            folder.remove(&lock)?;
        }
    }
    git.remove(PREPARED).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(byte: u8) -> Oid {
        Oid::from_bytes(&[byte; 20]).unwrap()
    }

    #[test]
    fn a_ref_moves_only_from_where_it_is() {
        let temp = tempfile::tempdir().unwrap();
        let git = Folder::create(temp.path()).unwrap();
        assert_eq!(read(&git, BRANCH).unwrap(), None);
        assert_eq!(swap(&git, BRANCH, None, id(1), true, 0).unwrap(), Moved::Done);
        assert_eq!(swap(&git, BRANCH, None, id(2), true, 0).unwrap(), Moved::Elsewhere(Some(id(1))));
        assert_eq!(swap(&git, BRANCH, Some(id(1)), id(2), true, 0).unwrap(), Moved::Done);
        assert_eq!(read(&git, BRANCH).unwrap(), Some(id(2)));
        assert_eq!(git.list().unwrap().len(), 1, "no lock and no prepared file is left");
    }

    #[test]
    fn packed_refs_are_read_and_the_loose_one_wins() {
        let temp = tempfile::tempdir().unwrap();
        let git = Folder::create(temp.path()).unwrap();
        let packed = format!("# pack-refs with: peeled\n{} {BRANCH}\n", id(7));
        git.put("packed-refs", packed.as_bytes(), false).unwrap();
        assert_eq!(read(&git, BRANCH).unwrap(), Some(id(7)));
        assert_eq!(swap(&git, BRANCH, Some(id(7)), id(8), false, 0).unwrap(), Moved::Done);
        assert_eq!(read(&git, BRANCH).unwrap(), Some(id(8)));
    }

    #[test]
    fn rule_36_a_lock_of_a_killed_writer_goes_at_once_and_anothers_stays() {
        let temp = tempfile::tempdir().unwrap();
        let git = Folder::create(temp.path()).unwrap();
        let heads = git.enter("refs/heads").unwrap();
        git.write_new(PREPARED, b"x", false).unwrap();
        assert!(git.link(PREPARED, &heads, "main.lock").unwrap());
        clean(&git).unwrap();
        assert!(heads.look("main.lock").unwrap().is_none());
        heads.write_new("main.lock", b"", false).unwrap();
        git.write_new(PREPARED, b"x", false).unwrap();
        clean(&git).unwrap();
        assert!(heads.look("main.lock").unwrap().is_some());
    }

    #[test]
    fn nonsense_in_a_ref_is_damage() {
        let temp = tempfile::tempdir().unwrap();
        let git = Folder::create(temp.path()).unwrap();
        git.enter("refs/heads").unwrap().put("main", b"", false).unwrap();
        assert!(matches!(read(&git, BRANCH), Err(Error::Damaged(_))));
    }
}
