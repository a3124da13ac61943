//! `cargo xtask setup`: what the tests need and cargo does not bring. Everything is named and pinned here or in
//! a `requirements` file below `tests/`; a stamp beside each installation makes the second run a matter of milliseconds.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use crate::process::{self, on_path, result, say, succeeds};
use crate::workspace::Workspace;

/// Node is installed beside the suite because it needs 22 and distributions ship older ones.
const NPM: &[(&str, &[&str])] = &[
    ("stable", &["node@22", "@modelcontextprotocol/conformance@0.1.16"]),
    ("next", &["@modelcontextprotocol/conformance@0.2.0-alpha.12"]),
    (SQS_NPM, &["@aws-sdk/client-sqs@3.1164.0"]),
];
pub const SQS_NPM: &str = "sqs";

/// Pythons, each with the file that names what is in it. An SDK from before SQS had JSON needs one of its own.
const PYTHON: &[(&str, &str)] = &[
    ("venv", "tests/python/requirements.txt"),
    (SQS_QUERY_VENV, "tests/sqs/requirements-query.txt"),
    (SQS_CLIENTS_VENV, "tests/sqs/requirements-clients.txt"),
];
pub const SQS_QUERY_VENV: &str = "venv-sqs-query";
pub const SQS_CLIENTS_VENV: &str = "venv-sqs-clients";

/// What the bench compares with. Only `cargo xtask bench` needs them.
pub const GRAPHILE: Compared = Compared { name: "graphile", packages: &["node@22", "graphile-worker@0.18.0"] };
pub const FAUXQS: Compared = Compared { name: "fauxqs", packages: &["node@22", "fauxqs@2.4.1"] };
/// A jar of 2013, which a Java on the path runs.
pub const ELASTICMQ: Compared = Compared { name: "elasticmq", packages: &["elasticmq@0.7.1"] };

/// By whose name npm's prefix goes, and the flag of the bench.
pub struct Compared {
    pub name: &'static str,
    packages: &'static [&'static str],
}

/// Built here once: no distribution has one that reads our `deny.toml`. Unoptimised, which takes half the time to build
/// and a second more to run.
const CARGO_DENY: &str = "0.20.2";
/// Where the machine has none.
const CARGO_NEXTEST: &str = "0.9.143";

/// Written last, with what was installed: a half-done or outdated installation is done again.
const STAMP: &str = ".waybill-stamp";

pub fn run(workspace: &Workspace) -> anyhow::Result<()> {
    system_packages()?;
    for (venv, requirements) in PYTHON {
        python_packages(workspace, venv, requirements)?;
    }
    for (line, packages) in NPM {
        npm_packages(&workspace.npm(line), packages)?;
    }
    result("setup: ready");
    Ok(())
}

/// Installs somebody to compare with; the folder it is in.
pub fn compared(workspace: &Workspace, compared: &Compared) -> anyhow::Result<PathBuf> {
    let prefix = workspace.npm(compared.name);
    npm_packages(&prefix, compared.packages)?;
    Ok(prefix)
}

/// Installs cargo-deny; where it is.
pub fn cargo_deny(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    cargo_tool(workspace, "cargo-deny", CARGO_DENY)
}

/// Installs cargo-nextest, unless the machine has one; where it is.
pub fn cargo_nextest(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    if on_path("cargo-nextest") {
        return Ok("cargo-nextest".into());
    }
    cargo_tool(workspace, "cargo-nextest", CARGO_NEXTEST)
}

fn cargo_tool(workspace: &Workspace, name: &str, version: &str) -> anyhow::Result<PathBuf> {
    let root = workspace.cache().join(name);
    once(&root, version, || {
        let mut cargo = workspace.cargo();
        cargo.args(["install", name, "--locked", "--debug", "--quiet", "--version", version, "--root"]);
        process::run_over_network(cargo.arg(&root))
    })?;
    Ok(root.join("bin").join(name))
}

fn system_packages() -> anyhow::Result<()> {
    let present = [
        ("postgresql", postgres_bin().is_some()),
        ("strace", on_path("strace")),
        ("faketime", on_path("faketime")),
        ("e2fsprogs", on_path("mkfs.ext4") || Path::new("/usr/sbin/mkfs.ext4").is_file()),
        ("python3-venv", succeeds(Command::new("python3").args(["-c", "import ensurepip, venv"]))),
        ("npm", on_path("npm")),
        ("redis-server", on_path("redis-server")),
    ];
    let missing: Vec<&str> = present.iter().filter(|(_, there)| !there).map(|(package, _)| *package).collect();
    if missing.is_empty() {
        return Ok(());
    }
    if !on_path("apt-get") || !is_root() {
        bail!("missing system packages: {}; install them, or run this as root where apt-get works", missing.join(" "));
    }
    process::run_over_network(Command::new("apt-get").args(["update", "-qq"]))?;
    let mut install = Command::new("apt-get");
    install.env("DEBIAN_FRONTEND", "noninteractive").args(["install", "-y", "-qq", "--no-install-recommends"]);
    // Another installation may be under way on the machine.
    install.args(["-o", "DPkg::Lock::Timeout=300"]);
    process::run_over_network(install.args(&missing))
}

fn python_packages(workspace: &Workspace, venv: &str, requirements: &str) -> anyhow::Result<()> {
    let requirements = workspace.root.join(requirements);
    let wanted =
        std::fs::read_to_string(&requirements).with_context(|| format!("cannot read {}", requirements.display()))?;
    let venv = workspace.venv(venv);
    once(&venv, &wanted, || {
        process::run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&venv))?;
        let mut pip = Command::new(venv.join("bin/python"));
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"]).arg(&requirements);
        process::run_over_network(&mut pip)
    })
}

fn npm_packages(prefix: &Path, packages: &[&str]) -> anyhow::Result<()> {
    once(prefix, &packages.join("\n"), || {
        std::fs::create_dir_all(prefix)?;
        let mut npm = Command::new("npm");
        npm.args(["install", "--no-audit", "--no-fund", "--loglevel=error", "--save-exact", "--prefix"]);
        process::run_over_network(npm.arg(prefix).args(packages))
    })
}

/// Runs `install` unless the stamp in `folder` says that exactly this was installed before.
fn once(folder: &Path, wanted: &str, install: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<()> {
    let stamp = folder.join(STAMP);
    if std::fs::read_to_string(&stamp).is_ok_and(|found| found == wanted) {
        return Ok(());
    }
    say(&format!("setup: filling {}", folder.display()));
    if folder.exists() {
        std::fs::remove_dir_all(folder).with_context(|| format!("cannot clear {}", folder.display()))?;
    }
    install()?;
    std::fs::write(&stamp, wanted).with_context(|| format!("cannot write {}", stamp.display()))
}

/// The folder of PostgreSQL's server programs, which distributions keep off the path.
pub fn postgres_bin() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    versions.flatten().map(|version| version.path().join("bin")).filter(|bin| bin.join("pg_ctl").is_file()).max()
}

pub fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0)
}
