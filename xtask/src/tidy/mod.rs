//! `cargo xtask tidy`: the repository's test of itself. Its rules are the architecture: which crate may name which,
//! how long a file may grow, which words mean that something was left undone. No normal build may carry a planted bug.

mod edges;
pub mod features;
mod sources;

use anyhow::bail;

use crate::process::{result, say};
use crate::workspace::Workspace;

pub fn run(workspace: &Workspace) -> anyhow::Result<()> {
    let findings = check(workspace)?;
    for finding in &findings {
        say(&format!("tidy: {finding}"));
    }
    if !findings.is_empty() {
        bail!("{} findings", findings.len());
    }
    result("tidy: clean");
    Ok(())
}

/// Every finding, one sentence each; empty when the repository keeps its rules.
pub fn check(workspace: &Workspace) -> anyhow::Result<Vec<String>> {
    let mut findings = edges::check(&workspace.metadata);
    findings.extend(features::check(&workspace.metadata));
    findings.extend(sources::check(workspace)?);
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_repository_is_tidy() {
        let workspace = Workspace::find().unwrap();
        let findings = check(&workspace).unwrap();
        assert!(findings.is_empty(), "{}", findings.join("\n"));
    }
}
