//! Archives that are gone, damaged, locked, read-only, full or somebody else's.

use std::path::Path;
use std::process::Command;

use waybill_archive::Error;
use waybill_archive::repo::{Archive, Limits, Started};

use crate::support::{Fixture, commits, git, key, tree_of, window};

/// A small file system of its own, unmounted at the end. None where this user may not mount.
struct Mount(tempfile::TempDir);

impl Mount {
    fn new(size: &str) -> Option<Self> {
        let fixture = tempfile::tempdir().unwrap();
        let options = format!("size={size}");
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(fixture.path()).output().ok()?;
        if !mounted.status.success() {
            eprintln!("skipped: this user may not mount a tmpfs");
            return None;
        }
        Some(Self(fixture))
    }

    fn remount(&self, options: &str) {
        let done =
            Command::new("mount").args(["-o", &format!("remount,{options}")]).arg(self.0.path()).status().unwrap();
        assert!(done.success());
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

fn asides(project: &Path) -> usize {
    let names = std::fs::read_dir(project).unwrap().flatten().map(|entry| entry.file_name());
    names.filter(|name| name.to_string_lossy().starts_with("archive.git.aside-")).count()
}

#[test]
fn rule_4_a_root_that_is_removed_is_begun_anew() {
    let fixture = Fixture::new();
    fixture.apply(1);
    std::fs::remove_dir_all(fixture.root()).unwrap();
    let applied = fixture.apply(2);
    assert_eq!(applied.started, Started::Anew, "whoever asked learns that the rest has to be written again");
    assert_eq!(commits(&fixture.git_dir()), 1);
    fixture.judge();
}

#[test]
fn a_repository_that_is_removed_begins_again_with_the_files() {
    let fixture = Fixture::new();
    fixture.apply(1);
    std::fs::remove_dir_all(fixture.git_dir()).unwrap();
    assert_eq!(fixture.apply(2).started, Started::FromFiles);
    assert_eq!(tree_of(&fixture.git_dir(), "HEAD").len(), 7);
    fixture.judge();
}

#[test]
fn files_that_are_removed_come_back_from_the_repository() {
    let fixture = Fixture::new();
    fixture.apply(1);
    std::fs::remove_dir_all(fixture.project().join("files")).unwrap();
    fixture.archive.close();
    fixture.apply(2);
    fixture.judge();
}

#[test]
fn corrupt_objects_move_the_repository_aside() {
    let fixture = Fixture::new();
    for n in 1..4 {
        fixture.apply(n);
    }
    fixture.archive.close();
    for entry in std::fs::read_dir(fixture.git_dir().join("objects/pack")).unwrap().flatten() {
        let path = entry.path();
        if path.extension().is_some_and(|ending| ending == "pack") {
            let mut pack = std::fs::read(&path).unwrap();
            pack[12..].fill(0x5a);
            std::fs::write(&path, pack).unwrap();
        }
    }
    assert_eq!(fixture.apply(4).started, Started::FromFiles);
    assert_eq!(asides(&fixture.project()), 1, "nothing is deleted");
    assert_eq!(tree_of(&fixture.git_dir(), "HEAD").len(), 13);
    fixture.judge();
}

/// Leaves an empty file in the place of an object.
fn spoil(fixture: &Fixture, object: &str) {
    git(&fixture.git_dir(), &["gc", "--quiet"]);
    let id = git(&fixture.git_dir(), &["rev-parse", object]);
    // As a loose object that is empty, in the place of the packed one.
    fixture.archive.close();
    let pack = std::fs::read_dir(fixture.git_dir().join("objects/pack"))
        .unwrap()
        .flatten()
        .find(|entry| entry.path().extension().is_some_and(|ending| ending == "pack"))
        .unwrap()
        .path();
    let elsewhere = fixture.folder.path().join("moved.pack");
    std::fs::rename(&pack, &elsewhere).unwrap();
    for entry in std::fs::read_dir(fixture.git_dir().join("objects/pack")).unwrap().flatten() {
        std::fs::remove_file(entry.path()).unwrap();
    }
    let unpack = Command::new("git")
        .current_dir(fixture.git_dir())
        .args(["unpack-objects", "-q"])
        .stdin(std::fs::File::open(&elsewhere).unwrap())
        .status()
        .unwrap();
    assert!(unpack.success());
    let loose = fixture.git_dir().join("objects").join(&id.trim()[..2]).join(&id.trim()[2..]);
    std::fs::remove_file(&loose).unwrap();
    std::fs::write(&loose, "").unwrap();
}

#[test]
fn a_tree_that_is_damaged_deep_down_is_found_when_it_is_needed() {
    let fixture = Fixture::new();
    fixture.apply(1);
    spoil(&fixture, "HEAD:messages/2026/11");
    fixture.apply(2);
    assert_eq!(asides(&fixture.project()), 1);
    fixture.judge();
}

#[test]
fn a_repository_that_cannot_give_the_files_back_is_moved_aside() {
    let fixture = Fixture::new();
    fixture.apply(1);
    spoil(&fixture, "HEAD:state/counter.json");
    std::fs::remove_dir_all(fixture.project().join("files")).unwrap();
    assert_ne!(fixture.apply(2).started, Started::Found, "whoever asked learns that the rest has to be written again");
    assert_eq!(asides(&fixture.project()), 1);
    fixture.judge();
}

/// Whoever was killed in between has left some of the files.
#[test]
fn files_that_were_not_all_written_from_the_repository_are_written_again() {
    let fixture = Fixture::new();
    for n in 1..4 {
        fixture.apply(n);
    }
    fixture.archive.close();
    std::fs::remove_dir_all(fixture.project().join("files/messages")).unwrap();
    std::fs::write(fixture.project().join("restoring"), "").unwrap();
    fixture.apply(4);
    fixture.judge();
    assert!(!fixture.project().join("restoring").exists());
    assert_eq!(asides(&fixture.project()), 0);
}

#[test]
fn a_ref_that_is_empty_after_a_power_failure_is_healed() {
    let fixture = Fixture::new();
    fixture.apply(1);
    fixture.archive.close();
    std::fs::write(fixture.git_dir().join("refs/waybill/main"), "").unwrap();
    fixture.apply(2);
    fixture.judge();
    assert_eq!(asides(&fixture.project()), 1);
}

#[test]
fn somebody_elses_repository_is_moved_aside_and_not_written_to() {
    let fixture = Fixture::new();
    let project = fixture.project();
    std::fs::create_dir_all(&project).unwrap();
    git(&project, &["init", "--quiet", "--bare", "--initial-branch=main", "archive.git"]);
    let tree = git(&fixture.git_dir(), &["hash-object", "-t", "tree", "-w", "/dev/null"]);
    let commit = git(&fixture.git_dir(), &["commit-tree", "-m", "theirs", tree.trim()]);
    git(&fixture.git_dir(), &["update-ref", "refs/heads/main", commit.trim()]);
    std::fs::write(fixture.git_dir().join("index.lock"), "").unwrap();
    fixture.apply(1);
    assert_eq!(asides(&project), 1);
    assert_eq!(commits(&fixture.git_dir()), 1);
    fixture.judge();
}

#[test]
fn what_leads_elsewhere_is_not_followed() {
    let fixture = Fixture::new();
    let outside = fixture.folder.path().join("outside");
    git(fixture.folder.path(), &["init", "--quiet", "--bare", "outside"]);
    for plant in ["alternates", "commondir", "link", "hook"] {
        fixture.apply(1);
        fixture.archive.close();
        match plant {
            "alternates" => {
                let line = format!("{}\n", outside.join("objects").display());
                std::fs::write(fixture.git_dir().join("objects/info/alternates"), line).unwrap();
            }
            "commondir" => std::fs::write(fixture.git_dir().join("commondir"), "../../../../outside").unwrap(),
            "link" => {
                std::fs::rename(fixture.git_dir(), fixture.project().join("kept")).unwrap();
                std::os::unix::fs::symlink(&outside, fixture.git_dir()).unwrap();
            }
            _ => {
                use std::os::unix::fs::PermissionsExt;
                let ran = fixture.folder.path().join("ran");
                for hook in ["reference-transaction", "post-update", "update", "pre-auto-gc"] {
                    std::fs::create_dir_all(fixture.git_dir().join("hooks")).unwrap();
                    let path = fixture.git_dir().join("hooks").join(hook);
                    std::fs::write(&path, format!("#!/bin/sh\ntouch {}\n", ran.display())).unwrap();
                    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
                }
                fixture.apply(9);
                assert!(!ran.exists(), "a hook was run");
                std::fs::remove_dir_all(fixture.git_dir().join("hooks")).unwrap();
            }
        }
        fixture.apply(2);
        fixture.judge();
        assert!(std::fs::read_dir(outside.join("objects/pack")).unwrap().next().is_none());
    }
    assert_eq!(asides(&fixture.project()), 3);
}

#[test]
fn rule_33_a_lock_on_the_branch_is_waited_for_and_healed_when_stale() {
    let fixture = Fixture::new();
    fixture.apply(1);
    let lock = fixture.git_dir().join("refs/heads/main.lock");
    std::fs::write(&lock, "").unwrap();
    // Windows of these tests are dated 2026-11-16; what counts is the age that the clock gives the lock.
    let young = std::fs::metadata(&lock).unwrap().modified().unwrap().duration_since(std::time::UNIX_EPOCH).unwrap();
    let mut next = window(2, 1);
    next.at = waybill_kernel::Time::from_micros(i64::try_from(young.as_micros()).unwrap());
    let refused = fixture.archive.apply(&fixture.key, &next).unwrap_err();
    assert!(matches!(refused, Error::Locked { .. }), "{refused}");
    assert!(lock.exists());
    next.at = next.at.after(std::time::Duration::from_secs(62));
    fixture.archive.apply(&fixture.key, &next).unwrap();
    assert!(!lock.exists());
    fixture.judge();
}

#[test]
fn rule_36_an_index_lock_is_no_obstacle_and_goes_when_it_is_stale() {
    let fixture = Fixture::new();
    fixture.apply(1);
    let lock = fixture.git_dir().join("index.lock");
    std::fs::write(&lock, "").unwrap();
    fixture.apply(2);
    assert!(lock.exists(), "a young one may be somebody's");
    fixture.archive.close();
    let mut later = window(3, 1);
    let modified = std::fs::metadata(&lock).unwrap().modified().unwrap().duration_since(std::time::UNIX_EPOCH).unwrap();
    later.at = waybill_kernel::Time::from_micros(i64::try_from(modified.as_micros()).unwrap() + 61_500_000);
    fixture.archive.apply(&fixture.key, &later).unwrap();
    assert!(!lock.exists());
    fixture.judge();
}

#[test]
fn rule_4_a_read_only_root_fails_and_is_caught_up_with() {
    let Some(mount) = Mount::new("16m") else { return };
    let archive = Archive::new(mount.0.path().join("root"), Limits::default());
    archive.apply(&key(), &window(1, 1)).unwrap();
    // An open lock would keep the file system from being changed.
    archive.close();
    mount.remount("ro");
    let failed = archive.apply(&key(), &window(2, 1)).unwrap_err();
    assert!(matches!(failed, Error::Io { .. }), "{failed}");
    mount.remount("rw");
    archive.apply(&key(), &window(2, 1)).unwrap();
    crate::support::judge(&key().below(&mount.0.path().join("root")));
    archive.close();
}

#[test]
fn rule_30_a_full_disk_leaves_nothing_half_written() {
    let Some(mount) = Mount::new("700k") else { return };
    let root = mount.0.path().join("root");
    let archive = Archive::new(&root, Limits::default());
    let mut written = 0;
    let failed = loop {
        match archive.apply(&key(), &window(written * 20, 20)) {
            Ok(_) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 1000);
    };
    assert!(failed.is_disk_full(), "{failed}");
    assert!(written > 0);
    for (path, content) in crate::support::files_of(&key().below(&root).join("files")) {
        assert!(content.ends_with('\n'), "{path} is half written");
    }
    mount.remount("size=8m");
    archive.apply(&key(), &window(written * 20, 20)).unwrap();
    crate::support::judge(&key().below(&root));
    archive.close();
}

#[test]
fn a_disk_is_not_filled_with_what_was_moved_aside() {
    let fixture = Fixture::new();
    for n in 0..8 {
        fixture.apply(n);
        fixture.archive.close();
        std::fs::write(fixture.git_dir().join("refs/waybill/main"), "").unwrap();
    }
    fixture.apply(8);
    fixture.archive.close();
    std::fs::write(fixture.git_dir().join("refs/waybill/main"), "").unwrap();
    let refused = fixture.archive.apply(&fixture.key, &window(9, 1)).unwrap_err();
    assert!(matches!(refused, Error::TooManyAside { count: 8, .. }), "{refused}");
}
