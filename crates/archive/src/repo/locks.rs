//! Locks that somebody else's git has left. One is removed only when it is older than [`STALE`] and no process is alive that could
//! hold it: git writes no owner into its locks, so whoever has the repository open or stands in it counts as one.

use std::path::Path;
use std::time::Duration;

use rustix::fs::FileType;

use super::disk::Folder;
use crate::error::Result;

/// A younger lock is never touched.
pub const STALE: Duration = Duration::from_secs(60);
/// Where git leaves locks in a bare repository, besides those of the refs this program moves.
const KNOWN: &[&str] = &["index.lock", "HEAD.lock", "packed-refs.lock", "config.lock", "shallow.lock"];
/// Processes looked at; beyond it a lock counts as held.
const PROCESSES_MAX: usize = 100_000;

/// Heals what stands in the way at the start.
pub fn heal_known(git: &Folder, now_s: i64) -> Result<usize> {
    let mut healed = 0;
    for name in KNOWN {
        healed += usize::from(heal(git, git, name, now_s)?);
    }
    for below in ["refs/heads", "refs/waybill"] {
        if let Some(folder) = git.find(below)? {
            healed += usize::from(heal(git, &folder, "main.lock", now_s)?);
        }
    }
    Ok(healed)
}

/// Whether there was a stale lock, which is gone now.
pub fn heal(git: &Folder, folder: &Folder, name: &str, now_s: i64) -> Result<bool> {
    let Some(seen) = folder.look(name)? else { return Ok(false) };
    let age_s = now_s.saturating_sub(seen.modified_s);
    if seen.kind == FileType::Directory || age_s <= i64::try_from(STALE.as_secs()).unwrap_or(i64::MAX) {
        return Ok(false);
    }
    if somebody_is_in(git.path()) {
        return Ok(false);
    }
    tracing::warn!(path = %folder.path().join(name).display(), age_s, "a stale lock of git was removed");
    folder.remove(name)
}

/// Whether a process other than this one stands in the folder or has a file below it open. Where it cannot be known, it counts as yes
/// for what calls itself git.
fn somebody_is_in(folder: &Path) -> bool {
    let Ok(folder) = folder.canonicalize() else { return false };
    let Ok(processes) = std::fs::read_dir("/proc") else { return false };
    let own = std::process::id().to_string();
    for (seen, process) in processes.flatten().enumerate() {
        if seen >= PROCESSES_MAX {
            return true;
        }
        let name = process.file_name();
        let Some(pid) = name.to_str().filter(|name| name.bytes().all(|byte| byte.is_ascii_digit())) else { continue };
        if pid != own && is_in(&process.path(), &folder) {
            return true;
        }
    }
    false
}

fn is_in(process: &Path, folder: &Path) -> bool {
    if std::fs::read_link(process.join("cwd")).is_ok_and(|cwd| cwd.starts_with(folder)) {
        return true;
    }
    match std::fs::read_dir(process.join("fd")) {
        Ok(open) => open.flatten().any(|fd| std::fs::read_link(fd.path()).is_ok_and(|at| at.starts_with(folder))),
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            std::fs::read_to_string(process.join("comm")).is_ok_and(|name| name.starts_with("git"))
        }
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    fn repository() -> (tempfile::TempDir, Folder, i64) {
        let temp = tempfile::tempdir().unwrap();
        let git = Folder::create(&temp.path().join("archive.git")).unwrap();
        git.write_new("index.lock", b"", false).unwrap();
        let made_s = git.look("index.lock").unwrap().unwrap().modified_s;
        (temp, git, made_s)
    }

    #[test]
    fn rule_33_a_lock_goes_only_when_it_is_older_than_a_minute() {
        let (_temp, git, made_s) = repository();
        assert_eq!(heal_known(&git, made_s + 60).unwrap(), 0);
        assert!(git.look("index.lock").unwrap().is_some());
        assert_eq!(heal_known(&git, made_s + 61).unwrap(), 1);
        assert!(git.look("index.lock").unwrap().is_none());
    }

    #[test]
    fn rule_33_a_lock_of_a_live_process_stays_however_old() {
        let (_temp, git, made_s) = repository();
        let mut child =
            Command::new("sleep").arg("60").current_dir(git.path()).stdin(Stdio::null()).spawn().expect("sleep runs");
        assert_eq!(heal_known(&git, made_s + 3600).unwrap(), 0);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(heal_known(&git, made_s + 3600).unwrap(), 1);
    }
}
