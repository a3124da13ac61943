//! What is done about a repository that is missing, damaged or somebody else's. Nothing is ever deleted: it is moved aside, and a new one
//! begins with what the files beside it hold. Files that are missing are written again from the repository.

use rustix::fs::FileType;
use waybill_kernel::Time;

use super::disk::Folder;
use super::mirror::{self, FILES};
use super::objects::{Kind, Object, Objects};
use super::project::{COMMITTER, GIT, Project};
use super::refs::{self, BRANCH, OURS};
use super::tree::{self, Commit, Edits, Signature};
use super::{Fsync, Started, locks, pack};
use crate::error::{Error, Result};
use crate::names::ArchivePath;

/// Repositories that were moved aside and wait for somebody to look at them. Beyond it nothing is moved, lest they fill the disk.
const ASIDE_MAX: usize = 8;
/// One pack of an import.
const IMPORT_OBJECTS: usize = 4096;
const IMPORT_BYTES: usize = 32 << 20;
/// Files by which git is led to objects or refs elsewhere: we write none of them.
const LEADS_AWAY: &[&str] = &["commondir", "gitdir", "objects/info/alternates", "objects/info/http-alternates"];
/// There while the files are written from the repository: those of a program that was killed meanwhile are not all of them.
const RESTORING: &str = "restoring";
const HEAD: &str = "ref: refs/heads/main\n";
const CONFIG: &str = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = true\n[gc]\n\tauto = 0\n[receive]\n\tautogc = false\n";

/// The repository's folder, made or healed.
pub fn prepare(folder: &Folder, now: Time) -> Result<(Folder, Started)> {
    let now_s = now.micros().div_euclid(1_000_000);
    let trouble = match folder.look(GIT)? {
        None => None,
        Some(seen) if seen.kind != FileType::Directory => Some("it is no folder".to_owned()),
        Some(_) => match inspect(folder, now_s) {
            Ok(git) => return Ok((git, Started::Found)),
            Err(Error::Damaged(why)) => Some(why),
            Err(error) => return Err(error),
        },
    };
    if let Some(why) = trouble {
        move_aside(folder, now, &why)?;
    }
    Ok((init(folder)?, Started::Anew))
}

/// Moves the repository aside.
pub fn move_aside(folder: &Folder, now: Time, why: &str) -> Result<()> {
    let prefix = format!("{GIT}.aside-");
    let count = folder.list()?.iter().filter(|(name, _)| name.starts_with(&prefix)).count();
    if count >= ASIDE_MAX {
        return Err(Error::TooManyAside { path: folder.path().to_owned(), count });
    }
    let to = format!("{prefix}{}-{count}", now.micros());
    folder.rename(GIT, &to)?;
    tracing::error!(path = %folder.path().join(&to).display(), why, "the repository of an archive was moved aside and is made anew");
    Ok(())
}

/// Whether the repository is one of ours and its newest commit can be read.
fn inspect(folder: &Folder, now_s: i64) -> Result<Folder> {
    let git = folder.find(GIT)?.ok_or_else(|| Error::damaged("it is no folder"))?;
    for name in LEADS_AWAY {
        let (at, file) = name.rsplit_once('/').unwrap_or(("", name));
        let below = if at.is_empty() { None } else { git.find(at)? };
        let at = if at.is_empty() { Some(&git) } else { below.as_ref() };
        if at.map(|folder| folder.look(file)).transpose()?.flatten().is_some() {
            return Err(Error::damaged(format!("it has {name}, which leads to another repository")));
        }
    }
    for name in ["objects", "objects/pack", "refs", "refs/heads"] {
        if git.find(name)?.is_none() {
            return Err(Error::damaged(format!("{name} is no folder")));
        }
    }
    refs::clean(&git)?;
    pack::clean(&git.enter("objects/pack")?)?;
    locks::heal_known(&git, now_s)?;
    if !git.read("HEAD")?.is_some_and(|head| head.starts_with(b"ref: refs/heads/")) {
        git.put("HEAD", HEAD.as_bytes(), true)?;
    }
    match (refs::read(&git, OURS)?, refs::read(&git, BRANCH)) {
        (Some(ours), _) => {
            let mut objects = Objects::open(&git.path().join("objects"))?;
            let commit = Commit::decode(&objects.read(Kind::Commit, ours)?)?;
            objects.tree(commit.tree)?;
        }
        (None, Ok(None)) => {}
        (None, _) => return Err(Error::damaged("it is the repository of somebody else")),
    }
    Ok(git)
}

fn init(folder: &Folder) -> Result<Folder> {
    let git = folder.enter(GIT)?;
    for name in ["objects/pack", "objects/info", "refs/heads", "refs/tags"] {
        git.enter(name)?;
    }
    git.put("config", CONFIG.as_bytes(), true)?;
    // Last: without it nothing here is a repository.
    git.put("HEAD", HEAD.as_bytes(), true)?;
    git.sync()?;
    Ok(git)
}

/// Brings repository and files together where one of them is missing.
pub fn complete(project: &mut Project, now: Time) -> Result<()> {
    let has_commit = refs::read(&project.git, OURS)?.is_some();
    if !has_commit {
        project.folder.remove(RESTORING)?;
    }
    let has_files = project.folder.find(FILES)?.is_some() && project.folder.look(RESTORING)?.is_none();
    match (has_commit, has_files) {
        (true, false) => restore_files(project),
        (false, true) => {
            let imported = import(project, now)?;
            project.begun(if imported { Started::FromFiles } else { Started::Anew });
            Ok(())
        }
        (false, false) => {
            project.begun(Started::Anew);
            Ok(())
        }
        (true, true) => Ok(()),
    }
}

/// Writes the files of the last tree.
fn restore_files(project: &mut Project) -> Result<()> {
    let Some((_, commit)) = project.ours()? else { return Ok(()) };
    let (folder, sync) = (&project.folder, project.fsync == Fsync::Files);
    folder.put(RESTORING, b"", true)?;
    tree::walk(&mut project.objects, commit.tree, &mut |objects, path, id| {
        // What others have brought in under other names is not ours to write.
        let Ok(path) = ArchivePath::new(path) else { return Ok(()) };
        let content = objects.read(Kind::Blob, id)?;
        mirror::write(folder, &[(&path, Some(&content))], sync)
    })?;
    folder.remove(RESTORING).map(drop)
}

/// Writes files that are missing or different as the tree has them. What the tree does not have is no part of the archive: it is given a name
/// that readers pass over, and is not deleted.
pub fn restore(project: &mut Project, found: &super::Disagreement) -> Result<usize> {
    let listing = project.listing()?;
    let sync = project.fsync == Fsync::Files;
    for path in found.only_in_tree.iter().chain(&found.different) {
        let (Ok(at), Some(id)) = (ArchivePath::new(path.clone()), listing.get(path)) else { continue };
        let content = project.objects.read(Kind::Blob, *id)?;
        mirror::write(&project.folder, &[(&at, Some(&content))], sync)?;
    }
    for path in &found.only_in_files {
        let (folder, name) = path
            .rsplit_once('/')
            .map_or_else(|| (FILES.to_owned(), path.as_str()), |(folder, name)| (format!("{FILES}/{folder}"), name));
        if let Some(folder) = project.folder.find(&folder)? {
            folder.move_aside(name)?;
        }
    }
    Ok(found.only_in_tree.len() + found.different.len() + found.only_in_files.len())
}

/// A first commit with the files that are there. False if there are none.
fn import(project: &mut Project, now: Time) -> Result<bool> {
    let mut ids = std::collections::BTreeMap::new();
    let mut import = Import { chunk: Vec::new(), bytes: 0, seen: std::collections::HashSet::new(), packs: Vec::new() };
    if let Some(files) = project.folder.find(FILES)? {
        let packs = &project.packs;
        mirror::walk(&files, &mut |folder, path| {
            let (_, name) = path.split();
            let content = match folder.read(name) {
                Ok(Some(content)) => content,
                Ok(None) => return Ok(()),
                Err(Error::Format(why)) => {
                    tracing::warn!(why, "a file was left out of the archive");
                    return Ok(());
                }
                Err(error) => return Err(error),
            };
            let blob = Object::new(Kind::Blob, content.into())?;
            ids.insert(path.as_str().to_owned(), blob.id);
            import.add(packs, blob)
        })?;
    }
    if ids.is_empty() {
        return Ok(false);
    }
    let edits: Edits<'_> = ids.iter().map(|(path, id)| (path.as_str(), Some(*id))).collect();
    let Some(root) = tree::edit(&mut project.objects, None, &edits, &mut import.chunk)? else { return Ok(false) };
    let at_s = now.micros().div_euclid(1_000_000);
    let who = Signature { name: COMMITTER.0, email: COMMITTER.1, at_s };
    let commit = Commit::encode(root, &[], &who, &who, "archive: started again from the files");
    let commit = Object::new(Kind::Commit, commit.into())?;
    let id = commit.id;
    import.chunk.push(commit);
    if !project.publish(&import.chunk, None, None, id, now)? {
        return Err(Error::Outrun(1));
    }
    for pack in &import.packs {
        pack::release(&project.packs, pack)?;
    }
    Ok(true)
}

/// Objects on their way into packs of a bounded size.
struct Import {
    chunk: Vec<Object>,
    bytes: usize,
    seen: std::collections::HashSet<super::objects::Oid>,
    packs: Vec<pack::Pack>,
}

impl Import {
    fn add(&mut self, packs: &Folder, blob: Object) -> Result<()> {
        if !self.seen.insert(blob.id) {
            return Ok(());
        }
        self.bytes += blob.data.len();
        self.chunk.push(blob);
        if self.chunk.len() >= IMPORT_OBJECTS || self.bytes >= IMPORT_BYTES {
            self.packs.push(pack::write(packs, &self.chunk, true)?);
            self.chunk.clear();
            self.bytes = 0;
        }
        Ok(())
    }
}
