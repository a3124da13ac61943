//! The scene of the mesh: accepted while nobody else is there, and delivered once when everybody is.

use std::time::Duration;

use tokio::time::{sleep, timeout};
use waybill_kernel::{Code, Error, Result};

use super::stage::Stage;
use super::terminal::Terminal;
use crate::output::line;

/// Messages to Bob, each counted once.
const SENT: usize = 3;
const POLL: Duration = Duration::from_millis(100);
/// For a daemon that has just been started, and for messages to arrive.
const STEP_WAIT: Duration = Duration::from_secs(60);

pub async fn play(stage: &mut Stage) -> Result<()> {
    let alice = Terminal::new(stage, "alice").with("WAYBILL_HOME", stage.home("alice")?);
    let bob = Terminal::new(stage, "bob").with("WAYBILL_HOME", stage.home("bob")?);
    line("\n1. Alice makes a mesh, starts a daemon beside her programs, and invites Bob, whose host has none yet.")?;
    alice.types(&["mesh", "create", "team", "--name", "alice"]).await?;
    let mut daemon = stage.daemon(&alice, "team").await?;
    until("the daemon to be connected", || is_connected(&alice)).await?;
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
    until("the messages to arrive", || has_all(&bob)).await?;
    bob.types(&["inbox"]).await?;
    line("   Each once, in their order. The server has passed on ciphertext: only Bob's keys open it.")?;
    for daemon in &mut daemons {
        daemon.end().await;
    }
    Ok(())
}

async fn is_connected(member: &Terminal) -> Result<bool> {
    Ok(member.asks(&["daemon", "status"]).await?["connected"] == true)
}

async fn has_all(member: &Terminal) -> Result<bool> {
    let inbox = member.asks(&["inbox"]).await?;
    Ok(inbox["messages"].as_array().is_some_and(|messages| messages.len() == SENT))
}

async fn until<L: Future<Output = Result<bool>>>(what: &str, look: impl Fn() -> L) -> Result<()> {
    let looking = async {
        while !look().await? {
            sleep(POLL).await;
        }
        Ok(())
    };
    let late = || Error::new(Code::Unavailable, format!("The demo has waited in vain for {what}."));
    timeout(STEP_WAIT, looking).await.map_err(|_| late())?
}
