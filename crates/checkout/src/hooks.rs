//! git's hooks: a file of three lines that asks the guard, and the hook that was there before, which is kept and run first.

use waybill_archive::repo::reading::{FileType, Folder};
use waybill_kernel::{Code, Error, Result};

use crate::gitdir::GitDir;
use crate::{Checkout, unusable};

/// In every file of ours, and in no other.
const MARK: &str = "# made by `waybill guard install`";
/// After the name of a hook: the one that was there before.
const KEPT: &str = "orig";
const CONFIG: &str = "config";
/// What a working tree has besides, where the repository's own configuration allows it.
const CONFIG_OF_TREE: &str = "config.worktree";
/// Bytes of a configuration: each branch that follows another adds some hundred.
const CONFIG_MAX: u64 = 1 << 20;

/// Before what git asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    PreCommit,
    PrePush,
}

impl Hook {
    pub const ALL: [Hook; 2] = [Hook::PreCommit, Hook::PrePush];

    /// As git calls the file.
    pub const fn name(self) -> &'static str {
        match self {
            Hook::PreCommit => "pre-commit",
            Hook::PrePush => "pre-push",
        }
    }
}

/// What became of a hook that was ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removed {
    Gone,
    /// The one that was there before is back.
    Restored,
}

/// Three lines. Without the program the hook that was there still runs, and nothing else is in the way.
pub fn text(hook: Hook, program: &str, project: Option<&str>) -> String {
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
pub fn put(folder: &Folder, hook: Hook, text: &str) -> Result<()> {
    let (name, kept) = (hook.name(), kept(hook));
    let there = folder.read(name).map_err(unusable)?;
    if there.as_deref() == Some(text.as_bytes()) {
        return Ok(());
    }
    if folder.look(name).map_err(unusable)?.is_some() && !there.as_deref().is_some_and(is_ours) {
        if folder.look(&kept).map_err(unusable)?.is_some() {
            let at = folder.path().display();
            let message = format!("{name} and {kept} are both in {at}, and neither is the guard's.");
            return Err(Error::new(Code::AlreadyExists, message).with_cure("Join them into one, or move one away."));
        }
        folder.rename(name, &kept).map_err(unusable)?;
    }
    folder.put_program(name, text.as_bytes()).map_err(unusable)
}

/// None where there was none of ours.
pub fn remove(folder: &Folder, hook: Hook) -> Result<Option<Removed>> {
    let (name, kept) = (hook.name(), kept(hook));
    let there = folder.read(name).map_err(unusable)?;
    if !there.as_deref().is_some_and(is_ours) {
        return Ok(None);
    }
    if folder.look(&kept).map_err(unusable)?.is_some() {
        // The one rename puts the old hook back and takes ours away.
        folder.rename(&kept, name).map_err(unusable)?;
        return Ok(Some(Removed::Restored));
    }
    folder.remove(name).map_err(unusable)?;
    Ok(Some(Removed::Gone))
}

fn kept(hook: Hook) -> String {
    format!("{}.{KEPT}", hook.name())
}

fn is_ours(text: &[u8]) -> bool {
    text.windows(MARK.len()).any(|part| part == MARK.as_bytes())
}

/// Where the repository of a working tree has its hooks. One that sends git elsewhere is refused: what it names may be shared by
/// all repositories of the machine, and only git can tell what its configuration comes to.
pub fn folder(checkout: &Checkout) -> Result<Folder> {
    let none = || Error::invalid("There is no repository of git there, or it lies elsewhere.").with_cure(BY_HAND);
    let git = GitDir::of(checkout)?.ok_or_else(none)?;
    let says_where = |folder: &Folder, name: &str| -> Result<bool> {
        let config = folder.read_up_to(name, CONFIG_MAX).map_err(|error| unusable(error).with_cure(BY_HAND))?;
        let config = String::from_utf8_lossy(&config.unwrap_or_default()).to_ascii_lowercase();
        Ok(config.contains("hookspath") || config.contains("[include"))
    };
    if says_where(git.common(), CONFIG)? || says_where(git.own(), CONFIG_OF_TREE)? {
        let message = "The configuration of the repository says where its hooks are, or includes another that may.";
        return Err(Error::invalid(message).with_cure(BY_HAND));
    }
    match git.common().look("hooks").map_err(unusable)? {
        None => git.common().enter("hooks").map_err(unusable),
        Some(seen) if seen.kind == FileType::Directory => checkout.closed.find(git.common(), "hooks")?.ok_or_else(none),
        Some(_) => {
            let message = "The folder of hooks of the repository is a link.";
            Err(Error::invalid(message).with_cure(BY_HAND))
        }
    }
}

/// What always works, since git itself is asked and the caller's own rights decide.
pub const BY_HAND: &str = "Run `waybill guard install` (or `uninstall`) in the repository.";

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::Roots;

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
    fn rule_21_the_own_hook_is_kept_once_and_comes_back() {
        let temp = tempfile::tempdir().unwrap();
        let folder = Folder::at(temp.path()).unwrap();
        let (path, orig) = (temp.path().join("pre-commit"), temp.path().join("pre-commit.orig"));
        let mine = "#!/bin/sh\necho mine\n";
        fs::write(&path, mine).unwrap();
        let ours = text(Hook::PreCommit, "/bin/waybill", None);
        for _ in 0..3 {
            put(&folder, Hook::PreCommit, &ours).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), ours);
            assert_eq!(fs::read_to_string(&orig).unwrap(), mine);
        }
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o755);
        // Another version of the guard takes the place of the one before, and keeps no copy of it.
        put(&folder, Hook::PreCommit, &text(Hook::PreCommit, "/bin/other", None)).unwrap();
        assert_eq!(fs::read_to_string(&orig).unwrap(), mine);
        assert_eq!(remove(&folder, Hook::PreCommit).unwrap(), Some(Removed::Restored));
        assert_eq!((fs::read_to_string(&path).unwrap().as_str(), orig.exists()), (mine, false));
        assert_eq!(remove(&folder, Hook::PreCommit).unwrap(), None);
        // Somebody has put a hook of their own over ours: which of the two is meant nobody can say.
        put(&folder, Hook::PreCommit, &ours).unwrap();
        fs::write(&path, "#!/bin/sh\necho new\n").unwrap();
        assert_eq!(put(&folder, Hook::PreCommit, &ours).unwrap_err().code(), Code::AlreadyExists);
        assert_eq!(fs::read_to_string(&path).unwrap(), "#!/bin/sh\necho new\n");
        assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 2, "no temporary file is left");
    }

    #[test]
    fn a_repository_that_sends_git_elsewhere_is_left_alone() {
        let temp = tempfile::tempdir().unwrap();
        let tree = temp.path().join("tree");
        fs::create_dir_all(tree.join(".git")).unwrap();
        let roots = Roots { open: vec![temp.path().to_owned()], ..Roots::default() };
        let checkout = Checkout::open(&roots, &tree).unwrap().unwrap();
        assert_eq!(folder(&checkout).unwrap().path().file_name().unwrap(), "hooks");
        fs::write(tree.join(".git/config"), "[core]\n\thooksPath = /etc/hooks\n").unwrap();
        let refused = folder(&checkout).unwrap_err();
        assert_eq!(refused.code(), Code::InvalidRequest);
        assert!(refused.cure().contains("waybill guard install"));
        // One with many branches says nothing of hooks, and one that is of the working tree alone does.
        let branch = |nth: u32| format!("[branch \"b{nth}\"]\n\tremote = origin\n\tmerge = refs/heads/b{nth}\n");
        fs::write(tree.join(".git/config"), (0..500).map(branch).collect::<String>()).unwrap();
        assert!(folder(&checkout).is_ok());
        fs::write(tree.join(".git/config.worktree"), "[core]\n\thooksPath = .husky\n").unwrap();
        assert_eq!(folder(&checkout).unwrap_err().code(), Code::InvalidRequest);
        fs::remove_file(tree.join(".git/config.worktree")).unwrap();
        fs::remove_file(tree.join(".git/config")).unwrap();
        fs::remove_dir(tree.join(".git/hooks")).unwrap();
        std::os::unix::fs::symlink(temp.path(), tree.join(".git/hooks")).unwrap();
        assert_eq!(folder(&checkout).unwrap_err().code(), Code::InvalidRequest);
    }

    #[test]
    fn a_repository_that_leads_to_what_is_closed_gets_no_hooks() {
        let temp = tempfile::tempdir().unwrap();
        let (tree, data) = (temp.path().join("tree"), temp.path().join("data"));
        fs::create_dir_all(data.join("worktree")).unwrap();
        fs::create_dir_all(&tree).unwrap();
        let roots = Roots { open: vec![temp.path().to_owned()], closed: vec![data.clone()] };
        let checkout = Checkout::open(&roots, &tree).unwrap().unwrap();
        for at in ["../data", "../data/worktree"] {
            fs::write(tree.join(".git"), format!("gitdir: {at}\n")).unwrap();
            assert_eq!(folder(&checkout).unwrap_err().code(), Code::Forbidden, "{at}");
        }
        // By way of a folder of git that is somewhere else.
        let linked = temp.path().join("linked");
        fs::create_dir_all(&linked).unwrap();
        fs::write(linked.join("commondir"), "../data\n").unwrap();
        fs::write(tree.join(".git"), "gitdir: ../linked\n").unwrap();
        assert_eq!(folder(&checkout).unwrap_err().code(), Code::Forbidden);
        assert!(!data.join("hooks").exists());
    }
}
