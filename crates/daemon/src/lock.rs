//! One daemon per folder: whoever has the lock on `pid` is the daemon. The number in it is for people; nobody trusts it.

use std::fs::{File, TryLockError};
use std::io::{ErrorKind, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::thread;
use std::time::Duration;

use waybill_kernel::{Code, Error, Result};
use waybill_store::safety;

use crate::folder::{self, Folder};

/// How often the lock is tried, and the pause between: whoever looks for its holder has it for a moment, too.
const TRIES: u32 = 10;
const PAUSE: Duration = Duration::from_millis(10);

/// Held until it is dropped, or until the process ends in whichever way.
#[derive(Debug)]
pub struct Lock {
    file: File,
}

impl Lock {
    pub fn take(folder: &Folder) -> Result<Self> {
        let path = folder.file(folder::PID);
        let unusable = |error: std::io::Error| folder::unusable(&path, &error);
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let mut file = safety::open_private(&mut options, &path).map_err(unusable)?;
        let mut left = TRIES;
        while let Err(refusal) = file.try_lock() {
            left -= 1;
            match refusal {
                TryLockError::Error(error) => return Err(unusable(error)),
                TryLockError::WouldBlock if left > 0 => thread::sleep(PAUSE),
                TryLockError::WouldBlock => {
                    let mut holder = String::new();
                    let _ = file.read_to_string(&mut holder);
                    let message = format!("Process {} runs a daemon in {}.", holder.trim(), folder.path().display());
                    return Err(Error::new(Code::DaemonRunning, message));
                }
            }
        }
        file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id())).map_err(unusable)?;
        Ok(Self { file })
    }

    /// The process that runs a daemon here. Looking changes nothing.
    pub fn holder(folder: &Folder) -> Result<Option<u32>> {
        let path = folder.file(folder::PID);
        let mut file = match safety::open_private(File::options().read(true), &path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(folder::unusable(&path, &error)),
        };
        match file.try_lock_shared() {
            Err(TryLockError::WouldBlock) => {
                let mut text = String::new();
                let _ = file.read_to_string(&mut text);
                Ok(text.trim().parse().ok())
            }
            Ok(()) | Err(TryLockError::Error(_)) => Ok(None),
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Not removed: another daemon may have opened it to wait for the lock, and would then hold one that nobody sees.
        let _ = self.file.rewind().and_then(|()| self.file.set_len(0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_daemon_is_told_who_runs_the_first() {
        let home = tempfile::tempdir().unwrap();
        let folder = Folder::open(home.path(), "acme").unwrap();
        assert_eq!(Lock::holder(&folder).unwrap(), None);
        let lock = Lock::take(&folder).unwrap();
        let error = Lock::take(&folder).unwrap_err();
        assert_eq!(error.code(), Code::DaemonRunning);
        assert!(error.message().contains(&std::process::id().to_string()), "{error}");
        assert_eq!(Lock::holder(&folder).unwrap(), Some(std::process::id()));
        drop(lock);
        assert_eq!(Lock::holder(&folder).unwrap(), None);
        Lock::take(&folder).unwrap();
    }

    #[test]
    fn who_only_looks_keeps_no_daemon_from_starting() {
        let home = tempfile::tempdir().unwrap();
        let folder = Folder::open(home.path(), "acme").unwrap();
        drop(Lock::take(&folder).unwrap());
        // In the middle of a look.
        let file = File::open(folder.file(folder::PID)).unwrap();
        file.try_lock_shared().unwrap();
        let looking = thread::spawn(move || {
            thread::sleep(PAUSE);
            drop(file);
        });
        Lock::take(&folder).unwrap();
        looking.join().unwrap();
    }
}
