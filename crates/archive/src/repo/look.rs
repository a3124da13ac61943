//! A look at an archive that changes nothing: for a check, beside a server or after one.

use std::collections::BTreeMap;
use std::path::Path;

use rustix::fs::FileType;

use super::disk::Folder;
use super::mirror::{self, FILES};
use super::objects::{Kind, Object, Objects, Oid};
use super::project::GIT;
use super::refs::{self, BRANCH, OURS};
use super::tree::{self, Commit};
use super::{Disagreement, ProjectKey};
use crate::error::{Error, Result};

/// What an archive holds.
#[derive(Debug, Default)]
pub struct Look {
    /// Every path of the last commit written here, with the id of its content.
    pub tree: BTreeMap<String, Oid>,
    /// Where the files beside the repository differ from that.
    pub files: Disagreement,
    /// What is wrong with the repository, if anything; the tree is empty then.
    pub damage: Option<String>,
    /// The branch that people see is not what was written here last.
    pub branch_differs: bool,
}

pub fn look(path: &Path) -> Result<Option<Look>> {
    let Some(folder) = Folder::existing(path)? else { return Ok(None) };
    let (git, files) = (folder.find(GIT)?, folder.find(FILES)?);
    if git.is_none() && files.is_none() {
        return Ok(None);
    }
    let mut look = Look::default();
    match git.map(|git| tree_of(&git)) {
        Some(Ok((tree, branch_differs))) => {
            look.tree = tree;
            look.branch_differs = branch_differs;
        }
        Some(Err(Error::Damaged(why))) => look.damage = Some(why),
        Some(Err(error)) => return Err(error),
        None => look.damage = Some("there is none".to_owned()),
    }
    look.files.only_in_tree = look.tree.keys().cloned().collect();
    if let Some(files) = files {
        let (tree, found) = (&look.tree, &mut look.files);
        mirror::walk(&files, &mut |folder, path| {
            let (_, name) = path.split();
            let content = folder.read(name)?.unwrap_or_default();
            let id = Object::new(Kind::Blob, content.into())?.id;
            found.only_in_tree.remove(path.as_str());
            match tree.get(path.as_str()) {
                None => drop(found.only_in_files.insert(path.as_str().to_owned())),
                Some(known) if *known != id => drop(found.different.insert(path.as_str().to_owned())),
                Some(_) => {}
            }
            Ok(())
        })?;
    }
    Ok(Some(look))
}

/// The tree of the last commit made here, and whether the branch is elsewhere.
fn tree_of(git: &Folder) -> Result<(BTreeMap<String, Oid>, bool)> {
    let Some(ours) = refs::read(git, OURS)? else { return Ok((BTreeMap::new(), false)) };
    let branch_differs = refs::read(git, BRANCH).is_ok_and(|branch| branch != Some(ours));
    let mut kept = Kept::of(git)?;
    for id in kept.files.values() {
        // That it can be read is a part of what is looked for.
        kept.objects.read(Kind::Blob, *id)?;
    }
    Ok((kept.files, branch_differs))
}

/// The files of a repository, read from it without those beside it.
pub(crate) struct Kept {
    objects: Objects,
    pub(crate) files: BTreeMap<String, Oid>,
}

impl Kept {
    /// Of the last commit that was made here, else of the branch: of a clone there is nothing else.
    pub(crate) fn of(git: &Folder) -> Result<Self> {
        let mut objects = Objects::open(&git.path().join("objects"))?;
        let mut files = BTreeMap::new();
        let at = match refs::read(git, OURS)? {
            Some(ours) => Some(ours),
            None => refs::read(git, BRANCH)?,
        };
        if let Some(at) = at {
            let commit = Commit::decode(&objects.read(Kind::Commit, at)?)?;
            tree::walk(&mut objects, commit.tree, &mut |_, path, id| {
                files.insert(path.to_owned(), id);
                Ok(())
            })?;
        }
        Ok(Self { objects, files })
    }

    /// None for a file that it has not.
    pub(crate) fn read(&mut self, path: &str) -> Result<Option<bytes::Bytes>> {
        self.files.get(path).map(|id| self.objects.read(Kind::Blob, *id)).transpose()
    }
}

impl std::fmt::Debug for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} files of a repository", self.files.len())
    }
}

pub fn projects(root: &Path) -> Result<Vec<ProjectKey>> {
    let mut projects = Vec::new();
    let Some(root) = Folder::existing(root)? else { return Ok(projects) };
    for (tenant, _) in folders(&root)? {
        let Some(below) = root.find(&tenant)? else { continue };
        for (project, _) in folders(&below)? {
            let archive = below.find(&project)?;
            if archive.is_some_and(|archive| archive.find(GIT).is_ok_and(|git| git.is_some())) {
                projects.push(ProjectKey { tenant: tenant.clone(), project });
            }
        }
    }
    Ok(projects)
}

fn folders(folder: &Folder) -> Result<Vec<(String, FileType)>> {
    let all = folder.list()?;
    Ok(all.into_iter().filter(|(name, kind)| *kind == FileType::Directory && !name.starts_with('.')).collect())
}

/// Free for this user on the disk of `path`, or of the first folder above it that there is.
pub fn free_bytes(path: &Path) -> Result<u64> {
    let there = path.ancestors().find(|folder| folder.exists()).unwrap_or_else(|| Path::new("/"));
    let stat = rustix::fs::statvfs(there).map_err(Error::os("asking for the free space of", there))?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}
