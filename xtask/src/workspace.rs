//! Where things are: the repository's root, cargo's target folder, the cache for tools.

use std::ffi::OsStr;
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
        let text = capture(start(cargo()).args(["metadata", "--no-deps", "--format-version", "1"]))?;
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

    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = start(program);
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

/// A program that knows nothing of the package xtask. Build scripts, ring's among them, run again when a variable that they
/// look at has changed: with ours in sight, all above them would be built once more after every plain `cargo build`.
fn start(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(is_of_our_package) {
            command.env_remove(name);
        }
    }
    command
}

/// What `cargo run` tells a program about its package. What a user has set for cargo itself stays.
fn is_of_our_package(name: &str) -> bool {
    const NAMES: &[&str] = &["CARGO_CRATE_NAME", "CARGO_PRIMARY_PACKAGE", "CARGO_RUSTC_CURRENT_DIR", "OUT_DIR"];
    const BEGINNINGS: &[&str] = &["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_"];
    NAMES.contains(&name) || BEGINNINGS.iter().any(|beginning| name.starts_with(beginning))
}

/// The cargo that runs us, so that a toolchain override holds for the children too.
fn cargo() -> std::ffi::OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_cargo_says_of_our_package_is_withheld() {
        let withheld = [
            "CARGO_PKG_NAME",
            "CARGO_PKG_VERSION_PRE",
            "CARGO_MANIFEST_DIR",
            "CARGO_MANIFEST_PATH",
            "CARGO_BIN_NAME",
            "CARGO_BIN_EXE_xtask",
            "CARGO_CRATE_NAME",
            "CARGO_PRIMARY_PACKAGE",
            "OUT_DIR",
        ];
        for name in withheld {
            assert!(is_of_our_package(name), "{name}");
        }
        let kept = [
            "CARGO",
            "CARGO_HOME",
            "CARGO_TARGET_DIR",
            "CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_LINKER",
            "CARGO_NET_RETRY",
            "CARGO_BUILD_JOBS",
            "CARGO_INCREMENTAL",
            "CARGO_TERM_COLOR",
            "CARGO_REGISTRIES_CRATES_IO_PROTOCOL",
            "CARGO_REGISTRY_TOKEN",
            "CARGO_PROFILE_DEV_DEBUG",
            "RUSTFLAGS",
            "PATH",
        ];
        for name in kept {
            assert!(!is_of_our_package(name), "{name}");
        }
    }
}
