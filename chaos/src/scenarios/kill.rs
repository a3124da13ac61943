//! kill -9. The kernel keeps what was written, so this proves atomic commits, recovery and idempotency, but nothing about
//! fsync: that is what `power` is for.

use std::path::PathBuf;

use anyhow::Result;

use super::{After, Scenario};
use crate::load::Load;
use crate::server::{Launch, Server};

pub struct Kill {
    pub data: PathBuf,
}

impl Scenario for Kill {
    async fn prepare(&mut self, _launch: &mut Launch) -> Result<PathBuf> {
        std::fs::create_dir_all(&self.data)?;
        Ok(self.data.clone())
    }

    fn takes_mail(&self) -> bool {
        true
    }

    /// Answers that still arrive afterwards are promises too: the server sent them after its commit.
    async fn strike(&mut self, server: Server, _load: &Load) -> Result<After> {
        server.kill().await?;
        Ok(After::Restart(self.data.clone()))
    }
}
