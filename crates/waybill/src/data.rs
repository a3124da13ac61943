//! The data folder: the lock of the process that uses it, the address where the server listens, the first admin key, and the server's
//! own key.
//!
//! What is in it decides who is let in, so it is ours alone: a folder or a file of ours that others may write is refused,
//! and no link in it is followed.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::process::geteuid;
use serde::{Deserialize, Serialize};
use waybill_access::ServerKey;
use waybill_kernel::{Code, Error, Result};
use waybill_store::safety::{self, Exposure, Salvaged};

pub const ADMIN_KEY: &str = "admin.key";
pub const SERVER_KEY: &str = "server.key";
const OLD_SERVER_KEY: &str = "server.key.old";
/// The admin key before it is known that the database has it.
const NEW_ADMIN_KEY: &str = "admin.key.new";
const INSTANCE_ID: &str = "instance.id";
/// What a salvage has found. It is there from before the new database takes the place of the damaged one until its mail is complete.
const SALVAGE: &str = "salvage.unfinished";
const RUNNING: &str = "server.json";
/// Holds the number of the process that has it locked.
const LOCK: &str = "waybill.lock";

/// Files that hold what callers have sent. The scheduler's lie here unless it was told another place.
pub const CONTENTS: &[&str] = &[
    "waybill.db",
    "waybill.db-wal",
    "waybill.db-shm",
    "waybill.mark",
    "waybill.ballast",
    "scheduler.db",
    "scheduler.db-wal",
    "scheduler.db-shm",
];

/// The same of a shard, by its database.
pub fn contents_of(database: &Path) -> Vec<PathBuf> {
    let ending = |ending: &str| {
        let mut name = database.as_os_str().to_owned();
        name.push(ending);
        PathBuf::from(name)
    };
    let mark = database.with_extension("mark");
    vec![database.to_owned(), ending("-wal"), ending("-shm"), mark, database.with_extension("ballast")]
}

/// The other files of ours.
const PAPERS: &[&str] =
    &[ADMIN_KEY, NEW_ADMIN_KEY, SERVER_KEY, INSTANCE_ID, RUNNING, LOCK, SALVAGE, safety::UNFINISHED];

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
        let folder = Self::open_unfinished(path)?;
        match is_unfinished(path) {
            true => Err(unfinished(path)),
            false => Ok(folder),
        }
    }

    /// As `open`, also where a restore was killed.
    pub fn open_unfinished(path: &Path) -> Result<Self> {
        let unusable = |error: std::io::Error| unusable(path, &error);
        create_folder(path).map_err(unusable)?;
        if let Some(exposure) = exposures(path).map_err(unusable)?.first() {
            return Err(exposed(exposure));
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let mut lock = safety::open_private(&mut options, &path.join(LOCK)).map_err(unusable)?;
        if lock.try_lock().is_err() {
            let mut holder = String::new();
            let _ = lock.read_to_string(&mut holder);
            return Err(in_use(path, holder.trim()));
        }
        lock.set_len(0).and_then(|()| writeln!(lock, "{}", std::process::id())).map_err(unusable)?;
        Ok(Self { path: path.to_owned(), _lock: lock })
    }

    /// Writes the first admin key before the default tenant is made: after that commit this is the only copy. Mode 0600.
    pub fn write_new_admin_key(&self, key: &str) -> Result<()> {
        self.write(&self.path.join(NEW_ADMIN_KEY), &format!("{key}\n"))
    }

    /// The admin key that this start has written, or one that was cut off.
    pub fn new_admin_key(&self) -> Result<Option<String>> {
        let path = self.path.join(NEW_ADMIN_KEY);
        text_of(&path).map_err(|error| unreadable(&path, &error))
    }

    /// Once the database has it.
    pub fn keep_new_admin_key(&self) -> Result<PathBuf> {
        let path = self.path.join(ADMIN_KEY);
        let keep = || fs::rename(self.path.join(NEW_ADMIN_KEY), &path).and_then(|()| self.sync());
        keep().map_err(|error| unwritable(&path, &error))?;
        Ok(path)
    }

    /// Removes it, once it is known that the database does not have it.
    pub fn remove_new_admin_key(&self) -> Result<()> {
        self.remove(NEW_ADMIN_KEY)
    }

    /// Before the salvaged database takes its place: it is sound, so nothing in it says that its mail is not complete yet.
    pub fn begin_salvage(&self, salvaged: &Salvaged) -> Result<()> {
        let text = serde_json::to_string(salvaged).map_err(Error::internal)?;
        self.write(&self.path.join(SALVAGE), &text)
    }

    /// What a salvage has found that did not come to its end.
    pub fn unfinished_salvage(&self) -> Result<Option<Salvaged>> {
        let path = self.path.join(SALVAGE);
        let text = text_of(&path).map_err(|error| unreadable(&path, &error))?;
        let salvaged = text.map(|text| serde_json::from_str(&text)).transpose();
        salvaged.map_err(|error| unreadable(&path, &error.into()))
    }

    pub fn end_salvage(&self) -> Result<()> {
        self.remove(SALVAGE)
    }

    /// Which server this is, to others on the same database: made at the first start and then kept.
    pub fn instance_id(&self, make: impl FnOnce() -> String) -> Result<String> {
        let path = self.path.join(INSTANCE_ID);
        match text_of(&path) {
            Ok(Some(text)) if !text.is_empty() => Ok(text),
            // Another name would leave this server's own tasks to others.
            Err(error) => Err(unreadable(&path, &error)),
            Ok(_) => {
                let made = make();
                self.write(&path, &format!("{made}\n"))?;
                Ok(made)
            }
        }
    }

    /// The server's own key: in the file that was named, else in the folder's, which the first start makes.
    pub fn server_key(&self, named: Option<&Path>, make: impl FnOnce() -> ServerKey) -> Result<ServerKey> {
        if let Some(key) = server_key(&self.path, named)? {
            return Ok(key);
        }
        let made = make();
        self.write_server_key(&made)?;
        Ok(made)
    }

    /// In the place of the one that is there. Kept with 0600.
    pub fn write_server_key(&self, key: &ServerKey) -> Result<()> {
        self.write(&self.path.join(SERVER_KEY), &key.reveal())
    }

    /// Until everything that was made under it has been moved to the new one.
    pub fn keep_old_server_key(&self, key: &ServerKey) -> Result<()> {
        self.write(&self.path.join(OLD_SERVER_KEY), &key.reveal())
    }

    pub fn forget_old_server_key(&self) {
        let _ = fs::remove_file(self.path.join(OLD_SERVER_KEY));
    }

    /// One that a rotation which was cut off has left.
    pub fn old_server_key(&self) -> Result<Option<ServerKey>> {
        let path = self.path.join(OLD_SERVER_KEY);
        let text = text_of(&path).map_err(|error| unreadable(&path, &error))?;
        text.map(|text| text.parse()).transpose()
    }

    pub fn announce(&self, running: &Running) -> Result<()> {
        let text = serde_json::to_string(running).map_err(Error::internal)?;
        self.write(&self.path.join(RUNNING), &text)
    }

    pub fn retract(&self) {
        let _ = fs::remove_file(self.path.join(RUNNING));
    }

    /// All or nothing: a reader never sees half a file.
    fn write(&self, path: &Path, text: &str) -> Result<()> {
        let part = path.with_extension("part");
        let write = || -> std::io::Result<()> {
            // Left by a start that was cut off; made anew, so that its mode is ours.
            let _ = fs::remove_file(&part);
            let mut options = OpenOptions::new();
            let mut file = safety::open_private(options.write(true).create_new(true).mode(0o600), &part)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&part, path)?;
            self.sync()
        };
        write().map_err(|error| unwritable(path, &error))
    }

    fn remove(&self, name: &str) -> Result<()> {
        let path = self.path.join(name);
        fs::remove_file(&path).and_then(|()| self.sync()).map_err(|error| unwritable(&path, &error))
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
    let file = match safety::open_private(File::options().read(true), &path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unusable(data, &error)),
    };
    match file.try_lock_shared() {
        Err(TryLockError::WouldBlock) => Ok(Some(text_of(&path).ok().flatten().unwrap_or_default())),
        Ok(()) | Err(TryLockError::Error(_)) => Ok(None),
    }
}

/// A restore was killed here, and some of the databases may be missing.
pub fn is_unfinished(data: &Path) -> bool {
    data.join(safety::UNFINISHED).symlink_metadata().is_ok()
}

pub const RESTORE_AGAIN: &str =
    "Run `waybill restore` again: it removes what the other one has left. Or remove the folder.";

fn unfinished(data: &Path) -> Error {
    let message = format!("A restore into the data folder {} has not come to its end.", data.display());
    Error::new(Code::DataFolderUnusable, message).with_cure(RESTORE_AGAIN)
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

fn unreadable(path: &Path, error: &std::io::Error) -> Error {
    Error::new(Code::DataFolderUnusable, format!("{} cannot be read: {error}.", path.display()))
}

fn exposed(exposure: &Exposure) -> Error {
    Error::new(Code::DataFolderUnusable, format!("{exposure}. Mend it: {}", exposure.cure))
}

/// What others may have changed or put in the place of ours, the folder first.
pub fn exposures(data: &Path) -> std::io::Result<Vec<Exposure>> {
    let mut found: Vec<_> = safety::exposure_of_folder(data)?.into_iter().collect();
    for name in CONTENTS.iter().chain(PAPERS) {
        found.extend(safety::exposure_of_file(&data.join(name))?);
    }
    Ok(found)
}

/// The text of a file of ours without what surrounds it; None where there is no file.
fn text_of(path: &Path) -> std::io::Result<Option<String>> {
    match safety::read_private(path) {
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).trim().to_owned())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

pub fn admin_key(data: &Path) -> Option<String> {
    text_of(&data.join(ADMIN_KEY)).ok().flatten()
}

pub fn running(data: &Path) -> Option<Running> {
    let text = text_of(&data.join(RUNNING)).ok().flatten()?;
    serde_json::from_str(&text).ok()
}

/// The server's own key, in the file that was named or else in the folder's; None while that has none.
pub fn server_key(data: &Path, named: Option<&Path>) -> Result<Option<ServerKey>> {
    let text = match named {
        Some(path) => Some(shared_secret(path)?),
        None => text_of(&data.join(SERVER_KEY)).map_err(|error| unreadable(&data.join(SERVER_KEY), &error))?,
    };
    let path = named.map_or_else(|| data.join(SERVER_KEY), Path::to_owned);
    let read = |text: String| {
        text.parse::<ServerKey>().map_err(|_| {
            let message = format!(
                "{} is not a server key, or not a whole one. Put the right file back; or move it away, so that a new one is \
                 made: every key is then verified in full at its next use.",
                path.display()
            );
            Error::new(Code::DataFolderUnusable, message)
        })
    };
    text.map(read).transpose()
}

/// A file outside of the folder that several nodes have, as whoever hands out secrets has put it there: links are followed,
/// it may be root's, and its group may read it.
fn shared_secret(path: &Path) -> Result<String> {
    const FOR_OTHERS: u32 = 0o027;
    let refused = |why: String| {
        let message = format!("The server key file {} {why}.", path.display());
        Error::new(Code::ConfigInvalid, message)
    };
    let file = path.metadata().map_err(|error| {
        refused(format!("cannot be read: {error}; copy server.key there from the data folder of the first node"))
    })?;
    let (own, mode) = (geteuid().as_raw(), file.mode() & 0o7777);
    if ![own, 0].contains(&file.uid()) {
        return Err(refused(format!("belongs to user {}, and this program runs as user {own}", file.uid())));
    }
    if mode & FOR_OTHERS != 0 {
        return Err(refused(format!("is open to others (mode {mode:o}): chmod 600 {}", path.display())));
    }
    fs::read_to_string(path).map_err(|error| refused(format!("cannot be read: {error}")))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use waybill_kernel::entropy::SeededEntropy;

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
    fn a_salvage_is_known_until_it_has_ended() {
        let folder = tempfile::tempdir().unwrap();
        let data = DataFolder::open(folder.path()).unwrap();
        assert_eq!(data.unfinished_salvage().unwrap(), None);
        let salvaged = Salvaged {
            finding: "page 7".to_owned(),
            way: safety::Way::Rows,
            tables: vec![
                safety::SalvagedTable { table: "mail_agents".to_owned(), rows: 2, damage: None },
                safety::SalvagedTable { table: "mail_messages".to_owned(), rows: 0, damage: Some("x".to_owned()) },
            ],
            quarantine: folder.path().join("quarantine-1"),
        };
        data.begin_salvage(&salvaged).unwrap();
        drop(data);
        let data = DataFolder::open(folder.path()).unwrap();
        assert_eq!(data.unfinished_salvage().unwrap(), Some(salvaged));
        data.end_salvage().unwrap();
        assert_eq!(data.unfinished_salvage().unwrap(), None);
    }

    #[test]
    fn the_server_key_is_made_once_and_a_damaged_one_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let data = DataFolder::open(folder.path()).unwrap();
        let make = |seed| move || ServerKey::generate(&SeededEntropy::new(seed));
        assert_eq!(server_key(folder.path(), None).unwrap(), None);
        let made = data.server_key(None, make(1)).unwrap();
        assert_eq!(data.server_key(None, make(2)).unwrap(), made);
        let path = folder.path().join(SERVER_KEY);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::write(&path, "waybill-server-key-1 half").unwrap();
        let error = data.server_key(None, make(3)).unwrap_err();
        assert!(error.message().contains("not a server key") && !error.message().contains("half"), "{error}");
    }

    #[test]
    fn a_named_server_key_is_read_where_it_lies_and_not_made() {
        let folder = tempfile::tempdir().unwrap();
        let data = DataFolder::open(folder.path()).unwrap();
        let named = folder.path().join("shared.key");
        let make = || panic!("it is not for this node to make");
        let absent = data.server_key(Some(&named), make).unwrap_err();
        assert!(absent.message().contains("of the first node"), "{absent}");
        let key = ServerKey::generate(&SeededEntropy::new(1));
        fs::write(&named, key.reveal()).unwrap();
        for (mode, is_read) in [(0o600, true), (0o440, true), (0o644, false), (0o660, false)] {
            fs::set_permissions(&named, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(data.server_key(Some(&named), make).is_ok_and(|read| read == key), is_read, "{mode:o}");
        }
        assert!(!folder.path().join(SERVER_KEY).exists());
    }

    #[test]
    fn what_others_may_write_is_refused_with_the_command_that_mends_it() {
        let folder = tempfile::tempdir().unwrap();
        drop(DataFolder::open(folder.path()).unwrap());
        let refusal = || DataFolder::open(folder.path()).err().map(|error| error.message().to_owned());
        for name in CONTENTS.iter().chain(PAPERS) {
            let path = folder.path().join(name);
            fs::write(&path, "").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o620)).unwrap();
            let told = refusal().unwrap();
            assert!(told.contains(&format!("chmod go-w {}", path.display())) && told.contains("620"), "{told}");
            fs::remove_file(&path).unwrap();
            symlink("/dev/null", &path).unwrap();
            let told = refusal().unwrap();
            assert!(told.contains(&path.display().to_string()) && told.contains("symbolic link"), "{told}");
            fs::remove_file(&path).unwrap();
        }
        assert_eq!(refusal(), None);
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o770)).unwrap();
        assert!(refusal().unwrap().contains(&format!("chmod go-w {}", folder.path().display())));
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(refusal(), None, "reading is another matter");
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
