//! Where things are: the repository's root, cargo's target folder, the cache for tools.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use serde_json::Value;

use crate::process::{self, capture};

pub struct Workspace {
    pub root: PathBuf,
    /// As cargo sees it, so that CARGO_TARGET_DIR and config files are obeyed.
    pub target: PathBuf,
    /// `cargo metadata --no-deps`: the members and the dependencies each of them names.
    pub metadata: Value,
}

impl Workspace {
    pub fn find() -> anyhow::Result<Workspace> {
        let text = capture(Command::new(cargo()).args(["metadata", "--no-deps", "--format-version", "1"]))?;
        let metadata: Value = serde_json::from_str(&text).context("cargo metadata printed broken JSON")?;
        let folder = |field: &str| {
            let path = metadata[field].as_str().with_context(|| format!("cargo metadata has no {field}"))?;
            anyhow::Ok(PathBuf::from(path))
        };
        Ok(Workspace { root: folder("workspace_root")?, target: folder("target_directory")?, metadata })
    }

    pub fn cache(&self) -> PathBuf {
        self.root.join(".cache")
    }

    pub fn python(&self) -> PathBuf {
        self.venv("venv").join("bin/python")
    }

    /// A Python with packages of its own.
    pub fn venv(&self, name: &str) -> PathBuf {
        self.cache().join(name)
    }

    /// An npm prefix: `stable` or `next` of the conformance suite, `sqs` of the SDK, those the bench compares with.
    pub fn npm(&self, line: &str) -> PathBuf {
        self.cache().join("npm").join(line)
    }

    pub fn cargo(&self) -> Command {
        self.command(cargo())
    }

    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.root);
        command
    }

    /// Every program in the dev profile. The whole workspace, as the tests are built: a part of it would build its
    /// dependencies once more, with other features.
    pub fn build_programs(&self) -> anyhow::Result<()> {
        process::run(self.cargo().args(["build", "--workspace", "--bins"]))
    }

    pub fn binary(&self, profile: &str, name: &str) -> PathBuf {
        self.target.join(profile).join(name)
    }

    /// The path as a reader of the output wants it.
    pub fn relative<'a>(&self, path: &'a Path) -> &'a Path {
        path.strip_prefix(&self.root).unwrap_or(path)
    }
}

/// The cargo that runs us, so that a toolchain override holds for the children too.
fn cargo() -> std::ffi::OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}
