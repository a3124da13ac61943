//! hooks-audit.jsonl: one line per run of a hook, for whoever wants to know afterwards what ran and on whose behalf.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use serde_json::Value as Json;
use waybill_store::safety;

pub struct Audit {
    path: PathBuf,
    /// At this size the file becomes hooks-audit.jsonl.1, in the place of the one before.
    bytes_max: u64,
    /// One line at a time.
    turn: Mutex<()>,
}

impl Audit {
    pub fn at(path: PathBuf, bytes_max: u64) -> Self {
        Self { path, bytes_max, turn: Mutex::default() }
    }

    /// Blocking, and short. A line that cannot be written is told in the log, which has the run as well.
    pub fn write(&self, line: &Json) {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = self.append(line) {
            tracing::error!(%error, path = %self.path.display(), "the audit of hooks could not be written");
        }
    }

    fn append(&self, line: &Json) -> io::Result<()> {
        let mut file = safety::open_private(File::options().append(true).create(true).mode(0o600), &self.path)?;
        if file.metadata()?.len() > self.bytes_max {
            let mut older = self.path.clone().into_os_string();
            older.push(".1");
            std::fs::rename(&self.path, older)?;
            file = safety::open_private(File::options().append(true).create(true).mode(0o600), &self.path)?;
        }
        file.write_all(format!("{line}\n").as_bytes())
    }
}
