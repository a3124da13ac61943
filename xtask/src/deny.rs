//! `cargo xtask deny`: everything in the lock file against `deny.toml`. Licences, bans and sources need no network;
//! advisories need their database, and are looked at where it can be reached.

use std::process::Command;

use crate::process::{self, say, succeeds};
use crate::setup;
use crate::workspace::Workspace;

pub fn run(workspace: &Workspace) -> anyhow::Result<()> {
    let tool = setup::cargo_deny(workspace)?;
    let deny = || -> Command { workspace.command(&tool) };
    process::run(deny().args(["check", "--hide-inclusion-graph", "licenses", "bans", "sources"]))?;
    if !succeeds(deny().args(["fetch", "db"])) {
        say("deny: the database of advisories is out of reach, so they are not looked at");
        return Ok(());
    }
    process::run(deny().args(["check", "--disable-fetch", "advisories"]))
}
