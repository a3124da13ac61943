//! The machine's clock is stepped under load by ±1 h and ±5 d and strobed, through libfaketime; then the server is killed
//! and starts again at yet another time.
//!
//! Only the wall clock is faked. libfaketime can shift the monotonic clock as well, but a timed wait of the standard
//! library goes to the kernel directly with a deadline on that clock, and libfaketime does not see it: ten lines that wait
//! one millisecond on a condition variable then sleep for good. No machine does that; it would only test the library.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::time::sleep;

use super::{After, Scenario};
use crate::checker::{Invariant, Violation};
use crate::history::Op;
use crate::load::{Load, Tally};
use crate::rng::{Rng, Stream};
use crate::server::{Launch, Server};
use crate::stamp::{self, Dated};

const HOUR_S: i64 = 3_600;
const DAY_S: i64 = 86_400;
const STEPS_MAX: u64 = 4;
const STROBES: usize = 20;
const STROBE: Duration = Duration::from_millis(10);
const BETWEEN_MS_MAX: u64 = 200;
/// The steps themselves take up to 1.5 s of load.
const LOAD_MS_MAX: u64 = 600;
const LIBRARY: &str = "faketime/libfaketime.so.1";

pub struct Clock {
    data: PathBuf,
    library: PathBuf,
    /// Holds the offset; libfaketime reads it at each call.
    offset: PathBuf,
    rng: Rng,
    /// The latest time of a task of an earlier round.
    floor_us: i64,
    told: String,
}

/// One change of the clock: one offset from the true time, or two in quick turns.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    To(i64),
    Strobe(i64, i64),
}

/// The package's library, below the folder of this machine's architecture.
pub fn library(given: Option<&Path>) -> Option<PathBuf> {
    let packaged = || {
        let folders = std::fs::read_dir("/usr/lib").ok()?;
        folders.filter_map(|folder| Some(folder.ok()?.path().join(LIBRARY))).find(|file| file.exists())
    };
    given
        .map(Path::to_owned)
        .or_else(packaged)
        .and_then(|file| std::path::absolute(file).ok())
        .filter(|file| file.exists())
}

fn schedule(rng: &mut Rng) -> Vec<Step> {
    let offsets = [HOUR_S, -HOUR_S, 5 * DAY_S, -5 * DAY_S, 0];
    let one = |rng: &mut Rng| rng.sample(offsets.to_vec(), 1)[0];
    let mut steps: Vec<Step> = (0..1 + rng.below(STEPS_MAX)).map(|_| Step::To(one(rng))).collect();
    steps.push(Step::Strobe(one(rng), one(rng)));
    // Where the next start finds the clock.
    steps.push(Step::To(one(rng)));
    steps
}

impl Clock {
    pub fn new(folder: &Path, library: PathBuf, seed: u64) -> Self {
        Clock {
            data: folder.join("data"),
            library,
            offset: folder.join("offset"),
            rng: Rng::new(seed, Stream::Fault),
            floor_us: i64::MIN,
            told: String::new(),
        }
    }

    /// Renamed into place: the server may read at any moment.
    fn turn(&self, offset_s: i64) -> Result<()> {
        let fresh = self.offset.with_extension("new");
        std::fs::write(&fresh, format!("{offset_s:+}\n"))?;
        std::fs::rename(&fresh, &self.offset)?;
        Ok(())
    }

    async fn take(&self, step: Step) -> Result<()> {
        match step {
            Step::To(offset_s) => self.turn(offset_s),
            Step::Strobe(one, other) => {
                for _ in 0..STROBES {
                    self.turn(one)?;
                    sleep(STROBE).await;
                    self.turn(other)?;
                    sleep(STROBE).await;
                }
                Ok(())
            }
        }
    }
}

impl Scenario for Clock {
    async fn prepare(&mut self, launch: &mut Launch) -> Result<PathBuf> {
        std::fs::create_dir_all(&self.data)?;
        self.turn(0)?;
        let text = |path: &Path| path.to_str().map(str::to_owned).context("a path that is not UTF-8");
        launch.envs.push(("LD_PRELOAD".into(), text(&self.library)?));
        launch.envs.push(("FAKETIME_TIMESTAMP_FILE".into(), text(&self.offset)?));
        launch.envs.push(("FAKETIME_NO_CACHE".into(), "1".into()));
        launch.envs.push(("FAKETIME_DONT_FAKE_MONOTONIC".into(), "1".into()));
        Ok(self.data.clone())
    }

    fn load_ms_max(&self) -> u64 {
        LOAD_MS_MAX
    }

    /// The client signs by the time of its machine: a server whose clock is an hour away refuses it, as it must.
    fn takes_queues(&self) -> bool {
        false
    }

    async fn strike(&mut self, server: Server, _load: &Load) -> Result<After> {
        let steps = schedule(&mut self.rng);
        self.told = format!("{} steps of the clock", steps.len());
        for step in steps {
            self.take(step).await?;
            sleep(Duration::from_millis(self.rng.below(BETWEEN_MS_MAX))).await;
        }
        let pid = server.pid();
        server.kill().await?;
        // A killed process leaves the library's shared memory behind.
        for name in [format!("faketime_shm_{pid}"), format!("sem.faketime_sem_{pid}")] {
            let _ = std::fs::remove_file(Path::new("/dev/shm").join(name));
        }
        Ok(After::Restart(self.data.clone()))
    }

    fn judge(&mut self, tally: &Tally, created_us: &HashMap<Op, i64>) -> Vec<Violation> {
        let dated = tally.stamps.iter().filter_map(|stamp| {
            let created_us = *created_us.get(&stamp.op)?;
            Some(Dated { op: stamp.op, began: stamp.began, ended: stamp.ended, created_us })
        });
        let dated: Vec<Dated> = dated.collect();
        if dated.len() < tally.stamps.len() {
            let detail = format!("{} of {} tasks bear a time", dated.len(), tally.stamps.len());
            return vec![Violation::new(Invariant::Unserved, detail)];
        }
        let mut violations = stamp::judge_order(&dated, self.floor_us);
        violations.extend(stamp::judge_rate(&dated));
        self.floor_us = dated.iter().map(|item| item.created_us).fold(self.floor_us, i64::max);
        violations
    }

    fn told(&self) -> Option<String> {
        Some(self.told.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_repeat_and_strobe_once() {
        for seed in 0..100 {
            let steps = schedule(&mut Rng::new(seed, Stream::Fault));
            assert!((3..=6).contains(&steps.len()), "{steps:?}");
            assert_eq!(steps.iter().filter(|step| matches!(step, Step::Strobe(..))).count(), 1);
            assert_eq!(steps, schedule(&mut Rng::new(seed, Stream::Fault)));
        }
    }
}
