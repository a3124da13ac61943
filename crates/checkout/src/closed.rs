//! What the server keeps for itself. It is told by inodes and not by names: a folder may have several, by another mount or where the
//! file system does not tell capitals from small letters.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use waybill_archive::repo::reading::Folder;
use waybill_kernel::{Code, Error, Result};

use crate::unusable;

/// Folders and files that nothing is read from or written to, as they are now.
#[derive(Debug)]
pub(crate) struct Closed(Vec<(u64, u64)>);

impl Closed {
    /// One that is not there yet has nothing in it that could be reached.
    pub(crate) fn of(paths: &[PathBuf]) -> Self {
        Self(paths.iter().filter_map(|path| path.metadata().ok()).map(|seen| inode(&seen)).collect())
    }

    /// Whether the folder is closed, or lies in one that is. `path` has no links.
    pub(crate) fn holds(&self, path: &Path) -> bool {
        let mut above = path.ancestors().filter_map(|folder| folder.metadata().ok());
        above.any(|seen| self.0.contains(&inode(&seen)))
    }

    pub(crate) fn is(&self, inode: (u64, u64)) -> bool {
        self.0.contains(&inode)
    }

    /// As [`Folder::find`]; an error where a folder on the way is closed.
    pub(crate) fn find(&self, from: &Folder, below: &str) -> Result<Option<Folder>> {
        let mut found: Option<Folder> = None;
        for part in below.split('/') {
            let Some(next) = found.as_ref().unwrap_or(from).find(part).map_err(unusable)? else { return Ok(None) };
            if self.is(next.inode().map_err(unusable)?) {
                return Err(refusal(next.path()));
            }
            found = Some(next);
        }
        Ok(found)
    }
}

fn inode(seen: &Metadata) -> (u64, u64) {
    (seen.dev(), seen.ino())
}

pub(crate) fn refusal(path: &Path) -> Error {
    let message = format!("{} belongs to the server itself, which shows and changes nothing there.", path.display());
    Error::new(Code::Forbidden, message).with_cure("Name a file or folder outside of the server's own folders.")
}
