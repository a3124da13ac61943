//! `waybill guard install` and `uninstall`

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;
use waybill_checkout::Hooks;
use waybill_checkout::hooks::{self, Hook as Placed, Removed};
use waybill_kernel::{Code, Error, Result};

use super::git::{Git, unusable};
use super::{Hook, Repository};
use crate::output;

#[derive(Args)]
pub struct Install {
    #[command(flatten)]
    repository: Repository,
    /// Guard pushes as well as commits.
    #[arg(long)]
    pre_push: bool,
    /// The project to ask about, by its absolute path or slug [default: that of the working tree, or of the one that it was
    /// made from].
    #[arg(long, env = "WAYBILL_PROJECT", value_name = "PATH")]
    project: Option<String>,
    /// Install into the folder that `core.hooksPath` names, which other repositories may share.
    #[arg(long)]
    shared_hooks: bool,
    /// Print JSON instead of text.
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub struct Uninstall {
    #[command(flatten)]
    repository: Repository,
    /// Take it out of the folder that `core.hooksPath` names.
    #[arg(long)]
    shared_hooks: bool,
    /// Print JSON instead of text.
    #[arg(long)]
    json: bool,
}

pub fn install(flags: &Install) -> Result<()> {
    let git = Git::at(flags.repository.repo.as_deref());
    let folder = folder(&git, flags.shared_hooks)?;
    // Only one that is named is written down: linked working trees share their hooks, and what is committed in each is asked
    // about by where it stands.
    let project = flags.project.as_deref();
    let program = std::env::current_exe().map_err(|error| unusable(Path::new("waybill"), error))?;
    let hooks = if flags.pre_push { &Hook::ALL[..] } else { &[Hook::PreCommit] };
    fs::create_dir_all(&folder).map_err(|error| unusable(&folder, error))?;
    let mut installed = Vec::new();
    let hooks_folder = opened(&folder)?;
    for hook in hooks {
        let hook = Placed::from(*hook);
        hooks::put(&hooks_folder, hook, &hooks::text(hook, text_of(&program)?, project))?;
        installed.push(folder.join(hook.name()).display().to_string());
    }
    let paths: Vec<String> = installed;
    if flags.json {
        return output::json(&json!({ "installed": paths, "project": project }));
    }
    output::line(&format!("Installed {}.", paths.join(" and ")))?;
    output::note("It knows you by AGENT_NAME; `git commit --no-verify` or AGENT_MAIL_BYPASS=1 passes it by.")
}

pub fn uninstall(flags: &Uninstall) -> Result<()> {
    let git = Git::at(flags.repository.repo.as_deref());
    let folder = folder(&git, flags.shared_hooks)?;
    let (mut removed, mut restored) = (Vec::new(), Vec::new());
    if let Ok(hooks_folder) = opened(&folder) {
        for hook in Hook::ALL.map(Placed::from) {
            let list = match hooks::remove(&hooks_folder, hook)? {
                Some(Removed::Gone) => &mut removed,
                Some(Removed::Restored) => &mut restored,
                None => continue,
            };
            list.push(folder.join(hook.name()).display().to_string());
        }
    }
    if flags.json {
        return output::json(&json!({ "removed": removed, "restored": restored }));
    }
    let told = |what: &str, paths: &[String]| match paths {
        [] => Ok(()),
        paths => output::line(&format!("{what} {}.", paths.join(" and "))),
    };
    if removed.is_empty() && restored.is_empty() {
        return output::note("There is no guard here.");
    }
    told("Removed", &removed)?;
    told("Restored", &restored)
}

/// Where hooks go. A folder set by `core.hooksPath` is often one for every repository of a machine: it is left alone unless it is
/// meant, and without it git does not look into the repository's own.
fn folder(git: &Git, shared: bool) -> Result<PathBuf> {
    match (git.set_hooks()?, shared) {
        (Some(set), true) => Ok(set),
        (Some(set), false) => {
            let message = format!("core.hooksPath is set, so git runs the hooks in {}.", set.display());
            let cure = "Say --shared-hooks to use that folder, or unset core.hooksPath for this repository.";
            Err(Error::new(Code::ConfigInvalid, message).with_cure(cure))
        }
        (None, _) => git.own_hooks(),
    }
}

fn opened(folder: &Path) -> Result<Hooks> {
    Hooks::at(folder).map_err(|error| Error::new(Code::PathUnusable, format!("{error}.")))
}

fn text_of(path: &Path) -> Result<&str> {
    let unreadable = || Error::new(Code::PathUnusable, format!("{} is not UTF-8.", path.display()));
    path.to_str().ok_or_else(unreadable)
}
