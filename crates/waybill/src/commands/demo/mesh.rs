//! The scene of the mesh: accepted while nobody else is there, and delivered once when everybody is.

use waybill_kernel::{Error, Result};

use super::stage::{Stage, until};
use super::terminal::Terminal;
use crate::output::line;

/// Messages to Bob, each counted once.
const SENT: usize = 3;

pub async fn play(stage: &mut Stage) -> Result<()> {
    let alice = Terminal::new(stage, "alice").with("WAYBILL_HOME", stage.home("alice")?);
    let bob = Terminal::new(stage, "bob").with("WAYBILL_HOME", stage.home("bob")?);
    line("\n1. Alice makes a mesh, starts a daemon beside her programs, and invites Bob, whose host has none yet.")?;
    alice.types(&["mesh", "create", "team", "--name", "alice"]).await?;
    let mut daemon = stage.daemon(&alice, "team").await?;
    until("the daemon to be connected", async || is_connected(&alice).await).await?;
    alice.shows(&["mesh", "invite", "team"])?;
    let invite = alice.asks(&["mesh", "invite", "team"]).await?;
    let invite = invite["invite"].as_str().ok_or_else(|| Error::internal("the server gave no invite"))?;
    // An invite lets in whoever has it, and what is shown may be copied.
    bob.shows(&["mesh", "join", "wbi_…", "--name", "bob"])?;
    bob.asks(&["mesh", "join", invite, "--name", "bob"]).await?;
    alice.types(&["send", "bob", "welcome"]).await?;

    line("\n2. Bob has no daemon, and the server is killed (kill -9). Alice's programs write all the same.")?;
    let pid = stage.crash().await;
    line(&format!("   Process {pid} is gone."))?;
    alice.types(&["send", "bob", "main is green", "--id", "build-7"]).await?;
    alice.types(&["send", "bob", "and released", "--id", "release-7"]).await?;
    line("   A script that was not sure sends again: under the same id it is the same message.")?;
    alice.types(&["send", "bob", "main is green", "--id", "build-7"]).await?;

    line("\n3. Her daemon is killed as well. What it has answered for is on its disk.")?;
    let pid = daemon.pid();
    daemon.kill().await;
    line(&format!("   Process {pid} is gone."))?;

    line("\n4. Everything is started again, and Bob's daemon for the first time.")?;
    stage.restart().await?;
    let mut daemons = [stage.daemon(&alice, "team").await?, stage.daemon(&bob, "team").await?];
    until("the messages to arrive", async || has_all(&bob).await).await?;
    bob.types(&["inbox"]).await?;
    line("   Each once, in their order. The server has passed on ciphertext: only Bob's keys open it.")?;
    for daemon in &mut daemons {
        daemon.end().await;
    }
    Ok(())
}

async fn is_connected(member: &Terminal) -> Result<Option<()>> {
    Ok((member.asks(&["daemon", "status"]).await?["connected"] == true).then_some(()))
}

async fn has_all(member: &Terminal) -> Result<Option<()>> {
    let inbox = member.asks(&["inbox"]).await?;
    Ok(inbox["messages"].as_array().filter(|messages| messages.len() == SENT).map(|_| ()))
}
