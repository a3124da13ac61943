//! Events as they happen, to several readers, and to those who come back; and what the daemon says of itself.

use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use waybill_daemon::events::EventKind;
use waybill_kernel::Time;

use crate::support::{Plan, Running, read_head, request, start};

struct Reader(BufReader<UnixStream>);

impl Reader {
    async fn open(daemon: &Running, headers: &[(&str, &str)]) -> Self {
        let mut stream = UnixStream::connect(daemon.socket()).await.unwrap();
        stream.write_all(request("GET", "/v1/events", headers, "").as_bytes()).await.unwrap();
        let (status, head) = read_head(&mut stream).await;
        assert_eq!(status, 200);
        assert!(head.to_ascii_lowercase().contains("content-type: text/event-stream"), "{head}");
        let mut reader = Self(BufReader::new(stream));
        reader.until(": open").await;
        reader
    }

    async fn until(&mut self, begin: &str) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.0.read_line(&mut line).await.unwrap(), 0, "the stream ended before {begin:?}");
            if line.starts_with(begin) {
                return line.trim_end().to_owned();
            }
        }
    }
}

fn publish(daemon: &Running, number: u32) -> i64 {
    daemon.handle.events().publish(EventKind::PeerJoin, Time::EPOCH, json!({ "n": number })).id
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_hears_events_and_resumes_where_it_was() {
    let daemon = start(Plan::default()).await;
    let mut reader = Reader::open(&daemon, &[]).await;
    let first = publish(&daemon, 1);
    assert_eq!(reader.until("id:").await, format!("id: {first}"));
    assert_eq!(reader.until("event:").await, "event: peer_join");
    assert!(reader.until("data:").await.contains("\"n\":1"));
    drop(reader);
    let second = publish(&daemon, 2);
    let mut again = Reader::open(&daemon, &[("last-event-id", &first.to_string())]).await;
    assert_eq!(again.until("id:").await, format!("id: {second}"));
    let mut stream = UnixStream::connect(daemon.socket()).await.unwrap();
    stream.write_all(request("GET", "/v1/events", &[("last-event-id", "x")], "").as_bytes()).await.unwrap();
    assert_eq!(read_head(&mut stream).await.0, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_have_places_of_their_own_and_end_with_the_daemon() {
    let daemon = start(Plan { config: "[ipc]\nstreams_max = 2\nin_flight_max = 1\n", ..Plan::default() }).await;
    let first = Reader::open(&daemon, &[]).await;
    let mut second = Reader::open(&daemon, &[]).await;
    assert_eq!(daemon.get("/v1/events").await.expect(429)["error"], "too_many_streams");
    daemon.get("/v1/health").await.expect(200);
    drop(first);
    // Its place is free as soon as the daemon has seen that nobody reads: the next comment or event shows it.
    publish(&daemon, 1);
    while daemon_is_full(&daemon).await {
        publish(&daemon, 2);
    }
    tokio::time::timeout(Duration::from_secs(20), daemon.stop()).await.expect("an open stream holds the daemon up");
    let mut line = String::new();
    while second.0.read_line(&mut line).await.unwrap() != 0 {}
}

async fn daemon_is_full(daemon: &Running) -> bool {
    let mut stream = UnixStream::connect(daemon.socket()).await.unwrap();
    stream.write_all(request("GET", "/v1/events", &[], "").as_bytes()).await.unwrap();
    read_head(&mut stream).await.0 == 429
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_beyond_the_places_are_told_that_the_daemon_is_busy() {
    let daemon = start(Plan { config: "[ipc]\nin_flight_max = 1\n", ..Plan::default() }).await;
    // A body that does not come holds the only place.
    let hold = async || {
        let mut slow = UnixStream::connect(daemon.socket()).await.unwrap();
        slow.write_all(b"POST /v1/send HTTP/1.1\r\nhost: x\r\ncontent-length: 30\r\n\r\n{").await.unwrap();
        slow
    };
    let mut slow = hold().await;
    let answer = loop {
        let answer = daemon.get("/v1/heartbeat").await;
        if answer.status == 429 {
            break answer;
        }
        // One that came while the question had the place was refused itself.
        if slow.try_read(&mut [0]).is_ok() {
            slow = hold().await;
        }
    };
    assert_eq!(answer.json()["error"], "daemon_busy");
    assert!(answer.header("retry-after").is_some());
    drop(slow);
    while daemon.get("/v1/heartbeat").await.status == 429 {}
}

#[tokio::test(flavor = "multi_thread")]
async fn the_daemon_tells_how_it_is_and_what_it_can() {
    let daemon = start(Plan::default()).await;
    daemon.post("/v1/send", &json!({ "to": "bob", "message": "m", "client_message_id": "x" })).await.expect(202);
    daemon.post("/v1/send", &json!({ "to": "bob", "message": "m", "client_message_id": "x" })).await.expect(202);
    // A little more: the daemon's clock comes near the wall's by one part in a hundred.
    daemon.time.pass(Duration::from_millis(5_500));
    let health = daemon.get("/v1/health").await.expect(200);
    for (name, value) in [
        ("connected", json!(false)),
        ("queue_depth", json!(1)),
        ("inflight", json!(0)),
        ("mesh", json!("acme")),
        ("uptime_s", json!(5)),
        ("schema_version", json!(waybill_daemon::run::SCHEMA_VERSION)),
        ("broker_version", json!(null)),
        ("degraded", json!(false)),
    ] {
        assert_eq!(health[name], value, "{name}: {health}");
    }
    assert_eq!(health["member_pubkey"].as_str().unwrap().len(), 64);
    let version = daemon.get("/v1/version").await.expect(200);
    assert_eq!(version["ipc_api"], 1);
    assert_eq!(daemon.get("/v1/compat").await.expect(200)["compatible"], json!(null));
    assert_eq!(daemon.get("/v1/heartbeat").await.expect(200)["ok"], true);
    let peers = daemon.get("/v1/peers").await.expect(200);
    assert_eq!(peers["peers"][0]["name"], "bob");
    let metrics = daemon.get("/v1/metrics").await;
    assert_eq!(metrics.status, 200);
    for line in [
        "waybill_daemon_outbox_depth{status=\"pending\"} 1",
        "waybill_daemon_send_total 1",
        "waybill_daemon_dedupe_total{direction=\"out\"} 1",
        "waybill_daemon_connected 0",
        "waybill_daemon_outbox_age_seconds 5",
        "waybill_daemon_ipc_request_total{endpoint=\"send\",status=\"2xx\"} 2",
    ] {
        assert!(metrics.body.lines().any(|found| found.starts_with(line)), "{line} is not in {}", metrics.body);
    }
}
