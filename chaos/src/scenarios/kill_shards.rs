//! kill -9 of a server that has several stores: the partitions of FIFO queues are in home and in two further SQLite files, each
//! with its own writer and log. A purge is of all of them or of none, whichever of them it had come to.

use std::path::PathBuf;

use anyhow::Result;

use super::{After, Scenario, configure};
use crate::load::Load;
use crate::queues::{Choice, PARTITIONS};
use crate::server::{Launch, Server};

/// Where each partition is.
const PLACES: [&str; PARTITIONS] = ["home", "a", "b", "a"];
const STORES: &str = "[shards]\na = \"sqlite:a.db\"\nb = \"sqlite:b.db\"\n";
/// Rounds that were interrupted have used up their numbers.
const SPARE_ROUNDS: u32 = 64;

pub struct KillShards {
    folder: PathBuf,
    data: PathBuf,
    rounds: u32,
    /// A run that is continued has queues of its own, and the map names those.
    queues: Choice,
}

impl KillShards {
    pub fn new(folder: PathBuf, rounds: u32) -> Self {
        let data = folder.join("data");
        KillShards { folder, data, rounds, queues: Choice { purges_fifo: true, ..Choice::default() } }
    }

    fn settings(&self) -> String {
        let queues = self.queues.partitioned(self.rounds + SPARE_ROUNDS);
        let entries: Vec<String> =
            queues.iter().map(|queue| format!("\"{queue}:{PARTITIONS}={}\"", PLACES.join(","))).collect();
        format!("{STORES}\n[sqs]\nfifo_partition_map = [{}]\n", entries.join(", "))
    }
}

impl Scenario for KillShards {
    async fn prepare(&mut self, launch: &mut Launch) -> Result<PathBuf> {
        self.data = configure(&self.folder, &self.settings(), launch)?;
        Ok(self.data.clone())
    }

    fn queues(&self) -> Choice {
        self.queues.clone()
    }

    async fn strike(&mut self, server: Server, _load: &Load) -> Result<After> {
        server.kill().await?;
        Ok(After::Restart(self.data.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_map_places_every_queue_of_the_run_over_all_stores() {
        let shards = KillShards::new(PathBuf::from("/nowhere"), 30);
        let (settings, queues) = (shards.settings(), shards.queues().partitioned(30));
        assert_eq!(queues.len(), 31);
        for queue in queues {
            assert!(settings.contains(&format!("\"{queue}:4=home,a,b,a\"")), "{queue}");
        }
    }
}
