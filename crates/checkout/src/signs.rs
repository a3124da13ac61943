//! Is somebody at work on certain files? Told by when they were changed last, and by the commits that changed them.

use std::collections::{BTreeMap, HashSet, VecDeque};

use waybill_archive::repo::Oid;
use waybill_archive::repo::reading::{Commit, Entry, FileType, Folder, Kind, Objects, Seen, entries};
use waybill_kernel::Result;

use crate::closed::Closed;
use crate::gitdir::GitDir;
use crate::{Checkout, unusable};

/// Files and folders of one look, and entries of trees: some tenths of a second.
pub const LOOKED_MAX: usize = 50_000;
const DEPTH_MAX: usize = 64;
/// Commits of one look.
const COMMITS_MAX: usize = 500;
/// Bytes of two trees that are compared: many times what so many files need. Whoever writes to a repository makes them as long as an object
/// may be, and what is made of them is longer.
const TREES_BYTES_MAX: usize = 16 << 20;

/// What shows that somebody is at work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sign {
    /// This file was changed at this second.
    Changed { path: String, at_s: i64 },
    /// This file was committed at this second.
    Committed { path: String, at_s: i64 },
}

/// What came of a look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Looked {
    pub sign: Option<Sign>,
    /// There was more than one look takes in. What it did not reach shows nothing.
    pub is_partial: bool,
}

/// The first sign that is not older than `since_s`, of the files that `holds` says are meant. `pattern` begins with the
/// folders that all of them are in; only those are gone through.
pub fn signs(checkout: &Checkout, pattern: &str, since_s: i64, holds: &dyn Fn(&str) -> bool) -> Result<Looked> {
    let mut look = Look { closed: &checkout.closed, since_s, holds, left: LOOKED_MAX, is_partial: false };
    let mut sign = look.changed(&checkout.folder, pattern)?;
    if sign.is_none()
        && let Some(git) = GitDir::of(checkout)?
    {
        look.left = LOOKED_MAX;
        sign = look.committed(&git)?;
    }
    Ok(Looked { sign, is_partial: look.is_partial })
}

struct Look<'a> {
    closed: &'a Closed,
    since_s: i64,
    holds: &'a dyn Fn(&str) -> bool,
    left: usize,
    is_partial: bool,
}

impl Look<'_> {
    fn spend(&mut self) -> bool {
        self.is_partial |= self.left == 0;
        self.left = self.left.saturating_sub(1);
        !self.is_partial
    }

    fn changed(&mut self, root: &Folder, pattern: &str) -> Result<Option<Sign>> {
        let base = base_of(pattern);
        let (folder, name) = base.rsplit_once('/').unwrap_or(("", &base));
        let above = if folder.is_empty() { None } else { self.closed.find(root, folder)? };
        let above = match (folder.is_empty(), &above) {
            (true, _) => root,
            (false, Some(above)) => above,
            (false, None) => return Ok(None),
        };
        if name.is_empty() {
            return self.walk(root, "", 0);
        }
        let Some(seen) = above.look(name).map_err(unusable)? else { return Ok(None) };
        match seen.kind {
            FileType::RegularFile => Ok(self.is_recent(&base, seen)),
            FileType::Directory => match self.closed.find(above, name)? {
                Some(folder) => self.walk(&folder, &base, 0),
                None => Ok(None),
            },
            _ => Ok(None),
        }
    }

    fn is_recent(&self, path: &str, seen: Seen) -> Option<Sign> {
        let at_s = seen.modified_s;
        let recent = at_s >= self.since_s && !self.closed.is(seen.inode) && (self.holds)(path);
        recent.then(|| Sign::Changed { path: path.to_owned(), at_s })
    }

    fn walk(&mut self, folder: &Folder, prefix: &str, depth: usize) -> Result<Option<Sign>> {
        if depth > DEPTH_MAX {
            self.is_partial = true;
            return Ok(None);
        }
        // One more than may be looked at tells that there is more.
        for (name, kind) in folder.list_up_to(self.left + 1).map_err(unusable)? {
            if !self.spend() {
                return Ok(None);
            }
            let path = joined(prefix, &name);
            let found = match kind {
                // What git writes there is no work on files.
                FileType::Directory if name == ".git" => None,
                FileType::Directory => match folder.find(&name).map_err(unusable)? {
                    // Nobody but the server works on files there.
                    Some(below) if self.closed.is(below.inode().map_err(unusable)?) => None,
                    Some(below) => self.walk(&below, &path, depth + 1)?,
                    None => None,
                },
                FileType::RegularFile => {
                    let seen = folder.look(&name).map_err(unusable)?;
                    seen.and_then(|seen| self.is_recent(&path, seen))
                }
                _ => None,
            };
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// Of the commits that the working tree stands on.
    fn committed(&mut self, git: &GitDir) -> Result<Option<Sign>> {
        let (Some(head), Some(objects)) = (git.head()?, git.objects()?) else { return Ok(None) };
        let mut objects = Foreign::open(objects)?;
        let (mut seen, mut next) = (HashSet::from([head]), VecDeque::from([head]));
        while let Some(id) = next.pop_front() {
            // What a shallow clone does not have is not recent.
            let Some(commit) = objects.commit(id)? else { continue };
            if commit.committed_s < self.since_s {
                continue;
            }
            // A merge brings what others have committed before.
            if let [] | [_] = commit.parents.as_slice() {
                let before = match commit.parents.first() {
                    None => None,
                    Some(parent) => match objects.commit(*parent)? {
                        Some(parent) => Some(parent.tree),
                        // The first commit of a shallow clone: what it changed nobody can say.
                        None => continue,
                    },
                };
                if let Some(path) = self.differing(&mut objects, before, Some(commit.tree), "", 0)? {
                    return Ok(Some(Sign::Committed { path, at_s: commit.committed_s }));
                }
            }
            next.extend(commit.parents.into_iter().filter(|parent| seen.insert(*parent)));
            if seen.len() > COMMITS_MAX {
                self.is_partial = true;
                break;
            }
        }
        Ok(None)
    }

    /// The first file that is meant and that two trees do not have alike.
    fn differing(
        &mut self,
        objects: &mut Foreign,
        before: Option<Oid>,
        after: Option<Oid>,
        prefix: &str,
        depth: usize,
    ) -> Result<Option<String>> {
        if before == after || depth > DEPTH_MAX {
            return Ok(None);
        }
        let mut read = |tree: Option<Oid>| match tree {
            None => Some(Default::default()),
            Some(id) if objects.is_file(id) => objects.objects.tree(id).ok(),
            Some(_) => None,
        };
        let (Some(old_tree), Some(new_tree)) = (read(before), read(after)) else {
            // A clone that has not all of its trees.
            self.is_partial = true;
            return Ok(None);
        };
        if old_tree.len() + new_tree.len() > TREES_BYTES_MAX {
            self.is_partial = true;
            return Ok(None);
        }
        let (before, after) = (entries(&old_tree).map_err(unusable)?, entries(&new_tree).map_err(unusable)?);
        let mut names: BTreeMap<&[u8], (Option<&Entry<'_>>, Option<&Entry<'_>>)> = BTreeMap::new();
        for entry in &before {
            names.entry(entry.name).or_default().0 = Some(entry);
        }
        for entry in &after {
            names.entry(entry.name).or_default().1 = Some(entry);
        }
        for (name, (old, new)) in names {
            if !self.spend() {
                return Ok(None);
            }
            if old.map(|entry| entry.id) == new.map(|entry| entry.id) {
                continue;
            }
            let path = joined(prefix, &String::from_utf8_lossy(name));
            let is_file = [old, new].into_iter().flatten().any(|entry| !entry.is_folder());
            if is_file && (self.holds)(&path) {
                return Ok(Some(path));
            }
            let folder = |entry: Option<&Entry<'_>>| entry.filter(|entry| entry.is_folder()).map(|entry| entry.id);
            if let Some(found) = self.differing(objects, folder(old), folder(new), &path, depth + 1)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }
}

/// The objects of a repository that others write to. They are opened by their paths, and a pipe in the place of one would be waited for
/// without end: what is no file is not opened.
struct Foreign {
    folder: Folder,
    objects: Objects,
}

impl Foreign {
    fn open(folder: Folder) -> Result<Self> {
        let objects = Objects::open(folder.path()).map_err(unusable)?;
        Ok(Self { folder, objects })
    }

    /// None for one that is not there, or cannot be had.
    fn commit(&mut self, id: Oid) -> Result<Option<Commit>> {
        if !self.is_file(id) {
            return Ok(None);
        }
        let Ok(data) = self.objects.read(Kind::Commit, id) else { return Ok(None) };
        Commit::decode(&data).map(Some).map_err(unusable)
    }

    /// Whether its own place has a file or nothing: then it is in a pack, all of which are files.
    fn is_file(&self, id: Oid) -> bool {
        let id = id.to_string();
        let (folder, name) = id.split_at(2);
        let look = || -> waybill_archive::Result<bool> {
            let Some(below) = self.folder.find(folder)? else { return Ok(self.folder.look(folder)?.is_none()) };
            Ok(below.look(name)?.is_none_or(|seen| seen.kind == FileType::RegularFile))
        };
        look().unwrap_or(false)
    }
}

/// The leading parts of a pattern that mean themselves.
fn base_of(pattern: &str) -> String {
    let plain = |part: &&str| !part.contains(['*', '?', '[', ']', '{', '}']);
    pattern.split('/').take_while(plain).collect::<Vec<_>>().join("/")
}

fn joined(prefix: &str, name: &str) -> String {
    if prefix.is_empty() { name.to_owned() } else { format!("{prefix}/{name}") }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};
    use std::process::Command;

    use super::*;
    use crate::Roots;

    /// Long past, and long to come.
    const OLD_S: i64 = 1_000_000_000;
    const SINCE_S: i64 = 1_500_000_000;

    struct Tree {
        temp: tempfile::TempDir,
    }

    impl Tree {
        fn new() -> Self {
            let tree = Self { temp: tempfile::tempdir().unwrap() };
            std::fs::create_dir_all(tree.at().join("src/api")).unwrap();
            for path in ["src/api/a.rs", "src/b.rs", "README.md"] {
                tree.write(path, "one");
            }
            tree
        }

        fn at(&self) -> PathBuf {
            self.temp.path().join("tree")
        }

        /// As if it had been there for years.
        fn write(&self, path: &str, content: &str) {
            let path = self.at().join(path);
            std::fs::write(&path, content).unwrap();
            age(&path);
        }

        fn git(&self, at_s: i64, args: &[&str]) {
            let output = Command::new("git")
                .current_dir(self.at())
                .args(["-c", "user.name=A", "-c", "user.email=a@example.com", "-c", "init.defaultBranch=main"])
                .args(args)
                .env("GIT_CONFIG_GLOBAL", "/dev/null")
                .env("GIT_CONFIG_NOSYSTEM", "1")
                .env("GIT_AUTHOR_DATE", format!("{OLD_S} +0000"))
                .env("GIT_COMMITTER_DATE", format!("{at_s} +0000"))
                .output()
                .unwrap();
            assert!(output.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&output.stderr));
        }

        fn look(&self, pattern: &str) -> Looked {
            let closed = vec![self.at().join("closed")];
            let roots = Roots { open: vec![self.temp.path().to_owned()], closed };
            let checkout = Checkout::open(&roots, &self.at()).unwrap().unwrap();
            let base = base_of(pattern);
            signs(&checkout, pattern, SINCE_S, &|path| path.starts_with(&base)).unwrap()
        }
    }

    fn age(path: &Path) {
        let old = std::time::UNIX_EPOCH + std::time::Duration::from_secs(OLD_S as u64);
        std::fs::File::options().write(true).open(path).unwrap().set_modified(old).unwrap();
    }

    #[test]
    fn a_file_that_was_changed_is_a_sign_for_what_holds_it_and_for_nothing_else() {
        let tree = Tree::new();
        assert_eq!(tree.look("src/**"), Looked::default());
        std::fs::write(tree.at().join("src/api/a.rs"), "two").unwrap();
        let found = |pattern: &str| matches!(tree.look(pattern).sign, Some(Sign::Changed { path, .. }) if path == "src/api/a.rs");
        for pattern in ["src/**", "src", "src/api/a.rs", "src/api/*.rs"] {
            assert!(found(pattern), "{pattern}");
        }
        for pattern in ["src/b.rs", "docs", "README.md", "src/api/absent.rs"] {
            assert_eq!(tree.look(pattern).sign, None, "{pattern}");
        }
    }

    #[test]
    fn a_folder_with_more_than_is_looked_at_is_told() {
        let tree = Tree::new();
        let root = Folder::at(&tree.at()).unwrap();
        let mut seen = Vec::new();
        for left in [2, 9] {
            let closed = Closed::of(&[]);
            let mut look = Look { closed: &closed, since_s: SINCE_S, holds: &|_| true, left, is_partial: false };
            assert_eq!(look.walk(&root, "", 0).unwrap(), None);
            seen.push(look.is_partial);
        }
        assert_eq!(seen, [true, false]);
    }

    #[test]
    fn what_the_server_keeps_for_itself_is_no_sign() {
        let tree = Tree::new();
        std::fs::create_dir_all(tree.at().join("closed/below")).unwrap();
        std::fs::write(tree.at().join("closed/below/new"), "new").unwrap();
        assert_eq!(tree.look("*/below/*"), Looked::default());
        std::fs::write(tree.at().join("src/b.rs"), "new").unwrap();
        assert!(tree.look("*").sign.is_some(), "what lies beside it is looked at");
    }

    #[test]
    fn a_file_that_the_server_keeps_for_itself_is_no_sign_either() {
        let tree = Tree::new();
        std::fs::write(tree.at().join("closed"), "new").unwrap();
        for pattern in ["closed", "*"] {
            assert_eq!(tree.look(pattern), Looked::default(), "{pattern}");
        }
    }

    #[test]
    fn a_commit_is_a_sign_for_the_files_that_it_changed() {
        let tree = Tree::new();
        tree.git(OLD_S, &["init", "-q"]);
        tree.git(OLD_S, &["add", "."]);
        tree.git(OLD_S, &["commit", "-qm", "one"]);
        assert_eq!(tree.look("src").sign, None);
        tree.write("src/b.rs", "two, and more");
        tree.git(SINCE_S + 7, &["commit", "-qam", "two"]);
        let committed = Sign::Committed { path: "src/b.rs".to_owned(), at_s: SINCE_S + 7 };
        assert_eq!(tree.look("src/*.rs").sign, Some(committed.clone()));
        assert_eq!(tree.look("src/api").sign, None);
        // Packed as well.
        tree.git(OLD_S, &["gc", "-q"]);
        assert_eq!(tree.look("src/*.rs").sign, Some(committed));
        tree.git(OLD_S, &["rm", "-q", "src/api/a.rs"]);
        tree.git(SINCE_S, &["commit", "-qm", "three"]);
        assert!(matches!(tree.look("src/api").sign, Some(Sign::Committed { path, .. }) if path == "src/api/a.rs"));
    }

    #[test]
    fn objects_that_lie_elsewhere_are_not_looked_for() {
        let tree = Tree::new();
        tree.git(OLD_S, &["init", "-q"]);
        tree.git(OLD_S, &["add", "."]);
        tree.git(SINCE_S, &["commit", "-qm", "one"]);
        assert!(tree.look("src").sign.is_some());
        std::fs::write(tree.at().join(".git/objects/info/alternates"), "/elsewhere\n").unwrap();
        assert_eq!(tree.look("src").sign, None);
    }

    /// A link leads elsewhere, and a pipe would be waited for without end.
    #[test]
    fn objects_that_are_no_files_are_not_opened() {
        let tree = Tree::new();
        tree.git(OLD_S, &["init", "-q"]);
        tree.git(OLD_S, &["add", "."]);
        tree.git(SINCE_S, &["commit", "-qm", "one"]);
        let (git, kept) = (tree.at().join(".git"), tree.temp.path().join("kept"));
        let pipe = |path: &Path| assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
        let head = std::fs::read_to_string(git.join("refs/heads/main")).unwrap();
        let (folder, name) = head.trim().split_at(2);
        let object = git.join("objects").join(folder).join(name);
        std::fs::rename(&object, &kept).unwrap();
        std::os::unix::fs::symlink(&kept, &object).unwrap();
        assert_eq!(tree.look("src").sign, None);
        std::fs::remove_file(&object).unwrap();
        pipe(&object);
        assert_eq!(tree.look("src").sign, None);
        std::fs::rename(&kept, &object).unwrap();
        assert!(tree.look("src").sign.is_some());
        pipe(&git.join("objects/pack/pack-1.idx"));
        assert_eq!(tree.look("src").sign, None);
    }
}
