//! An fsync that fails under a running program: the callers are told that nobody knows, and writing goes on once the
//! file has been verified, without a restart.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use serde_json::Value as Json;
use waybill_testkit::server::{Options, Server};

use super::{create, eventually, exists, id_of, readiness, send};

/// The program, with those of each thread's fsyncs failing (strace counts each thread's for itself, and a lone caller
/// writes on its own). The first ones belong to the migrations, a few for each.
pub(super) fn start(failing: &str) -> Option<Server> {
    if !strace_is_there() {
        return None;
    }
    let inject = format!("inject=fsync,fdatasync:error=EIO:when={failing}");
    let strace = ["strace", "-D", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fsync,fdatasync", "-e", &inject];
    let wrapper = strace.map(str::to_owned).into();
    Some(Server::start(Options { wrapper, ..Options::default() }).unwrap())
}

/// What the first who fails is told: by its own commit, or by somebody else's just before it.
pub(super) const FAILED_OR_STOPPED: [&str; 2] = ["unavailable", "store_unavailable"];
/// Longer than the file takes to be verified after a failed commit.
const VERIFIED: Duration = Duration::from_secs(10);

/// As `create`, and again for a while where writing has stopped: the commit that failed was another's, such as a sweep's.
fn create_in_time(server: &Server, key: &str) -> (u16, Json) {
    let deadline = Instant::now() + VERIFIED;
    loop {
        let (status, body) = create(server, key, "x");
        if body["error"] != "store_unavailable" || Instant::now() >= deadline {
            return (status, body);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Creates until one is not answered with success; all that were are in `made`.
pub(super) fn until_failure(server: &Server, made: &mut BTreeMap<String, String>) -> (String, u16, String) {
    for number in 0..1_000 {
        let key = format!("key-{number}");
        let (status, body) = create_in_time(server, &key);
        if status != 201 {
            return (key, status, body["error"].as_str().unwrap_or_default().to_owned());
        }
        made.insert(key, id_of(&body));
    }
    panic!("no fsync has failed");
}

fn verify(server: &Server, made: &BTreeMap<String, String>) {
    for (key, task_id) in made {
        assert!(exists(server, task_id), "{key} was acknowledged and is gone");
        let (status, again) = create_in_time(server, key);
        assert_eq!((status, id_of(&again)), (200, task_id.clone()), "{key} has become two tasks");
    }
    let (mut listed, mut cursor) = (0, String::new());
    loop {
        let (_, list) = send(server, "GET", &format!("/v1/tasks?limit=200{cursor}"), None);
        listed += list["tasks"].as_array().unwrap_or_else(|| panic!("{list}")).len();
        let Some(next) = list["next_cursor"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    assert_eq!(listed, made.len());
}

fn survives(failing: &str) {
    let Some(mut server) = start(failing) else { return };
    let mut made = BTreeMap::new();
    let (key, status, code) = until_failure(&server, &mut made);
    assert_eq!((status, code.as_str()), (503, "unavailable"));

    // The caller's retry, with the same key, until it is told the truth. Meanwhile it is told that nothing was done.
    eventually("the retry succeeds", || {
        let (status, body) = create(&server, &key, "x");
        match status {
            200 | 201 => made.insert(key.clone(), id_of(&body)).is_none(),
            _ => {
                let code = body["error"].as_str().unwrap_or_default();
                assert!(status == 503 && ["store_unavailable", "unavailable"].contains(&code), "{status} {body}");
                false
            }
        }
    });
    // The counts of other threads may come to their turn as well.
    for number in 0..20 {
        let key = format!("later-{number}");
        eventually("a later call succeeds", || {
            let (status, body) = create(&server, &key, "x");
            let done = status == 201 || status == 200;
            assert!(done || status == 503, "{status} {body}");
            done && made.insert(key.clone(), id_of(&body)).is_none()
        });
    }
    eventually("it is ready", || readiness(&server).0 == 200);
    verify(&server, &made);
    assert!(server.log().contains("opened again and verified"));

    server.kill9().unwrap();
    server.restart().unwrap();
    verify(&server, &made);
}

#[test]
fn a_commit_that_fails_is_unknown_and_writing_goes_on_by_itself() {
    survives("120");
}

#[test]
fn while_the_disk_goes_on_failing_nothing_is_written() {
    survives("120..123");
}

#[test]
fn a_disk_that_stays_broken_is_never_ready_and_reads_go_on() {
    if !strace_is_there() {
        return;
    }
    let server = Server::start(Options::default()).unwrap();
    let mut made = BTreeMap::new();
    for number in 0..25 {
        let key = format!("before-{number}");
        made.insert(key.clone(), id_of(&create(&server, &key, "x").1));
    }
    let mut strace = break_disk(&server);
    let (key, status, code) = until_failure(&server, &mut made);
    assert!(status == 503 && FAILED_OR_STOPPED.contains(&code.as_str()), "{status} {code}");
    // Longer than a probe is shared and than the pause between two attempts.
    for _ in 0..8 {
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(create(&server, &key, "x").0, 503);
        assert!(made.values().all(|task_id| exists(&server, task_id)));
    }
    let (status, body) = readiness(&server);
    assert_eq!(status, 503, "{body}");
    assert!(body["message"].as_str().unwrap().contains("error of the disk"), "{body}");
    drop(server);
    strace.wait().unwrap();
}

/// The kernel may have dropped pages that had been copied before, and would call the next fsync a success.
#[test]
fn a_checkpoint_that_fails_stops_writing_until_the_log_is_copied_anew_by_another_start() {
    if !strace_is_there() {
        return;
    }
    let config = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&config, "[sqlite]\ncheckpoint_bytes = 4096\n").unwrap();
    let args = vec!["--config".to_owned(), config.path().to_str().unwrap().to_owned()];
    let mut server = Server::start(Options { args, ..Options::default() }).unwrap();
    let mut made = BTreeMap::new();
    let mut strace = break_thread(&server, "sqlite-checkpoi");
    let mut number = 0;
    eventually("writing stops", || {
        let key = format!("key-{number}");
        number += 1;
        let (status, body) = create(&server, &key, "x");
        if status == 201 {
            made.insert(key, id_of(&body));
            return false;
        }
        let words = (body["error"].as_str().unwrap_or_default(), body["message"].as_str().unwrap_or_default());
        assert_eq!((status, words.0), (503, "store_unavailable"), "{body}");
        words.1.contains("restart the program")
    });
    eventually("it says that it is not ready", || readiness(&server).0 == 503);
    assert!(made.values().all(|task_id| exists(&server, task_id)), "reads go on");
    // In order: what is in the log must not be copied and forgotten at the end either.
    assert!(server.term().unwrap().success());
    strace.wait().unwrap();
    assert!(std::fs::metadata(server.data_dir.join("waybill.db-wal")).unwrap().len() > 0, "the log is gone");
    server.restart().unwrap();
    verify(&server, &made);
}

/// Every fsync of this thread alone fails.
fn break_thread(server: &Server, name: &str) -> Child {
    // One that has ended since it was listed has no name any more.
    let is_it = |thread: &PathBuf| std::fs::read_to_string(thread.join("comm")).is_ok_and(|comm| comm.trim() == name);
    let thread = threads(server).into_iter().find(is_it).unwrap();
    let tid = thread.file_name().unwrap().to_str().unwrap();
    let inject = "inject=fsync,fdatasync:error=EIO";
    let args = ["-qq", "-o", "/dev/null", "-e", "trace=fsync,fdatasync", "-e", inject, "-p", tid];
    let strace = Command::new("strace").args(args).spawn().unwrap();
    eventually("strace is attached to the thread", || is_traced(&thread));
    strace
}

/// Every fsync of every thread fails from here on. Ends with the program.
fn break_disk(server: &Server) -> Child {
    let inject = "inject=fsync,fdatasync:error=EIO";
    let pid = server.pid.to_string();
    let args = ["-f", "-qq", "-o", "/dev/null", "-e", "trace=fsync,fdatasync", "-e", inject, "-p", &pid];
    let strace = Command::new("strace").args(args).spawn().unwrap();
    // Before that, the thread that opens the file again might be one whose fsyncs still succeed.
    eventually("strace is attached to every thread", || threads(server).iter().all(|it| is_traced(it)));
    strace
}

fn threads(server: &Server) -> Vec<PathBuf> {
    let listed = std::fs::read_dir(format!("/proc/{}/task", server.pid)).unwrap();
    listed.map(|entry| entry.unwrap().path()).collect()
}

/// True of one that has ended, too.
fn is_traced(thread: &Path) -> bool {
    let Ok(status) = std::fs::read_to_string(thread.join("status")) else { return true };
    status.lines().any(|line| line.strip_prefix("TracerPid:").is_some_and(|pid| pid.trim() != "0"))
}

fn strace_is_there() -> bool {
    let there = Command::new("strace").arg("-V").output().is_ok();
    if !there {
        println!("skipped: there is no strace to make an fsync fail");
    }
    there
}
