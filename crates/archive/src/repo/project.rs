//! One project's archive, open: its lock, its repository and the files beside it.
//!
//! ```text
//! {root}/{tenant}/{project}/archive.lock   locked by the kernel while a process has it open
//!                           archive.git    bare; refs/heads/main is what people see, refs/waybill/main what was written here last
//!                           files/         the same tree as plain files
//! ```
//!
//! # Contract
//! A window is one commit. Its files are written first, then a pack with all new objects, then the refs move; each step is on disk
//! before the next one where syncing is on. Whoever dies in between has the window applied again, and what is there already is not written
//! twice. The tree of a commit is made from the last tree written here, never from what others have pushed: the database decides. A push
//! stays in the history as a parent.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::fs::{FileType, FlockOperation};
use waybill_kernel::Time;

use super::disk::Folder;
use super::mirror::{self, FILES};
use super::objects::{Kind, Object, Objects, Oid};
use super::refs::{self, BRANCH, Moved, OURS};
use super::tree::{self, Commit, Edits, Signature};
use super::{Applied, Fsync, Logged, Started, Window, heal, merge, pack};
use crate::error::{Error, Result};
use crate::names::ArchivePath;

/// The repository, in the folder of the project.
pub const GIT: &str = "archive.git";
const LOCK: &str = "archive.lock";
/// Says that the archive began again, until whoever knows the rest has seen to it that it is written.
const BEGUN: &str = "begun-again";
const FROM_FILES: &str = "files";
const ANEW: &str = "anew";
/// Tells the beginnings of one process apart.
static BEGINNINGS: AtomicU64 = AtomicU64::new(0);
/// A branch that others keep moving is run after so often.
const TRIES: u32 = 5;
/// A lock that is held is tried so often, after pauses that double from the first.
const LOCK_TRIES: u32 = 7;
const LOCK_PAUSE: Duration = Duration::from_millis(10);
/// Commits looked at to tell whether one leads to another.
const ANCESTRY_MAX: usize = 256;
pub const COMMITTER: (&str, &str) = ("Waybill", "archive@waybill.invalid");

pub struct Project {
    path: PathBuf,
    pub folder: Folder,
    /// Held for its lock.
    _lock: File,
    pub git: Folder,
    pub packs: Folder,
    pub objects: Objects,
    pub fsync: Fsync,
    /// How it was found, until that is settled.
    started: Started,
    /// Which beginning that was; empty when it is settled.
    begun: String,
}

impl Project {
    /// Opens a project's archive, makes one where there is none, and heals what is wrong with it.
    pub fn open(path: &Path, fsync: Fsync, now: Time) -> Result<Self> {
        let folder = Folder::create(path)?;
        let lock = lock(&folder)?;
        mirror::clean(&folder)?;
        let (git, started) = heal::prepare(&folder, now)?;
        let packs = git.enter("objects/pack")?;
        let objects = Objects::open(&git.path().join("objects"))?;
        let mut project = Self {
            path: path.to_owned(),
            folder,
            _lock: lock,
            git,
            packs,
            objects,
            fsync,
            started,
            begun: String::new(),
        };
        match heal::complete(&mut project, now) {
            // The files cannot be made from it any more.
            Err(Error::Damaged(why)) => project.begin_again(now, &why)?,
            completed => completed?,
        }
        project.note_begun(now)?;
        Ok(project)
    }

    /// With another repository, and the files that there are.
    fn begin_again(&mut self, now: Time, why: &str) -> Result<()> {
        heal::move_aside(&self.folder, now, why)?;
        let (git, started) = heal::prepare(&self.folder, now)?;
        self.packs = git.enter("objects/pack")?;
        self.objects = Objects::open(&git.path().join("objects"))?;
        (self.git, self.started) = (git, started);
        heal::complete(self, now)
    }

    /// On disk: whoever dies before the rest is asked for must not leave an archive that looks whole.
    fn note_begun(&mut self, now: Time) -> Result<()> {
        if self.started == Started::Found {
            let begun = self.folder.read(BEGUN)?.map(|text| String::from_utf8_lossy(&text).trim().to_owned());
            self.started = match &begun {
                None => Started::Found,
                Some(how) if how.starts_with(FROM_FILES) => Started::FromFiles,
                Some(_) => Started::Anew,
            };
            self.begun = begun.unwrap_or_default();
            return Ok(());
        }
        let how = if self.started == Started::FromFiles { FROM_FILES } else { ANEW };
        let count = BEGINNINGS.fetch_add(1, Ordering::Relaxed);
        self.begun = format!("{how} {}-{}-{count}", now.micros(), std::process::id());
        self.folder.put(BEGUN, format!("{}\n", self.begun).as_bytes(), true)
    }

    /// The rest of what it lacked since this beginning was written. False if it began again since.
    pub fn settled(&mut self, begun: &str) -> Result<bool> {
        if self.begun != begun {
            return Ok(false);
        }
        self.started = Started::Found;
        self.begun.clear();
        self.folder.remove(BEGUN)?;
        Ok(true)
    }

    /// False once the folder was removed or replaced under it.
    pub fn is_current(&self) -> bool {
        self.folder.is_at(&self.path) && self.git.is_at(&self.path.join(GIT))
    }

    pub fn begun(&mut self, started: Started) {
        self.started = started;
    }

    /// The last commit made here, and its tree.
    pub fn ours(&mut self) -> Result<Option<(Oid, Commit)>> {
        let Some(id) = refs::read(&self.git, OURS)? else { return Ok(None) };
        Ok(Some((id, self.commit(id)?)))
    }

    fn commit(&mut self, id: Oid) -> Result<Commit> {
        Commit::decode(&self.objects.read(Kind::Commit, id)?)
    }

    pub fn apply(&mut self, window: &Window) -> Result<Applied> {
        let mut blobs: BTreeMap<&str, Option<Object>> = BTreeMap::new();
        for change in &window.changes {
            let blob = change.content.as_ref().map(|content| Object::new(Kind::Blob, content.clone())).transpose()?;
            blobs.insert(change.path.as_str(), blob);
        }
        let edits: Edits<'_> = blobs.iter().map(|(path, blob)| (*path, blob.as_ref().map(|blob| blob.id))).collect();
        let mut files_written = false;
        for _ in 0..TRIES {
            let ours = self.ours()?;
            let branch = refs::read(&self.git, BRANCH).or_else(ignore_damage)?;
            let base = ours.as_ref().map(|(_, commit)| commit.tree);
            let changed = self.changed(base, &edits)?;
            if !files_written {
                self.write_files(window, &changed)?;
                files_written = true;
            }
            let (mut new, mut known) = (Vec::new(), std::collections::HashSet::new());
            for blob in changed.iter().filter_map(|path| blobs.get(path)?.as_ref()) {
                if known.insert(blob.id) {
                    new.push(blob.clone());
                }
            }
            let written = new.len();
            let tree = self.edited(base, &edits, &mut new)?;
            let tip = ours.as_ref().map(|(id, _)| *id);
            if let Some(tip) = tip
                && base == Some(tree)
                && branch == Some(tip)
            {
                return Ok(self.applied(tip, 0));
            }
            let parents = self.parents(tip, branch);
            let commit = Object::new(Kind::Commit, window.commit(tree, &parents).into())?;
            let id = commit.id;
            new.push(commit);
            if self.publish(&new, tip, branch, id, window.at)? {
                self.tidy();
                return Ok(self.applied(id, written));
            }
        }
        Err(Error::Outrun(TRIES))
    }

    fn applied(&self, commit: Oid, written: usize) -> Applied {
        Applied { commit, written, started: self.started, begun: self.begun.clone() }
    }

    /// The paths that the window changes; what the tree has already is not written again.
    fn changed<'a>(&mut self, base: Option<Oid>, edits: &Edits<'a>) -> Result<Vec<&'a str>> {
        let Some(base) = base else {
            return Ok(edits.iter().filter(|(_, to)| to.is_some()).map(|(path, _)| *path).collect());
        };
        let mut changed = Vec::new();
        for (path, to) in edits {
            let at = tree::find(&mut self.objects, base, path)?;
            if at.map(|(id, _)| id) != *to {
                changed.push(*path);
            }
        }
        Ok(changed)
    }

    /// What changes, and what is missing among the files though the tree has it.
    fn write_files(&self, window: &Window, changed: &[&str]) -> Result<()> {
        let changed: std::collections::HashSet<&str> = changed.iter().copied().collect();
        let mut changes = Vec::new();
        for change in &window.changes {
            let due =
                changed.contains(change.path.as_str()) || !self.has_file(&change.path, change.content.as_deref())?;
            if due {
                changes.push((&change.path, change.content.as_deref()));
            }
        }
        mirror::write(&self.folder, &changes, self.fsync == Fsync::Files)
    }

    fn has_file(&self, path: &ArchivePath, content: Option<&[u8]>) -> Result<bool> {
        let (folder, file) = path.split();
        let below = if folder.is_empty() { FILES.to_owned() } else { format!("{FILES}/{folder}") };
        let seen = self.folder.find(&below)?.map(|folder| folder.look(file)).transpose()?.flatten();
        Ok(match (seen, content) {
            (None, None) => true,
            (Some(seen), Some(content)) => seen.kind == FileType::RegularFile && seen.size == content.len() as u64,
            _ => false,
        })
    }

    fn edited(&mut self, base: Option<Oid>, edits: &Edits<'_>, new: &mut Vec<Object>) -> Result<Oid> {
        if let Some(tree) = tree::edit(&mut self.objects, base, edits, new)? {
            return Ok(tree);
        }
        let empty = Object::new(Kind::Tree, bytes::Bytes::new())?;
        let id = empty.id;
        self.objects.remember(id, empty.data.clone());
        new.push(empty);
        Ok(id)
    }

    /// What others have done to the branch stays in the history.
    fn parents(&mut self, ours: Option<Oid>, branch: Option<Oid>) -> Vec<Oid> {
        match (ours, branch) {
            (Some(ours), Some(branch)) if ours != branch => {
                // The branch lags by a crash between the two refs, or leads nowhere.
                if self.leads_to(ours, branch) || self.commit(branch).is_err() {
                    vec![ours]
                } else if self.leads_to(branch, ours) {
                    vec![branch]
                } else {
                    vec![ours, branch]
                }
            }
            (ours, branch) => ours.or(branch).into_iter().collect(),
        }
    }

    fn leads_to(&mut self, from: Oid, to: Oid) -> bool {
        let (mut next, mut seen) = (vec![from], std::collections::HashSet::new());
        while let Some(id) = next.pop() {
            if id == to {
                return true;
            }
            if seen.len() < ANCESTRY_MAX
                && seen.insert(id)
                && let Ok(commit) = self.commit(id)
            {
                next.extend(commit.parents);
            }
        }
        false
    }

    /// Objects first, then our ref, then the branch. False if somebody has moved one meanwhile: our own work is kept then, under our ref
    /// or not at all, and the next try begins from there.
    pub fn publish(
        &mut self,
        new: &[Object],
        ours: Option<Oid>,
        branch: Option<Oid>,
        to: Oid,
        now: Time,
    ) -> Result<bool> {
        let (sync, now_s) = (self.fsync != Fsync::Off, now.micros().div_euclid(1_000_000));
        let pack = pack::write(&self.packs, new, sync)?;
        if refs::swap(&self.git, OURS, ours, to, sync, now_s)? != Moved::Done {
            pack::remove(&self.packs, &pack.name)?;
            return Ok(false);
        }
        // The objects are ours from here on, whatever becomes of the branch.
        pack::release(&self.packs, &pack)?;
        Ok(refs::swap(&self.git, BRANCH, branch, to, sync, now_s)? == Moved::Done)
    }

    /// The commit stands; whatever is wrong here is found again by the next window.
    fn tidy(&mut self) {
        let merged = merge::tidy(&self.git, &self.packs, self.fsync != Fsync::Off);
        let reopened = match merged {
            Ok(0) => return,
            Ok(_) => self.objects.reopen(&self.git.path().join("objects")),
            Err(error) => Err(error),
        };
        if let Err(error) = reopened {
            tracing::warn!(path = %self.path.display(), %error, "small packs could not be merged");
        }
    }

    /// The content of a file in the last tree.
    pub fn read(&mut self, path: &ArchivePath) -> Result<Option<bytes::Bytes>> {
        let Some((_, commit)) = self.ours()? else { return Ok(None) };
        match tree::find(&mut self.objects, commit.tree, path.as_str())? {
            Some((id, false)) => self.objects.read(Kind::Blob, id).map(Some),
            _ => Ok(None),
        }
    }

    /// Every file of the last tree, with the id of its content.
    pub fn listing(&mut self) -> Result<BTreeMap<String, Oid>> {
        let mut all = BTreeMap::new();
        if let Some((_, commit)) = self.ours()? {
            tree::walk(&mut self.objects, commit.tree, &mut |_, path, id| {
                all.insert(path.to_owned(), id);
                Ok(())
            })?;
        }
        Ok(all)
    }

    /// The newest commits, `max` at most.
    pub fn log(&mut self, max: usize) -> Result<Vec<Logged>> {
        let mut log = Vec::new();
        let mut next = refs::read(&self.git, OURS)?;
        while let Some(id) = next.filter(|_| log.len() < max) {
            let commit = self.commit(id)?;
            next = commit.parents.first().copied();
            let subject = commit.message.lines().next().unwrap_or_default().to_owned();
            log.push(Logged { commit: id, author: commit.author, at_s: commit.at_s, subject, message: commit.message });
        }
        Ok(log)
    }
}

/// A branch that cannot be read is one that leads nowhere: it is set again.
fn ignore_damage(error: Error) -> Result<Option<Oid>> {
    if matches!(error, Error::Damaged(_)) { Ok(None) } else { Err(error) }
}

impl Window {
    pub(super) fn commit(&self, tree: Oid, parents: &[Oid]) -> Vec<u8> {
        let at_s = self.at.micros().div_euclid(1_000_000);
        let author = Signature { name: &self.author.name, email: &self.author.email, at_s };
        let committer = Signature { name: COMMITTER.0, email: COMMITTER.1, at_s };
        let subject: String = self.subject.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let message = if self.body.is_empty() { subject } else { format!("{subject}\n\n{}", self.body) };
        Commit::encode(tree, parents, &author, &committer, &message)
    }
}

/// The kernel lets go of it when the process ends, however it ends: there is no stale one. A child between fork and exec has a copy of it
/// for a moment, so a lock that is held is tried again for a little while.
fn lock(folder: &Folder) -> Result<File> {
    let path = folder.path().join(LOCK);
    let mut named = folder.open_or_create(LOCK)?;
    // Held for reading only: while a file is open for writing, nobody can make its file system read-only.
    let Some(mut file) = folder.open(LOCK)? else {
        return Err(Error::Format(format!("{} is no file", path.display())));
    };
    let mut pause = LOCK_PAUSE;
    for attempt in 1.. {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => break,
            Err(rustix::io::Errno::WOULDBLOCK) if attempt < LOCK_TRIES => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut holder = String::new();
                let _ = file.read_to_string(&mut holder);
                return Err(Error::Busy { path, holder: holder.trim().to_owned() });
            }
            Err(error) => return Err(Error::os("locking", &path)(error)),
        }
        std::thread::sleep(pause);
        pause *= 2;
    }
    // The name is for people; the lock holds without it, on a full disk as well.
    let _ = named.set_len(0).and_then(|()| writeln!(named, "process {}", std::process::id()));
    Ok(file)
}
