//! `waybill demo`: short scenes with the real program, on a server of their own in a temporary folder.

pub mod stage;
pub mod tasks;
pub mod tree;

use clap::Subcommand;
use waybill_kernel::Result;

#[derive(Subcommand)]
pub enum Demo {
    /// A task is handed over, its worker dies, another one finishes it, and the receipts tell the story.
    Tasks,
}

pub async fn run(command: Demo) -> Result<()> {
    match command {
        Demo::Tasks => tasks::run().await,
    }
}
