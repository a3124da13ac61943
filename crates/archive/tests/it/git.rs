//! Windows and commits, with the real git reading, collecting and pushing in between.

use waybill_archive::names::ArchivePath;
use waybill_archive::repo::{Archive, Change, Limits, ProjectKey, Started};

use crate::support::{Place, at, commits, files_of, git, tree_of, window};

#[test]
fn rule_29_git_finds_nothing_wrong_and_files_are_the_tree() {
    let place = Place::new();
    assert_eq!(place.apply(1).started, Started::Anew);
    assert_eq!(place.apply(1).started, Started::Anew, "until somebody has seen to it");
    place.archive.close();
    let again = place.apply(1);
    assert_eq!(again.started, Started::Anew, "also after a restart");
    assert!(!place.archive.settled(&place.key, "another beginning", at(1)).unwrap());
    assert_eq!(place.apply(1).begun, again.begun, "of another beginning nothing is known to be written");
    assert!(place.archive.settled(&place.key, &again.begun, at(1)).unwrap());
    place.archive.close();
    assert_eq!(place.apply(2).started, Started::Found);
    place.judge();
    let log = git(&place.git_dir(), &["log", "--oneline"]);
    assert_eq!(log.lines().count(), 2);
    assert!(log.lines().next().unwrap().ends_with("mail: GreenCastle -> BlueLake | note 2"), "{log}");
    let author = git(&place.git_dir(), &["log", "-1", "--format=%an <%ae> %at %cn"]);
    assert_eq!(
        author.trim(),
        format!("GreenCastle <GreenCastle@data-projects-backend> {} Waybill", crate::support::BEGIN_S + 2)
    );
    assert_eq!(files_of(&place.project().join("files")).len(), 7);
    let read = place.archive.read(&place.key, &ArchivePath::new("state/counter.json").unwrap(), at(3)).unwrap();
    assert_eq!(read.unwrap(), "{\"last\":2}\n");
    assert_eq!(place.archive.log(&place.key, 10, at(3)).unwrap().len(), 2);
}

#[test]
fn rule_27_a_window_is_one_commit_and_one_pack() {
    let place = Place::new();
    let applied = place.archive.apply(&place.key, &window(0, 100)).unwrap();
    assert_eq!(applied.written, 101, "a message's three copies are one content");
    assert_eq!(commits(&place.git_dir()), 1);
    let count = git(&place.git_dir(), &["count-objects", "-v"]);
    assert!(count.contains("count: 0\n") && count.contains("packs: 1\n"), "{count}");
    place.judge();
}

#[test]
fn the_same_window_again_writes_nothing() {
    let place = Place::new();
    let first = place.apply(1);
    let modified = || std::fs::metadata(place.project().join("files/state/counter.json")).unwrap().modified().unwrap();
    let before = modified();
    let again = place.apply(1);
    assert_eq!((again.commit, again.written), (first.commit, 0));
    assert_eq!(modified(), before);
    // Also after a restart, and with a file that somebody has removed.
    std::fs::remove_file(place.project().join("files/state/counter.json")).unwrap();
    place.archive.close();
    assert_eq!(place.apply(1).commit, first.commit);
    place.judge();
}

#[test]
fn files_go_and_folders_with_them() {
    let place = Place::new();
    place.apply(1);
    let mut gone = window(1, 1);
    for change in &mut gone.changes {
        change.content = None;
    }
    place.archive.apply(&place.key, &gone).unwrap();
    assert_eq!(tree_of(&place.git_dir(), "HEAD").len(), 0);
    place.judge();
    place.apply(2);
    place.judge();
}

#[test]
fn many_windows_leave_few_packs_and_no_loose_objects() {
    let place = Place::new();
    for n in 0..150 {
        place.apply(n);
    }
    let packs = std::fs::read_dir(place.git_dir().join("objects/pack")).unwrap().count();
    assert!(packs <= 2 * 26, "{packs} files");
    assert_eq!(commits(&place.git_dir()), 150);
    place.judge();
}

#[test]
fn a_commit_rewrites_kilobytes_however_much_there_is() {
    let place = Place::new();
    for n in 0..10 {
        place.archive.apply(&place.key, &window(n * 1000, 1000)).unwrap();
    }
    let applied = place.apply(10_000);
    let size = |id: &str| git(&place.git_dir(), &["cat-file", "-s", id]).trim().parse::<usize>().unwrap();
    let trees = git(&place.git_dir(), &["ls-tree", "-r", "-t", "-d", &applied.commit.to_string()]);
    let largest = trees.lines().map(|line| size(line.split_whitespace().nth(2).unwrap())).max().unwrap();
    assert!(largest < 100_000, "a tree of {largest} bytes");
    place.judge();
}

#[test]
fn git_gc_in_the_middle_is_survived() {
    let place = Place::new();
    for n in 0..40 {
        place.apply(n);
        if n % 10 == 5 {
            git(&place.git_dir(), &["gc", "--prune=now", "--quiet"]);
        }
        if n % 10 == 8 {
            git(&place.git_dir(), &["pack-refs", "--all"]);
        }
    }
    git(&place.git_dir(), &["repack", "-a", "-d", "--write-midx", "--quiet"]);
    place.archive.close();
    for n in 40..80 {
        place.apply(n);
    }
    assert_eq!(commits(&place.git_dir()), 80);
    place.judge();
}

#[test]
fn git_gc_beside_a_writer_is_survived() {
    const WINDOWS: usize = 40;
    let place = Place::new();
    place.apply(0);
    std::thread::scope(|scope| {
        let gc = scope.spawn(|| {
            for _ in 0..6 {
                // It may lose a race for a pack that was merged under it, and says so; the repository must not.
                let _ = std::process::Command::new("git")
                    .current_dir(place.git_dir())
                    .args(["gc", "--prune=now", "--quiet"])
                    .stderr(std::process::Stdio::null())
                    .status();
            }
        });
        let mut n = 1;
        while n < WINDOWS || !gc.is_finished() {
            // While it packs refs it holds their locks, and the archiver would try again.
            match place.archive.apply(&place.key, &window(n, 1)) {
                Ok(_) => n += 1,
                Err(waybill_archive::Error::Locked { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        for id in 0..n {
            let path = format!("messages/2026/11/16/0/2026-11-16T18-43-20Z__note__{id}.md");
            let found = place.archive.read(&place.key, &ArchivePath::new(path).unwrap(), at(n)).unwrap();
            assert!(found.is_some(), "{id}");
        }
    });
    place.judge();
}

#[test]
fn a_push_stays_in_the_history_and_the_tree_is_ours() {
    let place = Place::new();
    place.apply(1);
    let clone = place.folder.path().join("clone");
    git(place.folder.path(), &["clone", "--quiet", place.git_dir().to_str().unwrap(), "clone"]);
    std::fs::write(clone.join("README.md"), "hello").unwrap();
    std::fs::remove_dir_all(clone.join("messages")).unwrap();
    git(&clone, &["add", "--all"]);
    git(&clone, &["commit", "--quiet", "-m", "somebody's change"]);
    git(&clone, &["push", "--quiet", "origin", "HEAD:main"]);
    place.apply(2);
    place.judge();
    let log = git(&place.git_dir(), &["log", "--format=%s"]);
    assert!(log.contains("somebody's change"), "{log}");
    assert_eq!(log.lines().count(), 3);
    assert!(!tree_of(&place.git_dir(), "HEAD").contains_key("README.md"), "the database decides");
}

#[test]
fn a_forced_push_and_a_deleted_branch_lose_nothing_of_ours() {
    let place = Place::new();
    for n in 1..4 {
        place.apply(n);
    }
    git(&place.git_dir(), &["update-ref", "refs/heads/main", "HEAD~2"]);
    place.apply(4);
    place.judge();
    assert_eq!(commits(&place.git_dir()), 4);
    git(&place.git_dir(), &["update-ref", "-d", "refs/heads/main"]);
    place.apply(5);
    place.judge();
    assert_eq!(commits(&place.git_dir()), 5);
    // A history that has nothing to do with ours.
    let other = git(&place.git_dir(), &["commit-tree", "-m", "elsewhere", "HEAD^{tree}"]);
    git(&place.git_dir(), &["update-ref", "refs/heads/main", other.trim()]);
    place.apply(6);
    place.judge();
    assert_eq!(commits(&place.git_dir()), 7);
    // A branch that names nothing.
    std::fs::write(place.git_dir().join("refs/heads/main"), format!("{}\n", "1".repeat(40))).unwrap();
    place.apply(7);
    place.judge();
}

#[test]
fn rule_28_projects_have_repositories_of_their_own_and_one_writer_each() {
    let place = Place::new();
    let other = ProjectKey::new("0198-tenant", "../../etc");
    place.apply(1);
    place.archive.apply(&other, &window(1, 1)).unwrap();
    assert!(place.root().join("0198-tenant/%2E.%2F..%2Fetc/archive.git").is_dir());
    let second = Archive::new(place.root(), Limits::default());
    let refused = second.apply(&place.key, &window(2, 1)).unwrap_err();
    assert!(matches!(refused, waybill_archive::Error::Busy { .. }), "{refused}");
    place.archive.close();
    second.apply(&place.key, &window(2, 1)).unwrap();
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
    let place = Place::new();
    let mut both = window(1, 1);
    let path = ArchivePath::new("state/counter.json").unwrap();
    both.changes.push(Change::put(path.clone(), "later"));
    place.archive.apply(&place.key, &both).unwrap();
    assert_eq!(place.archive.read(&place.key, &path, at(2)).unwrap().unwrap(), "later");
    place.judge();
}
