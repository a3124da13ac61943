//! SIGSTOP and SIGCONT: the server stands still for a while and wakes up in the middle of whatever it was doing. No promise
//! may suffer, and the process must serve on.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use tokio::time::sleep;

use super::{After, Scenario};
use crate::load::Load;
use crate::rng::{Rng, Stream};
use crate::server::{Launch, Server};

const PAUSES_MAX: u64 = 4;
const STOPPED_MS_MIN: u64 = 100;
const STOPPED_MS_MAX: u64 = 2_000;
/// All pauses of a round together, so that a round stays short.
const STOPPED_MS_SUM: u64 = 2_500;
/// Between two pauses the load goes on for up to this long.
const AWAKE_MS_MAX: u64 = 250;

pub struct Pause {
    data: PathBuf,
    rng: Rng,
    told: String,
}

/// One pause, and the time awake after it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stop {
    pub stopped_ms: u64,
    pub awake_ms: u64,
}

impl Pause {
    pub fn new(data: PathBuf, seed: u64) -> Self {
        Pause { data, rng: Rng::new(seed, Stream::Fault), told: String::new() }
    }
}

/// Two to four pauses; the later ones take what the budget of the round has left.
pub(super) fn schedule(rng: &mut Rng) -> Vec<Stop> {
    let pauses = 2 + rng.below(PAUSES_MAX - 1);
    let mut left_ms = STOPPED_MS_SUM;
    let mut stops = Vec::new();
    for later in (0..pauses).rev() {
        let longest = STOPPED_MS_MAX.min(left_ms - later * STOPPED_MS_MIN);
        let stopped_ms = STOPPED_MS_MIN + rng.below(longest - STOPPED_MS_MIN + 1);
        left_ms -= stopped_ms;
        stops.push(Stop { stopped_ms, awake_ms: rng.below(AWAKE_MS_MAX) });
    }
    stops
}

impl Scenario for Pause {
    async fn prepare(&mut self, _launch: &mut Launch) -> Result<PathBuf> {
        std::fs::create_dir_all(&self.data)?;
        Ok(self.data.clone())
    }

    async fn strike(&mut self, mut server: Server, _load: &Load) -> Result<After> {
        let stops = schedule(&mut self.rng);
        let lengths: Vec<String> = stops.iter().map(|stop| stop.stopped_ms.to_string()).collect();
        self.told = format!("stopped for {} ms", lengths.join(", "));
        for Stop { stopped_ms, awake_ms } in stops {
            // One that has ended cannot be stopped; the campaign says so in its own words.
            if server.ended()?.is_some() {
                break;
            }
            if let Err(error) = server.pause().await {
                // One that died of it is a finding, and the campaign's to tell.
                if server.ended()?.is_some() {
                    break;
                }
                return Err(error);
            }
            sleep(Duration::from_millis(stopped_ms)).await;
            if server.ended()?.is_some() {
                break;
            }
            server.resume().await?;
            sleep(Duration::from_millis(awake_ms)).await;
        }
        Ok(After::Serving(Box::new(server)))
    }

    fn told(&self) -> Option<String> {
        Some(self.told.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_keep_their_bounds_and_repeat() {
        for seed in 0..500 {
            let stops = schedule(&mut Rng::new(seed, Stream::Fault));
            assert!((2..=4).contains(&stops.len()), "{stops:?}");
            assert!(stops.iter().all(|stop| (100..=2_000).contains(&stop.stopped_ms)), "{stops:?}");
            assert!(stops.iter().map(|stop| stop.stopped_ms).sum::<u64>() <= STOPPED_MS_SUM, "{stops:?}");
            let again = schedule(&mut Rng::new(seed, Stream::Fault));
            assert_eq!(format!("{stops:?}"), format!("{again:?}"));
        }
    }
}
