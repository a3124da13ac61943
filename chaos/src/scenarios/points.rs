//! Named points of the code at which a process kills itself, at the N-th pass. Every point is met in its turn, and the run says
//! how often; one that was never met fails it.
//!
//! Only a build with the feature `sabotage` has such points.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use anyhow::{Result, bail};

use crate::rng::{Rng, Stream};

const KILL_AT: &str = "WAYBILL_KILL_AT";
const SIGKILL: i32 = 9;

pub struct Point<W> {
    pub name: &'static str,
    /// How it is come to.
    pub way: W,
    /// The pass is chosen from 1 to this.
    pub passes: u64,
}

pub struct Points<W: 'static> {
    all: &'static [Point<W>],
    rng: Rng,
    /// Rounds that were begun.
    turns: usize,
    pass: u64,
    met: Vec<u32>,
    told: String,
}

impl<W: Copy + 'static> Points<W> {
    pub fn new(all: &'static [Point<W>], seed: u64) -> Self {
        Points {
            all,
            rng: Rng::new(seed, Stream::Fault),
            turns: 0,
            pass: 0,
            met: vec![0; all.len()],
            told: String::new(),
        }
    }

    /// The turn of the next one.
    pub fn turn(&mut self) {
        self.turns += 1;
        self.pass = 1 + self.rng.below(self.point().passes);
    }

    fn index(&self) -> usize {
        self.turns.saturating_sub(1) % self.all.len()
    }

    fn point(&self) -> &'static Point<W> {
        &self.all[self.index()]
    }

    pub fn name(&self) -> &'static str {
        self.point().name
    }

    pub fn way(&self) -> W {
        self.point().way
    }

    /// For the environment of the process that is to come to the point.
    pub fn trap(&self) -> (String, String) {
        (KILL_AT.to_owned(), format!("{}:{}", self.name(), self.pass))
    }

    /// Whether the point was met in its turn.
    pub fn note(&mut self, met: bool) {
        let how = if met { "killed" } else { "not reached, killed from outside" };
        self.told = format!("{how} at pass {} of {}", self.pass, self.name());
        let index = self.index();
        self.met[index] += u32::from(met);
    }

    pub fn told(&self) -> String {
        self.told.clone()
    }

    pub fn finish(&self) -> Result<String> {
        let each = || self.all.iter().map(|point| point.name).zip(self.met.iter().copied());
        let lines: Vec<String> = each().map(|(name, met)| format!("{name} {met}")).collect();
        let lines = lines.join(", ");
        let missed: Vec<&str> = each().filter(|(_, met)| *met == 0).map(|(name, _)| name).collect();
        if !missed.is_empty() && self.turns >= self.all.len() {
            bail!("never met: {} (met: {lines})", missed.join(", "));
        }
        let all = if missed.is_empty() { "every point was met" } else { "too few rounds for every point" };
        Ok(format!("{all}: {lines}"))
    }
}

/// Only the point itself ends a process by this signal.
pub fn killed(status: ExitStatus) -> bool {
    status.signal() == Some(SIGKILL)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: &[Point<()>] = &[
        Point { name: "first", way: (), passes: 1 },
        Point { name: "second", way: (), passes: 60 },
        Point { name: "third", way: (), passes: 4 },
    ];

    #[test]
    fn a_point_that_was_never_met_fails_the_run() {
        let mut points = Points::new(ALL, 1);
        let mut play = |met| {
            points.turn();
            points.note(met);
            points.finish().map_err(|error| error.to_string())
        };
        assert!(play(true).unwrap().starts_with("too few rounds"));
        assert!(play(true).unwrap().starts_with("too few rounds"));
        assert!(play(false).unwrap_err().starts_with("never met: third (met: first 1, second 1, third 0)"));
        assert!(play(true).is_err() && play(true).is_err());
        assert!(play(true).unwrap().starts_with("every point was met: first 2, second 2, third 1"));
    }

    #[test]
    fn a_pass_is_within_the_bound_of_its_point() {
        let mut points = Points::new(ALL, 7);
        for turn in 0..60 {
            points.turn();
            let (name, bound) = (ALL[turn % 3].name, ALL[turn % 3].passes);
            let (_, trap) = points.trap();
            let (at, pass) = trap.split_once(':').unwrap();
            assert!(at == name && (1..=bound).contains(&pass.parse::<u64>().unwrap()), "{trap}");
        }
    }
}
