//! `waybill daemon logs`: the end of daemon.log, and what is added to it.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;
use std::time::Duration;

use clap::Args;
use waybill_daemon::folder;
use waybill_kernel::{Code, Error, Result};

use crate::commands::peer::home::{At, unusable};
use crate::output;

const POLL: Duration = Duration::from_millis(250);
/// Of the end of the file, however few lines are in it.
const TAIL_BYTES_MAX: u64 = 16 << 20;

#[derive(Args)]
pub struct Logs {
    /// How many lines.
    #[arg(long, short = 'n', default_value_t = 50)]
    lines: usize,
    /// Go on with what is added, until Ctrl-C.
    #[arg(long, short)]
    follow: bool,
    #[command(flatten)]
    at: At,
}

/// The lines are JSON already, so `--json` changes nothing.
pub async fn run(flags: &Logs) -> Result<()> {
    let path = flags.at.folder()?.file(folder::LOG);
    let mut file = File::open(&path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Error::new(Code::NotFound, format!("There is no {}.", path.display()))
            .with_cure("The first start of the daemon makes it."),
        _ => unusable(&path, &error),
    })?;
    for line in tail(&mut file, flags.lines).map_err(|error| unusable(&path, &error))? {
        output::line(&line)?;
    }
    if !flags.follow {
        return Ok(());
    }
    let mut reader = BufReader::new(file);
    loop {
        let mut line = String::new();
        match reader.read_line(&mut line) {
            Ok(0) => {
                tokio::time::sleep(POLL).await;
                // Another file has taken its place.
                if is_other(reader.get_ref(), &path)
                    && let Ok(file) = File::open(&path)
                {
                    reader = BufReader::new(file);
                }
            }
            Ok(_) => output::line(line.trim_end())?,
            Err(error) => return Err(unusable(&path, &error)),
        }
    }
}

/// The last lines, oldest first.
pub fn tail(file: &mut File, lines: usize) -> std::io::Result<Vec<String>> {
    let length = file.metadata()?.len();
    let begin = length.saturating_sub(TAIL_BYTES_MAX);
    file.seek(SeekFrom::Start(begin))?;
    let mut bytes = Vec::new();
    file.take(TAIL_BYTES_MAX).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let mut kept = VecDeque::new();
    // The first one may have lost its beginning.
    for line in text.lines().skip(usize::from(begin > 0)) {
        kept.push_back(line.to_owned());
        if kept.len() > lines {
            kept.pop_front();
        }
    }
    Ok(kept.into())
}

fn is_other(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    match (file.metadata(), path.metadata()) {
        (Ok(open), Ok(named)) => (open.dev(), open.ino()) != (named.dev(), named.ino()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_come_in_their_order() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        std::fs::write(&path, "one\ntwo\nthree\n").unwrap();
        let last = |lines| tail(&mut File::open(&path).unwrap(), lines).unwrap();
        assert_eq!(last(2), ["two", "three"]);
        assert_eq!(last(10), ["one", "two", "three"]);
        assert!(last(0).is_empty());
    }
}
