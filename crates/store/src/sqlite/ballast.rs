//! Room kept in reserve beside the database, given back when the disk is full.
//!
//! In WAL mode even a delete needs room, so a full disk would stop the very operations that could free it. The reserve is
//! really allocated, and taken again as soon as there is room for it and some more.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate, statvfs};
use rustix::io::Errno;
use waybill_kernel::{Code, Error, Result};

use crate::private;
#[cfg(feature = "sabotage")]
use crate::sabotage;

/// The unit of a file's `blocks`, whatever its file system's block is.
const BLOCK_BYTES: u64 = 512;
/// Beyond the ballast itself there must be this part of it free before it is taken again; else the next write would
/// be out of room at once.
const MARGIN_DIVISOR: u64 = 4;

pub(super) struct Ballast {
    path: PathBuf,
    /// Zero for none.
    bytes: u64,
    held: bool,
}

impl Ballast {
    /// On a disk that is full already it begins empty-handed.
    pub(super) fn open(database: &Path, bytes: u64) -> Result<Self> {
        let path = database.with_extension("ballast");
        let mut ballast = Self { path, bytes, held: false };
        match ballast.allocate() {
            Ok(()) => ballast.held = true,
            Err(error) if is_full(&error) => ballast.release(),
            Err(error) => {
                let message = format!("The ballast file {} cannot be used: {error}.", ballast.path.display());
                return Err(Error::new(Code::DatabaseUnusable, message));
            }
        }
        Ok(ballast)
    }

    pub(super) fn is_held(&self) -> bool {
        self.held || self.bytes == 0
    }

    pub(super) fn release(&mut self) {
        #[cfg(feature = "sabotage")]
        if sabotage::planted("ballast-kept") {
            return;
        }
        self.held = false;
        if self.bytes > 0
            && let Err(error) = self.file().and_then(|file| file.set_len(0))
        {
            tracing::error!(%error, "the ballast cannot be given back");
        }
    }

    /// Takes the room again, if there is enough and some more.
    pub(super) fn regain(&mut self) -> bool {
        if self.is_held() {
            return true;
        }
        if !self.disk_has_room() {
            return false;
        }
        match self.allocate() {
            Ok(()) => self.held = true,
            Err(error) => {
                tracing::debug!(%error, "the ballast cannot be taken yet");
                self.release();
            }
        }
        self.held
    }

    /// Is there room for what is not held yet, and the margin?
    pub(super) fn disk_has_room(&self) -> bool {
        let wanted = if self.held { 0 } else { self.bytes };
        free_bytes(&self.path) >= wanted + self.bytes / MARGIN_DIVISOR
    }

    fn file(&self) -> io::Result<File> {
        private::open(File::options().write(true).create(true).truncate(false).mode(0o600), &self.path)
    }

    fn allocate(&self) -> io::Result<()> {
        if self.bytes == 0 {
            return Ok(());
        }
        let mut file = self.file()?;
        let present = file.metadata()?;
        if present.len() == self.bytes && present.blocks() * BLOCK_BYTES >= self.bytes {
            return Ok(());
        }
        file.set_len(0)?;
        match fallocate(&file, FallocateFlags::empty(), 0, self.bytes) {
            // Some file systems cannot; what is written they must keep.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => fill(&mut file, self.bytes),
            outcome => outcome.map_err(io::Error::from),
        }
    }
}

/// On the disk where this file is or would be; none where nobody can say.
pub fn free_bytes(file: &Path) -> u64 {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
    statvfs(folder).map_or(0, |disk| disk.f_bavail.saturating_mul(disk.f_frsize))
}

fn fill(file: &mut File, bytes: u64) -> io::Result<()> {
    let zeros = [0; 64 << 10];
    let mut left = bytes;
    while left > 0 {
        let part = zeros.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        file.write_all(&zeros[..part])?;
        left -= part as u64;
    }
    Ok(())
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: u64 = 1 << 20;

    fn allocated(folder: &tempfile::TempDir) -> u64 {
        folder.path().join("waybill.ballast").metadata().unwrap().blocks() * BLOCK_BYTES
    }

    #[test]
    fn it_is_really_there_given_back_and_taken_again() {
        let folder = tempfile::tempdir().unwrap();
        let database = folder.path().join("waybill.db");
        let mut ballast = Ballast::open(&database, BYTES).unwrap();
        assert!(ballast.is_held() && allocated(&folder) >= BYTES);
        ballast.release();
        assert!(!ballast.is_held() && allocated(&folder) == 0);
        assert!(ballast.regain() && allocated(&folder) >= BYTES);
        // A sparse file of the right length is no ballast.
        ballast.release();
        ballast.file().unwrap().set_len(BYTES).unwrap();
        assert!(Ballast::open(&database, BYTES).unwrap().is_held() && allocated(&folder) >= BYTES);
        // Another size is taken from the next start on.
        assert!(Ballast::open(&database, 2 * BYTES).unwrap().is_held() && allocated(&folder) >= 2 * BYTES);
    }

    #[test]
    fn more_than_the_disk_has_is_not_taken() {
        let folder = tempfile::tempdir().unwrap();
        let mut ballast = Ballast { path: folder.path().join("b.ballast"), bytes: 1 << 60, held: false };
        assert!(!ballast.disk_has_room() && !ballast.regain());
    }

    #[test]
    fn none_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let mut ballast = Ballast::open(&folder.path().join("waybill.db"), 0).unwrap();
        ballast.release();
        assert!(ballast.is_held() && !folder.path().join("waybill.ballast").exists());
    }

    #[test]
    fn where_room_cannot_be_reserved_it_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("zeros");
        fill(&mut File::create(&path).unwrap(), (64 << 10) * 3 + 1).unwrap();
        assert_eq!(path.metadata().unwrap().len(), (64 << 10) * 3 + 1);
    }
}
