//! A daemon or the broker kills itself at a named point between "handed over" and "its answer stored", at the N-th pass. Every
//! point is met in its turn, and the run says how often; one that was never met fails it.
//!
//! Only a build with the feature `sabotage` has such points; everybody else is the ordinary one.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::{After, Scenario, configure};
use crate::checker::Violation;
use crate::client::Endpoint;
use crate::journal::Journal;
use crate::load::{Load, Pace, Tally};
use crate::mesh::record::Peer;
use crate::mesh::{self, Party};
use crate::rng::{Rng, Stream};
use crate::server::{Launch, Server};

/// Who comes to the point.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Who {
    /// One who sends most.
    Sender,
    /// One who mostly receives.
    Receiver,
    Broker,
}

pub struct Point {
    name: &'static str,
    who: Who,
    /// The pass is chosen from 1 to this.
    passes: u64,
}

pub const POINTS: &[Point] = &[
    Point { name: "daemon_accept_committed", who: Who::Sender, passes: 60 },
    Point { name: "daemon_sent", who: Who::Sender, passes: 60 },
    Point { name: "daemon_ack_received", who: Who::Sender, passes: 60 },
    Point { name: "daemon_ack_stored", who: Who::Sender, passes: 30 },
    Point { name: "daemon_inbox_committed", who: Who::Receiver, passes: 30 },
    Point { name: "broker_b0", who: Who::Broker, passes: 100 },
    Point { name: "broker_b3_committed", who: Who::Broker, passes: 100 },
];

const KILL_AT: &str = "WAYBILL_KILL_AT";
const SIGKILL: i32 = 9;
/// For the load to come to the point after its own time is over.
const REACH_MAX: Duration = Duration::from_secs(15);

pub struct MeshPoints {
    folder: PathBuf,
    sabotaged: PathBuf,
    party: Party,
    rng: Rng,
    next: usize,
    pass: u64,
    met: Vec<u32>,
    told: String,
}

impl MeshPoints {
    pub fn new(folder: PathBuf, sabotaged: PathBuf, seed: u64) -> Self {
        let party = Party::new(folder.clone(), seed);
        let (rng, met) = (Rng::new(seed, Stream::Fault), vec![0; POINTS.len()]);
        MeshPoints { folder, sabotaged, party, rng, next: 0, pass: 0, met, told: String::new() }
    }

    fn point(&self) -> &'static Point {
        &POINTS[self.next % POINTS.len()]
    }

    fn trap(&self) -> (String, String) {
        (KILL_AT.to_owned(), format!("{}:{}", self.point().name, self.pass))
    }

    /// Only the point itself ends a process by this signal.
    fn note(&mut self, met: bool) {
        let how = if met { "killed" } else { "not reached, killed from outside" };
        self.told = format!("{how} at pass {} of {}", self.pass, self.point().name);
        self.met[self.next % POINTS.len()] += u32::from(met);
        self.next += 1;
    }
}

fn peer(who: Who) -> Option<Peer> {
    match who {
        Who::Sender => Some(Peer::Alice),
        Who::Receiver => Some(Peer::Carol),
        Who::Broker => None,
    }
}

fn killed(status: ExitStatus) -> bool {
    status.signal() == Some(SIGKILL)
}

impl Scenario for MeshPoints {
    async fn prepare(&mut self, launch: &mut Launch) -> Result<PathBuf> {
        self.party.prepare(&launch.program)?;
        configure(&self.folder, mesh::SETTINGS, launch)
    }

    async fn open(&mut self, at: &Endpoint) -> Result<()> {
        self.party.open(at).await
    }

    fn load_ms_max(&self) -> u64 {
        mesh::LOAD_MS_MAX
    }

    fn pace(&self, _connections: u32) -> Pace {
        mesh::PACE
    }

    /// The machine is busy enough with the daemons.
    fn takes_queues(&self) -> bool {
        false
    }

    fn join(&mut self, _server: &Server, load: &Load) -> Result<()> {
        self.party.begin(load)
    }

    async fn begin(&mut self, server: Server, launch: &Launch, data: &Path) -> Result<Option<Server>> {
        self.pass = 1 + self.rng.below(self.point().passes);
        let Some(peer) = peer(self.point().who) else {
            server.shut_down().await?;
            let mut trapped = Launch { program: self.sabotaged.clone(), ..launch.clone() };
            trapped.envs.push(self.trap());
            let server = Server::start(&trapped, data).await.context("the broker with a trap")?;
            self.party.aim(server.endpoint.addr)?;
            return Ok(Some(server));
        };
        self.party.take(peer)?.stop().await?;
        let (program, trap) = (self.sabotaged.clone(), self.trap());
        self.party.start_with(peer, Some(&program), &[trap]).await.context("the daemon with a trap")?;
        Ok(Some(server))
    }

    fn ends_by_itself(&self) -> bool {
        self.point().who == Who::Broker
    }

    async fn strike(&mut self, mut server: Server, _load: &Load) -> Result<After> {
        let Some(peer) = peer(self.point().who) else {
            let ended = server.await_end(REACH_MAX).await;
            let met = ended.as_ref().is_ok_and(|status| killed(*status));
            if ended.is_err() {
                server.kill().await?;
            }
            self.note(met);
            return Ok(After::Restart(self.folder.join("data")));
        };
        let mut daemon = self.party.take(peer)?;
        let ended = daemon.await_end(REACH_MAX).await;
        let met = ended.as_ref().is_ok_and(|status| killed(*status));
        if ended.is_err() {
            daemon.kill().await?;
        }
        self.party.start(peer).await?;
        self.note(met);
        Ok(After::Serving(Box::new(server)))
    }

    async fn account(&mut self, _tally: &Tally, at: &Endpoint, _journal: &Journal) -> Result<Vec<Violation>> {
        self.party.end(at).await
    }

    async fn close(&mut self, at: &Endpoint, _journal: &Journal) -> Result<Vec<Violation>> {
        self.party.close(at).await
    }

    fn told(&self) -> Option<String> {
        Some(format!("{}; {}", self.told, self.party.told()))
    }

    fn finish(&mut self) -> Result<Option<String>> {
        let lines = POINTS.iter().zip(&self.met).map(|(point, met)| format!("{} {met}", point.name));
        let lines = lines.collect::<Vec<_>>().join(", ");
        let missed: Vec<&str> =
            POINTS.iter().zip(&self.met).filter(|(_, met)| **met == 0).map(|(it, _)| it.name).collect();
        if !missed.is_empty() && self.next >= POINTS.len() {
            bail!("never met: {} (met: {lines})", missed.join(", "));
        }
        let all = if missed.is_empty() { "every point was met" } else { "too few rounds for every point" };
        Ok(Some(format!("{all}: {lines}; {}", self.party.summary())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_that_was_never_met_fails_the_run() {
        let mut scenario = MeshPoints::new("x".into(), "y".into(), 1);
        for _ in 1..POINTS.len() {
            scenario.note(true);
        }
        assert!(scenario.finish().unwrap().unwrap().starts_with("too few rounds"));
        scenario.note(false);
        assert!(scenario.finish().unwrap_err().to_string().starts_with("never met: broker_b3_committed"));
    }
}
