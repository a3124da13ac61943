//! Repositories of projects, written without a git program: bare, without an index, one commit per window.
//!
//! Nothing here knows a database. All of it blocks: the archiver calls it from threads that may.

pub(crate) mod disk;
mod heal;
mod locks;
pub(crate) mod look;
mod merge;
mod mirror;
mod objects;
mod pack;
mod project;
mod refs;
mod tree;

/// For those who read repositories and folders that are not the archive's own.
pub mod reading {
    pub use rustix::fs::FileType;

    pub use super::disk::{Folder, Seen};
    pub use super::objects::{Kind, Objects};
    pub use super::refs::read as read_ref;
    pub use super::tree::{Commit, Entry, entries};
}

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
pub use look::{Look, free_bytes};
pub use objects::Oid;
use project::Project;
use serde::Deserialize;
use waybill_kernel::Time;

use crate::error::{Error, Result};
use crate::names::{self, ArchivePath};

/// What is synced to the disk before a window counts as written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fsync {
    /// Nothing. After a power failure the archive may lack its last windows, and has to be written again from the database.
    Off,
    /// Packs, indexes and refs: a handful of calls per window, whatever is in it. Files are made again from the repository.
    #[default]
    Commit,
    /// Every single file as well.
    Files,
}

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Repositories open at a time; each has a handful of files open, and some megabytes of trees.
    pub open_max: usize,
    pub fsync: Fsync,
}

impl Default for Limits {
    fn default() -> Self {
        Self { open_max: 32, fsync: Fsync::default() }
    }
}

/// Which project, by the names of its folders.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProjectKey {
    tenant: String,
    project: String,
}

impl ProjectKey {
    /// Of any names: they are encoded.
    pub fn new(tenant: &str, project: &str) -> Self {
        Self { tenant: names::part(tenant), project: names::part(project) }
    }

    pub fn tenant_folder(&self) -> &str {
        &self.tenant
    }

    pub fn project_folder(&self) -> &str {
        &self.project
    }

    pub fn below(&self, root: &Path) -> PathBuf {
        root.join(&self.tenant).join(&self.project)
    }
}

/// A file's new content, or its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub path: ArchivePath,
    /// None removes the file.
    pub content: Option<Bytes>,
}

impl Change {
    pub fn put(path: ArchivePath, content: impl Into<Bytes>) -> Self {
        Self { path, content: Some(content.into()) }
    }

    pub fn remove(path: ArchivePath) -> Self {
        Self { path, content: None }
    }

    /// The id that the content has in the repository; None for a removal.
    pub fn id(&self) -> Result<Option<Oid>> {
        let object =
            |content: &Bytes| objects::Object::new(objects::Kind::Blob, content.clone()).map(|object| object.id);
        self.content.as_ref().map(object).transpose()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Author {
    pub name: String,
    pub email: String,
}

/// What becomes one commit. Of two changes to a path the later one counts.
#[derive(Clone, Debug)]
pub struct Window {
    pub changes: Vec<Change>,
    /// One line.
    pub subject: String,
    pub body: String,
    pub author: Author,
    pub at: Time,
}

/// How a project's archive was found when it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Started {
    /// As it was left.
    #[default]
    Found,
    /// The repository was missing or damaged; it began again with the files.
    FromFiles,
    /// There was nothing: a new project, or one whose archive is gone and has to be written again from the database.
    Anew,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// The commit that has the window in it.
    pub commit: Oid,
    /// Contents that were new. With none of them, and no commit of others to follow, there is no new commit.
    pub written: usize,
    /// Told until [`Archive::settled`].
    pub started: Started,
    /// Names the beginning that `started` tells of; empty where there is none. An archive may begin again while the rest is being written.
    pub begun: String,
}

/// A commit as it is listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Logged {
    pub commit: Oid,
    pub author: String,
    pub at_s: i64,
    pub subject: String,
    pub message: String,
}

/// What tree and files of a project disagree about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Disagreement {
    pub only_in_tree: BTreeSet<String>,
    pub only_in_files: BTreeSet<String>,
    pub different: BTreeSet<String>,
}

impl Disagreement {
    pub fn is_empty(&self) -> bool {
        self.only_in_tree.is_empty() && self.only_in_files.is_empty() && self.different.is_empty()
    }
}

/// Whoever commits for everybody.
pub const COMMITTER_NAME: &str = project::COMMITTER.0;

type Slot = Arc<Mutex<Option<Project>>>;

/// All archives below one root.
pub struct Archive {
    root: PathBuf,
    limits: Limits,
    /// Least recently used first.
    open: Mutex<Vec<(ProjectKey, Slot)>>,
}

impl Archive {
    /// The root is made when the first project is written, and again if it is gone.
    pub fn new(root: impl Into<PathBuf>, limits: Limits) -> Self {
        Self { root: root.into(), limits, open: Mutex::new(Vec::new()) }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Writes a window: its files, then one commit. What the archive has already is not written again, so a window may be applied twice.
    pub fn apply(&self, project: &ProjectKey, window: &Window) -> Result<Applied> {
        self.with(project, window.at, |open| open.apply(window))
    }

    /// The content of a file as the last commit has it.
    pub fn read(&self, project: &ProjectKey, path: &ArchivePath, now: Time) -> Result<Option<Bytes>> {
        self.with(project, now, |open| open.read(path))
    }

    /// Every path of the last commit with the id of its content.
    pub fn listing(&self, project: &ProjectKey, now: Time) -> Result<BTreeMap<String, Oid>> {
        self.with(project, now, Project::listing)
    }

    pub fn log(&self, project: &ProjectKey, max: usize, now: Time) -> Result<Vec<Logged>> {
        self.with(project, now, |open| open.log(max))
    }

    /// Compares the last commit's tree with the files.
    pub fn compare(&self, project: &ProjectKey, now: Time) -> Result<Disagreement> {
        self.with(project, now, |open| {
            let tree = open.listing()?;
            let mut found = Disagreement::default();
            let mut files = BTreeSet::new();
            if let Some(folder) = open.folder.find(mirror::FILES)? {
                mirror::walk(&folder, &mut |folder, path| {
                    let (_, name) = path.split();
                    let content = folder.read(name)?.unwrap_or_default();
                    let id = objects::Object::new(objects::Kind::Blob, content.into())?.id;
                    match tree.get(path.as_str()) {
                        None => drop(found.only_in_files.insert(path.as_str().to_owned())),
                        Some(known) if *known != id => drop(found.different.insert(path.as_str().to_owned())),
                        Some(_) => {}
                    }
                    files.insert(path.as_str().to_owned());
                    Ok(())
                })?;
            }
            found.only_in_tree = tree.keys().filter(|path| !files.contains(*path)).cloned().collect();
            Ok(found)
        })
    }

    /// After an archive began again: whatever it lacked since this beginning ([`Applied::begun`]) was written. False if it began again since.
    pub fn settled(&self, project: &ProjectKey, begun: &str, now: Time) -> Result<bool> {
        self.with(project, now, |open| open.settled(begun))
    }

    /// Makes the plain files what the last commit's tree is. Answers with the number of files written or moved out of the way.
    pub fn restore_files(&self, project: &ProjectKey, now: Time) -> Result<usize> {
        let found = self.compare(project, now)?;
        self.with(project, now, |open| heal::restore(open, &found))
    }

    /// For a repository that has lost something: it is moved aside, and another one begins with the files.
    pub fn begin_again(&self, project: &ProjectKey, why: &str, now: Time) -> Result<()> {
        self.with(project, now, |open| heal::move_aside(&open.folder, now, why))?;
        self.with(project, now, |_| Ok(()))
    }

    /// Lets go of every repository: their locks, files and memory.
    pub fn close(&self) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// What a project's archive holds, read beside whoever writes it: nothing is locked, made or healed. None where there is none.
    pub fn look(&self, project: &ProjectKey) -> Result<Option<Look>> {
        look::look(&project.below(&self.root))
    }

    /// Every archive below the root, by the names of its folders. Nothing is made.
    pub fn projects(&self) -> Result<Vec<ProjectKey>> {
        look::projects(&self.root)
    }

    /// Whether a project has an archive at all. Nothing is made.
    pub fn exists(&self, project: &ProjectKey) -> bool {
        project.below(&self.root).join(project::GIT).is_dir()
    }

    /// Whether there are files of it, with or without a repository beside them.
    pub fn has_files(&self, project: &ProjectKey) -> bool {
        project.below(&self.root).join(mirror::FILES).is_dir()
    }

    fn with<T>(&self, key: &ProjectKey, now: Time, work: impl Fn(&mut Project) -> Result<T>) -> Result<T> {
        let slot = self.slot(key);
        // A panic in here leaves a repository on disk that is whole; what is in memory is dropped.
        let mut open = slot.lock().unwrap_or_else(PoisonError::into_inner);
        let path = key.below(&self.root);
        let mut held = open.take().filter(Project::is_current);
        for attempt in 0.. {
            let mut project = match held.take() {
                Some(project) => project,
                None => Project::open(&path, self.limits.fsync, now)?,
            };
            match work(&mut project) {
                // Opened anew, it may be that a pack was replaced under us; opened again, it is made anew.
                Err(Error::Damaged(why)) if attempt < 2 => {
                    if attempt > 0 {
                        heal::move_aside(&project.folder, now, &why)?;
                    }
                }
                // Somebody removed the folder while it was written to.
                Err(error) if attempt < 2 && error.is_missing() && !project.is_current() => {}
                Err(error) => return Err(error),
                Ok(done) => {
                    *open = Some(project);
                    return Ok(done);
                }
            }
        }
        Err(Error::Outrun(2))
    }

    fn slot(&self, key: &ProjectKey) -> Slot {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let found = open.iter().position(|(known, _)| known == key).map(|at| open.remove(at));
        let (key, slot) = found.unwrap_or_else(|| (key.clone(), Slot::default()));
        open.push((key, Arc::clone(&slot)));
        // One in use holds the project's lock, so it stays.
        while open.len() > self.limits.open_max.max(1) {
            let Some(idle) = open.iter().position(|(_, slot)| Arc::strong_count(slot) == 1) else { break };
            open.remove(idle);
        }
        slot
    }
}
