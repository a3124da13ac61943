//! What the disk alone can do: write, fdatasync, again. Appending also pays for the file system's own journal at every
//! step; writing over what is there does not, which is how a write-ahead log that is used again writes.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::contest::Raw;
use crate::histogram::Histogram;
use crate::load::Outcome;

const RECORD_BYTES: usize = 200;
const BLOCK_BYTES: usize = 4096;
const BLOCKS: u64 = 1024;
const FILE: &str = "raw.write";

pub const fn bytes_of(raw: Raw) -> usize {
    match raw {
        Raw::Append => RECORD_BYTES,
        Raw::Over => BLOCK_BYTES,
    }
}

/// Blocks its thread for `measure`; the file lives in the folder the contestants store in, and is gone afterwards.
pub fn write_and_sync(dir: &Path, raw: Raw, measure: Duration) -> Result<Outcome> {
    let path = dir.join(FILE);
    let mut file = File::create(&path).with_context(|| format!("creating {}", path.display()))?;
    if raw == Raw::Over {
        (0..BLOCKS).try_for_each(|_| file.write_all(&[0x5a; BLOCK_BYTES]))?;
    }
    file.sync_all()?;
    let block = vec![0x5a; bytes_of(raw)];
    let (mut latencies, mut ops) = (Histogram::default(), 0);
    let start = Instant::now();
    let mut before = start;
    while before - start < measure {
        if raw == Raw::Over && ops % BLOCKS == 0 {
            file.seek(SeekFrom::Start(0))?;
        }
        file.write_all(&block)?;
        file.sync_data()?;
        let after = Instant::now();
        latencies.record(after - before);
        (before, ops) = (after, ops + 1);
    }
    drop(file);
    std::fs::remove_file(&path)?;
    Ok(Outcome { ops, ops_total: ops, seconds: (before - start).as_secs_f64(), latencies, ..Outcome::default() })
}

/// The type of the file system that holds `dir`, so that a run on memory is not mistaken for one on a disk.
pub fn file_system(dir: &Path) -> Option<String> {
    let mounts = std::fs::read_to_string("/proc/mounts").ok()?;
    let dir = dir.canonicalize().ok()?;
    let points = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (point, kind) = (fields.next()?, fields.next()?);
        dir.starts_with(point).then_some((point.len(), kind))
    });
    // Among equals the later mount covers the earlier one, and max_by_key keeps the last.
    points.max_by_key(|(length, _)| *length).map(|(_, kind)| kind.to_owned())
}
