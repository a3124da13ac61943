//! `waybill guard install` and `uninstall`

use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;
use waybill_kernel::{Code, Error, Result};

use super::git::{Git, unusable};
use super::{Hook, Repository};
use crate::output;

/// In every file of ours, and in no other.
const MARK: &str = "# made by `waybill guard install`";
/// After the name of a hook: the one that was there before.
const KEPT: &str = "orig";

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
    for hook in hooks {
        let text = text(*hook, text_of(&program)?, project);
        installed.push(put(&folder.join(hook.name()), &text)?);
    }
    let paths: Vec<String> = installed.iter().map(|path| path.display().to_string()).collect();
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
    for path in Hook::ALL.map(|hook| folder.join(hook.name())) {
        if !is_ours(&path)? {
            continue;
        }
        let kept = kept(&path);
        // The one rename puts the old hook back and takes ours away.
        let done = if kept.exists() { fs::rename(&kept, &path) } else { fs::remove_file(&path) };
        let was_kept = done.map(|()| path.exists()).map_err(|error| unusable(&path, error))?;
        let list = if was_kept { &mut restored } else { &mut removed };
        list.push(path.display().to_string());
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

/// Three lines. Without the program the hook that was there still runs, and nothing else is in the way.
fn text(hook: Hook, program: &str, project: Option<&str>) -> String {
    let (program, name) = (quoted(program), hook.name());
    let project = project.map(|project| format!(" --project {}", quoted(project))).unwrap_or_default();
    format!(
        "#!/bin/sh\n\
         [ -x {program} ] || {{ [ ! -x \"$0.{KEPT}\" ] || exec \"$0.{KEPT}\" \"$@\"; exit 0; }} {MARK}\n\
         exec {program} guard check --hook {name}{project} --own \"$0.{KEPT}\" -- \"$@\"\n"
    )
}

/// As one word of a shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Writes our file in the place of the one that is there, which is kept beside it unless it is ours.
fn put(path: &Path, text: &str) -> Result<PathBuf> {
    let kept = kept(path);
    let write = || -> std::io::Result<()> {
        if fs::read(path).is_ok_and(|there| there == text.as_bytes()) {
            return Ok(());
        }
        let part = path.with_extension("waybill-part");
        let mut file = fs::File::create(&part)?;
        file.write_all(text.as_bytes())?;
        file.set_permissions(fs::Permissions::from_mode(0o755))?;
        file.sync_all()?;
        fs::rename(&part, path)
    };
    if path.symlink_metadata().is_ok() && !is_ours(path)? {
        if kept.symlink_metadata().is_ok() {
            let message =
                format!("{} and {} are both there, and neither is the guard's.", path.display(), kept.display());
            let cure = "Join them into one, or move one away.";
            return Err(Error::new(Code::AlreadyExists, message).with_cure(cure));
        }
        fs::rename(path, &kept).map_err(|error| unusable(path, error))?;
    }
    write().map_err(|error| unusable(path, error))?;
    Ok(path.to_owned())
}

fn kept(path: &Path) -> PathBuf {
    path.with_extension(KEPT)
}

fn is_ours(path: &Path) -> Result<bool> {
    match fs::read(path) {
        Ok(text) => Ok(text.windows(MARK.len()).any(|part| part == MARK.as_bytes())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(unusable(path, error)),
    }
}

fn text_of(path: &Path) -> Result<&str> {
    let unreadable = || Error::new(Code::PathUnusable, format!("{} is not UTF-8.", path.display()));
    path.to_str().ok_or_else(unreadable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hook_is_three_lines_that_a_shell_reads_as_they_are_meant() {
        let text = text(Hook::PrePush, "/opt/it's here/waybill", Some("/data/a b"));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[1].contains(MARK));
        let expected = r#"exec '/opt/it'\''s here/waybill' guard check --hook pre-push --project '/data/a b' --own "$0.orig" -- "$@""#;
        assert_eq!(lines[2], expected);
    }

    #[test]
    fn r21_the_own_hook_is_kept_once_and_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pre-commit");
        fs::write(&path, "#!/bin/sh\necho mine\n").unwrap();
        let ours = text(Hook::PreCommit, "/bin/waybill", None);
        for _ in 0..3 {
            put(&path, &ours).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), ours);
            assert_eq!(fs::read_to_string(kept(&path)).unwrap(), "#!/bin/sh\necho mine\n");
        }
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o755);
        // Another version of the guard takes the place of the one before, and keeps no copy of it.
        put(&path, &text(Hook::PreCommit, "/bin/other", None)).unwrap();
        assert_eq!(fs::read_to_string(kept(&path)).unwrap(), "#!/bin/sh\necho mine\n");
        // Somebody has put a hook of their own over ours: which of the two is meant nobody can say.
        fs::write(&path, "#!/bin/sh\necho new\n").unwrap();
        assert_eq!(put(&path, &ours).unwrap_err().code(), Code::AlreadyExists);
        assert_eq!(fs::read_to_string(&path).unwrap(), "#!/bin/sh\necho new\n");
    }
}
