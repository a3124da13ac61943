//! A backup becomes a deployment again: all of its files, or none.
//!
//! What is restored gets ids of its own: the mark of a database that was lost, should it lie about, speaks of another one and
//! is not taken for this one's. Home is told the new ids of its shards. Nothing has a database's name before everything has been
//! verified and is on the disk.
//!
//! Several files cannot get their names at once. Until the last has its own, a file in the folder says that a restore is
//! under way ([`UNFINISHED`]): if it is killed no server starts there, and the next restore removes what it has left.

use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rusqlite::OpenFlags;
use waybill_kernel::{Code, Entropy, Error, Result, hex};

use super::deployment::Deployment;
use super::manifest::{self, Begun, Contents, Manifest, Piece};
use super::open::{self, Meta};
use super::watch::{Step, Watch};
use super::{inspect, mark};
use crate::{Migration, StoreRole, private};

/// In a data folder whose restore has not come to its end.
pub const UNFINISHED: &str = "restore.unfinished";

#[derive(Clone, Debug)]
pub struct Restored {
    pub manifest: Manifest,
    /// The restored home's own.
    pub database_id: String,
}

/// Restores a backup to the files of `deployment`, which must not exist; their folder must, and be held by the caller.
/// `migrations` are those of the domains, by the role of a store.
pub fn restore(
    backup: &Path,
    deployment: &Deployment,
    migrations: fn(StoreRole) -> Vec<Migration>,
    entropy: &dyn Entropy,
    watch: &Watch,
) -> Result<Restored> {
    let manifest = Manifest::read(backup)?;
    let targets = Target::all(backup, &manifest, deployment, entropy)?;
    for target in &targets {
        refuse_newer(&manifest, target, migrations)?;
        // All of them before anything is made: one that is missing costs nothing.
        target.source(backup)?;
    }
    let unfinished = deployment.home.with_file_name(UNFINISHED);
    make_way(&targets, &unfinished)?;
    let key = NewServerKey::of(&manifest, backup, &deployment.home)?;
    let mut leftovers: Vec<_> = targets.iter().flat_map(Target::leftovers).collect();
    leftovers.extend(key.as_ref().map(|key| key.path.clone()));
    leftovers.push(unfinished.clone());
    let begun = Begun::new(leftovers);
    if !unfinished.exists() {
        manifest::write_private(&unfinished, b"Run `waybill restore` again, or remove this folder.\n")?;
    }
    let all = targets.iter().map(|target| target.piece.bytes).sum();
    let mut before = 0;
    for target in &targets {
        target.copy(backup, &watch.within(before, all))?;
        before += target.piece.bytes;
    }
    for target in &targets {
        target.verify(backup, watch)?;
    }
    for target in &targets {
        target.give_ids(&targets)?;
        manifest::sync(&target.part)?;
    }
    // Before a database has its name: a folder that lost its key to a kill would be served with another.
    if let Some(key) = key {
        manifest::write_private(&key.path, &key.bytes)?;
    }
    publish(&targets, &unfinished)?;
    begun.finish();
    let database_id = targets.first().map(|home| hex::encode(&home.meta.database_id)).unwrap_or_default();
    Ok(Restored { manifest, database_id })
}

/// One database that is restored.
struct Target {
    /// None for home.
    shard: Option<String>,
    piece: Piece,
    /// What the manifest says of it.
    contents: Contents,
    database: PathBuf,
    part: PathBuf,
    mark: PathBuf,
    /// With the id that it gets.
    meta: Meta,
}

impl Target {
    /// Home comes first.
    fn all(backup: &Path, manifest: &Manifest, deployment: &Deployment, entropy: &dyn Entropy) -> Result<Vec<Self>> {
        let piece = |name: &str| manifest.piece(backup, name).cloned();
        let home = Self::new(None, piece(manifest::DATABASE)?, manifest.contents(), &deployment.home, entropy);
        let mut targets = vec![home];
        for shard in &manifest.shards {
            let to = deployment.shards.iter().find(|file| file.name == shard.name);
            let to = to.ok_or_else(|| {
                let (name, file) = (&shard.name, &shard.file);
                let message = format!("The backup has the shard {name}, and [shards] names no SQLite file for it.");
                let cure =
                    format!("Name the server's settings with --config; [shards] had `{name} = \"sqlite:{file}\"`.");
                Error::new(Code::ConfigInvalid, message).with_cure(cure)
            })?;
            let piece = piece(&manifest::shard_file(&shard.name))?;
            targets.push(Self::new(Some(shard.name.clone()), piece, shard.contents(), &to.path, entropy));
        }
        Ok(targets)
    }

    fn new(shard: Option<String>, piece: Piece, contents: Contents, database: &Path, entropy: &dyn Entropy) -> Self {
        let mut meta =
            Meta { database_id: [0; 16], commit_seq: contents.commit_seq, clock_us: contents.commit_time.micros() };
        entropy.fill(&mut meta.database_id);
        let (part, mark) = (with_ending(database, ".part"), mark::beside(database));
        Self { shard, piece, contents, database: database.to_owned(), part, mark, meta }
    }

    fn leftovers(&self) -> Vec<PathBuf> {
        vec![self.part.clone(), with_ending(&self.part, "-journal"), self.database.clone(), self.mark.clone()]
    }

    /// Its file in the backup, which has at least the right length.
    fn source(&self, backup: &Path) -> Result<File> {
        let name = &self.piece.name;
        let source = backup.join(name);
        let from = File::open(&source)
            .map_err(|error| manifest::invalid(backup, &format!("its {name} cannot be read: {error}")))?;
        let bytes = from.metadata().map_err(|error| manifest::unusable(&source, &error))?.len();
        if bytes != self.piece.bytes {
            let why = format!("its {name} has {bytes} bytes where {} were written", self.piece.bytes);
            return Err(manifest::invalid(backup, &why));
        }
        Ok(from)
    }

    /// What is compared with the manifest is what was written, so that nothing can change in between.
    fn copy(&self, backup: &Path, watch: &Watch) -> Result<()> {
        let from = self.source(backup)?;
        let to = File::options().write(true).create_new(true).mode(0o600).open(&self.part);
        let to = to.map_err(|error| manifest::unusable(&self.part, &error))?;
        let (bytes, sha256) = manifest::pour(from, to, &self.part, self.piece.bytes, Step::Copying, watch)?;
        if (bytes, &sha256) != (self.piece.bytes, &self.piece.sha256) {
            let why = format!("its {} is not what was written (SHA-256 differs)", self.piece.name);
            return Err(manifest::invalid(backup, &why));
        }
        Ok(())
    }

    fn verify(&self, backup: &Path, watch: &Watch) -> Result<()> {
        let found = match inspect::contents_of_copy(&self.part, watch) {
            Err(error) if error.code() == Code::DatabaseUnusable => {
                let why = format!("its {} is damaged", self.piece.name);
                return Err(manifest::invalid(backup, &why).because(error.message()));
            }
            other => other?,
        };
        if found == self.contents {
            return Ok(());
        }
        let why = format!(
            "its manifest speaks of commit {} of database {}, its {} of commit {} of {}, or their rows differ",
            self.contents.commit_seq, self.contents.database_id, self.piece.name, found.commit_seq, found.database_id
        );
        Err(manifest::invalid(backup, &why))
    }

    /// Its own; and home is told those of the shards, which it would otherwise not know again.
    fn give_ids(&self, all: &[Self]) -> Result<()> {
        const OWN: &str = "UPDATE meta SET database_id = ?1 WHERE id = 1";
        const OF_SHARD: &str = "INSERT INTO shards (name, database_id) VALUES (?1, ?2) \
                                ON CONFLICT (name) DO UPDATE SET database_id = excluded.database_id";
        let mut raw = open::open(&self.part, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        let tx = raw.transaction().map_err(Error::internal)?;
        match tx.execute(OWN, [self.meta.database_id]).map_err(Error::internal)? {
            1 => {}
            other => return Err(Error::internal(format!("{other} rows of meta"))),
        }
        for target in all.iter().filter(|_| self.shard.is_none()) {
            if let Some(name) = &target.shard {
                tx.execute(OF_SHARD, rusqlite::params![name, target.meta.database_id]).map_err(Error::internal)?;
            }
        }
        tx.commit().map_err(Error::internal)
    }
}

/// A restore replaces nothing, except what one that was killed has left: the folder is the caller's alone.
fn make_way(targets: &[Target], unfinished: &Path) -> Result<()> {
    if unfinished.exists() {
        for path in targets.iter().flat_map(Target::leftovers) {
            let _ = fs::remove_file(path);
        }
    }
    for target in targets {
        if let Some(present) = [&target.database, &target.mark].into_iter().find(|path| path.symlink_metadata().is_ok())
        {
            let message = format!("{} exists already, and a restore replaces nothing.", present.display());
            return Err(Error::new(Code::AlreadyExists, message));
        }
        let _ = fs::remove_file(&target.part);
    }
    Ok(())
}

/// Gives the databases their names, home last, and then says that the restore is over.
fn publish(targets: &[Target], unfinished: &Path) -> Result<()> {
    let sync_folder = || {
        let folder = unfinished.parent().filter(|folder| !folder.as_os_str().is_empty());
        manifest::sync(folder.unwrap_or_else(|| Path::new(".")))
    };
    // The word that it is unfinished reaches the disk before the first name does.
    sync_folder()?;
    for target in targets.iter().rev() {
        fs::rename(&target.part, &target.database).map_err(|error| manifest::unusable(&target.database, &error))?;
        // After the file it is about: a mark that was left alone would speak of commits that nothing has.
        mark::begin(&target.mark, &target.meta)?;
    }
    sync_folder()?;
    fs::remove_file(unfinished).map_err(|error| manifest::unusable(unfinished, &error))?;
    sync_folder()
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

fn refuse_newer(manifest: &Manifest, target: &Target, migrations: fn(StoreRole) -> Vec<Migration>) -> Result<()> {
    let role = if target.shard.is_some() { StoreRole::Shard } else { StoreRole::Home };
    let migrations = migrations(role);
    let known = crate::MIGRATIONS.iter().chain(&migrations).map(|migration| migration.version).max().unwrap_or(0);
    if target.contents.schema <= i64::from(known) {
        return Ok(());
    }
    let message = format!(
        "The backup's {} has schema {}, written by version {}; this program knows schemas up to {known}.",
        target.piece.name, target.contents.schema, manifest.program_version
    );
    Err(Error::new(Code::SchemaTooNew, message))
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

    fn home(database: &Path) -> Deployment {
        Deployment::from(database)
    }

    fn none(_: StoreRole) -> Vec<Migration> {
        Vec::new()
    }

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
        let manifest = backup::take(
            &Deployment::from(source.as_path()),
            &to,
            Some(&key),
            "0.0.0",
            Time::from_micros(9),
            &Watch::none(),
        )
        .unwrap();
        (folder, manifest)
    }

    fn run(folder: &TempDir) -> Result<Restored> {
        let target = folder.path().join("target");
        fs::create_dir_all(&target).unwrap();
        let database = target.join("waybill.db");
        let outcome =
            restore(&folder.path().join("backup"), &home(&database), none, &SeededEntropy::new(2), &Watch::none());
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
            restore(&backup, &home(&target.join("waybill.db")), none, &SeededEntropy::new(2), &Watch::none())
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
            let outcome =
                restore(&folder.path().join("backup"), &home(&target.join("waybill.db")), none, &entropy, &watch);
            assert_eq!(outcome.unwrap_err().code(), Code::Interrupted, "{last:?}");
            assert_eq!(fs::read_dir(&target).unwrap().count(), 0, "{last:?}");
        }
    }
}
