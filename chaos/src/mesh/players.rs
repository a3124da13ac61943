//! Those who send and receive, as the frame of the scenarios knows them.

use std::path::Path;

use anyhow::Result;

use crate::checker::Violation;
use crate::client::Endpoint;
use crate::load::Load;

pub trait Players {
    /// Of the broker.
    const SETTINGS: &'static str;
    const LOAD_MS_MAX: u64;

    /// Called before the first start of the broker.
    fn prepare(&mut self, _program: &Path) -> Result<()> {
        Ok(())
    }

    /// Makes the mesh; the first broker is up.
    async fn open(&mut self, at: &Endpoint) -> Result<()>;

    /// The load of a round.
    fn begin(&mut self, load: &Load) -> Result<()>;

    /// After the fault, with the broker at this address: everything comes to rest, and is judged.
    async fn end(&mut self, at: &Endpoint) -> Result<Vec<Violation>>;

    /// After the last round.
    async fn close(&mut self, _at: &Endpoint) -> Result<Vec<Violation>> {
        Ok(Vec::new())
    }

    fn told(&self) -> String;

    fn summary(&self) -> String;
}
