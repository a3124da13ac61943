//! What keeps a daemon from starting, and what it says then.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;

use serde_json::json;
use waybill_daemon::Daemon;
use waybill_daemon::host::Host;
use waybill_kernel::Code;
use waybill_kernel::clock::manual::ManualSource;

use crate::support::{Plan, START_US, config, joined, start, start_in};

#[tokio::test(flavor = "multi_thread")]
async fn modes_of_what_is_in_the_folder() {
    let daemon = start(Plan { tcp: true, ..Plan::default() }).await;
    let folder = daemon.handle.folder().clone();
    for (name, mode) in [
        ("sock", 0o600),
        ("local_token", 0o600),
        ("keypair.json", 0o600),
        ("outbox.db", 0o600),
        ("inbox.db", 0o600),
        ("host_fingerprint.json", 0o600),
        ("hooks", 0o700),
    ] {
        let found = folder.file(name).symlink_metadata().unwrap().mode() & 0o777;
        assert_eq!(found, mode, "{name}");
    }
    assert_eq!(folder.path().metadata().unwrap().mode() & 0o777, 0o700);
    let port: u16 = folder.read_text("http.port").unwrap().unwrap().trim().parse().unwrap();
    assert_eq!(Some(port), daemon.handle.tcp_address().map(|address| address.port()));
    let second = Daemon::open(config(daemon.home.path(), &daemon.time, false)).await.err().unwrap();
    assert_eq!(second.code(), Code::DaemonRunning);
    let (home, time) = daemon.stop().await;
    assert!(!folder.file("sock").exists() && !folder.file("http.port").exists());
    start_in(home, time, false).await.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_outbox_is_refused_untouched_and_points_to_recover() {
    let daemon = start(Plan::default()).await;
    for number in 0..50 {
        let body = json!({ "to": "bob", "message": "m".repeat(2_000), "client_message_id": format!("{number}") });
        daemon.post("/v1/send", &body).await.expect(202);
    }
    let (home, time) = daemon.stop().await;
    let path = home.path().join("daemon/acme/outbox.db");
    let file = fs::File::options().write(true).open(&path).unwrap();
    for page in 2..12 {
        file.write_all_at(&[0xA5; 64], page * 4_096).unwrap();
    }
    let before = fs::read(&path).unwrap();
    let error = Daemon::open(config(home.path(), &time, false)).await.err().unwrap();
    assert_eq!(error.code(), Code::OutboxDamaged, "{error}");
    assert!(error.cure().contains("waybill daemon recover"), "{}", error.cure());
    assert!(!error.message().contains("salvage"), "{error}");
    assert!(fs::read(&path).unwrap() == before, "the damaged file was changed");
    fs::write(&path, "no database at all, and long enough to be taken for one".repeat(100)).unwrap();
    let error = Daemon::open(config(home.path(), &time, false)).await.err().unwrap();
    assert_eq!(error.code(), Code::OutboxDamaged, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_inbox_is_moved_aside_and_the_daemon_starts() {
    let daemon = start(Plan::default()).await;
    let (home, time) = daemon.stop().await;
    let folder = home.path().join("daemon/acme");
    fs::write(folder.join("inbox.db"), "no database at all".repeat(1_000)).unwrap();
    let daemon = start_in(Arc::clone(&home), time, false).await;
    daemon.get("/v1/inbox").await.expect(200);
    let aside = fs::read_dir(&folder).unwrap().flatten();
    assert!(aside.into_iter().any(|entry| entry.file_name().to_string_lossy().starts_with("inbox.db.corrupt-")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_without_a_membership_of_another_schema_or_with_wrong_settings_is_refused() {
    let time = ManualSource::at(START_US);
    let refusal = |home: &tempfile::TempDir| {
        let config = config(home.path(), &time, false);
        async move { Daemon::open(config).await.err().unwrap() }
    };
    let home = tempfile::tempdir().unwrap();
    let error = refusal(&home).await;
    assert!(error.cure().contains("mesh join"), "{error}");
    let folder = joined(home.path(), &Plan::default());
    folder.write("schema_version", b"999\n").unwrap();
    let error = refusal(&home).await;
    assert_eq!(error.code(), Code::SchemaTooNew);
    assert!(error.message().contains("999"), "{error}");
    folder.remove("schema_version").unwrap();
    folder.write("config.toml", b"[outbox]\nsweep_ms = 0\n").unwrap();
    assert_eq!(refusal(&home).await.code(), Code::ConfigInvalid);
    folder.remove("config.toml").unwrap();
    // Where nothing tells hosts apart the check is off, and there is nothing to show.
    if Host::read("/".as_ref()).fingerprint().is_some() {
        folder.write("host_fingerprint.json", br#"{"fingerprint":"of another host"}"#).unwrap();
        assert_eq!(refusal(&home).await.code(), Code::HostChanged);
    }
    folder.remove("host_fingerprint.json").unwrap();
    folder.write("keypair.json", b"{}").unwrap();
    assert_eq!(refusal(&home).await.code(), Code::DataFolderUnusable);
}
