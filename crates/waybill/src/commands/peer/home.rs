//! WAYBILL_HOME: the memberships of this user, one folder per mesh, and which of them a command means.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use waybill_daemon::identity::load_identity;
use waybill_daemon::rotation::Archive;
use waybill_daemon::seal::Keyring;
use waybill_daemon::{Folder, Lock, Membership, folder, link};
use waybill_kernel::entropy::OsEntropy;
use waybill_kernel::{Clock, Code, Entropy, Error, Result};

/// Where memberships are.
#[derive(Args, Clone, Default)]
pub struct Home {
    /// Where memberships and their daemons are kept [default: ~/.local/share/waybill-home].
    #[arg(long, env = "WAYBILL_HOME", value_name = "DIR")]
    pub home: Option<PathBuf>,
}

/// One mesh of it.
#[derive(Args, Clone, Default)]
pub struct At {
    /// The mesh's slug [default: the only one there is].
    #[arg(long, env = "WAYBILL_MESH", value_name = "SLUG")]
    pub mesh: Option<String>,
    #[command(flatten)]
    pub home: Home,
    /// Print JSON instead of text.
    #[arg(long)]
    pub json: bool,
}

/// One mesh of it, where a command is about nothing else.
#[derive(Args, Clone)]
pub struct Of {
    /// The mesh's slug.
    pub slug: String,
    #[command(flatten)]
    pub home: Home,
    /// Print JSON instead of text.
    #[arg(long)]
    pub json: bool,
}

impl Of {
    pub fn at(&self) -> At {
        At { mesh: Some(self.slug.clone()), home: self.home.clone(), json: self.json }
    }
}

impl Home {
    pub fn path(&self) -> Result<PathBuf> {
        if let Some(home) = self.home.clone().filter(|home| !home.as_os_str().is_empty()) {
            // A daemon that is started from here has another working folder.
            return std::path::absolute(&home).map_err(|error| unusable(&home, &error));
        }
        let folder = |name: &str| std::env::var_os(name).filter(|path| !path.is_empty()).map(PathBuf::from);
        let data = folder("XDG_DATA_HOME").filter(|path| path.is_absolute());
        let data = data.or_else(|| folder("HOME").map(|home| home.join(".local/share")));
        data.map(|data| data.join("waybill-home")).ok_or_else(|| {
            Error::new(Code::ConfigInvalid, "There is no home folder.")
                .with_cure("Say --home DIR, or set WAYBILL_HOME.")
        })
    }

    pub fn memberships(&self) -> Result<Vec<Membership>> {
        let home = self.path()?;
        let loaded = self.kept()?.into_iter().map(|slug| Membership::load(&Folder::at(&home, &slug)?));
        loaded.filter_map(Result::transpose).collect()
    }

    /// The meshes that this user is a member of, by slug; also for as long as an ephemeral daemon runs, which keeps no membership.
    pub fn meshes(&self) -> Result<Vec<String>> {
        self.find(|folder| is_kept(folder) || matches!(Lock::holder(folder), Ok(Some(_))))
    }

    /// Those whose membership is kept: a daemon can be started for each.
    pub fn kept(&self) -> Result<Vec<String>> {
        self.find(is_kept)
    }

    fn find(&self, is_meant: impl Fn(&Folder) -> bool) -> Result<Vec<String>> {
        let home = self.path()?;
        let path = home.join("daemon");
        let entries = match std::fs::read_dir(&path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(unusable(&path, &error)),
        };
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let is_one = |slug: &String| Folder::at(&home, slug).is_ok_and(|folder| is_meant(&folder));
        let mut names: Vec<String> = names.filter(is_one).collect();
        names.sort();
        Ok(names)
    }
}

fn is_kept(folder: &Folder) -> bool {
    folder.file(folder::MEMBERSHIP).exists()
}

impl At {
    pub fn slug(&self) -> Result<String> {
        if let Some(slug) = self.mesh.as_deref().map(str::trim).filter(|slug| !slug.is_empty()) {
            folder::check_slug(slug)?;
            return Ok(slug.to_owned());
        }
        let mut meshes = self.home.meshes()?;
        match (meshes.pop(), meshes.len()) {
            (Some(only), 0) => Ok(only),
            (None, _) => {
                let home = self.home.path()?;
                let message = format!("There is no membership in {}.", home.display());
                Err(Error::new(Code::NotFound, message).with_cure(
                    "Make a mesh with `waybill mesh create`, join one with `waybill mesh join`, or check WAYBILL_HOME.",
                ))
            }
            (Some(last), _) => {
                let all = meshes.join(", ");
                Err(Error::invalid(format!("It is not said which mesh: there are {all} and {last}."))
                    .with_cure("Say --mesh SLUG, or set WAYBILL_MESH."))
            }
        }
    }

    /// Where the mesh's folder is or would be. Changes nothing.
    pub fn folder(&self) -> Result<Folder> {
        Folder::at(&self.home.path()?, &self.slug()?)
    }

    pub fn member(&self) -> Result<Member> {
        let folder = self.folder()?;
        let membership = Membership::load(&folder)?.ok_or_else(|| not_a_member(&folder))?;
        Ok(Member { folder, membership })
    }
}

/// A membership that is kept here.
pub struct Member {
    pub folder: Folder,
    pub membership: Membership,
}

impl Member {
    pub fn keyring(&self) -> Result<Keyring> {
        let identity = load_identity(&self.folder)?.ok_or_else(|| {
            let message = format!("{} holds no keys.", self.folder.path().display());
            Error::new(Code::NotFound, message)
                .with_cure("Restore them with `waybill daemon restore`, or join the mesh again.")
        })?;
        Ok(Keyring::new(identity, Archive::default()))
    }

    /// The mesh's server, to which this member signs its requests.
    pub fn broker(&self) -> Result<link::Broker> {
        let Membership { server, mesh, .. } = &self.membership;
        link::Broker::new(server, *mesh, self.keyring()?, Arc::new(Clock::system()), entropy())
    }
}

pub fn entropy() -> Arc<dyn Entropy> {
    Arc::new(OsEntropy)
}

pub fn not_a_member(folder: &Folder) -> Error {
    let slug = folder.path().file_name().unwrap_or_default().to_string_lossy();
    let message = format!("This user is no member of {slug}: there is nothing in {}.", folder.path().display());
    Error::new(Code::NotFound, message)
        .with_cure("Join with `waybill mesh join <invite>`, or check --mesh and WAYBILL_HOME.")
}

pub fn unusable(path: &Path, error: &std::io::Error) -> Error {
    Error::new(Code::PathUnusable, format!("{} cannot be used.", path.display())).because(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(home: &Path, mesh: Option<&str>) -> At {
        At { mesh: mesh.map(str::to_owned), home: Home { home: Some(home.to_owned()) }, json: false }
    }

    #[test]
    fn the_only_mesh_is_meant_and_of_several_one_must_be_named() {
        let home = tempfile::tempdir().unwrap();
        let none = at(home.path(), None).slug().unwrap_err();
        assert_eq!(none.code(), Code::NotFound);
        assert!(none.cure().contains("mesh join"), "{}", none.cure());
        let join = |slug: &str| {
            let folder = home.path().join("daemon").join(slug);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join(folder::MEMBERSHIP), "{}").unwrap();
        };
        join("one");
        std::fs::create_dir_all(home.path().join("daemon/left")).unwrap();
        assert_eq!(at(home.path(), None).slug().unwrap(), "one");
        join("two");
        let which = at(home.path(), None).slug().unwrap_err();
        assert!(which.message().contains("one and two"), "{which}");
        assert_eq!(at(home.path(), Some("two")).slug().unwrap(), "two");
        assert_eq!(at(home.path(), Some("../two")).slug().unwrap_err().code(), Code::InvalidRequest);
    }

    #[test]
    fn a_mesh_whose_daemon_keeps_nothing_is_meant_while_that_runs() {
        let home = tempfile::tempdir().unwrap();
        let at = at(home.path(), None);
        let folder = Folder::open(home.path(), "runner").unwrap();
        assert!(at.home.meshes().unwrap().is_empty());
        let lock = Lock::take(&folder).unwrap();
        assert_eq!(at.home.meshes().unwrap(), ["runner"]);
        assert_eq!(at.slug().unwrap(), "runner");
        assert!(at.home.kept().unwrap().is_empty() && at.home.memberships().unwrap().is_empty());
        drop(lock);
        assert_eq!(at.slug().unwrap_err().code(), Code::NotFound);
    }

    #[test]
    fn who_is_no_member_is_told_how_to_become_one() {
        let home = tempfile::tempdir().unwrap();
        let error = at(home.path(), Some("acme")).member().err().unwrap();
        assert!(error.message().contains("no member of acme"), "{error}");
        assert!(error.cure().contains("mesh join"), "{}", error.cure());
    }
}
