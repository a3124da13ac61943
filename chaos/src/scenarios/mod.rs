//! The faults, by name. A scenario owns the data folder and knows how to take the server away from it; load, restart and
//! checks are the same for all and live in `campaign`.

pub mod kill;
pub mod power;

use std::path::PathBuf;

use anyhow::Result;

use crate::load::Load;
use crate::server::Server;

pub struct About {
    pub name: &'static str,
    pub rounds: u32,
    pub what: &'static str,
}

pub const ALL: [About; 2] = [
    About { name: "kill", rounds: 50, what: "SIGKILL at a random moment under load, restart on the same folder" },
    About { name: "power", rounds: 10, what: "power cut: drops what was not fsynced (loop-mounted ext4, needs root)" },
];

pub trait Scenario {
    /// Makes the data folder's place; called once, before the first start.
    async fn prepare(&mut self) -> Result<PathBuf>;

    /// Ends the server in the scenario's manner, under load. Answers where the data is for the next start.
    async fn strike(&mut self, server: Server, load: &Load) -> Result<PathBuf>;
}
