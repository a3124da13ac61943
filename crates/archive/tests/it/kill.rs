//! A writer that is killed with -9 wherever it stands, again and again.

use std::process::{Command, Stdio};
use std::time::Duration;

use waybill_archive::repo::{Archive, Limits};

use crate::support::{Fixture, key, window};

const WRITER: &str = "WAYBILL_ARCHIVE_WRITER";

/// Not a test: what the one below starts and kills. It writes windows from the given number on, telling each that is done.
#[test]
#[ignore = "started by rule_24_a_writer_killed_anywhere_leaves_whole_files"]
fn writer() {
    let Ok(asked) = std::env::var(WRITER) else { return };
    let (root, from) = asked.rsplit_once(':').unwrap();
    let archive = Archive::new(root, Limits::default());
    for n in from.parse::<usize>().unwrap().. {
        archive.apply(&key(), &window(n * 3, 3)).unwrap();
        println!("done {n}");
    }
}

#[test]
fn rule_24_a_writer_killed_anywhere_leaves_whole_files() {
    // The long run: WAYBILL_KILL_ROUNDS=200.
    let rounds: u64 = std::env::var("WAYBILL_KILL_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(20);
    let fixture = Fixture::new();
    std::fs::create_dir_all(fixture.root()).unwrap();
    let mut next = 0_usize;
    for round in 0..rounds {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "kill::writer", "--ignored", "--nocapture"])
            .env(WRITER, format!("{}:{next}", fixture.root().display()))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // Spread over the life of a window, whose length differs between machines.
        std::thread::sleep(Duration::from_millis(30 + (round * 37) % 120));
        child.kill().unwrap();
        let output = child.wait_with_output().unwrap();
        let done = String::from_utf8_lossy(&output.stdout);
        if let Some(last) = done.lines().filter_map(|line| line.strip_prefix("done ")?.parse::<usize>().ok()).max() {
            next = last + 1;
        }
        for (path, content) in crate::support::files_of(&fixture.project().join("files")) {
            assert!(content.ends_with('\n'), "{path} is half written");
        }
    }
    assert!(next > 0, "no window was ever written");
    // The window under way is applied again, as the archiver would.
    fixture.archive.apply(&fixture.key, &window(next * 3, 3)).unwrap();
    fixture.judge();
    let listing = fixture.archive.listing(&fixture.key, crate::support::at(0)).unwrap();
    for n in 0..next * 3 {
        let path = format!("messages/2026/11/16/{}/2026-11-16T18-43-20Z__note__{n}.md", n / 1000);
        assert!(listing.contains_key(&path), "{path} was acknowledged and is missing");
    }
    let left = Command::new("find").arg(fixture.project().join("files")).args(["-name", ".tmp-*"]).output().unwrap();
    assert!(left.stdout.is_empty(), "{}", String::from_utf8_lossy(&left.stdout));
}
