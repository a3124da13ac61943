//! A daemon or the broker kills itself at a named point between "handed over" and "its answer stored". Everybody else is of the
//! ordinary build.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use super::mesh::Fault;
use super::points::{Point, Points, killed};
use crate::load::Load;
use crate::mesh::Party;
use crate::mesh::record::Peer;
use crate::server::{Launch, Server};

/// Who comes to the point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Who {
    Daemon(Peer),
    Broker,
}

/// One who sends most.
const SENDER: Who = Who::Daemon(Peer::Alice);
/// One who mostly receives.
const RECEIVER: Who = Who::Daemon(Peer::Carol);

pub const POINTS: &[Point<Who>] = &[
    Point { name: "daemon_accept_committed", way: SENDER, passes: 60 },
    Point { name: "daemon_sent", way: SENDER, passes: 60 },
    Point { name: "daemon_ack_received", way: SENDER, passes: 60 },
    Point { name: "daemon_ack_stored", way: SENDER, passes: 30 },
    Point { name: "daemon_inbox_committed", way: RECEIVER, passes: 30 },
    Point { name: "broker_b0", way: Who::Broker, passes: 100 },
    Point { name: "broker_b3_committed", way: Who::Broker, passes: 100 },
];

/// For the load to come to the point after its own time is over.
const REACH_MAX: Duration = Duration::from_secs(15);

pub struct AtPoints {
    sabotaged: PathBuf,
    points: Points<Who>,
}

impl AtPoints {
    pub fn new(sabotaged: PathBuf, seed: u64) -> Self {
        AtPoints { sabotaged, points: Points::new(POINTS, seed) }
    }
}

impl Fault<Party> for AtPoints {
    async fn begin(&mut self, party: &mut Party, broker: Server, launch: &Launch, data: &Path) -> Result<Server> {
        self.points.turn();
        let trap = self.points.trap();
        match self.points.way() {
            Who::Broker => {
                broker.shut_down().await?;
                let mut trapped = Launch { program: self.sabotaged.clone(), ..launch.clone() };
                trapped.envs.push(trap);
                let broker = Server::start(&trapped, data).await.context("the broker with a trap")?;
                party.line()?.aim(broker.endpoint.addr);
                Ok(broker)
            }
            Who::Daemon(peer) => {
                party.take(peer)?.stop().await?;
                party.start_with(peer, Some(&self.sabotaged), &[trap]).await.context("the daemon with a trap")?;
                Ok(broker)
            }
        }
    }

    fn ends_broker(&self) -> bool {
        self.points.way() == Who::Broker
    }

    async fn strike(&mut self, party: &mut Party, mut broker: Server, _load: &Load) -> Result<Option<Server>> {
        let (ended, left) = match self.points.way() {
            Who::Broker => {
                let ended = broker.await_end(REACH_MAX).await;
                if ended.is_err() {
                    broker.kill().await?;
                }
                (ended, None)
            }
            Who::Daemon(peer) => {
                let mut daemon = party.take(peer)?;
                let ended = daemon.await_end(REACH_MAX).await;
                if ended.is_err() {
                    daemon.kill().await?;
                }
                party.start(peer).await?;
                (ended, Some(broker))
            }
        };
        self.points.note(ended.is_ok_and(killed));
        Ok(left)
    }

    fn told(&self) -> String {
        self.points.told()
    }

    fn finish(&mut self) -> Result<Option<String>> {
        self.points.finish().map(Some)
    }
}
