//! The scene of the mail: two agents want one file, settle it by mail, and git has what was said.

use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;

use tokio::process::Command;
use tokio::time::{Instant, sleep};
use waybill_kernel::{Error, Result};

use super::stage::Stage;
use super::terminal::Terminal;
use crate::output::{cell, line};

/// Only a name here: the server does not look into it.
const PROJECT: &str = "/work/shop";
const LAST_WORDS: &str = "Done, go ahead.";
/// Until the archive has followed; it writes what comes together in one commit.
const ARCHIVE_WAIT: Duration = Duration::from_secs(15);
const POLL: Duration = Duration::from_millis(100);

pub async fn play(stage: &mut Stage) -> Result<()> {
    let castle = agent(stage, "GreenCastle");
    let lake = agent(stage, "BlueLake");
    line("\n1. Two coding agents work in one repository, and register under names of their own.")?;
    castle.types(&["mail", "register", "--task", "API of the invoices"]).await?;
    lake.types(&["mail", "register", "--task", "tests"]).await?;

    line("\n2. GreenCastle says what it is working on. BlueLake wants one of these files.")?;
    castle.types(&["mail", "reserve", "src/api/*.rs", "--reason", "invoices"]).await?;
    lake.types_in_vain(&["mail", "reserve", "src/api/invoice.rs"]).await?;

    line("\n3. So it asks. Who may write to whom is for each agent to say.")?;
    castle.types(&["mail", "policy", "open"]).await?;
    let subject = ["--subject", "src/api/invoice.rs", "--thread", "FEAT-7"];
    lake.types(&[&["mail", "send", "--to", "GreenCastle"], &subject[..], &["Will you be long?"]].concat()).await?;
    castle.types(&["mail", "inbox", "--unread"]).await?;

    line("\n4. GreenCastle answers, and lets go.")?;
    let inbox = castle.asks(&["mail", "inbox", "--unread"]).await?;
    castle.types(&["mail", "reply", &inbox["result"][0]["id"].to_string(), LAST_WORDS]).await?;
    castle.types(&["mail", "release"]).await?;
    lake.types(&["mail", "reserve", "src/api/invoice.rs"]).await?;

    line("\n5. What they have said is in the database, and for people to read in a git repository.")?;
    lake.types(&["mail", "thread", "FEAT-7"]).await?;
    log(&stage.data().join("mail-archive/default/work-shop/archive.git")).await
}

fn agent(stage: &Stage, name: &'static str) -> Terminal {
    Terminal::new(stage, name).with("AGENT_NAME", name).with("WAYBILL_PROJECT", PROJECT)
}

/// The archive's commits, where there is a git to show them.
async fn log(repository: &Path) -> Result<()> {
    let deadline = Instant::now() + ARCHIVE_WAIT;
    loop {
        let Some(found) = git(repository, &["grep", "-q", LAST_WORDS, "HEAD"]).await? else { return Ok(()) };
        if found.status.success() || Instant::now() > deadline {
            break;
        }
        sleep(POLL).await;
    }
    let Some(output) = git(repository, &["log", "--format=%s"]).await? else { return Ok(()) };
    line("   $ git log --format=%s")?;
    let commits = String::from_utf8_lossy(&output.stdout);
    commits.lines().try_for_each(|subject| line(&format!("      {}", cell(&subject.into()))))
}

/// None where there is no such program.
async fn git(repository: &Path, words: &[&str]) -> Result<Option<Output>> {
    let mut git = Command::new("git");
    git.arg("--git-dir").arg(repository).args(words);
    git.stdin(Stdio::null()).process_group(0).kill_on_drop(true);
    match git.output().await {
        Ok(output) => Ok(Some(output)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::internal(error)),
    }
}
