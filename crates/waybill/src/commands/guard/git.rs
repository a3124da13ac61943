//! What the guard asks of git, each by one run of the program.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use waybill_kernel::{Code, Error, Result};

/// Commits of one push that are looked at, the newest first.
const COMMITS_MAX: &str = "10000";

/// Whatever `diff.ignoreSubmodules` says: another commit of a submodule is a change of its path.
const SUBMODULES_TOO: &str = "--ignore-submodules=none";

/// What git calls no commit, by either of its digests.
fn is_nothing(id: &str) -> bool {
    !id.is_empty() && id.bytes().all(|byte| byte == b'0')
}

pub struct Git {
    folder: PathBuf,
}

impl Git {
    /// A folder in a repository, not looked at yet.
    pub fn at(folder: Option<&Path>) -> Self {
        Self { folder: folder.map_or_else(|| PathBuf::from("."), Path::to_owned) }
    }

    /// The root of the working tree, without links.
    pub fn root(&self) -> Result<PathBuf> {
        let root = PathBuf::from(self.line(&["rev-parse", "--show-toplevel"])?);
        root.canonicalize().map_err(|error| unusable(&root, error))
    }

    /// What the project may be called: by this working tree, or by the one that it was made from.
    pub fn projects(&self) -> Result<Vec<String>> {
        let (root, common) = (self.root()?, PathBuf::from(self.line(&["rev-parse", "--git-common-dir"])?));
        let common = self.folder.join(common).canonicalize().ok();
        let first = common.as_deref().and_then(Path::parent).map(Path::to_owned);
        let mut roots = vec![root];
        roots.extend(first.filter(|first| *first != roots[0]));
        Ok(roots.into_iter().filter_map(|root| root.into_os_string().into_string().ok()).collect())
    }

    /// Where this repository has its hooks, whatever `core.hooksPath` says of it.
    pub fn own_hooks(&self) -> Result<PathBuf> {
        let common = PathBuf::from(self.line(&["rev-parse", "--git-common-dir"])?);
        Ok(self.folder.join(common).join("hooks"))
    }

    /// The folder of hooks that somebody has set instead.
    pub fn set_hooks(&self) -> Result<Option<PathBuf>> {
        // Told by exit code 1 that it is not set.
        let set = self.run(&["config", "--path", "--get", "core.hooksPath"]).unwrap_or_default();
        let set = set.trim_end_matches('\n');
        if set.is_empty() {
            return Ok(None);
        }
        Ok(Some(self.root()?.join(set)))
    }

    pub fn ignores_case(&self) -> bool {
        self.run(&["config", "--type=bool", "--get", "core.ignorecase"]).is_ok_and(|word| word.trim() == "true")
    }

    /// The files that the next commit changes, both names of those that are renamed. Of a merge only those that differ from
    /// every parent: the others were somebody's commits before.
    pub fn staged(&self) -> Result<BTreeSet<String>> {
        let mut parents = vec!["HEAD".to_owned()];
        if self.run(&["rev-parse", "--verify", "--quiet", "HEAD"]).is_err() {
            // Before the first commit everything is new.
            return self.paths(&["ls-files", "-z", "--cached"]);
        }
        parents.extend(self.merged());
        let mut changed: Option<BTreeSet<String>> = None;
        for parent in &parents {
            let options = ["diff-index", "--cached", "--name-only", "--no-renames", SUBMODULES_TOO, "-z"];
            let since = self.paths(&[&options[..], &[parent.as_str(), "--"]].concat())?;
            changed = Some(match changed {
                Some(before) => before.intersection(&since).cloned().collect(),
                None => since,
            });
        }
        Ok(changed.unwrap_or_default())
    }

    /// The other parents of a merge that is being concluded.
    fn merged(&self) -> Vec<String> {
        let Ok(file) = self.line(&["rev-parse", "--git-path", "MERGE_HEAD"]) else { return Vec::new() };
        let text = std::fs::read_to_string(self.folder.join(file)).unwrap_or_default();
        text.lines().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty()).collect()
    }

    /// The files of all commits that a push brings; `refs` is what git tells the hook about them.
    pub fn pushed(&self, refs: &str) -> Result<BTreeSet<String>> {
        let mut paths = BTreeSet::new();
        for line in refs.lines() {
            let mut words = line.split_whitespace();
            let (Some(_), Some(local), Some(_), Some(there)) = (words.next(), words.next(), words.next(), words.next())
            else {
                continue;
            };
            // One that is deleted there takes no file away here.
            if is_nothing(local) {
                continue;
            }
            let mut args = vec!["log", "-z", "--format=", "--name-only", "--no-renames", "--cc", "-n", COMMITS_MAX];
            // `log.showSignature` would have git print a line of its own in front of the first name of a signed commit, and
            // `log.showRoot` may have it pass over the files of the first commit.
            args.extend(["--no-show-signature", "--root", SUBMODULES_TOO]);
            // What the other side has may be unknown here. What any remote has is no news: of one that is new, or named by its
            // address alone, git knows nothing yet.
            args.extend(["--ignore-missing", local, "--not", "--remotes"]);
            if !is_nothing(there) {
                args.push(there);
            }
            paths.append(&mut self.paths(&args)?);
        }
        Ok(paths)
    }

    /// A list with NUL after each; names that are not UTF-8 nobody can have reserved.
    fn paths(&self, args: &[&str]) -> Result<BTreeSet<String>> {
        let listed = self.bytes(args)?;
        let names = listed.split(|byte| *byte == 0).filter_map(|name| std::str::from_utf8(name).ok());
        Ok(names.map(|name| name.trim_start_matches('\n').to_owned()).filter(|name| !name.is_empty()).collect())
    }

    fn line(&self, args: &[&str]) -> Result<String> {
        Ok(self.run(args)?.trim_end_matches('\n').to_owned())
    }

    fn run(&self, args: &[&str]) -> Result<String> {
        String::from_utf8(self.bytes(args)?)
            .map_err(|_| Error::new(Code::PathUnusable, "git names a path that is not UTF-8."))
    }

    fn bytes(&self, args: &[&str]) -> Result<Vec<u8>> {
        let mut command = Command::new("git");
        command.args(["--no-optional-locks", "-C"]).arg(&self.folder).args(args.iter().map(OsStr::new));
        let ended = command.stdin(Stdio::null()).output();
        let ended = ended.map_err(|error| Error::new(Code::PathUnusable, "git cannot be run.").because(error))?;
        if ended.status.success() {
            return Ok(ended.stdout);
        }
        let said = String::from_utf8_lossy(&ended.stderr).trim().to_owned();
        let folder = self.folder.canonicalize().unwrap_or_else(|_| self.folder.clone());
        let message = format!("git cannot say what it was asked in {}.", folder.display());
        let cure = "Name a folder of a repository with --repo, or make one with `git init`.";
        Err(Error::new(Code::PathUnusable, message).with_cure(cure).because(said))
    }
}

pub fn unusable(path: &Path, error: std::io::Error) -> Error {
    Error::new(Code::PathUnusable, format!("{} cannot be used.", path.display())).because(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A repository with one commit, and the commands that make it.
    struct Made {
        folder: tempfile::TempDir,
    }

    impl Made {
        fn new() -> Self {
            let made = Self { folder: tempfile::tempdir().unwrap() };
            made.git(&["init", "-q", "-b", "main"]);
            made.write("a.txt", "1");
            made.commit("first");
            made
        }

        fn git(&self, args: &[&str]) -> String {
            let mut command = Command::new("git");
            command
                .arg("-C")
                .arg(self.folder.path())
                .args(["-c", "user.name=t", "-c", "user.email=t@example"])
                .args(args);
            let ended = command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1").output().unwrap();
            String::from_utf8(ended.stdout).unwrap()
        }

        fn write(&self, name: &str, text: &str) {
            let path = self.folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
            self.git(&["add", "-A"]);
        }

        fn commit(&self, about: &str) -> String {
            self.git(&["commit", "-q", "-m", about]);
            self.git(&["rev-parse", "HEAD"]).trim().to_owned()
        }

        fn asked(&self) -> Git {
            Git::at(Some(self.folder.path()))
        }
    }

    fn names(paths: &BTreeSet<String>) -> Vec<&str> {
        paths.iter().map(String::as_str).collect()
    }

    #[test]
    fn staged_files_have_both_names_of_a_rename() {
        let made = Made::new();
        assert!(made.asked().staged().unwrap().is_empty());
        made.git(&["mv", "a.txt", "b c\u{e9}.txt"]);
        made.write("dir/new.txt", "2");
        assert_eq!(names(&made.asked().staged().unwrap()), ["a.txt", "b c\u{e9}.txt", "dir/new.txt"]);
        let empty = tempfile::tempdir().unwrap();
        assert_eq!(Git::at(Some(empty.path())).staged().unwrap_err().code(), Code::PathUnusable);
    }

    #[test]
    fn before_the_first_commit_everything_is_new() {
        let made = Made { folder: tempfile::tempdir().unwrap() };
        made.git(&["init", "-q", "-b", "main"]);
        made.write("a.txt", "1");
        assert_eq!(names(&made.asked().staged().unwrap()), ["a.txt"]);
    }

    #[test]
    fn a_merge_gives_no_alarm_for_what_the_other_side_has_committed() {
        let made = Made::new();
        made.git(&["checkout", "-q", "-b", "other"]);
        made.write("theirs.txt", "2");
        made.write("both.txt", "2");
        made.commit("theirs");
        made.git(&["checkout", "-q", "main"]);
        made.write("ours.txt", "3");
        made.write("both.txt", "3");
        let main = made.commit("ours");
        made.git(&["merge", "-q", "--no-edit", "other"]);
        made.write("both.txt", "4");
        assert_eq!(names(&made.asked().staged().unwrap()), ["both.txt"], "only what was resolved by hand is new");

        let merge = made.commit("merge");
        let refs = format!("refs/heads/main {merge} refs/heads/main {main}\n");
        let pushed = made.asked().pushed(&refs).unwrap();
        assert_eq!(names(&pushed), ["both.txt", "theirs.txt"], "the push brings the commits of the other side as well");
        let gone = "0".repeat(40);
        assert!(made.asked().pushed(&format!("(delete) {gone} refs/heads/x {main}\n")).unwrap().is_empty());
        // A new branch, and one whose other side is not known here.
        for there in [gone.clone(), "1".repeat(40)] {
            let refs = format!("refs/heads/main {merge} refs/heads/main {there}\n");
            assert!(made.asked().pushed(&refs).unwrap().contains("a.txt"), "{there}");
        }
    }

    #[test]
    fn a_signature_that_git_is_told_to_show_hides_no_file() {
        let made = Made::new();
        let first = made.git(&["rev-parse", "HEAD"]).trim().to_owned();
        made.write("b.txt", "2");
        made.write("c.txt", "3");
        made.commit("second");
        // A signature that nobody can verify: git says so in its output all the same, and no key is needed.
        let commit = made.git(&["cat-file", "commit", "HEAD"]);
        let (head, about) = commit.split_once("\n\n").unwrap();
        let made_up = "gpgsig -----BEGIN SSH SIGNATURE-----\n AAAA\n -----END SSH SIGNATURE-----";
        std::fs::write(made.folder.path().join("signed"), format!("{head}\n{made_up}\n\n{about}")).unwrap();
        let signed = made.git(&["hash-object", "-t", "commit", "-w", "signed"]).trim().to_owned();
        made.git(&["config", "log.showSignature", "true"]);
        let refs = format!("refs/heads/main {signed} refs/heads/main {first}\n");
        assert_eq!(names(&made.asked().pushed(&refs).unwrap()), ["b.txt", "c.txt"]);
    }

    #[test]
    fn no_configuration_hides_what_is_changed() {
        let made = Made::new();
        let first = made.git(&["rev-parse", "HEAD"]).trim().to_owned();
        made.git(&["config", "log.showRoot", "false"]);
        let refs = format!("refs/heads/main {first} refs/heads/main {}\n", "0".repeat(40));
        assert_eq!(names(&made.asked().pushed(&refs).unwrap()), ["a.txt"]);
        // As a submodule stands in the index, whatever its commit is.
        made.git(&["config", "diff.ignoreSubmodules", "all"]);
        made.git(&["update-index", "--add", "--cacheinfo", &format!("160000,{first},lib")]);
        assert_eq!(names(&made.asked().staged().unwrap()), ["lib"]);
        let second = made.commit("second");
        let refs = format!("refs/heads/main {second} refs/heads/main {first}\n");
        assert_eq!(names(&made.asked().pushed(&refs).unwrap()), ["lib"]);
    }

    #[test]
    fn what_one_remote_has_is_no_news_to_another() {
        let made = Made::new();
        let remote = tempfile::tempdir().unwrap();
        made.git(&["init", "-q", "--bare", remote.path().to_str().unwrap()]);
        made.git(&["remote", "add", "origin", remote.path().to_str().unwrap()]);
        made.git(&["push", "-q", "origin", "main"]);
        made.write("b.txt", "2");
        let new = made.commit("second");
        let refs = format!("refs/heads/main {new} refs/heads/main {}\n", "0".repeat(40));
        assert_eq!(names(&made.asked().pushed(&refs).unwrap()), ["b.txt"], "the first push to a fork");
    }

    #[test]
    fn hooks_of_the_repository_and_those_set_instead_are_told_apart() {
        let made = Made::new();
        let git = made.asked();
        assert!(git.own_hooks().unwrap().ends_with(".git/hooks"));
        assert_eq!(git.root().unwrap(), made.folder.path().canonicalize().unwrap());
        assert!(!git.ignores_case());
        made.git(&["config", "core.hooksPath", "mine"]);
        made.git(&["config", "core.ignorecase", "true"]);
        assert_eq!(git.set_hooks().unwrap(), Some(made.folder.path().canonicalize().unwrap().join("mine")));
        assert!(git.ignores_case());
    }
}
