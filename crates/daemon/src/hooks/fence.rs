//! What keeps a hook from the network and from writing files: namespaces, made by util-linux's `unshare`.
//!
//! # The outside system
//! `unshare` runs a program in namespaces of its own. A user without privileges may make them only inside a user namespace, which
//! some systems forbid; so each kind of fence is tried once, with a program that does nothing, and what fails is not tried again.
//! In a network namespace there is nothing but a loopback that is down. In a mount namespace every mount can be made read-only for
//! the program alone.
//!
//! # What we do
//! What cannot be enforced is counted and noted with the run, and the hook runs without it: a fence is for the user's own hooks,
//! and one that silently did not run would be worse than one that could reach the network.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use waybill_keeper::{Exit, Program, Start};

use super::settings::{FsPolicy, Hook, NetworkPolicy, Sandbox};

const UNSHARE: &str = "/usr/bin/unshare";
const TRIAL_MAX: Duration = Duration::from_secs(10);
/// Makes every mount read-only and becomes the hook. A mount that cannot be made so ends it, and with that the trial.
const READ_ONLY: &str = r#"set -e
while read -r _ _ _ _ at options _; do
  mount -o "remount,bind,$options,ro" "$(printf %b "$at")"
done < /proc/self/mountinfo
exec "$@""#;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Fence {
    pub no_network: bool,
    pub read_only: bool,
    pub own_processes: bool,
}

impl Fence {
    /// What an entry asks for, and whether a part of it is beyond us anyway.
    pub fn wanted(hook: &Hook) -> (Self, bool) {
        let strict = hook.sandbox == Sandbox::Strict;
        let lists = hook.network_policy == NetworkPolicy::Allowlist && !hook.network_allowlist.is_empty();
        let fence = Self {
            // A list with nothing on it is no network at all.
            no_network: strict || (hook.network_policy != NetworkPolicy::Allow && !lists),
            read_only: strict || hook.fs_policy == FsPolicy::ReadOnly,
            own_processes: strict,
        };
        (fence, lists && !strict)
    }

    fn is_none(self) -> bool {
        self == Self::default()
    }

    /// The program to start, and its arguments.
    fn around(self, hook: &Path) -> (PathBuf, Vec<OsString>) {
        if self.is_none() {
            return (hook.to_owned(), Vec::new());
        }
        let mut args: Vec<OsString> = vec!["--user".into()];
        // Mounting needs to be root in the namespace; reading files as oneself does not.
        args.push(if self.read_only { "--map-root-user" } else { "--map-current-user" }.into());
        if self.no_network {
            args.push("--net".into());
        }
        if self.own_processes {
            args.extend(["--pid", "--fork", "--kill-child", "--ipc", "--uts"].map(OsString::from));
        }
        if self.read_only {
            args.extend(["--mount", "--", "/bin/sh", "-c", READ_ONLY, "hook"].map(OsString::from));
        } else {
            args.push("--".into());
        }
        args.push(hook.into());
        (UNSHARE.into(), args)
    }
}

/// Which fences this system lets us make.
pub struct Fences {
    own: PathBuf,
    tried: Mutex<HashMap<Fence, bool>>,
}

/// How a hook is started.
pub struct Fenced {
    pub program: PathBuf,
    pub args: Vec<OsString>,
    /// False when something that was asked for is not enforced.
    pub enforced: bool,
}

impl Fences {
    pub fn new(own: PathBuf) -> Self {
        Self { own, tried: Mutex::default() }
    }

    pub async fn around(&self, hook: &Hook, program: &Path) -> Fenced {
        let (wanted, beyond) = Fence::wanted(hook);
        // What can be had is had, even where all of it cannot.
        let without_mounts = Fence { read_only: false, own_processes: false, ..wanted };
        for fence in [wanted, without_mounts] {
            if self.works(fence).await {
                let (program, args) = fence.around(program);
                return Fenced { program, args, enforced: fence == wanted && !beyond };
            }
        }
        Fenced { program: program.to_owned(), args: Vec::new(), enforced: false }
    }

    async fn works(&self, fence: Fence) -> bool {
        if fence.is_none() {
            return true;
        }
        let known = self.tried.lock().unwrap_or_else(PoisonError::into_inner).get(&fence).copied();
        if let Some(known) = known {
            return known;
        }
        let works = self.try_out(fence).await;
        if !works {
            tracing::warn!(?fence, "this system does not let the daemon make the fence that a hook asks for");
        }
        self.tried.lock().unwrap_or_else(PoisonError::into_inner).insert(fence, works);
        works
    }

    async fn try_out(&self, fence: Fence) -> bool {
        let (program, args) = fence.around(Path::new("/bin/true"));
        let environment = [("PATH".into(), "/usr/sbin:/usr/bin:/sbin:/bin".into())];
        let (own, folder) = (self.own.as_path(), Some(Path::new("/")));
        let start =
            Start { own, program: &program, args: &args, environment: &environment, folder, output_bytes_max: 1_024 };
        let Ok(mut program) = Program::start(&start) else { return false };
        match tokio::time::timeout(TRIAL_MAX, program.finish(b"")).await {
            Ok(Exit::Known(status)) => status.success(),
            Ok(_) => false,
            Err(_) => {
                program.end().await;
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_say_which_fence() {
        let of = |text: &str| Fence::wanted(&toml::from_str(text).unwrap());
        let none = Fence::default();
        assert_eq!(of(""), (none, false));
        assert_eq!(of("network_policy = \"deny\""), (Fence { no_network: true, ..none }, false));
        assert_eq!(of("network_policy = \"allowlist\""), (Fence { no_network: true, ..none }, false));
        assert_eq!(of("network_policy = \"allowlist\"\nnetwork_allowlist = [\"a:1\"]"), (none, true));
        assert_eq!(of("fs_policy = \"read_only\""), (Fence { read_only: true, ..none }, false));
        let all = Fence { no_network: true, read_only: true, own_processes: true };
        assert_eq!(of("sandbox = \"strict\""), (all, false));
    }

    #[test]
    fn the_hook_is_the_last_argument_and_never_part_of_a_script() {
        let hook = Path::new("/h/on-dm; rm -rf x");
        assert_eq!(Fence::default().around(hook), (hook.to_owned(), Vec::new()));
        let all = Fence { no_network: true, read_only: true, own_processes: true };
        for fence in [all, Fence { no_network: true, ..Fence::default() }] {
            let (program, args) = fence.around(hook);
            assert_eq!(program, Path::new(UNSHARE));
            assert_eq!(args.last().unwrap(), hook.as_os_str());
            assert!(args.contains(&"--net".into()), "{args:?}");
            assert_eq!(args.iter().filter(|arg| arg.to_string_lossy().contains("rm -rf")).count(), 1);
        }
    }
}
