//! The daemon's folder, `$WAYBILL_HOME/daemon/<mesh>/`: for its owner alone, no link in it followed.
//!
//! What is in it decides who the host is to its peers, so a folder or a file that others may write is refused.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use waybill_kernel::{Code, Error, Result};
use waybill_store::safety;

use crate::config::Settings;

pub const SOCKET: &str = "sock";
pub const PID: &str = "pid";
pub const HTTP_PORT: &str = "http.port";
pub const LOCAL_TOKEN: &str = "local_token";
pub const KEYPAIR: &str = "keypair.json";
pub const KEYPAIR_ARCHIVE: &str = "keypair-archive.json";
pub const HOST_FINGERPRINT: &str = "host_fingerprint.json";
pub const MEMBERSHIP: &str = "membership.json";
pub const CONFIG: &str = "config.toml";
pub const OUTBOX: &str = "outbox.db";
pub const INBOX: &str = "inbox.db";
pub const SCHEMA_VERSION: &str = "schema_version";
pub const LOG: &str = "daemon.log";
pub const HOOKS: &str = "hooks";
pub const HOOKS_CONFIG: &str = "hooks.toml";

/// Files whose text decides something, or holds what others may not read or change.
const FILES: &[&str] = &[
    PID,
    HTTP_PORT,
    LOCAL_TOKEN,
    KEYPAIR,
    KEYPAIR_ARCHIVE,
    HOST_FINGERPRINT,
    MEMBERSHIP,
    CONFIG,
    "outbox.db",
    "outbox.db-wal",
    "outbox.db-shm",
    "outbox.mark",
    "outbox.ballast",
    "inbox.db",
    "inbox.db-wal",
    "inbox.db-shm",
    "inbox.mark",
    "inbox.ballast",
    SCHEMA_VERSION,
    LOG,
    HOOKS_CONFIG,
];

/// A path with more bytes cannot be bound on Linux or macOS.
const SOCKET_PATH_BYTES_MAX: usize = 103;
const SLUG_BYTES_MAX: usize = 63;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Folder {
    path: PathBuf,
}

/// A slug becomes the name of a folder, so it is checked before it is one.
pub fn check_slug(slug: &str) -> Result<()> {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if (1..=SLUG_BYTES_MAX).contains(&slug.len()) && slug.bytes().all(allowed) && !slug.starts_with('-') {
        return Ok(());
    }
    let message = format!(
        "A mesh is named by 1 to {SLUG_BYTES_MAX} lower-case letters, digits and hyphens, and does not begin with a hyphen."
    );
    Err(Error::invalid(message))
}

impl Folder {
    /// Where it would be; nothing is looked at.
    pub fn at(home: &Path, slug: &str) -> Result<Self> {
        check_slug(slug)?;
        Ok(Self { path: home.join("daemon").join(slug) })
    }

    /// Makes it and its parents if need be, and refuses what others may have changed.
    pub fn open(home: &Path, slug: &str) -> Result<Self> {
        let folder = Self::at(home, slug)?;
        let hooks = folder.file(HOOKS);
        for path in [&folder.path, &hooks] {
            // `recursive` takes one that is there as it is.
            fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|error| unusable(path, &error))?;
        }
        folder.refuse_exposed()?;
        Ok(folder)
    }

    fn refuse_exposed(&self) -> Result<()> {
        let exposed = || -> io::Result<Option<safety::Exposure>> {
            for path in [&self.path, &self.file(HOOKS)] {
                if let Some(found) = safety::exposure_of_folder(path)? {
                    return Ok(Some(found));
                }
            }
            for name in FILES {
                if let Some(found) = safety::exposure_of_file(&self.file(name))? {
                    return Ok(Some(found));
                }
            }
            Ok(None)
        };
        match exposed().map_err(|error| unusable(&self.path, &error))? {
            None => Ok(()),
            Some(found) => {
                Err(Error::new(Code::DataFolderUnusable, format!("{found}."))
                    .with_cure(format!("Run `{}`.", found.cure)))
            }
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Where the socket is, if a socket can be there.
    pub fn socket(&self) -> Result<PathBuf> {
        let path = self.file(SOCKET);
        if path.as_os_str().len() > SOCKET_PATH_BYTES_MAX {
            let message = format!(
                "The socket {} would have a path of more than {SOCKET_PATH_BYTES_MAX} bytes, which no system binds.",
                path.display()
            );
            return Err(Error::new(Code::PathUnusable, message).with_cure("Set WAYBILL_HOME to a shorter path."));
        }
        Ok(path)
    }

    /// None where there is no such file.
    pub fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let path = self.file(name);
        match safety::read_private(&path) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(unusable(&path, &error)),
        }
    }

    pub fn read_text(&self, name: &str) -> Result<Option<String>> {
        let text = self.read(name)?.map(String::from_utf8).transpose();
        text.map_err(|_| {
            let message = format!("{} is not text.", self.file(name).display());
            Error::new(Code::DataFolderUnusable, message).with_cure("Restore it from a backup, or remove it.")
        })
    }

    /// All or nothing, 0600, on the disk when it returns.
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.file(name);
        safety::replace_private(&path, bytes).map_err(|error| unusable(&path, &error))
    }

    /// One that is not there is removed already.
    pub fn remove(&self, name: &str) -> Result<()> {
        let path = self.file(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(unusable(&path, &error)),
            _ => Ok(()),
        }
    }

    pub fn settings(&self) -> Result<Settings> {
        self.read_text(CONFIG)?.map_or_else(|| Ok(Settings::default()), |text| Settings::read(&text))
    }

    /// Refuses a folder that a newer program has used, before anything in it is changed.
    pub fn refuse_newer_schema(&self, own: i32) -> Result<()> {
        let found = self.schema_version()?;
        if found <= own {
            return Ok(());
        }
        let message =
            format!("The folder {} has schema {found}; this program knows schemas up to {own}.", self.path.display());
        Err(Error::new(Code::SchemaTooNew, message))
    }

    /// Notes which schema the databases have by now.
    pub fn keep_schema_version(&self, own: i32) -> Result<()> {
        if self.schema_version()? == own { Ok(()) } else { self.write(SCHEMA_VERSION, format!("{own}\n").as_bytes()) }
    }

    fn schema_version(&self) -> Result<i32> {
        match self.read_text(SCHEMA_VERSION)?.as_deref().map(str::trim) {
            None | Some("") => Ok(0),
            Some(text) => text.parse().map_err(|_| {
                let message = format!("{} does not hold a number.", self.file(SCHEMA_VERSION).display());
                Error::new(Code::DataFolderUnusable, message)
                    .with_cure("Remove it: the databases know their own schema.")
            }),
        }
    }
}

pub(crate) fn unusable(path: &Path, error: &io::Error) -> Error {
    Error::new(Code::PathUnusable, format!("{} cannot be used: {error}.", path.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_slug_is_no_path() {
        for slug in ["a", "acme-1", &"x".repeat(63)] {
            check_slug(slug).unwrap();
        }
        for slug in ["", ".", "..", "a/b", "A", "-a", "a_b", "a b", "é", &"x".repeat(64)] {
            assert_eq!(check_slug(slug).unwrap_err().code(), Code::InvalidRequest, "{slug}");
        }
    }

    #[test]
    fn folder_and_files_are_their_owners_alone() {
        let home = tempfile::tempdir().unwrap();
        let folder = Folder::open(home.path(), "acme").unwrap();
        folder.write(KEYPAIR, b"secret").unwrap();
        let mode = |path: &Path| path.symlink_metadata().unwrap().mode() & 0o777;
        assert_eq!(
            (mode(folder.path()), mode(&folder.file(HOOKS)), mode(&folder.file(KEYPAIR))),
            (0o700, 0o700, 0o600)
        );
        assert_eq!(folder.read(KEYPAIR).unwrap().as_deref(), Some(&b"secret"[..]));
        assert_eq!(folder.read(LOCAL_TOKEN).unwrap(), None);
        Folder::open(home.path(), "acme").unwrap();
    }

    #[test]
    fn what_others_may_have_changed_is_refused_with_its_cure() {
        let home = tempfile::tempdir().unwrap();
        let folder = Folder::open(home.path(), "acme").unwrap();
        for name in FILES {
            let path = folder.file(name);
            fs::write(&path, "").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
            let error = Folder::open(home.path(), "acme").unwrap_err();
            assert!(error.cure().contains("chmod go-w") && error.message().contains(name), "{name}: {error}");
            fs::remove_file(&path).unwrap();
            symlink("/dev/null", &path).unwrap();
            let error = Folder::open(home.path(), "acme").unwrap_err();
            assert!(error.message().contains("symbolic link"), "{name}: {error}");
            assert!(folder.read(name).is_err(), "{name} was read through a link");
            fs::remove_file(&path).unwrap();
        }
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o770)).unwrap();
        assert!(Folder::open(home.path(), "acme").unwrap_err().cure().contains("chmod"));
    }

    #[test]
    fn a_newer_schema_is_refused_by_its_number_and_an_older_one_is_noted() {
        let home = tempfile::tempdir().unwrap();
        let folder = Folder::open(home.path(), "acme").unwrap();
        folder.keep_schema_version(3).unwrap();
        assert_eq!(folder.read_text(SCHEMA_VERSION).unwrap().as_deref(), Some("3\n"));
        folder.refuse_newer_schema(4).unwrap();
        folder.keep_schema_version(4).unwrap();
        let error = folder.refuse_newer_schema(3).unwrap_err();
        assert_eq!(error.code(), Code::SchemaTooNew);
        assert!(error.message().contains("schema 4"), "{error}");
        assert_eq!(folder.read_text(SCHEMA_VERSION).unwrap().as_deref(), Some("4\n"));
    }

    #[test]
    fn a_path_that_no_system_binds_is_told_before_it_is_tried() {
        let error = Folder::at(Path::new(&format!("/{}", "x".repeat(90))), "acme").unwrap().socket().unwrap_err();
        assert_eq!(error.code(), Code::PathUnusable);
        assert!(error.cure().contains("WAYBILL_HOME"));
    }
}
