//! Files and folders of an archive, reached from a folder that is open, without following a link.
//!
//! A file appears complete or not at all: it is written under a temporary name in its own folder and renamed. Temporary names
//! begin with a dot, which no path of an archive does, so readers pass over what a crash has left.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::error::{Error, Result};

const FILE_MODE: Mode = Mode::from_raw_mode(0o600);
const FOLDER_MODE: Mode = Mode::from_raw_mode(0o700);
/// Names of temporary files begin with this.
pub const TEMPORARY: &str = ".tmp-";
/// Names of what stood in the way of a folder begin with this.
const ASIDE: &str = ".aside-";
/// Bytes of one file that are read into memory.
const FILE_MAX: u64 = 64 << 20;

static TEMPORARIES: AtomicU64 = AtomicU64::new(0);

/// A folder that is open; `path` is for messages only.
#[derive(Debug)]
pub struct Folder {
    fd: OwnedFd,
    path: PathBuf,
}

impl Folder {
    /// The folder at `path`, made if there is none. Links above it are the operator's and are followed; it is none itself.
    pub fn create(path: &Path) -> Result<Self> {
        use std::os::unix::fs::DirBuilderExt;
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
        made.map_err(Error::io("making the folder", path))?;
        let fd = rustix::fs::openat(CWD, path, folder_flags(), Mode::empty());
        Ok(Self { fd: fd.map_err(Error::os("opening the folder", path))?, path: path.to_owned() })
    }

    /// The folder at `path`; None if there is none. Nothing is made.
    pub fn existing(path: &Path) -> Result<Option<Self>> {
        match rustix::fs::openat(CWD, path, folder_flags(), Mode::empty()) {
            Ok(fd) => Ok(Some(Self { fd, path: path.to_owned() })),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            Err(error) => Err(Error::os("opening the folder", path)(error)),
        }
    }

    /// The folder at `path`, which is there. Links on the way are the operator's and are followed.
    pub fn at(path: &Path) -> Result<Self> {
        let path = path.canonicalize().map_err(Error::io("looking for", path))?;
        let fd = rustix::fs::openat(CWD, &path, folder_flags(), Mode::empty());
        Ok(Self { fd: fd.map_err(Error::os("opening the folder", &path))?, path })
    }

    /// The same folder, open a second time.
    pub fn again(&self) -> Result<Self> {
        let fd = self.fd.try_clone().map_err(Error::io("opening the folder", &self.path))?;
        Ok(Self { fd, path: self.path.clone() })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Which folder it is, whatever it was reached by.
    pub fn inode(&self) -> Result<(u64, u64)> {
        let seen = rustix::fs::fstat(&self.fd).map_err(Error::os("looking at the folder", &self.path))?;
        Ok((seen.st_dev, seen.st_ino))
    }

    pub fn is_at(&self, path: &Path) -> bool {
        let (Ok(own), Ok(there)) =
            (rustix::fs::fstat(&self.fd), rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW))
        else {
            return false;
        };
        (own.st_dev, own.st_ino) == (there.st_dev, there.st_ino)
    }

    /// The folder below, or None if there is none. `below` is one part or several by `/`.
    pub fn find(&self, below: &str) -> Result<Option<Folder>> {
        let mut folder: Option<Folder> = None;
        for part in below.split('/') {
            let (fd, path) = folder.as_ref().map_or((&self.fd, &self.path), |at| (&at.fd, &at.path));
            let path = path.join(part);
            folder = match rustix::fs::openat(fd, part, folder_flags(), Mode::empty()) {
                Ok(fd) => Some(Folder { fd, path }),
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
                Err(error) => return Err(Error::os("opening the folder", &path)(error)),
            };
        }
        Ok(folder)
    }

    /// The folder below, made if there is none; what stands there instead is moved aside.
    pub fn enter(&self, below: &str) -> Result<Folder> {
        let mut folder: Option<Folder> = None;
        for part in below.split('/') {
            let at = folder.as_ref().unwrap_or(self);
            folder = Some(at.enter_one(part)?);
        }
        folder.ok_or_else(|| Error::Path(below.to_owned()))
    }

    fn enter_one(&self, part: &str) -> Result<Folder> {
        let path = self.path.join(part);
        let open = || rustix::fs::openat(&self.fd, part, folder_flags(), Mode::empty());
        let fd = match open() {
            Ok(fd) => fd,
            Err(error @ (Errno::NOENT | Errno::NOTDIR | Errno::LOOP)) => {
                if error != Errno::NOENT {
                    self.move_aside(part)?;
                }
                match rustix::fs::mkdirat(&self.fd, part, FOLDER_MODE) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(error) => return Err(Error::os("making the folder", &path)(error)),
                }
                open().map_err(Error::os("opening the folder", &path))?
            }
            Err(error) => return Err(Error::os("opening the folder", &path)(error)),
        };
        Ok(Folder { fd, path })
    }

    /// Under a name that readers pass over.
    pub fn move_aside(&self, part: &str) -> Result<()> {
        let aside = format!("{ASIDE}{}-{}-{part}", std::process::id(), TEMPORARIES.fetch_add(1, Ordering::Relaxed));
        tracing::warn!(path = %self.path.join(part).display(), "something that is no folder was moved aside");
        self.rename(part, &aside)
    }

    pub fn rename(&self, from: &str, to: &str) -> Result<()> {
        rustix::fs::renameat(&self.fd, from, &self.fd, to).map_err(Error::os("renaming", &self.path.join(from)))
    }

    /// As one step: readers see the old content or the new.
    pub fn put(&self, name: &str, content: &[u8], sync: bool) -> Result<()> {
        let temporary = format!("{TEMPORARY}{}-{}", std::process::id(), TEMPORARIES.fetch_add(1, Ordering::Relaxed));
        let written = self.write_new(&temporary, content, sync).and_then(|()| match self.rename(&temporary, name) {
            // A folder cannot be replaced by a file.
            Err(_) if self.find(name)?.is_some() => {
                self.move_aside(name)?;
                self.rename(&temporary, name)
            }
            ended => ended,
        });
        if written.is_err() {
            // A disk that is full is not to keep halves.
            let _ = self.remove(&temporary);
        }
        written
    }

    /// A file that is not there yet.
    pub fn write_new(&self, name: &str, content: &[u8], sync: bool) -> Result<()> {
        let path = self.path.join(name);
        let mut file = self.create_new(name)?;
        file.write_all(content).map_err(Error::io("writing", &path))?;
        if sync { file.sync_all().map_err(Error::io("syncing", &path)) } else { Ok(()) }
    }

    pub fn create_new(&self, name: &str) -> Result<File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.fd, name, flags, file_mode());
        fd.map(File::from).map_err(Error::os("creating", &self.path.join(name)))
    }

    /// As [`Self::put`], for a file that programs run.
    pub fn put_program(&self, name: &str, content: &[u8]) -> Result<()> {
        use std::os::unix::fs::PermissionsExt;
        let temporary = format!("{TEMPORARY}{}-{}", std::process::id(), TEMPORARIES.fetch_add(1, Ordering::Relaxed));
        let path = self.path.join(name);
        let write = || -> Result<()> {
            let mut file = self.create_new(&temporary)?;
            file.write_all(content).map_err(Error::io("writing", &path))?;
            let mode = std::fs::Permissions::from_mode(0o755);
            file.set_permissions(mode).map_err(Error::io("setting the mode of", &path))?;
            file.sync_all().map_err(Error::io("syncing", &path))?;
            self.rename(&temporary, name)
        };
        let written = write();
        if written.is_err() {
            let _ = self.remove(&temporary);
        }
        written
    }

    /// For reading and writing, made if there is none.
    pub fn open_or_create(&self, name: &str) -> Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.fd, name, flags, file_mode());
        fd.map(File::from).map_err(Error::os("opening", &self.path.join(name)))
    }

    /// For reading; None if there is none, or if it is no file.
    pub fn open(&self, name: &str) -> Result<Option<File>> {
        // Without NONBLOCK a pipe in its place would be waited for.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let path = self.path.join(name);
        let file = match rustix::fs::openat(&self.fd, name, flags, Mode::empty()) {
            Ok(fd) => File::from(fd),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NXIO) => return Ok(None),
            Err(error) => return Err(Error::os("opening", &path)(error)),
        };
        let is_file = file.metadata().map_err(Error::io("looking at", &path))?.is_file();
        Ok(is_file.then_some(file))
    }

    pub fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        self.read_up_to(name, FILE_MAX)
    }

    /// One that has more bytes is an error, and not read to its end.
    pub fn read_up_to(&self, name: &str, max: u64) -> Result<Option<Vec<u8>>> {
        let Some(file) = self.open(name)? else { return Ok(None) };
        let (mut content, path) = (Vec::new(), self.path.join(name));
        file.take(max + 1).read_to_end(&mut content).map_err(Error::io("reading", &path))?;
        if content.len() as u64 > max {
            return Err(Error::Format(format!("{} has more than {max} bytes", path.display())));
        }
        Ok(Some(content))
    }

    /// None for what is not there.
    pub fn look(&self, name: &str) -> Result<Option<Seen>> {
        match rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(Seen {
                kind: FileType::from_raw_mode(stat.st_mode),
                size: u64::try_from(stat.st_size).unwrap_or_default(),
                modified_s: stat.st_mtime,
                inode: (stat.st_dev, stat.st_ino),
            })),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(error) => Err(Error::os("looking at", &self.path.join(name))(error)),
        }
    }

    /// Whether there was one to remove.
    pub fn remove(&self, name: &str) -> Result<bool> {
        match rustix::fs::unlinkat(&self.fd, name, AtFlags::empty()) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(Error::os("removing", &self.path.join(name))(error)),
        }
    }

    /// A folder that is empty; one that is not stays.
    pub fn remove_folder(&self, name: &str) {
        let _ = rustix::fs::unlinkat(&self.fd, name, AtFlags::REMOVEDIR);
    }

    /// A second name for a file; false if that name is taken.
    pub fn link(&self, from: &str, folder: &Folder, to: &str) -> Result<bool> {
        match rustix::fs::linkat(&self.fd, from, &folder.fd, to, AtFlags::empty()) {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => Ok(false),
            Err(error) => Err(Error::os("linking", &folder.path.join(to))(error)),
        }
    }

    pub fn sync(&self) -> Result<()> {
        rustix::fs::fsync(&self.fd).map_err(Error::os("syncing the folder", &self.path))
    }

    /// Names and kinds of what is in it, in order of names.
    pub fn list(&self) -> Result<Vec<(String, FileType)>> {
        self.list_up_to(usize::MAX)
    }

    /// As [`Self::list`], of as many as are met first: a folder that others write to may have any number.
    pub fn list_up_to(&self, max: usize) -> Result<Vec<(String, FileType)>> {
        let path = &self.path;
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.fd).map_err(Error::os("reading the folder", path))? {
            if names.len() >= max {
                break;
            }
            let entry = entry.map_err(Error::os("reading the folder", path))?;
            // What is not UTF-8 is not ours.
            let Ok(name) = entry.file_name().to_str() else { continue };
            if name == "." || name == ".." {
                continue;
            }
            let kind = match entry.file_type() {
                FileType::Unknown => self.look(name)?.map_or(FileType::Unknown, |seen| seen.kind),
                kind => kind,
            };
            names.push((name.to_owned(), kind));
        }
        names.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        Ok(names)
    }

    /// Removes what a crash has left of [`Self::put`] in this folder.
    pub fn clean(&self) -> Result<usize> {
        let mut removed = 0;
        for (name, _) in self.list()? {
            if name.starts_with(TEMPORARY) {
                removed += usize::from(self.remove(&name)?);
            }
        }
        Ok(removed)
    }
}

/// What stands under a name.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    pub kind: FileType,
    pub size: u64,
    pub modified_s: i64,
    pub inode: (u64, u64),
}

/// Of a file that is made. For its owner alone: secret recipients stand in it.
fn file_mode() -> Mode {
    #[cfg(feature = "sabotage")]
    if std::env::var("WAYBILL_PLANT").is_ok_and(|plant| plant == "archive-readable") {
        return Mode::from_raw_mode(0o644);
    }
    FILE_MODE
}

fn folder_flags() -> OFlags {
    OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_file_replaces_another_in_one_step_and_leaves_nothing() {
        let temp = tempfile::tempdir().unwrap();
        let folder = Folder::create(&temp.path().join("a")).unwrap();
        folder.put("x", b"one", true).unwrap();
        folder.put("x", b"two", false).unwrap();
        assert_eq!(folder.read("x").unwrap().unwrap(), b"two");
        assert_eq!(folder.list().unwrap().len(), 1);
    }

    #[test]
    fn of_a_large_folder_no_more_is_listed_than_is_wanted() {
        let temp = tempfile::tempdir().unwrap();
        let folder = Folder::create(temp.path()).unwrap();
        for name in ["a", "b", "c"] {
            folder.put(name, b"", false).unwrap();
        }
        assert_eq!([0, 2, 3, 9].map(|max| folder.list_up_to(max).unwrap().len()), [0, 2, 3, 3]);
    }

    #[test]
    fn links_are_not_followed() {
        let temp = tempfile::tempdir().unwrap();
        let (inside, outside) = (temp.path().join("in"), temp.path().join("out"));
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("secret"), "secret").unwrap();
        let folder = Folder::create(&inside).unwrap();
        symlink(&outside, inside.join("messages")).unwrap();
        symlink(outside.join("secret"), inside.join("file")).unwrap();
        assert!(folder.find("messages").unwrap().is_none());
        assert!(folder.read("file").unwrap().is_none());
        // The link is moved aside and a folder takes its place.
        folder.enter("messages/2026").unwrap().put("secret", b"ours", false).unwrap();
        folder.put("file", b"ours", false).unwrap();
        assert_eq!(std::fs::read(outside.join("secret")).unwrap(), b"secret");
        assert_eq!(std::fs::read(inside.join("messages/2026/secret")).unwrap(), b"ours");
    }

    #[test]
    fn rule_25_leftovers_are_cleaned_and_nothing_else() {
        let temp = tempfile::tempdir().unwrap();
        let folder = Folder::create(temp.path()).unwrap();
        folder.put("kept", b"1", false).unwrap();
        std::fs::write(temp.path().join(".tmp-1-1"), "half").unwrap();
        assert_eq!(folder.clean().unwrap(), 1);
        assert_eq!(folder.list().unwrap().len(), 1);
    }

    #[test]
    fn a_pipe_is_no_file_and_nobody_waits_for_it() {
        let temp = tempfile::tempdir().unwrap();
        let folder = Folder::create(temp.path()).unwrap();
        let path = temp.path().join("pipe");
        rustix::fs::mkfifoat(CWD, &path, FILE_MODE).unwrap();
        assert!(folder.read("pipe").unwrap().is_none());
    }
}
