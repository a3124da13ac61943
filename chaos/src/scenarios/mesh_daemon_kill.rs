//! kill -9 of daemons under the programs that hand messages to them and under those who send to them. What a daemon had
//! answered it sends on after its restart; what it had taken in is in its inbox once.

use std::time::Duration;

use anyhow::Result;
use tokio::time::sleep;

use super::mesh::Fault;
use crate::load::Load;
use crate::mesh::Party;
use crate::mesh::record::Peer;
use crate::rng::{Rng, Stream};
use crate::server::Server;

/// How long a daemon stays away.
const AWAY_MS_MAX: u64 = 200;
/// The load goes on for this long with the daemons back.
const AFTERWARDS: Duration = Duration::from_millis(200);

pub struct DaemonKill {
    rng: Rng,
    told: String,
}

impl DaemonKill {
    pub fn new(seed: u64) -> Self {
        DaemonKill { rng: Rng::new(seed, Stream::Fault), told: String::new() }
    }
}

impl Fault<Party> for DaemonKill {
    /// One of them, or two at once: a sender and the one it sends to.
    async fn strike(&mut self, party: &mut Party, broker: Server, _load: &Load) -> Result<Option<Server>> {
        let count = 1 + self.rng.below(2) as usize;
        let victims = self.rng.sample(Peer::ALL.to_vec(), count);
        for peer in &victims {
            party.take(*peer)?.kill().await?;
        }
        sleep(Duration::from_millis(self.rng.below(AWAY_MS_MAX))).await;
        for peer in &victims {
            party.start(*peer).await?;
        }
        sleep(AFTERWARDS).await;
        let names: Vec<&str> = victims.iter().map(|peer| peer.name()).collect();
        self.told = format!("killed the daemon of {}", names.join(" and "));
        Ok(Some(broker))
    }

    fn told(&self) -> String {
        self.told.clone()
    }
}
