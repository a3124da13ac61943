//! A backup becomes a database again.
//!
//! What is restored gets an id of its own: the mark of the database that was lost, should it lie about, speaks of another one
//! and is not taken for this one's. Nothing has the database's name before everything has been verified and is on the disk.

use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rusqlite::OpenFlags;
use waybill_kernel::{Code, Entropy, Error, Result, hex};

use super::manifest::{self, Begun, Manifest};
use super::open::{self, Meta};
use super::watch::{Step, Watch};
use super::{inspect, mark};
use crate::{Migration, private};

#[derive(Clone, Debug)]
pub struct Restored {
    pub manifest: Manifest,
    /// The restored database's own.
    pub database_id: String,
}

/// Restores a backup to the database file `database`, which must not exist; its folder must, and be held by the caller.
/// `migrations` are those of the domains, as for [`crate::Store::open`].
pub fn restore(
    backup: &Path,
    database: &Path,
    migrations: &[Migration],
    entropy: &dyn Entropy,
    watch: &Watch,
) -> Result<Restored> {
    let manifest = Manifest::read(backup)?;
    refuse_newer(&manifest, migrations)?;
    let (part, mark) = (with_ending(database, ".part"), mark::beside(database));
    if let Some(present) = [database, mark.as_path()].into_iter().find(|path| path.symlink_metadata().is_ok()) {
        let message = format!("{} exists already, and a restore replaces nothing.", present.display());
        return Err(Error::new(Code::AlreadyExists, message));
    }
    // Left by a restore that was killed: the folder is the caller's alone.
    let _ = fs::remove_file(&part);
    let key = NewServerKey::of(&manifest, backup, database)?;
    let mut leftovers = vec![part.clone(), with_ending(&part, "-journal"), mark.clone()];
    leftovers.extend(key.as_ref().map(|key| key.path.clone()));
    let begun = Begun::new(leftovers);
    copy(backup, &manifest, &part, watch)?;
    verify(backup, &manifest, &part, watch)?;
    let mut meta =
        Meta { database_id: [0; 16], commit_seq: manifest.commit_seq, clock_us: manifest.commit_time.micros() };
    entropy.fill(&mut meta.database_id);
    give_id(&part, &meta)?;
    manifest::sync(&part)?;
    // Before the database has its name: a folder that lost its key to a kill would be served with another.
    if let Some(key) = key {
        manifest::write_private(&key.path, &key.bytes)?;
    }
    fs::rename(&part, database).map_err(|error| manifest::unusable(database, &error))?;
    // After the file it is about: a mark that a killed restore left alone would speak of commits that nothing has.
    mark::begin(&mark, &meta)?;
    begun.finish();
    manifest::sync(
        database.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or_else(|| Path::new(".")),
    )?;
    Ok(Restored { manifest, database_id: hex::encode(&meta.database_id) })
}

/// The server's key that came with a backup and is not in the folder yet.
struct NewServerKey {
    path: PathBuf,
    bytes: Vec<u8>,
}

impl NewServerKey {
    fn of(manifest: &Manifest, backup: &Path, database: &Path) -> Result<Option<Self>> {
        let Some(bytes) = manifest.server_key(backup)? else { return Ok(None) };
        let path = database.with_file_name(manifest::SERVER_KEY);
        match private::read(&path) {
            // By a restore that was killed, or by hand.
            Ok(present) if present == bytes => Ok(None),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Some(Self { path, bytes })),
            Err(error) => Err(manifest::unusable(&path, &error)),
            Ok(_) => {
                let message =
                    format!("{} is another key than the backup's, and a restore replaces nothing.", path.display());
                Err(Error::new(Code::AlreadyExists, message))
            }
        }
    }
}

fn refuse_newer(manifest: &Manifest, migrations: &[Migration]) -> Result<()> {
    let known = crate::MIGRATIONS.iter().chain(migrations).map(|migration| migration.version).max().unwrap_or(0);
    if manifest.schema <= i64::from(known) {
        return Ok(());
    }
    let message = format!(
        "The backup has schema {}, written by version {}; this program knows schemas up to {known}.",
        manifest.schema, manifest.program_version
    );
    Err(Error::new(Code::SchemaTooNew, message))
}

/// What is compared with the manifest is what was written, so that nothing can change in between.
fn copy(backup: &Path, manifest: &Manifest, part: &Path, watch: &Watch) -> Result<()> {
    let piece = manifest.piece(backup)?;
    let source = backup.join(manifest::DATABASE);
    let from = File::open(&source)
        .map_err(|error| manifest::invalid(backup, &format!("its {} cannot be read: {error}", manifest::DATABASE)))?;
    let bytes = from.metadata().map_err(|error| manifest::unusable(&source, &error))?.len();
    if bytes != piece.bytes {
        let why = format!("its {} has {bytes} bytes where {} were written", manifest::DATABASE, piece.bytes);
        return Err(manifest::invalid(backup, &why));
    }
    let to = File::options().write(true).create_new(true).mode(0o600).open(part);
    let to = to.map_err(|error| manifest::unusable(part, &error))?;
    let copied = manifest::pour(from, to, part, bytes, Step::Copying, watch)?;
    if copied != *piece {
        let why = format!("its {} is not what was written (SHA-256 differs)", manifest::DATABASE);
        return Err(manifest::invalid(backup, &why));
    }
    Ok(())
}

fn verify(backup: &Path, manifest: &Manifest, part: &Path, watch: &Watch) -> Result<()> {
    let found = match inspect::contents_of_copy(part, watch) {
        Err(error) if error.code() == Code::DatabaseUnusable => {
            return Err(manifest::invalid(backup, "its database is damaged").because(error.message()));
        }
        other => other?,
    };
    if found == manifest.contents() {
        return Ok(());
    }
    let why = format!(
        "its manifest speaks of commit {} of database {}, its database of commit {} of {}, or their rows differ",
        manifest.commit_seq, manifest.database_id, found.commit_seq, found.database_id
    );
    Err(manifest::invalid(backup, &why))
}

fn give_id(part: &Path, meta: &Meta) -> Result<()> {
    let raw = open::open(part, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    let changed = raw.execute("UPDATE meta SET database_id = ?1 WHERE id = 1", [meta.database_id]);
    match changed.map_err(Error::internal)? {
        1 => Ok(()),
        other => Err(Error::internal(format!("{other} rows of meta"))),
    }
}

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use tempfile::TempDir;
    use waybill_kernel::Time;
    use waybill_kernel::entropy::SeededEntropy;

    use super::*;
    use crate::sqlite::manifest::ServerKeyCopy;
    use crate::sqlite::{Options, backup};
    use crate::{MIGRATIONS, migrate};

    /// A backup of a small database, in `backup` of the folder.
    fn backed_up() -> (TempDir, Manifest) {
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("data/waybill.db");
        fs::create_dir(source.parent().unwrap()).unwrap();
        let tables = Arc::new(migrate::tenant_tables(MIGRATIONS));
        let mut connection = open::write_connection(&Options::at(&source), tables).unwrap();
        open::migrate(&mut connection, MIGRATIONS).unwrap();
        open::ensure_meta(&mut connection, Time::from_micros(7), &SeededEntropy::new(1)).unwrap();
        let to = folder.path().join("backup");
        let key = ServerKeyCopy { id: "ab".to_owned(), text: Some("the key\n".to_owned()) };
        let manifest = backup::take(&source, &to, Some(&key), "0.0.0", Time::from_micros(9), &Watch::none()).unwrap();
        (folder, manifest)
    }

    fn run(folder: &TempDir) -> Result<Restored> {
        let target = folder.path().join("target");
        fs::create_dir_all(&target).unwrap();
        let database = target.join("waybill.db");
        let outcome = restore(&folder.path().join("backup"), &database, &[], &SeededEntropy::new(2), &Watch::none());
        if outcome.is_err() {
            assert_eq!(fs::read_dir(&target).unwrap().count(), 0, "something was left behind");
        }
        outcome
    }

    /// Another manifest in place of the right one, as well-formed as that.
    fn forged(change: impl FnOnce(&mut Manifest)) -> Error {
        let (folder, mut manifest) = backed_up();
        change(&mut manifest);
        let backup = folder.path().join("backup");
        fs::remove_file(backup.join(manifest::FILE)).unwrap();
        manifest.write(&backup).unwrap();
        run(&folder).unwrap_err()
    }

    #[test]
    fn a_manifest_must_speak_of_the_database_it_lies_beside() {
        assert_eq!(run(&backed_up().0).unwrap().manifest.commit_seq, 0);
        for (what, error) in [
            ("commit", forged(|manifest| manifest.commit_seq += 1)),
            ("time", forged(|manifest| manifest.commit_time = Time::from_micros(8))),
            ("database", forged(|manifest| manifest.database_id = "00".repeat(16))),
            ("rows", forged(|manifest| *manifest.rows.get_mut("meta").unwrap() = 2)),
            ("table", forged(|manifest| assert!(manifest.rows.insert("more".to_owned(), 0).is_none()))),
            ("schema", forged(|manifest| manifest.schema = 1)),
        ] {
            assert_eq!(error.code(), Code::DatabaseUnusable, "{what}");
            assert!(error.message().contains("its manifest speaks of"), "{what}: {error}");
        }
    }

    #[test]
    fn a_manifest_may_not_lead_elsewhere_or_be_of_a_later_program() {
        let elsewhere = forged(|manifest| manifest.files[0].name = "../data/waybill.db".to_owned());
        assert!(elsewhere.message().contains("lists other files"), "{elsewhere}");
        let twice = forged(|manifest| manifest.files[1] = manifest.files[0].clone());
        assert!(twice.message().contains("lists other files"), "{twice}");
        let later = forged(|manifest| manifest.format = manifest::FORMAT + 1);
        assert!(later.message().contains("newer program"), "{later}");
        assert_eq!(forged(|manifest| manifest.schema = 9_999).code(), Code::SchemaTooNew);
    }

    #[test]
    fn the_servers_key_comes_back_where_it_travelled_and_replaces_no_other() {
        let (folder, manifest) = backed_up();
        assert_eq!((manifest.server_key_id.as_deref(), manifest.has_server_key()), (Some("ab"), true));
        let (target, backup) = (folder.path().join("target"), folder.path().join("backup"));
        run(&folder).unwrap();
        let path = target.join(manifest::SERVER_KEY);
        assert_eq!(fs::read(&path).unwrap(), b"the key\n");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);

        let again = |present: Option<&str>| {
            fs::remove_dir_all(&target).unwrap();
            fs::create_dir(&target).unwrap();
            if let Some(present) = present {
                fs::write(&path, present).unwrap();
            }
            restore(&backup, &target.join("waybill.db"), &[], &SeededEntropy::new(2), &Watch::none())
        };
        again(Some("the key\n")).unwrap();
        assert_eq!(again(Some("another\n")).unwrap_err().code(), Code::AlreadyExists);
        assert_eq!(fs::read(&path).unwrap(), b"another\n");
        fs::write(backup.join(manifest::SERVER_KEY), "the kex\n").unwrap();
        assert!(again(None).unwrap_err().message().contains("its server.key is not what was written"));
        assert_eq!(fs::read_dir(&target).unwrap().count(), 0);
    }

    #[test]
    fn a_restore_that_is_stopped_leaves_nothing_behind() {
        for last in [Step::Copying, Step::Checking] {
            let (folder, _) = backed_up();
            let (stop, target) = (Arc::new(AtomicBool::new(false)), folder.path().join("target"));
            fs::create_dir(&target).unwrap();
            let flag = Arc::clone(&stop);
            let watch = Watch::new(stop, move |step, _, _| flag.store(step == last, Ordering::Relaxed));
            let entropy = SeededEntropy::new(2);
            let outcome = restore(&folder.path().join("backup"), &target.join("waybill.db"), &[], &entropy, &watch);
            assert_eq!(outcome.unwrap_err().code(), Code::Interrupted, "{last:?}");
            assert_eq!(fs::read_dir(&target).unwrap().count(), 0, "{last:?}");
        }
    }
}
