//! A disk that is really full: creates are refused, work can still be ended, and room is noticed without a restart.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;
use waybill_testkit::server::{Options, Server};

use super::{create, eventually, exists, id_of, readiness, send};

const SETTINGS: &str = "[sqlite]\nballast_bytes = 4194304\n";
const DISK_BYTES: u64 = 24 << 20;
const FILLER_BYTES: usize = 12 << 20;

/// A file system of its own in memory, so small that it can be filled.
pub(super) struct Disk(tempfile::TempDir);

impl Disk {
    /// None where mounting is not allowed.
    pub(super) fn mount(bytes: u64) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let size = format!("size={bytes}");
        let mount = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(folder.path()).output();
        if !mount.is_ok_and(|mount| mount.status.success()) {
            println!("skipped: a small disk cannot be mounted here; it needs root");
            return None;
        }
        Some(Self(folder))
    }

    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }

    fn filler(&self) -> PathBuf {
        self.path().join("filler")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

fn start(disk: &Disk) -> Server {
    let data = disk.path().join("data");
    let config = disk.path().join("waybill.toml");
    fs::write(&config, SETTINGS).unwrap();
    let args = vec!["--config".to_owned(), config.display().to_string()];
    Server::start(Options { args, data: Some(data), ..Options::default() }).unwrap()
}

#[test]
fn a_full_disk_takes_no_more_work_but_lets_work_end() {
    let Some(disk) = Disk::mount(DISK_BYTES) else { return };
    fs::write(disk.filler(), vec![7; FILLER_BYTES]).unwrap();
    let server = start(&disk);
    let ballast = disk.path().join("data/waybill.ballast");
    assert_eq!(ballast.metadata().unwrap().len(), 4 << 20);

    let small: Vec<_> = (0..20).map(|number| id_of(&create(&server, &format!("small-{number}"), "x").1)).collect();
    // Oldest first: these two are in work when the disk fills up.
    let claim = json!({ "max_tasks": 2 });
    let leased = send(&server, "POST", "/v1/leases/claim", Some(&claim)).1["tasks"].as_array().unwrap().clone();
    let key = json!({ "principal": "agent:gone" });
    let key_id = send(&server, "POST", "/admin/keys", Some(&key)).1["key_id"].as_str().unwrap().to_owned();
    let payload = "x".repeat(100_000);
    let mut made = Vec::new();
    loop {
        let (status, body) = create(&server, &format!("key-{}", made.len()), &payload);
        if status == 507 {
            assert_eq!(body["error"], "storage_full");
            break;
        }
        assert_eq!(status, 201, "{body}");
        made.push(id_of(&body));
        assert!(made.len() < 1_000, "it never fills up");
    }
    assert_eq!(ballast.metadata().unwrap().len(), 0, "the ballast was not given back");
    assert_eq!(create(&server, "one more", "x").0, 507, "refused before it runs, however small");
    eventually("it is not ready", || readiness(&server).0 == 503);
    assert!(readiness(&server).1["message"].as_str().unwrap().contains("full"));

    assert!(made.iter().all(|task_id| exists(&server, task_id)));
    for (task, verb, word) in [(&leased[0], "complete", "result"), (&leased[1], "fail", "error")] {
        let path = format!("/v1/tasks/{}/{verb}", task["task_id"].as_str().unwrap());
        let (status, body) =
            send(&server, "POST", &path, Some(&json!({ "lease_id": task["lease_id"], word: { "a": 1 } })));
        assert_eq!(status, 200, "{verb}: {body}");
    }
    let (status, body) = send(&server, "POST", &format!("/admin/keys/{key_id}/revoke"), Some(&json!({})));
    assert_eq!(status, 200, "revoke: {body}");
    for task_id in small.iter().filter(|id| leased.iter().all(|task| task["task_id"] != id.as_str())) {
        let (status, body) = send(&server, "POST", &format!("/v1/tasks/{task_id}/cancel"), Some(&json!({})));
        assert_eq!((status, &body["status"]), (200, &json!("canceled")), "{body}");
    }
    assert_eq!(create(&server, "one more", "x").0, 507, "there is no more room than before");

    fs::remove_file(disk.filler()).unwrap();
    eventually("creating works again", || create(&server, "one more", "x").0 == 201);
    eventually("it is ready", || readiness(&server).0 == 200);
    assert_eq!(ballast.metadata().unwrap().len(), 4 << 20);
    assert!(made.iter().chain(&small).all(|task_id| exists(&server, task_id)));
}
