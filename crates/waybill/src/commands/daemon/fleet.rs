//! `up --all`: how many daemons this user runs at once, and how much they may use together.
//!
//! `$WAYBILL_HOME/config.toml` has a section `[fleet]`. The bounds are looked at before each start; what runs is not ended.

use std::path::Path;

use serde::Deserialize;
use waybill_daemon::{Folder, Lock};
use waybill_kernel::ranges::{at_least, check, setting};
use waybill_kernel::{Code, Error, Result};
use waybill_store::safety;

use crate::commands::peer::home::unusable;

const FILE: &str = "config.toml";
const DAEMONS_MAX: usize = 10;
const MEMORY_BYTES_MAX: u64 = 2 << 30;
/// Ten daemons with an outbox and an inbox of 5 GB each.
const DISK_BYTES_MAX: u64 = 100_000_000_000;

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct File {
    fleet: Fleet,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Fleet {
    pub max_daemons: usize,
    /// Of all daemons together, as the system counts what they hold.
    pub memory_bytes_max: u64,
    /// Of the folders of all meshes.
    pub disk_bytes_max: u64,
}

impl Default for Fleet {
    fn default() -> Self {
        Self { max_daemons: DAEMONS_MAX, memory_bytes_max: MEMORY_BYTES_MAX, disk_bytes_max: DISK_BYTES_MAX }
    }
}

/// What the fleet uses now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    pub daemons: usize,
    pub memory_bytes: u64,
    pub disk_bytes: u64,
}

impl Fleet {
    pub fn read(home: &Path) -> Result<Self> {
        let path = home.join(FILE);
        let text = match safety::read_private(&path) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(unusable(&path, &error)),
        };
        Self::parse(&text).map_err(|why| Error::new(Code::ConfigInvalid, format!("{}: {why}", path.display())))
    }

    fn parse(text: &str) -> std::result::Result<Self, String> {
        let File { fleet } = toml::from_str(text).map_err(|error| error.to_string())?;
        check(
            "fleet",
            &[
                setting("max_daemons", fleet.max_daemons, 1..=1_000),
                setting("memory_bytes_max", fleet.memory_bytes_max, at_least(1 << 20)),
                setting("disk_bytes_max", fleet.disk_bytes_max, at_least(1 << 20)),
            ],
        )?;
        Ok(fleet)
    }

    /// Is there room for one more?
    pub fn admit(&self, used: Used) -> Result<()> {
        let full = |what: &str, name: &str| {
            let message = format!("No further daemon is started: {what}.");
            let cure = format!("Stop one with `waybill daemon down`, or raise fleet.{name} in {FILE} of WAYBILL_HOME.");
            Err(Error::new(Code::InsufficientStorage, message).with_cure(cure))
        };
        if used.daemons >= self.max_daemons {
            return full(&format!("{} run already", used.daemons), "max_daemons");
        }
        if used.memory_bytes >= self.memory_bytes_max {
            return full(&format!("those that run hold {} bytes of memory", used.memory_bytes), "memory_bytes_max");
        }
        if used.disk_bytes >= self.disk_bytes_max {
            return full(&format!("their folders hold {} bytes", used.disk_bytes), "disk_bytes_max");
        }
        Ok(())
    }
}

impl Used {
    pub fn measure(home: &Path, slugs: &[String]) -> Result<Self> {
        let mut used = Self::default();
        for slug in slugs {
            let folder = Folder::at(home, slug)?;
            used.disk_bytes += bytes_of(folder.path());
            if let Some(pid) = Lock::holder(&folder)? {
                used.daemons += 1;
                used.memory_bytes += memory_of(pid);
            }
        }
        Ok(used)
    }
}

/// Of the files in it; a daemon's folder has one level of others.
fn bytes_of(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let sizes = entries.filter_map(|entry| entry.metadata().ok());
    sizes.filter(std::fs::Metadata::is_file).map(|file| file.len()).sum()
}

/// 0 where the system does not tell.
fn memory_of(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
    let pages: u64 = text.split_whitespace().nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    pages * rustix::param::page_size() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_more_is_started_as_long_as_there_is_room() {
        let fleet = Fleet::parse("[fleet]\nmax_daemons = 2\nmemory_bytes_max = 2000000\n").unwrap();
        let used = |daemons, memory_bytes, disk_bytes| Used { daemons, memory_bytes, disk_bytes };
        assert!(fleet.admit(used(1, 1_999_999, 0)).is_ok());
        for (used, named) in [
            (used(2, 0, 0), "fleet.max_daemons"),
            (used(0, 2_000_000, 0), "fleet.memory_bytes_max"),
            (used(0, 0, DISK_BYTES_MAX), "fleet.disk_bytes_max"),
        ] {
            let error = fleet.admit(used).unwrap_err();
            assert!(error.cure().contains(named), "{}", error.cure());
        }
        assert_eq!(Fleet::parse("").unwrap(), Fleet::default());
        assert!(Fleet::parse("[fleet]\nmax_daemons = 0").unwrap_err().contains("fleet.max_daemons"));
        assert!(Fleet::parse("[fleet]\nmax = 1").unwrap_err().contains("max"));
        assert!(memory_of(std::process::id()) > 0);
    }
}
