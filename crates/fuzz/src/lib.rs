//! Feeds a reader with what was never meant for it, on a stack on which recursion shows.
//!
//! A target is a test named `fuzz_…` in the crate of its reader. It takes bytes and says whether they were accepted; it fails
//! by panicking, or by running out of its stack, which ends the process. Every input is on the disk before it is tried,
//! so that whatever happens the input is known; the next run tries it first.
//!
//! There is no guidance by coverage, which needs a nightly compiler. What takes its place: seeds that a reader accepts,
//! edits that know the grammars ([`grow`]), and a pool into which accepted inputs go.

mod grow;
mod rng;

use std::fs::File;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use grow::Pool;
pub use rng::Rng;

/// For how long one target is fed. `cargo xtask fuzz` sets it.
pub const TIME_MS: &str = "WAYBILL_FUZZ_MS";
/// Where nothing is said: a taste, for every run of the tests.
const TIME_MS_USUAL: u64 = 300;
/// An eighth of what the server's threads have. A reader of bounded depth needs a fraction of it, also unoptimised; one that
/// calls itself once per level of its input is out of it within the first inputs.
const STACK_BYTES: usize = 256 << 10;

/// A reader with its name and inputs that it accepts.
pub struct Target {
    pub name: &'static str,
    pub seeds: &'static [&'static str],
    /// Whether the input was accepted.
    pub read: fn(&[u8]) -> bool,
}

/// # Panics
/// When the reader does, with the place where its input is kept.
pub fn feed(target: Target) {
    let kept = Kept::of(target.name);
    let path = kept.path.clone();
    let thread = std::thread::Builder::new().name(format!("fuzz {}", target.name)).stack_size(STACK_BYTES);
    let fed = thread.spawn(move || run(&target, &kept));
    let outcome = fed.map(std::thread::JoinHandle::join);
    assert!(matches!(outcome, Ok(Ok(()))), "the input that did this is in {}", path.display());
    // It did nothing wrong. Where it cannot be removed it is tried once more by the next run.
    drop(std::fs::remove_file(path));
}

fn run(target: &Target, kept: &Kept) {
    if let Some(last) = &kept.last {
        (target.read)(last);
    }
    let time = time();
    let mut rng = Rng::new(RandomState::new().build_hasher().finish());
    let mut pool = Pool::new(target.seeds);
    let (began, mut tried, mut accepted) = (Instant::now(), 0_u64, 0_u64);
    for seed in target.seeds {
        assert!((target.read)(seed.as_bytes()), "a seed of {} is refused: {seed:.200}", target.name);
    }
    while began.elapsed() < time {
        let input = pool.grow(&mut rng);
        kept.keep(&input);
        tried += 1;
        if (target.read)(&input) {
            accepted += 1;
            pool.take(input, &mut rng);
        }
    }
    if std::env::var_os(TIME_MS).is_some() {
        let line = format!("fuzz {}: {tried} inputs, {accepted} accepted", target.name);
        drop(writeln!(std::io::stderr(), "{line}"));
    }
}

fn time() -> Duration {
    let said = std::env::var(TIME_MS).ok().and_then(|text| text.parse().ok());
    Duration::from_millis(said.unwrap_or(TIME_MS_USUAL))
}

/// The file with the input that is being tried.
struct Kept {
    path: PathBuf,
    /// What a run that ended badly has left.
    last: Option<Vec<u8>>,
    /// Kept open: some file systems go to the disk whenever a file that was cut to nothing is closed.
    file: Option<File>,
}

impl Kept {
    /// In `fuzz` below the folder that tests are built in.
    fn of(name: &str) -> Self {
        let program = std::env::current_exe().unwrap_or_default();
        let folder = program.ancestors().nth(3).unwrap_or_else(|| Path::new(".")).join("fuzz");
        let path = folder.join(name);
        // Where nothing can be kept, the path in the message leads to nothing; the target is fed all the same.
        drop(std::fs::create_dir_all(&folder));
        let last = std::fs::read(&path).ok();
        let file = File::options().create(true).truncate(false).write(true).open(&path).ok();
        Self { path, last, file }
    }

    fn keep(&self, input: &[u8]) {
        let Some(file) = &self.file else { return };
        drop(file.write_all_at(input, 0).and_then(|()| file.set_len(input.len() as u64)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_panics_is_caught_with_its_input() {
        let read = |input: &[u8]| {
            assert!(input.len() < 2_000, "long");
            true
        };
        let caught = std::panic::catch_unwind(|| feed(Target { name: "panics", seeds: &["[1]"], read }));
        assert!(caught.is_err());
        let kept = Kept::of("panics");
        assert!(kept.last.is_some_and(|input| input.len() >= 2_000));
        std::fs::remove_file(kept.path).unwrap();
    }

    #[test]
    fn one_that_does_not_leaves_nothing_behind() {
        feed(Target { name: "lenient", seeds: &["1"], read: |_| true });
        let kept = Kept::of("lenient");
        assert!(kept.last.is_none());
        std::fs::remove_file(kept.path).unwrap();
    }
}
