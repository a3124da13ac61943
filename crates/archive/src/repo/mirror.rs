//! The plain files beside the repository: the same tree, for people who browse with an editor.
//!
//! Before a window touches folders it notes their names, so that the next start cleans what a crash has left in just those, and not by a
//! walk over everything.

use std::collections::BTreeMap;

use rustix::fs::FileType;

use super::disk::Folder;
use crate::error::Result;
use crate::names::ArchivePath;

/// The folder of the files, in the folder of the project.
pub const FILES: &str = "files";
/// Names of folders that a window touches.
const TOUCHING: &str = "touching";
const DEPTH_MAX: usize = 16;

/// Names of files in a folder, each with its content or none where it goes.
type Files<'a> = Vec<(&'a str, Option<&'a [u8]>)>;

/// Writes, or removes where there is no content. Folders that become empty go, as they do in git.
pub fn write(project: &Folder, changes: &[(&ArchivePath, Option<&[u8]>)], sync: bool) -> Result<()> {
    let mut folders: BTreeMap<&str, Files<'_>> = BTreeMap::new();
    for (path, content) in changes {
        let (folder, file) = path.split();
        folders.entry(folder).or_default().push((file, *content));
    }
    if folders.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = folders.keys().copied().collect();
    project.put(TOUCHING, (names.join("\n") + "\n").as_bytes(), false)?;
    let files = project.enter(FILES)?;
    for (name, changes) in &folders {
        let below = if name.is_empty() { None } else { Some(files.enter(name)?) };
        let folder = below.as_ref().unwrap_or(&files);
        for (file, content) in changes {
            match content {
                Some(content) => folder.put(file, content, sync)?,
                None => drop(folder.remove(file)?),
            }
        }
        if sync {
            folder.sync()?;
        }
    }
    for name in folders.iter().filter(|(_, changes)| changes.iter().any(|(_, to)| to.is_none())).map(|(name, _)| *name)
    {
        remove_empty(&files, name)?;
    }
    project.remove(TOUCHING).map(drop)
}

fn remove_empty(files: &Folder, name: &str) -> Result<()> {
    let mut name = name;
    while !name.is_empty() {
        let (above, last) = name.rsplit_once('/').unwrap_or(("", name));
        let Some(folder) = files.find(name)? else { break };
        if !folder.list()?.is_empty() {
            break;
        }
        if above.is_empty() {
            files.remove_folder(last);
        } else if let Some(folder) = files.find(above)? {
            folder.remove_folder(last);
        }
        name = above;
    }
    Ok(())
}

/// Cleans what a window that did not come to its end has left. Answers with the number of files removed.
pub fn clean(project: &Folder) -> Result<usize> {
    let mut removed = project.clean()?;
    let Some(touching) = project.read(TOUCHING)? else { return Ok(removed) };
    if let Some(files) = project.find(FILES)? {
        for name in String::from_utf8_lossy(&touching).lines() {
            // Only names that this program writes: the file is not trusted to lead elsewhere.
            if name.is_empty() {
                removed += files.clean()?;
            } else if ArchivePath::new(name).is_ok()
                && let Some(folder) = files.find(name)?
            {
                removed += folder.clean()?;
            }
        }
    }
    project.remove(TOUCHING)?;
    Ok(removed)
}

/// Calls `each` with the folder, path and name of every file, in order of paths.
pub fn walk(files: &Folder, each: &mut dyn FnMut(&Folder, ArchivePath) -> Result<()>) -> Result<()> {
    walk_below(files, "", 0, each)
}

fn walk_below(
    folder: &Folder,
    prefix: &str,
    depth: usize,
    each: &mut dyn FnMut(&Folder, ArchivePath) -> Result<()>,
) -> Result<()> {
    for (name, kind) in folder.list()? {
        let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}/{name}") };
        // Temporary files, and what others have put there under names that ours never have.
        let Ok(path) = ArchivePath::new(path) else { continue };
        match kind {
            FileType::RegularFile => each(folder, path)?,
            FileType::Directory if depth < DEPTH_MAX => {
                if let Some(below) = folder.find(&name)? {
                    walk_below(&below, path.as_str(), depth + 1, each)?;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Paths of all files.
    fn paths(project: &Folder) -> Result<BTreeSet<ArchivePath>> {
        let mut found = BTreeSet::new();
        if let Some(files) = project.find(FILES)? {
            walk(&files, &mut |_, path| {
                found.insert(path);
                Ok(())
            })?;
        }
        Ok(found)
    }

    fn path(path: &str) -> ArchivePath {
        ArchivePath::new(path).unwrap()
    }

    #[test]
    fn rule_25_only_folders_of_the_last_window_are_cleaned() {
        let temp = tempfile::tempdir().unwrap();
        let project = Folder::create(temp.path()).unwrap();
        let (a, b) = (path("messages/2026/a.md"), path("top.json"));
        write(&project, &[(&a, Some(b"a")), (&b, Some(b"b"))], false).unwrap();
        let left = temp.path().join("files/messages/2026/.tmp-1-1");
        std::fs::write(&left, "half").unwrap();
        std::fs::write(temp.path().join("files/.tmp-1-2"), "half").unwrap();
        std::fs::write(temp.path().join(TOUCHING), "messages/2026\n\n../..\n").unwrap();
        assert_eq!(paths(&project).unwrap().len(), 2, "readers pass over leftovers");
        assert_eq!(clean(&project).unwrap(), 2);
        assert!(!left.exists());
        assert!(!temp.path().join(TOUCHING).exists());
    }

    #[test]
    fn an_empty_folder_goes_with_its_last_file() {
        let temp = tempfile::tempdir().unwrap();
        let project = Folder::create(temp.path()).unwrap();
        let (a, b) = (path("x/y/a"), path("x/b"));
        write(&project, &[(&a, Some(b"a")), (&b, Some(b"b"))], false).unwrap();
        write(&project, &[(&a, None)], false).unwrap();
        assert!(!temp.path().join("files/x/y").exists());
        assert!(temp.path().join("files/x/b").exists());
    }
}
