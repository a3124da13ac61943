//! `waybill demo`: short scenes with the real program, on a server of their own in a temporary folder.

mod mail;
mod mesh;
mod queues;
mod sqs;
mod stage;
mod tasks;
mod terminal;
mod tree;

use clap::{Args, Subcommand};
use waybill_kernel::Result;

use self::stage::Stage;
use crate::commands::worker::connect::Stop;
use crate::output::{line, note};

#[derive(Args)]
pub struct Demo {
    /// [default: all of them, one after the other]
    #[command(subcommand)]
    scene: Option<Scene>,
}

#[derive(Clone, Copy, Subcommand)]
pub enum Scene {
    /// A task is handed over, its worker dies, another one finishes it, and the receipts tell the story.
    Tasks,
    /// Messages of a FIFO queue outlive the server, keep the order of their groups, and are there once.
    Queues,
    /// Two hosts write to each other while the server and a daemon are killed.
    Mesh,
    /// Two coding agents want the same file, talk about it, and git has it all.
    Mail,
}

const ALL: [Scene; 4] = [Scene::Tasks, Scene::Queues, Scene::Mesh, Scene::Mail];

impl Scene {
    const fn title(self) -> &'static str {
        match self {
            Self::Tasks => "Tasks: work that is handed over, and the proof of it",
            Self::Queues => "Queues: the API of SQS",
            Self::Mesh => "Mesh: messages between hosts",
            Self::Mail => "Mail: coding agents in one repository",
        }
    }

    async fn play(self, stage: &mut Stage) -> Result<()> {
        match self {
            Self::Tasks => tasks::play(stage).await,
            Self::Queues => queues::play(stage).await,
            Self::Mesh => mesh::play(stage).await,
            Self::Mail => mail::play(stage).await,
        }
    }
}

pub async fn run(demo: Demo) -> Result<()> {
    let stop = Stop::on_signals()?;
    line("A private server, in a folder that is gone when this is over …")?;
    let mut stage = tokio::select! {
        stage = Stage::build() => stage?,
        () = stop.stopping.cancelled() => return interrupted(),
    };
    let played = tokio::select! {
        played = play(demo.scene, &mut stage) => played,
        () = stop.stopping.cancelled() => interrupted(),
    };
    let cleared = stage.clear().await;
    played?;
    cleared
}

async fn play(scene: Option<Scene>, stage: &mut Stage) -> Result<()> {
    match scene {
        Some(scene) => scene.play(stage).await?,
        None => {
            for scene in ALL {
                line(&format!("\n── {} ──", scene.title()))?;
                scene.play(stage).await?;
            }
        }
    }
    line("\nYour turn: `waybill serve` starts a server, and says what to paste next.")
}

fn interrupted() -> Result<()> {
    note("Stopped. Nothing is left behind.")
}
