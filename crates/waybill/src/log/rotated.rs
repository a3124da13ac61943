//! The file of a daemon's log. It is put aside when it is large or old, and what was put aside is removed after some time.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use waybill_store::safety;

/// Files that were put aside, however young they are: a daemon that floods its log must not fill the disk.
const ASIDE_MAX: usize = 10;

pub struct Rotated {
    path: PathBuf,
    file: File,
    bytes: u64,
    bytes_max: u64,
    since: Timestamp,
    keep: Duration,
    /// To stderr as well.
    is_told: bool,
}

impl Rotated {
    pub fn open(path: &Path, bytes_max: u64, keep: Duration, is_told: bool) -> io::Result<Self> {
        let now = Timestamp::now();
        let file = file_at(path)?;
        let found = file.metadata()?;
        // How old a file is that was there is told by its beginning, not by its last line.
        let since = found.created().ok().and_then(|at| Timestamp::try_from(at).ok()).unwrap_or(now);
        let mut log = Self { path: path.to_owned(), bytes: found.len(), file, bytes_max, since, keep, is_told };
        log.remove_old(now);
        Ok(log)
    }

    fn is_due(&self, length: usize, now: Timestamp) -> bool {
        let is_large = self.bytes > 0 && self.bytes + length as u64 > self.bytes_max;
        is_large || (self.bytes > 0 && age(self.since, now) >= self.keep)
    }

    fn put_aside(&mut self, now: Timestamp) -> io::Result<()> {
        let mut aside = self.path.clone().into_os_string();
        aside.push(format!(".{}", now.as_microsecond()));
        fs::rename(&self.path, aside)?;
        self.file = file_at(&self.path)?;
        (self.bytes, self.since) = (0, now);
        self.remove_old(now);
        Ok(())
    }

    fn remove_old(&mut self, now: Timestamp) {
        let name = self.path.file_name().map(|name| format!("{}.", name.to_string_lossy())).unwrap_or_default();
        let folder = self.path.parent().unwrap_or_else(|| Path::new("."));
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let mut aside: Vec<(Timestamp, PathBuf)> = entries
            .filter_map(|entry| {
                let at = entry.file_name().to_str()?.strip_prefix(&name)?.parse().ok()?;
                Some((Timestamp::from_microsecond(at).ok()?, entry.path()))
            })
            .collect();
        aside.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
        for (nth, (at, path)) in aside.iter().enumerate() {
            if nth >= ASIDE_MAX || age(*at, now) >= self.keep {
                let _ = fs::remove_file(path);
            }
        }
    }
}

fn file_at(path: &Path) -> io::Result<File> {
    safety::open_private(File::options().append(true).create(true).mode(0o600), path)
}

fn age(since: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(since)).unwrap_or_default()
}

impl Write for Rotated {
    /// Whole lines, as the thread that writes hands them over.
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        let now = Timestamp::now();
        if self.is_due(lines.len(), now) {
            self.put_aside(now)?;
        }
        self.file.write_all(lines)?;
        self.bytes += lines.len() as u64;
        if self.is_told {
            let _ = io::stderr().write_all(lines);
        }
        Ok(lines.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn aside(folder: &Path) -> Vec<String> {
        let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.filter(|name| name.starts_with("daemon.log.")).collect();
        names.sort();
        names
    }

    #[test]
    fn a_large_file_is_put_aside_and_only_so_many_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("daemon.log");
        let mut log = Rotated::open(&path, 10, Duration::from_secs(3_600), false).unwrap();
        log.write_all(b"one\n").unwrap();
        log.write_all(b"two\n").unwrap();
        assert!(aside(folder.path()).is_empty());
        log.write_all(b"three\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "three\n");
        let first = aside(folder.path());
        assert_eq!(fs::read_to_string(folder.path().join(&first[0])).unwrap(), "one\ntwo\n");
        for _ in 0..2 * ASIDE_MAX {
            log.write_all(b"another line\n").unwrap();
        }
        assert_eq!(aside(folder.path()).len(), ASIDE_MAX);
    }

    #[test]
    fn what_is_old_is_put_aside_or_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("daemon.log");
        fs::write(folder.path().join("daemon.log.1000000"), "from 1970").unwrap();
        fs::write(folder.path().join("daemon.log.notes"), "mine").unwrap();
        let mut log = Rotated::open(&path, 1_000, Duration::ZERO, false).unwrap();
        assert_eq!(aside(folder.path()), ["daemon.log.notes"], "the file of somebody else stays");
        log.write_all(b"one\n").unwrap();
        log.write_all(b"two\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "two\n");
    }
}
