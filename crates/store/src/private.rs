//! Files and folders that are ours alone, as others may have left them.
//!
//! Whoever may write to a file of ours can change what it says; whoever may write to its folder can put another in its
//! place, or a link that leads elsewhere. So both are looked at before they are used, and no link is followed. Reading is
//! another matter: a folder that only we may enter keeps everybody from it, and `doctor` looks at that.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::process::geteuid;

/// Permission bits by which others than the owner write.
const WRITABLE_BY_OTHERS: u32 = 0o022;
const WRITABLE_BY_ALL: u32 = 0o002;
/// In a folder that has it, what is there can be moved or removed by its owner alone.
const STICKY: u32 = 0o1000;

/// Why something must not be used as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exposure {
    pub path: PathBuf,
    pub found: String,
    /// A command, or what to do.
    pub cure: String,
}

impl Exposure {
    fn new(path: &Path, found: impl Into<String>, cure: impl Into<String>) -> Self {
        Self { path: path.to_owned(), found: found.into(), cure: cure.into() }
    }
}

impl std::fmt::Display for Exposure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.path.display(), self.found)
    }
}

/// None for a file that only this process's user can have written, and where there is none.
pub fn exposure_of_file(path: &Path) -> io::Result<Option<Exposure>> {
    let file = match path.symlink_metadata() {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let shown = path.display();
    if file.is_symlink() {
        let cure = format!("mv \"$(readlink -f {shown})\" {shown}");
        return Ok(Some(Exposure::new(path, "is a symbolic link, and those are not followed here", cure)));
    }
    if !file.is_file() {
        return Ok(Some(Exposure::new(path, "is no regular file", "Move it away.")));
    }
    Ok(foreign(path, &file))
}

/// None for a folder to which only this process's user may write, and which nobody can put another in the place of.
pub fn exposure_of_folder(path: &Path) -> io::Result<Option<Exposure>> {
    let own = geteuid().as_raw();
    let link = path.symlink_metadata()?;
    if link.is_symlink() && ![own, 0].contains(&link.uid()) {
        let found = format!("is a symbolic link that user {} has made", link.uid());
        return Ok(Some(Exposure::new(path, found, "Name the folder itself with --data.")));
    }
    let folder = path.metadata()?;
    if !folder.is_dir() {
        return Ok(Some(Exposure::new(path, "is no folder", "Name another with --data.")));
    }
    if let Some(exposure) = foreign(path, &folder) {
        return Ok(Some(exposure));
    }
    for above in path.canonicalize()?.ancestors().skip(1) {
        let mode = above.metadata()?.mode();
        if mode & WRITABLE_BY_ALL != 0 && mode & STICKY == 0 {
            let found =
                format!("(mode {:o}) lets everybody put another folder in the place of this one", mode & 0o7777);
            return Ok(Some(Exposure::new(above, found, format!("chmod o-w {}", above.display()))));
        }
    }
    Ok(None)
}

fn foreign(path: &Path, found: &Metadata) -> Option<Exposure> {
    let (own, owner, mode) = (geteuid().as_raw(), found.uid(), found.mode() & 0o7777);
    if owner != own {
        let found = format!("belongs to user {owner}, and this program runs as user {own}");
        return Some(Exposure::new(path, found, format!("chown {own} {}", path.display())));
    }
    (mode & WRITABLE_BY_OTHERS != 0).then(|| {
        let found = format!("may be written by others than its owner (mode {mode:o})");
        Exposure::new(path, found, format!("chmod go-w {}", path.display()))
    })
}

/// Opens as told, unless the last part of the path is a link.
pub fn open(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed()).open(path)
}

/// All of a file that is no link.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(File::options().read(true), path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Puts a file with these bytes in the place of the one that is there, for its owner alone. A reader sees the old or the new
/// one, never half of either, and a crash leaves one of them.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    let part = PathBuf::from(part);
    // One that was left by a process that was killed is made anew, so that its mode is ours.
    match fs::remove_file(&part) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = open(File::options().write(true).create_new(true).mode(0o600), &part)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&part, path)?;
    // A new name is on the disk only when its folder is.
    File::open(path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or_else(|| Path::new(".")))?
        .sync_all()
}

/// The path with every link on the way to its last part resolved, so that only the last one may not be a link.
pub(crate) fn with_real_folder(path: &Path) -> PathBuf {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
    match (fs::canonicalize(folder), path.file_name()) {
        (Ok(folder), Some(name)) => folder.join(name),
        // Whoever opens it says why it cannot be.
        _ => path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn found(exposure: io::Result<Option<Exposure>>) -> String {
        exposure.unwrap().map_or_else(String::new, |exposure| format!("{exposure}: {}", exposure.cure))
    }

    #[test]
    fn a_file_is_ours_alone_or_it_is_told_how_to_mend_it() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("file"), folder.path().join("link"));
        assert_eq!(found(exposure_of_file(&path)), "");
        fs::write(&path, "x").unwrap();
        for (mode, is_exposed) in [(0o600, false), (0o644, false), (0o620, true), (0o602, true), (0o666, true)] {
            set_mode(&path, mode);
            let told = found(exposure_of_file(&path));
            assert_eq!(told.contains("chmod go-w"), is_exposed, "{mode:o}: {told}");
            assert_eq!(told.contains(&format!("mode {mode:o}")), is_exposed, "{mode:o}: {told}");
        }
        set_mode(&path, 0o600);
        symlink(&path, &link).unwrap();
        assert!(found(exposure_of_file(&link)).contains("is a symbolic link"));
        assert!(read(&link).is_err() && open(File::options().write(true), &link).is_err());
        assert_eq!(read(&path).unwrap(), b"x");
        assert!(found(exposure_of_file(folder.path())).contains("no regular file"));
    }

    #[test]
    fn a_replaced_file_is_whole_and_its_owners_alone_and_a_link_is_replaced_too() {
        let folder = tempfile::tempdir().unwrap();
        let (path, elsewhere) = (folder.path().join("file"), folder.path().join("elsewhere"));
        fs::write(&elsewhere, "theirs").unwrap();
        symlink(&elsewhere, &path).unwrap();
        fs::write(folder.path().join("file.part"), "left behind").unwrap();
        replace(&path, b"ours").unwrap();
        assert_eq!((read(&path).unwrap(), fs::read(&elsewhere).unwrap()), (b"ours".to_vec(), b"theirs".to_vec()));
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_folder_is_ours_alone_and_stays_where_it_is() {
        let above = tempfile::tempdir().unwrap();
        let path = above.path().join("data");
        fs::create_dir(&path).unwrap();
        for (mode, is_exposed) in [(0o700, false), (0o755, false), (0o775, true), (0o757, true)] {
            set_mode(&path, mode);
            assert_eq!(found(exposure_of_folder(&path)).contains("chmod go-w"), is_exposed, "{mode:o}");
        }
        set_mode(&path, 0o700);
        for (mode, is_exposed) in [(0o1777, false), (0o775, false), (0o777, true)] {
            set_mode(above.path(), mode);
            assert_eq!(found(exposure_of_folder(&path)).contains("chmod o-w"), is_exposed, "{mode:o}");
        }
        set_mode(above.path(), 0o700);
        let link = above.path().join("link");
        symlink(&path, &link).unwrap();
        assert_eq!(found(exposure_of_folder(&link)), "", "a link of our own leads to a folder of our own");
        assert_eq!(with_real_folder(&link.join("x")), path.canonicalize().unwrap().join("x"));
    }

    /// Only root can give files away; elsewhere this shows nothing.
    #[test]
    fn what_belongs_to_another_user_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "x").unwrap();
        if chown(&path, Some(54_321), None).is_ok() {
            assert!(found(exposure_of_file(&path)).contains("belongs to user 54321"));
            chown(folder.path(), Some(54_321), None).unwrap();
            assert!(found(exposure_of_folder(folder.path())).contains("belongs to user 54321"));
        }
    }
}
