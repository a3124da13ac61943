//! Who the daemon is: a member whose keys are in the folder, or one that ends with the process.

use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use waybill_kernel::{Code, Error, Result};
use waybill_mesh_protocol::{Identity, MemberId, MemberKeys, MeshId};

use crate::folder::{self, Folder};

/// Any of these says that a CI system runs the process. `CI` counts when it is `true`, the others when they are set.
const CI: &[&str] = &["GITHUB_ACTIONS", "GITLAB_CI", "BUILDKITE", "CIRCLECI", "JENKINS_URL"];
const KUBERNETES: &str = "KUBERNETES_SERVICE_HOST";
const DOCKER: &str = "/.dockerenv";

/// The membership that a join has made: membership.json.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Membership {
    /// Where the broker is, as `http://host:port` or `https://…`.
    pub server: String,
    pub mesh: MeshId,
    pub slug: String,
    pub member: MemberId,
    pub name: String,
    /// As the invite has pinned them.
    pub owner: MemberKeys,
    pub plaintext: bool,
}

impl Membership {
    pub fn load(folder: &Folder) -> Result<Option<Self>> {
        let Some(text) = folder.read_text(folder::MEMBERSHIP)? else { return Ok(None) };
        let read = serde_json::from_str(&text);
        read.map(Some).map_err(|error| unreadable(folder, folder::MEMBERSHIP, &error.to_string()))
    }

    pub fn save(&self, folder: &Folder) -> Result<()> {
        let text = serde_json::to_string_pretty(self).map_err(Error::internal)?;
        folder.write(folder::MEMBERSHIP, text.as_bytes())
    }
}

pub fn load_identity(folder: &Folder) -> Result<Option<Identity>> {
    let Some(text) = folder.read_text(folder::KEYPAIR)? else { return Ok(None) };
    let read = Identity::from_json(&text);
    read.map(Some).map_err(|error| unreadable(folder, folder::KEYPAIR, error.message()))
}

pub fn save_identity(folder: &Folder, identity: &Identity) -> Result<()> {
    folder.write(folder::KEYPAIR, identity.to_json()?.as_bytes())
}

fn unreadable(folder: &Folder, name: &str, why: &str) -> Error {
    let message = format!("{} cannot be read: {why}", folder.file(name).display());
    Error::new(Code::DataFolderUnusable, message)
        .with_cure("Restore it with `waybill daemon restore`, or join the mesh again.")
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Persistent,
    /// Keys in memory alone. The member is removed when the daemon stops, or when its time is over.
    Ephemeral {
        ttl: Option<Duration>,
    },
}

/// What the user has asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wishes {
    pub ephemeral: bool,
    pub persistent: bool,
    pub ttl: Option<Duration>,
    pub container: bool,
    /// Explicitly on or off.
    pub tcp: Option<bool>,
    pub hooks: Option<bool>,
}

/// What the environment says about where the process runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Surroundings {
    pub ci: bool,
    pub kubernetes: bool,
    pub docker: bool,
}

impl Surroundings {
    pub fn read() -> Self {
        Self::of(|name| std::env::var(name).ok(), Path::new(DOCKER).exists())
    }

    fn of(variable: impl Fn(&str) -> Option<String>, docker: bool) -> Self {
        let is_set = |name: &str| variable(name).is_some_and(|value| !value.is_empty());
        let ci = variable("CI").is_some_and(|value| value.eq_ignore_ascii_case("true"))
            || CI.iter().any(|name| is_set(name));
        Self { ci, kubernetes: is_set(KUBERNETES), docker }
    }
}

/// How the daemon runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stance {
    pub mode: Mode,
    pub tcp: bool,
    pub hooks: bool,
    /// A key that outlives a CI job is on a machine that others will use.
    pub persistent_in_ci: bool,
}

/// # Errors
/// `invalid_request` for wishes that exclude each other.
pub fn decide(wishes: Wishes, around: Surroundings) -> Result<Stance> {
    if wishes.ephemeral && wishes.persistent {
        return Err(Error::invalid("A daemon is either --ephemeral or --persistent."));
    }
    let is_hosted = around.ci || around.kubernetes;
    let ephemeral = wishes.ephemeral || (is_hosted && !wishes.persistent);
    if wishes.ttl.is_some() && !ephemeral {
        return Err(Error::invalid("--ttl is for daemons that are --ephemeral."));
    }
    let in_container = wishes.container || around.docker || around.kubernetes;
    Ok(Stance {
        mode: if ephemeral { Mode::Ephemeral { ttl: wishes.ttl } } else { Mode::Persistent },
        // What listens in a container is reachable from wherever its network is.
        tcp: wishes.tcp.unwrap_or(!in_container),
        hooks: wishes.hooks.unwrap_or(!is_hosted),
        persistent_in_ci: !ephemeral && is_hosted,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_tells_ci_and_containers() {
        let around = |name: &'static str, value: &'static str| {
            Surroundings::of(move |asked| (asked == name).then(|| value.to_owned()), false)
        };
        for (name, value, ci) in [
            ("CI", "true", true),
            ("CI", "false", false),
            ("CI", "", false),
            ("GITHUB_ACTIONS", "1", true),
            ("GITLAB_CI", "yes", true),
            ("BUILDKITE", "x", true),
            ("CIRCLECI", "x", true),
            ("JENKINS_URL", "http://x", true),
            ("JENKINS_URL", "", false),
            ("HOME", "x", false),
        ] {
            assert_eq!(around(name, value), Surroundings { ci, ..Surroundings::default() }, "{name}={value}");
        }
        assert!(around(KUBERNETES, "10.0.0.1").kubernetes);
        assert!(Surroundings::of(|_| None, true).docker);
    }

    #[test]
    fn how_it_runs_where() {
        let (home, ci) = (Surroundings::default(), Surroundings { ci: true, ..Surroundings::default() });
        let kubernetes = Surroundings { kubernetes: true, ..Surroundings::default() };
        let docker = Surroundings { docker: true, ..Surroundings::default() };
        let none = Wishes::default();
        let persistent = Wishes { persistent: true, ..none };
        let stance = |mode, tcp, hooks, persistent_in_ci| Stance { mode, tcp, hooks, persistent_in_ci };
        let brief = Mode::Ephemeral { ttl: None };
        for (wishes, around, expected) in [
            (none, home, stance(Mode::Persistent, true, true, false)),
            (none, ci, stance(brief, true, false, false)),
            (none, kubernetes, stance(brief, false, false, false)),
            (none, docker, stance(Mode::Persistent, false, true, false)),
            (Wishes { container: true, ..none }, home, stance(Mode::Persistent, false, true, false)),
            (Wishes { tcp: Some(true), hooks: Some(true), ..none }, kubernetes, stance(brief, true, true, false)),
            (persistent, ci, stance(Mode::Persistent, true, false, true)),
            (persistent, kubernetes, stance(Mode::Persistent, false, false, true)),
            (Wishes { ephemeral: true, ..none }, home, stance(brief, true, true, false)),
        ] {
            assert_eq!(decide(wishes, around).unwrap(), expected, "{wishes:?} {around:?}");
        }
        let ttl = Some(Duration::from_secs(7_200));
        let timed = decide(Wishes { ttl, ephemeral: true, ..none }, home).unwrap();
        assert_eq!(timed.mode, Mode::Ephemeral { ttl });
        for wrong in [Wishes { ttl, ..none }, Wishes { ephemeral: true, ..persistent }] {
            assert_eq!(decide(wrong, home).unwrap_err().code(), Code::InvalidRequest, "{wrong:?}");
        }
    }
}
