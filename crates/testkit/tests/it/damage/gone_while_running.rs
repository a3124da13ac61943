//! A file that is replaced under a running program: noticed when a failed commit makes it look again, and then for good.

use std::fs;
use std::time::Duration;

use super::failed_fsync::{FAILED_OR_STOPPED, start, until_failure};
use super::{create, eventually, exists, id_of, readiness};

/// More than start-up takes, fewer than the fsync that fails.
const TASKS_BEFORE: usize = 8;

#[test]
fn commits_that_are_gone_when_the_file_is_opened_again_stop_writing_for_good() {
    let Some(server) = start("180") else { return };
    let file = server.data_dir.join("waybill.db");
    let older = server.data_dir.with_extension("older");
    let first = id_of(&create(&server, "first", "x").1);
    let output = std::process::Command::new(waybill_testkit::server::binary())
        .args(["backup", "--data", &server.data_dir.display().to_string()])
        .arg(&older)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let made: Vec<_> = (0..TASKS_BEFORE).map(|n| id_of(&create(&server, &format!("before-{n}"), "x").1)).collect();

    // The program keeps the files it has open; whoever opens the name finds the older one, without a log.
    fs::copy(older.join("waybill.db"), server.data_dir.join("slipped-in")).unwrap();
    for ending in ["db-wal", "db-shm"] {
        fs::remove_file(file.with_extension(ending)).unwrap();
    }
    fs::rename(server.data_dir.join("slipped-in"), &file).unwrap();

    let mut later = std::collections::BTreeMap::new();
    let (_, status, code) = until_failure(&server, &mut later);
    assert!(status == 503 && FAILED_OR_STOPPED.contains(&code.as_str()), "{status} {code}");
    let lost = "acknowledged commits and takes no more writes";
    eventually("it says what is missing", || {
        let (status, body) = readiness(&server);
        status == 503 && body["message"].as_str().is_some_and(|message| message.contains(lost))
    });
    // Longer than the pause between two attempts to open the file.
    for _ in 0..5 {
        std::thread::sleep(Duration::from_millis(300));
        let (status, body) = create(&server, "one more", "x");
        assert_eq!((status, &body["error"]), (503, &"store_unavailable".into()), "{body}");
        assert!(body["message"].as_str().unwrap().contains("has lost"), "{body}");
        assert_eq!(readiness(&server).0, 503);
    }
    assert!(made.iter().chain([&first]).all(|task_id| exists(&server, task_id)), "readers keep what they have open");
    assert!(server.log().contains("restore a backup"), "{}", server.log());
}
