//! The demo is the first thing a new user runs: it must play to its end and leave nothing behind.

use std::path::Path;

use crate::worker::Background;
use crate::world::until;

/// The folders of demos of this process id's children cannot be told apart, so each test gives them a place of its own.
fn start(folder: &Path) -> Background {
    Background::start_in(&["demo", "tasks"], &[("TMPDIR", folder.to_str().unwrap())])
}

fn left(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn it_plays_to_the_end_and_draws_the_receipts() {
    let folder = tempfile::tempdir().unwrap();
    let mut demo = start(folder.path());
    assert_eq!(demo.ended(), Some(0), "{}", demo.log());
    let said = demo.log();
    let mut offset = 0;
    for words in [
        "is queued",
        "the same task",
        "is gone",
        "Queued, attempt 0",
        "worker-2 takes it",
        "succeeded: {\"answer\":42}",
        "task.assigned",
        "├─ task.accepted",
        "├─ lease.expired",
        "├─ task.accepted",
        "└─ task.completed",
        "   └─ task.result_ready",
    ] {
        let found = said[offset..].find(words);
        offset += found.unwrap_or_else(|| panic!("{words:?} is missing or out of place:\n{said}"));
    }
    assert_eq!(left(folder.path()), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_clears_the_stage() {
    let folder = tempfile::tempdir().unwrap();
    let mut demo = start(folder.path());
    demo.says("is killed in the middle").await;
    let stage = folder.path().join(&left(folder.path())[0]);
    let running = std::fs::read_to_string(stage.join("data/server.json")).unwrap();
    let running: serde_json::Value = serde_json::from_str(&running).unwrap();
    demo.signal("INT");
    assert_eq!(demo.ended(), Some(0), "{}", demo.log());
    assert_eq!(left(folder.path()), [""; 0], "{}", demo.log());
    let server = format!("/proc/{}", running["pid"]);
    until("the server to be gone", || async { !Path::new(&server).exists() }).await;
}
