//! Archives in temporary folders, and git to judge them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use waybill_archive::names::ArchivePath;
use waybill_archive::repo::{Applied, Archive, Author, Change, Limits, ProjectKey, Window};
use waybill_kernel::Time;

/// 2026-11-16T18:43:20Z.
pub const BEGIN_S: i64 = 1_794_854_600;

pub struct Fixture {
    pub folder: tempfile::TempDir,
    pub archive: Archive,
    pub key: ProjectKey,
}

impl Fixture {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let archive = Archive::new(folder.path().join("root"), Limits::default());
        Self { folder, archive, key: key() }
    }

    pub fn root(&self) -> PathBuf {
        self.folder.path().join("root")
    }

    pub fn project(&self) -> PathBuf {
        self.key.below(&self.root())
    }

    pub fn git_dir(&self) -> PathBuf {
        self.project().join("archive.git")
    }

    pub fn apply(&self, n: usize) -> Applied {
        self.archive.apply(&self.key, &window(n, 1)).unwrap()
    }

    /// Fails unless git finds nothing wrong, and tree and files are the same.
    pub fn judge(&self) {
        judge(&self.project());
        let found = self.archive.compare(&self.key, at(0)).unwrap();
        assert!(found.is_empty(), "{found:?}");
    }
}

pub fn key() -> ProjectKey {
    ProjectKey::new("0198-tenant", "data-projects-backend")
}

pub fn at(n: usize) -> Time {
    Time::from_micros((BEGIN_S + i64::try_from(n).unwrap()) * 1_000_000)
}

/// Messages `n..n + count`, each in three places, and one file that every window changes.
pub fn window(n: usize, count: usize) -> Window {
    let mut changes = Vec::new();
    for id in n..n + count {
        let body = format!("message {id}\n{}\n", "text ".repeat(id % 50));
        for folder in ["messages", "agents/BlueLake/inbox", "agents/GreenCastle/outbox"] {
            let path = format!("{folder}/2026/11/16/{}/2026-11-16T18-43-20Z__note__{id}.md", id / 1000);
            changes.push(Change::put(ArchivePath::new(path).unwrap(), body.clone()));
        }
    }
    changes.push(Change::put(
        ArchivePath::new("state/counter.json").unwrap(),
        format!("{{\"last\":{}}}\n", n + count - 1),
    ));
    Window {
        changes,
        subject: format!("mail: GreenCastle -> BlueLake | note {n}"),
        body: String::new(),
        author: Author { name: "GreenCastle".to_owned(), email: "GreenCastle@data-projects-backend".to_owned() },
        at: at(n),
    }
}

/// The output of git; it must succeed.
pub fn git(folder: &Path, args: &[&str]) -> String {
    let output = Command::new("git")
        .current_dir(folder)
        .args(["-c", "user.name=Somebody", "-c", "user.email=somebody@example.com"])
        .args(args)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .output()
        .unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "git {args:?} in {}: {out}{err}", folder.display());
    format!("{out}{err}")
}

/// `git fsck` is clean, and the tree of HEAD is what the files are.
pub fn judge(project: &Path) {
    let git_dir = project.join("archive.git");
    let found = git(&git_dir, &["fsck", "--full", "--strict", "--no-dangling"]);
    let wrong: Vec<&str> = found
        .lines()
        .filter(|line| !line.contains("notice:") && !line.starts_with("Checking ") && !line.starts_with("Verifying "))
        .collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    assert_eq!(tree_of(&git_dir, "HEAD"), files_of(&project.join("files")), "tree of HEAD and files");
}

/// Path and content of every file of a commit.
pub fn tree_of(git_dir: &Path, commit: &str) -> BTreeMap<String, String> {
    let list = git(git_dir, &["ls-tree", "-r", "-z", "--name-only", commit]);
    let names: Vec<&str> = list.split('\0').filter(|name| !name.trim().is_empty()).collect();
    // One process for all contents.
    let mut child = Command::new("git")
        .current_dir(git_dir)
        .args(["cat-file", "--batch"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let asked: String = names.iter().map(|name| format!("{commit}:{name}\n")).collect();
    let writing = std::thread::spawn(move || std::io::Write::write_all(&mut stdin, asked.as_bytes()));
    let output = child.wait_with_output().unwrap();
    writing.join().unwrap().unwrap();
    let mut rest = output.stdout.as_slice();
    let mut found = BTreeMap::new();
    for name in names {
        let end = rest.iter().position(|byte| *byte == b'\n').unwrap();
        let head = String::from_utf8_lossy(&rest[..end]).into_owned();
        let size: usize = head.rsplit(' ').next().unwrap().parse().unwrap_or_else(|_| panic!("{name}: {head}"));
        let content = String::from_utf8_lossy(&rest[end + 1..end + 1 + size]).into_owned();
        rest = &rest[end + 1 + size + 1..];
        found.insert(name.to_owned(), content);
    }
    found
}

/// Path and content of every file below a folder, those with a leading dot left out.
pub fn files_of(folder: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(at) = folders.pop() {
        for entry in std::fs::read_dir(&at).into_iter().flatten().flatten() {
            let path = entry.path();
            if entry.file_name().to_string_lossy().starts_with('.') {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(folder).unwrap().to_string_lossy().into_owned();
                found.insert(name, String::from_utf8_lossy(&std::fs::read(&path).unwrap()).into_owned());
            }
        }
    }
    found
}

pub fn commits(git_dir: &Path) -> usize {
    git(git_dir, &["rev-list", "--count", "HEAD"]).trim().parse().unwrap()
}
