//! What can go wrong with the archive. None of it ever reaches a caller of a tool: the archiver tries again later.

use std::io;
use std::path::{Path, PathBuf};

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{what} failed for {path}: {source}", path = path.display())]
    Io { what: &'static str, path: PathBuf, source: io::Error },
    /// The kernel's lock on the project's folder is held.
    #[error("{path} is held by another process ({holder}): one server at a time writes an archive", path = path.display())]
    Busy { path: PathBuf, holder: String },
    /// A lock file of git that is young, or whose owner lives.
    #[error("{path} is locked by a git program: wait for it, or remove the file if there is none", path = path.display())]
    Locked { path: PathBuf },
    /// Objects or refs that are not what they should be. The repository is started again.
    #[error("the repository is damaged: {0}")]
    Damaged(String),
    #[error("{path} has {count} repositories that were moved aside: look at them and remove them", path = path.display())]
    TooManyAside { path: PathBuf, count: usize },
    #[error("the branch was moved by others {0} times in a row while a commit was made")]
    Outrun(u32),
    #[error("{0:?} is no path of an archive")]
    Path(String),
    #[error("a file of the archive cannot be read: {0}")]
    Format(String),
}

impl Error {
    pub(crate) fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
        let path = path.to_owned();
        move |source| Error::Io { what, path, source }
    }

    pub(crate) fn os(what: &'static str, path: &Path) -> impl FnOnce(rustix::io::Errno) -> Error {
        let path = path.to_owned();
        move |source| Error::Io { what, path, source: source.into() }
    }

    pub(crate) fn damaged(what: impl std::fmt::Display) -> Error {
        Error::Damaged(what.to_string())
    }

    /// The disk has no room: nothing is gained by trying at once.
    pub fn is_disk_full(&self) -> bool {
        matches!(self, Error::Io { source, .. } if matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded))
    }

    /// What it is, for those who may not know where: no path, no name, no content.
    pub fn kind(&self) -> String {
        let told = match self {
            Error::Io { .. } if self.is_disk_full() => "the disk is full",
            Error::Io { what, source, .. } => return format!("{what} failed: {}", source.kind()),
            Error::Busy { .. } => "it is held by another process: one server at a time writes an archive",
            Error::Locked { .. } => "it is locked by a git program",
            Error::Damaged(_) => "a repository is damaged",
            Error::TooManyAside { .. } => "too many repositories were moved aside: somebody has to look at them",
            Error::Outrun(_) => "the branch was moved by others while a commit was made",
            Error::Path(_) => "something has a name that is no path",
            Error::Format(_) => "something cannot be written as a file, or was not written by this program",
        };
        told.to_owned()
    }

    pub(crate) fn is_missing(&self) -> bool {
        matches!(self, Error::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_names_nothing_of_anybodys() {
        let path = || PathBuf::from("/srv/secret/tenant");
        let denied = || io::Error::new(io::ErrorKind::PermissionDenied, "/srv/secret");
        let all = [
            Error::Io { what: "writing", path: path(), source: denied() },
            Error::Busy { path: path(), holder: "process secret".to_owned() },
            Error::Locked { path: path() },
            Error::Damaged("secret".to_owned()),
            Error::TooManyAside { path: path(), count: 9 },
            Error::Outrun(3),
            Error::Path("secret".to_owned()),
            Error::Format("secret".to_owned()),
        ];
        assert!(all.iter().all(|error| !error.kind().contains("secret") && !error.kind().is_empty()));
        assert_eq!(all[0].kind(), "writing failed: permission denied");
    }
}
