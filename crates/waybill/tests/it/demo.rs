//! The demo is the first thing a new user runs: it must play to its end and leave nothing behind.

use std::path::Path;

use crate::worker::Background;
use crate::world::until;

/// The folders of demos of this process id's children cannot be told apart, so each test gives them a place of its own.
fn start(words: &[&str], folder: &Path) -> Background {
    Background::start_in(words, &[("TMPDIR", folder.to_str().unwrap())])
}

fn left(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn it_plays_all_doors_to_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let mut demo = start(&["demo"], folder.path());
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
        "── Queues",
        "both times",
        "kill -9",
        "worker-1 gets order 1 of ann.",
        "worker-2 gets order 1 of bob.",
        "worker-1 gets order 2 of ann.",
        "orders.fifo",
        "── Mesh",
        "welcome",
        "kept, and on its way",
        "is gone",
        "build-7: kept",
        "under the same id it is the same message",
        "main is green",
        "and released",
        "── Mail",
        "Others hold src/api/invoice.rs (GreenCastle",
        "(exit code 6)",
        "Done, go ahead.",
        "git log",
        "Your turn",
    ] {
        let found = said[offset..].find(words);
        offset += found.unwrap_or_else(|| panic!("{words:?} is missing or out of place:\n{said}"));
    }
    assert_eq!(left(folder.path()), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_clears_the_stage() {
    let folder = tempfile::tempdir().unwrap();
    let mut demo = start(&["demo", "tasks"], folder.path());
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

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_ends_the_daemons_too() {
    let folder = tempfile::tempdir().unwrap();
    let mut demo = start(&["demo", "mesh"], folder.path());
    demo.says("mesh invite team").await;
    assert!(lives_in(folder.path()) >= 3, "the demo, a server and a daemon\n{}", demo.log());
    demo.signal("INT");
    assert_eq!(demo.ended(), Some(0), "{}", demo.log());
    assert_eq!(left(folder.path()), [""; 0], "{}", demo.log());
    until("all processes to be gone", || async { lives_in(folder.path()) == 0 }).await;
}

/// How many processes were told of this folder.
fn lives_in(folder: &Path) -> usize {
    let folder = folder.to_str().unwrap().as_bytes();
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let environments = processes.filter_map(|process| std::fs::read(process.path().join("environ")).ok());
    environments.filter(|text| text.windows(folder.len()).any(|part| part == folder)).count()
}
