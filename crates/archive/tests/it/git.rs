//! Windows and commits, with the real git reading, collecting and pushing in between.

use waybill_archive::names::ArchivePath;
use waybill_archive::repo::{Archive, Change, Limits, ProjectKey, Started};

use crate::support::{Fixture, at, commits, files_of, git, tree_of, window};

#[test]
fn rule_29_git_finds_nothing_wrong_and_files_are_the_tree() {
    let fixture = Fixture::new();
    assert_eq!(fixture.apply(1).started, Started::Anew);
    assert_eq!(fixture.apply(1).started, Started::Anew, "until somebody has seen to it");
    fixture.archive.close();
    let again = fixture.apply(1);
    assert_eq!(again.started, Started::Anew, "also after a restart");
    assert!(!fixture.archive.settled(&fixture.key, "another beginning", at(1)).unwrap());
    assert_eq!(fixture.apply(1).begun, again.begun, "of another beginning nothing is known to be written");
    assert!(fixture.archive.settled(&fixture.key, &again.begun, at(1)).unwrap());
    fixture.archive.close();
    assert_eq!(fixture.apply(2).started, Started::Found);
    fixture.judge();
    let log = git(&fixture.git_dir(), &["log", "--oneline"]);
    assert_eq!(log.lines().count(), 2);
    assert!(log.lines().next().unwrap().ends_with("mail: GreenCastle -> BlueLake | note 2"), "{log}");
    let author = git(&fixture.git_dir(), &["log", "-1", "--format=%an <%ae> %at %cn"]);
    assert_eq!(
        author.trim(),
        format!("GreenCastle <GreenCastle@data-projects-backend> {} Waybill", crate::support::BEGIN_S + 2)
    );
    assert_eq!(files_of(&fixture.project().join("files")).len(), 7);
    let read = fixture.archive.read(&fixture.key, &ArchivePath::new("state/counter.json").unwrap(), at(3)).unwrap();
    assert_eq!(read.unwrap(), "{\"last\":2}\n");
    assert_eq!(fixture.archive.log(&fixture.key, 10, at(3)).unwrap().len(), 2);
}

#[test]
fn rule_27_a_window_is_one_commit_and_one_pack() {
    let fixture = Fixture::new();
    let applied = fixture.archive.apply(&fixture.key, &window(0, 100)).unwrap();
    assert_eq!(applied.written, 101, "a message's three copies are one content");
    assert_eq!(commits(&fixture.git_dir()), 1);
    let count = git(&fixture.git_dir(), &["count-objects", "-v"]);
    assert!(count.contains("count: 0\n") && count.contains("packs: 1\n"), "{count}");
    fixture.judge();
}

#[test]
fn the_same_window_again_writes_nothing() {
    let fixture = Fixture::new();
    let first = fixture.apply(1);
    let modified =
        || std::fs::metadata(fixture.project().join("files/state/counter.json")).unwrap().modified().unwrap();
    let before = modified();
    let again = fixture.apply(1);
    assert_eq!((again.commit, again.written), (first.commit, 0));
    assert_eq!(modified(), before);
    // Also after a restart, and with a file that somebody has removed.
    std::fs::remove_file(fixture.project().join("files/state/counter.json")).unwrap();
    fixture.archive.close();
    assert_eq!(fixture.apply(1).commit, first.commit);
    fixture.judge();
}

#[test]
fn files_go_and_folders_with_them() {
    let fixture = Fixture::new();
    fixture.apply(1);
    let mut gone = window(1, 1);
    for change in &mut gone.changes {
        change.content = None;
    }
    fixture.archive.apply(&fixture.key, &gone).unwrap();
    assert_eq!(tree_of(&fixture.git_dir(), "HEAD").len(), 0);
    fixture.judge();
    fixture.apply(2);
    fixture.judge();
}

#[test]
fn many_windows_leave_few_packs_and_no_loose_objects() {
    let fixture = Fixture::new();
    for n in 0..150 {
        fixture.apply(n);
    }
    let packs = std::fs::read_dir(fixture.git_dir().join("objects/pack")).unwrap().count();
    assert!(packs <= 2 * 26, "{packs} files");
    assert_eq!(commits(&fixture.git_dir()), 150);
    fixture.judge();
}

#[test]
fn a_commit_rewrites_kilobytes_however_much_there_is() {
    let fixture = Fixture::new();
    for n in 0..10 {
        fixture.archive.apply(&fixture.key, &window(n * 1000, 1000)).unwrap();
    }
    let applied = fixture.apply(10_000);
    let size = |id: &str| git(&fixture.git_dir(), &["cat-file", "-s", id]).trim().parse::<usize>().unwrap();
    let trees = git(&fixture.git_dir(), &["ls-tree", "-r", "-t", "-d", &applied.commit.to_string()]);
    let largest = trees.lines().map(|line| size(line.split_whitespace().nth(2).unwrap())).max().unwrap();
    assert!(largest < 100_000, "a tree of {largest} bytes");
    fixture.judge();
}

#[test]
fn git_gc_in_the_middle_is_survived() {
    let fixture = Fixture::new();
    for n in 0..40 {
        fixture.apply(n);
        if n % 10 == 5 {
            git(&fixture.git_dir(), &["gc", "--prune=now", "--quiet"]);
        }
        if n % 10 == 8 {
            git(&fixture.git_dir(), &["pack-refs", "--all"]);
        }
    }
    git(&fixture.git_dir(), &["repack", "-a", "-d", "--write-midx", "--quiet"]);
    fixture.archive.close();
    for n in 40..80 {
        fixture.apply(n);
    }
    assert_eq!(commits(&fixture.git_dir()), 80);
    fixture.judge();
}

#[test]
fn git_gc_beside_a_writer_is_survived() {
    const WINDOWS: usize = 40;
    let fixture = Fixture::new();
    fixture.apply(0);
    std::thread::scope(|scope| {
        let gc = scope.spawn(|| {
            for _ in 0..6 {
                // It may lose a race for a pack that was merged under it, and says so; the repository must not.
                let _ = std::process::Command::new("git")
                    .current_dir(fixture.git_dir())
                    .args(["gc", "--prune=now", "--quiet"])
                    .stderr(std::process::Stdio::null())
                    .status();
            }
        });
        let mut n = 1;
        while n < WINDOWS || !gc.is_finished() {
            // While it packs refs it holds their locks, and the archiver would try again.
            match fixture.archive.apply(&fixture.key, &window(n, 1)) {
                Ok(_) => n += 1,
                Err(waybill_archive::Error::Locked { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        for id in 0..n {
            let path = format!("messages/2026/11/16/0/2026-11-16T18-43-20Z__note__{id}.md");
            let found = fixture.archive.read(&fixture.key, &ArchivePath::new(path).unwrap(), at(n)).unwrap();
            assert!(found.is_some(), "{id}");
        }
    });
    fixture.judge();
}

#[test]
fn a_push_stays_in_the_history_and_the_tree_is_ours() {
    let fixture = Fixture::new();
    fixture.apply(1);
    let clone = fixture.folder.path().join("clone");
    git(fixture.folder.path(), &["clone", "--quiet", fixture.git_dir().to_str().unwrap(), "clone"]);
    std::fs::write(clone.join("README.md"), "hello").unwrap();
    std::fs::remove_dir_all(clone.join("messages")).unwrap();
    git(&clone, &["add", "--all"]);
    git(&clone, &["commit", "--quiet", "-m", "somebody's change"]);
    git(&clone, &["push", "--quiet", "origin", "HEAD:main"]);
    fixture.apply(2);
    fixture.judge();
    let log = git(&fixture.git_dir(), &["log", "--format=%s"]);
    assert!(log.contains("somebody's change"), "{log}");
    assert_eq!(log.lines().count(), 3);
    assert!(!tree_of(&fixture.git_dir(), "HEAD").contains_key("README.md"), "the database decides");
}

#[test]
fn a_forced_push_and_a_deleted_branch_lose_nothing_of_ours() {
    let fixture = Fixture::new();
    for n in 1..4 {
        fixture.apply(n);
    }
    git(&fixture.git_dir(), &["update-ref", "refs/heads/main", "HEAD~2"]);
    fixture.apply(4);
    fixture.judge();
    assert_eq!(commits(&fixture.git_dir()), 4);
    git(&fixture.git_dir(), &["update-ref", "-d", "refs/heads/main"]);
    fixture.apply(5);
    fixture.judge();
    assert_eq!(commits(&fixture.git_dir()), 5);
    // A history that has nothing to do with ours.
    let other = git(&fixture.git_dir(), &["commit-tree", "-m", "elsewhere", "HEAD^{tree}"]);
    git(&fixture.git_dir(), &["update-ref", "refs/heads/main", other.trim()]);
    fixture.apply(6);
    fixture.judge();
    assert_eq!(commits(&fixture.git_dir()), 7);
    // A branch that names nothing.
    std::fs::write(fixture.git_dir().join("refs/heads/main"), format!("{}\n", "1".repeat(40))).unwrap();
    fixture.apply(7);
    fixture.judge();
}

#[test]
fn rule_28_projects_have_repositories_of_their_own_and_one_writer_each() {
    let fixture = Fixture::new();
    let other = ProjectKey::new("0198-tenant", "../../etc");
    fixture.apply(1);
    fixture.archive.apply(&other, &window(1, 1)).unwrap();
    assert!(fixture.root().join("0198-tenant/%2E.%2F..%2Fetc/archive.git").is_dir());
    let second = Archive::new(fixture.root(), Limits::default());
    let refused = second.apply(&fixture.key, &window(2, 1)).unwrap_err();
    assert!(matches!(refused, waybill_archive::Error::Busy { .. }), "{refused}");
    fixture.archive.close();
    second.apply(&fixture.key, &window(2, 1)).unwrap();
}

#[test]
fn open_repositories_are_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let archive = Archive::new(folder.path(), Limits { open_max: 3, ..Limits::default() });
    let open_files = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let keys: Vec<ProjectKey> = (0..40).map(|n| ProjectKey::new("t", &format!("p{n}"))).collect();
    let mut most = 0;
    for round in 0..3 {
        for key in &keys {
            archive.apply(key, &window(round, 1)).unwrap();
            most = most.max(open_files());
        }
    }
    // Other tests of this process have files open as well; forty repositories would be some two hundred.
    assert!(most < 150, "{most} open files");
}

#[test]
fn of_two_changes_to_a_path_the_later_counts() {
    let fixture = Fixture::new();
    let mut both = window(1, 1);
    let path = ArchivePath::new("state/counter.json").unwrap();
    both.changes.push(Change::put(path.clone(), "later"));
    fixture.archive.apply(&fixture.key, &both).unwrap();
    assert_eq!(fixture.archive.read(&fixture.key, &path, at(2)).unwrap().unwrap(), "later");
    fixture.judge();
}
