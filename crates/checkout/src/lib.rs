//! Working trees of projects on the server's own disk: files that are sent, signs that somebody is at work in them, and git's hooks.
//!
//! Nothing is touched that does not lie beneath a folder which the operator has named, and no link is followed on the way
//! from there: whoever writes to a working tree must not lead the server elsewhere. What the server keeps for itself, keys and
//! databases, is closed even where such a folder holds it. No git program is run, and no configuration of git is obeyed: those of a
//! working tree name programs. All of it blocks.

mod closed;
mod gitdir;
pub mod hooks;
mod signs;

use std::path::{Component, Path, PathBuf};

pub use signs::{LOOKED_MAX, Looked, Sign, signs};
use waybill_archive::repo::reading::Folder;
/// A folder of hooks.
pub use waybill_archive::repo::reading::Folder as Hooks;
use waybill_kernel::{Code, Error, Result};

use crate::closed::{Closed, refusal};

/// Where files of projects may be touched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roots {
    /// Only beneath these folders.
    pub open: Vec<PathBuf>,
    /// Never these folders and files, nor what is in them: they are the server's own.
    pub closed: Vec<PathBuf>,
}

/// A folder of a project, reached without following a link.
#[derive(Debug)]
pub struct Checkout {
    folder: Folder,
    open: Vec<PathBuf>,
    closed: Closed,
}

impl Checkout {
    /// None where `path` is not beneath one of the roots, is no folder, or is reached only through a link. An error where it is closed.
    pub fn open(roots: &Roots, path: &Path) -> Result<Option<Self>> {
        let closed = Closed::of(&roots.closed);
        let folder = beneath(&roots.open, &closed, path)?;
        Ok(folder.map(|folder| Self { folder, open: roots.open.clone(), closed }))
    }

    /// Another folder, under the same bounds.
    pub(crate) fn beneath(&self, path: &Path) -> Result<Option<Folder>> {
        beneath(&self.open, &self.closed, path)
    }

    /// The bytes of one file. `path` is relative to the folder, or absolute and beneath it.
    pub fn read(&self, root: &Path, path: &str, bytes_max: u64) -> Result<Vec<u8>> {
        let given = Path::new(path);
        let below = if given.is_absolute() { given.strip_prefix(root).ok() } else { Some(given) };
        let parts = below.and_then(plain_parts).filter(|parts| !parts.is_empty());
        let Some(parts) = parts else {
            return Err(Error::invalid(format!("{path:?} is no path of a file beneath the project.")));
        };
        let missing = || Error::new(Code::NotFound, format!("There is no file {path:?}, or it is reached by a link."));
        let (folders, name) = parts.split_at(parts.len() - 1);
        let below = match folders {
            [] => None,
            folders => Some(self.closed.find(&self.folder, &folders.join("/"))?.ok_or_else(missing)?),
        };
        let folder = below.as_ref().unwrap_or(&self.folder);
        if folder.look(name[0]).map_err(unusable)?.is_some_and(|seen| self.closed.is(seen.inode)) {
            return Err(refusal(&folder.path().join(name[0])));
        }
        match folder.read_up_to(name[0], bytes_max) {
            Ok(content) => content.ok_or_else(missing),
            Err(waybill_archive::Error::Format(_)) => {
                let message = format!("The file {path:?} has more than {bytes_max} bytes.");
                Err(Error::new(Code::PayloadTooLarge, message).with("limit", bytes_max))
            }
            Err(error) => Err(unusable(error)),
        }
    }
}

/// The folder at an absolute path, if it lies beneath one of the roots. Links above a root are the operator's.
fn beneath(roots: &[PathBuf], closed: &Closed, path: &Path) -> Result<Option<Folder>> {
    for root in roots {
        let Some(parts) = path.strip_prefix(root).ok().and_then(plain_parts) else { continue };
        let Ok(folder) = Folder::at(root) else { continue };
        if closed.holds(folder.path()) {
            return Err(refusal(folder.path()));
        }
        let found = match parts.as_slice() {
            [] => Some(folder),
            parts => closed.find(&folder, &parts.join("/"))?,
        };
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

/// Names alone: None for `..`, for what is not UTF-8, and for what begins elsewhere.
fn plain_parts(path: &Path) -> Option<Vec<&str>> {
    let mut parts = Vec::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => parts.push(name.to_str()?),
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(parts)
}

pub(crate) fn unusable(error: waybill_archive::Error) -> Error {
    Error::new(Code::PathUnusable, "A folder of the project cannot be used.").because(error)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn only_what_lies_beneath_a_root_is_reached_and_no_link_is_followed() {
        let temp = tempfile::tempdir().unwrap();
        let (root, outside) = (temp.path().join("root"), temp.path().join("outside"));
        std::fs::create_dir_all(root.join("p/src")).unwrap();
        std::fs::create_dir_all(&outside).unwrap();
        std::fs::write(root.join("p/src/a.txt"), "hello").unwrap();
        std::fs::write(outside.join("secret"), "secret").unwrap();
        symlink(&outside, root.join("p/out")).unwrap();
        symlink(outside.join("secret"), root.join("p/src/link")).unwrap();
        symlink(&outside, root.join("q")).unwrap();
        let roots = Roots { open: vec![root.clone()], ..Roots::default() };
        let open = |path: PathBuf| Checkout::open(&roots, &path).unwrap();
        assert!(open(outside.clone()).is_none() && open(root.join("q")).is_none());
        assert!(open(root.join("p/../../outside")).is_none() && open(root.join("absent")).is_none());
        assert!(Checkout::open(&Roots::default(), &root.join("p")).unwrap().is_none());
        let at = root.join("p");
        let checkout = open(at.clone()).unwrap();
        assert_eq!(checkout.read(&at, "src/a.txt", 10).unwrap(), b"hello");
        assert_eq!(checkout.read(&at, &at.join("src/a.txt").display().to_string(), 10).unwrap(), b"hello");
        for (path, code) in [
            ("out/secret", Code::NotFound),
            ("src/link", Code::NotFound),
            ("src", Code::NotFound),
            ("../outside/secret", Code::InvalidRequest),
            ("/etc/passwd", Code::InvalidRequest),
            ("", Code::InvalidRequest),
        ] {
            assert_eq!(checkout.read(&at, path, 10).unwrap_err().code(), code, "{path}");
        }
        assert_eq!(checkout.read(&at, "src/a.txt", 4).unwrap_err().code(), Code::PayloadTooLarge);
    }

    /// A root that holds the server's own folder, as a home does.
    #[test]
    fn what_is_the_servers_own_is_closed_however_it_is_named() {
        let temp = tempfile::tempdir().unwrap();
        let home = temp.path().join("home");
        for folder in ["data/sub", "project/src", "keys"] {
            std::fs::create_dir_all(home.join(folder)).unwrap();
        }
        for file in ["data/admin.key", "data/sub/x", "project/src/a.txt", "keys/server.key", "keys/other"] {
            std::fs::write(home.join(file), "x").unwrap();
        }
        symlink(home.join("data"), temp.path().join("link")).unwrap();
        // Named by a link, as an operator may do it; and one that is not there.
        let closed = vec![temp.path().join("link"), home.join("keys/server.key"), home.join("absent")];
        let roots = |open: Vec<PathBuf>| Roots { open, closed: closed.clone() };
        let code = |roots: &Roots, path: PathBuf| Checkout::open(roots, &path).unwrap_err().code();
        let above = roots(vec![home.clone()]);
        for path in ["data", "data/", "./data/.", "data/sub", "data/absent"] {
            assert_eq!(code(&above, home.join(path)), Code::Forbidden, "{path}");
        }
        // A root in it opens nothing of it, and neither does one that is reached by a link.
        for root in [home.join("data"), home.join("data/sub"), temp.path().join("link")] {
            assert_eq!(code(&roots(vec![root.clone()]), root), Code::Forbidden);
        }
        assert_eq!(code(&roots(vec![home.join("data/sub"), home.clone()]), home.join("data/sub")), Code::Forbidden);
        let checkout = Checkout::open(&above, &home).unwrap().unwrap();
        for path in ["data/admin.key", "./data//admin.key", "data/sub/x", "data/absent", "keys/server.key"] {
            assert_eq!(checkout.read(&home, path, 10).unwrap_err().code(), Code::Forbidden, "{path}");
        }
        let absolute = home.join("data/admin.key").display().to_string();
        let refused = checkout.read(&home, &absolute, 10).unwrap_err();
        assert!(refused.message().contains("the server itself"), "{refused}");
        // What lies beside it is served as ever.
        assert_eq!(checkout.read(&home, "project/src/a.txt", 10).unwrap(), b"x");
        assert_eq!(checkout.read(&home, "keys/other", 10).unwrap(), b"x");
        assert!(Checkout::open(&above, &home.join("project")).unwrap().is_some());
    }
}
