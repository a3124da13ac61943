//! The data folder: who uses it, where the server listens, and the first key.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use waybill_kernel::{Code, Error, Result};

const ADMIN_KEY: &str = "admin.key";
/// The admin key before it is known that the database has it.
const NEW_ADMIN_KEY: &str = "admin.key.new";
/// Holds the number of the process that has it locked.
const LOCK: &str = "waybill.lock";

/// An open data folder, locked for this process until dropped.
pub struct DataFolder {
    path: PathBuf,
    _lock: File,
}

/// What a running server says of itself.
#[derive(Serialize, Deserialize)]
pub struct Running {
    pub pid: u32,
    pub http: SocketAddr,
    pub sqs: SocketAddr,
}

impl DataFolder {
    /// Makes the folder if need be. An error of [`Code::DataFolderLocked`] names the process that holds it.
    pub fn open(path: &Path) -> Result<Self> {
        let unusable = |error: std::io::Error| unusable(path, &error);
        create_folder(path).map_err(unusable)?;
        let mut lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path.join(LOCK))
            .map_err(unusable)?;
        if lock.try_lock().is_err() {
            let mut holder = String::new();
            let _ = lock.read_to_string(&mut holder);
            return Err(in_use(path, holder.trim()));
        }
        lock.set_len(0).and_then(|()| writeln!(lock, "{}", std::process::id())).map_err(unusable)?;
        Ok(Self { path: path.to_owned(), _lock: lock })
    }

    /// Before the default tenant is made: from its commit on this is the only copy of its only key. Kept with 0600.
    pub fn write_new_admin_key(&self, key: &str) -> Result<()> {
        self.write(&self.path.join(NEW_ADMIN_KEY), &format!("{key}\n"))
    }

    /// Written by this start, or by one that did not come to its end.
    pub fn new_admin_key(&self) -> Result<Option<String>> {
        let path = self.path.join(NEW_ADMIN_KEY);
        match fs::read(&path) {
            Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).trim().to_owned())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => {
                let message = format!("{} cannot be read: {error}.", path.display());
                Err(Error::new(Code::DataFolderUnusable, message))
            }
        }
    }

    /// Once the database has it.
    pub fn keep_new_admin_key(&self) -> Result<PathBuf> {
        let path = self.path.join(ADMIN_KEY);
        let keep = || fs::rename(self.path.join(NEW_ADMIN_KEY), &path).and_then(|()| self.sync());
        keep().map_err(|error| unwritable(&path, &error))?;
        Ok(path)
    }

    /// Once it is known that the database does not have it.
    pub fn remove_new_admin_key(&self) -> Result<()> {
        let path = self.path.join(NEW_ADMIN_KEY);
        fs::remove_file(&path).and_then(|()| self.sync()).map_err(|error| unwritable(&path, &error))
    }

    /// Which server this is, to others on the same database: made at the first start and then kept.
    pub fn instance_id(&self, make: impl FnOnce() -> String) -> Result<String> {
        let path = self.path.join("instance.id");
        match fs::read_to_string(&path) {
            Ok(text) if !text.trim().is_empty() => Ok(text.trim().to_owned()),
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                // Another name would leave this server's own tasks to others.
                let message = format!("{} cannot be read: {error}.", path.display());
                Err(Error::new(Code::DataFolderUnusable, message))
            }
            _ => {
                let made = make();
                self.write(&path, &format!("{made}\n"))?;
                Ok(made)
            }
        }
    }

    pub fn announce(&self, running: &Running) -> Result<()> {
        let text = serde_json::to_string(running).map_err(Error::internal)?;
        self.write(&self.path.join("server.json"), &text)
    }

    pub fn retract(&self) {
        let _ = fs::remove_file(self.path.join("server.json"));
    }

    /// All or nothing: a reader never sees half a file.
    fn write(&self, path: &Path, text: &str) -> Result<()> {
        let part = path.with_extension("part");
        let write = || -> std::io::Result<()> {
            let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&part)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&part, path)?;
            self.sync()
        };
        write().map_err(|error| unwritable(path, &error))
    }

    /// A new name is on the disk only when its folder is.
    fn sync(&self) -> std::io::Result<()> {
        File::open(&self.path)?.sync_all()
    }
}

/// Makes a folder that is its owner's alone, and those above it that are missing; one that is there stays as it is.
pub fn create_folder(path: &Path) -> std::io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// The process that holds the folder. Looking takes the lock for an instant if nobody has it, and changes nothing.
pub fn holder(data: &Path) -> Result<Option<String>> {
    let path = data.join(LOCK);
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unusable(data, &error)),
    };
    match file.try_lock_shared() {
        Err(TryLockError::WouldBlock) => Ok(Some(fs::read_to_string(path).unwrap_or_default().trim().to_owned())),
        Ok(()) | Err(TryLockError::Error(_)) => Ok(None),
    }
}

pub fn in_use(data: &Path, holder: &str) -> Error {
    let message = format!("The data folder {} is in use by process {holder}.", data.display());
    Error::new(Code::DataFolderLocked, message)
}

fn unusable(data: &Path, error: &std::io::Error) -> Error {
    Error::new(Code::DataFolderUnusable, format!("The data folder {} cannot be used: {error}.", data.display()))
}

fn unwritable(path: &Path, error: &std::io::Error) -> Error {
    Error::new(Code::DataFolderUnusable, format!("{} cannot be written: {error}.", path.display()))
}

pub fn admin_key(data: &Path) -> Option<String> {
    fs::read_to_string(data.join(ADMIN_KEY)).ok().map(|text| text.trim().to_owned())
}

pub fn running(data: &Path) -> Option<Running> {
    let text = fs::read_to_string(data.join("server.json")).ok()?;
    serde_json::from_str(&text).ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_instance_keeps_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let data = DataFolder::open(folder.path()).unwrap();
        assert_eq!(data.instance_id(|| "first".to_owned()).unwrap(), "first");
        assert_eq!(data.instance_id(|| "second".to_owned()).unwrap(), "first");
        fs::write(folder.path().join("instance.id"), "\n").unwrap();
        assert_eq!(data.instance_id(|| "third".to_owned()).unwrap(), "third");
    }

    #[test]
    fn a_new_admin_key_takes_its_place_or_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let data = DataFolder::open(folder.path()).unwrap();
        assert_eq!(data.new_admin_key().unwrap(), None);
        data.write_new_admin_key("first").unwrap();
        assert_eq!((data.new_admin_key().unwrap().as_deref(), admin_key(folder.path())), (Some("first"), None));
        let path = data.keep_new_admin_key().unwrap();
        assert_eq!((data.new_admin_key().unwrap(), admin_key(folder.path()).as_deref()), (None, Some("first")));
        assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
        data.write_new_admin_key("second").unwrap();
        data.remove_new_admin_key().unwrap();
        assert_eq!((data.new_admin_key().unwrap(), admin_key(folder.path()).as_deref()), (None, Some("first")));
    }

    #[test]
    fn a_second_opener_is_told_who_holds_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let held = DataFolder::open(folder.path()).unwrap();
        let error = DataFolder::open(folder.path()).err().unwrap();
        assert_eq!(error.code(), Code::DataFolderLocked);
        assert!(error.message().contains(&std::process::id().to_string()), "{error}");
        assert_eq!(holder(folder.path()).unwrap(), Some(std::process::id().to_string()));
        drop(held);
        assert_eq!(holder(folder.path()).unwrap(), None);
        DataFolder::open(folder.path()).unwrap();
    }

    #[test]
    fn whoever_looks_for_the_holder_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        for data in [folder.path().to_owned(), folder.path().join("nowhere")] {
            assert_eq!(holder(&data).unwrap(), None);
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        fs::write(folder.path().join("file"), "").unwrap();
        assert_eq!(holder(&folder.path().join("file")).unwrap_err().code(), Code::DataFolderUnusable);
    }
}
