//! `cargo xtask snapshots`: the snapshot tests of `crates/waybill` (their names contain `snapshot`), told to write
//! what they find instead of comparing. A changed snapshot is a decision about a public surface: read the diff.

use crate::process::{self, say};
use crate::workspace::Workspace;

pub const UPDATE: &str = "WAYBILL_UPDATE_SNAPSHOTS";

pub fn run(workspace: &Workspace) -> anyhow::Result<()> {
    process::run(workspace.cargo().env(UPDATE, "1").args(["test", "--workspace", "--test", "it", "snapshot"]))?;
    say("snapshots written; review them with `git diff`");
    Ok(())
}
