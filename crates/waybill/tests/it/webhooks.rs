//! `waybill webhook`: from the command line to a signed request, through a running server.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value as Json, json};
use sha2::Sha256;
use waybill_kernel::Code;

use crate::world::{Ended, Engine, World, program, until};

const SETTINGS: &str = "[webhooks]\nallow_private = true\nfeed_interval_s = 1\n";
/// Longer than a retry of the feed on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A request as an endpoint gets it.
#[derive(Debug)]
struct Request {
    id: String,
    timestamp: String,
    signature: String,
    body: String,
}

impl Request {
    fn is_signed_with(&self, secret: &str) -> bool {
        let key = STANDARD.decode(secret.strip_prefix("whsec_").unwrap()).unwrap();
        let mac = Hmac::<Sha256>::new_from_slice(&key).unwrap();
        let mac = mac.chain_update(format!("{}.{}.{}", self.id, self.timestamp, self.body)).finalize();
        self.signature == format!("v1,{}", STANDARD.encode(mac.into_bytes()))
    }
}

/// An endpoint that accepts everything.
fn endpoint() -> (String, mpsc::Receiver<Request>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://127.0.0.1:{}/hook", listener.local_addr().unwrap().port());
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            if sender.send(take(&mut stream.unwrap())).is_err() {
                return;
            }
        }
    });
    (url, receiver)
}

fn take(stream: &mut TcpStream) -> Request {
    let mut reader = BufReader::new(&mut *stream);
    let (mut id, mut timestamp, mut signature, mut length) = Default::default();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        match line.trim_end().split_once(": ") {
            None if line.trim().is_empty() => break,
            Some(("webhook-id", value)) => id = value.to_owned(),
            Some(("webhook-timestamp", value)) => timestamp = value.to_owned(),
            Some(("webhook-signature", value)) => signature = value.to_owned(),
            Some(("content-length", value)) => length = value.parse::<usize>().unwrap(),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").unwrap();
    Request { id, timestamp, signature, body: String::from_utf8(body).unwrap() }
}

fn webhook(world: &World, args: &[&str]) -> Ended {
    let url = world.url("");
    program(&[&["webhook"], args, &["--url", &url, "--key", &world.server.admin_key]].concat())
}

fn asked(world: &World, args: &[&str]) -> Json {
    let ended = webhook(world, &[args, &["--json"]].concat());
    assert_eq!(ended.exit, 0, "{}", ended.stderr);
    ended.json()
}

async fn a_receipt_reaches_its_endpoint(engine: Engine) {
    let mut world = World::with(engine, SETTINGS, &[]).await;
    let (url, requests) = endpoint();
    let made = asked(&world, &["create", &url, "--kind", "task.assigned", "--description", "the lamp"]);
    let (id, secret) = (made["webhook_id"].as_str().unwrap(), made["secret"].as_str().unwrap());
    let task = world.task(&world.server.admin_key).await;
    let request = requests.recv_timeout(PATIENCE).unwrap();
    assert!(request.is_signed_with(secret), "{request:?}");
    let body: Json = serde_json::from_str(&request.body).unwrap();
    assert_eq!((&body["type"], &body["data"]["task_id"]), (&json!("receipt.task.assigned"), &json!(task)));

    until("the delivery is recorded", || async {
        let listed = asked(&world, &["deliveries", id]);
        assert_eq!(listed["deliveries"][0]["delivery_id"], request.id);
        listed["deliveries"][0]["status"] == "delivered"
    })
    .await;
    let listed = asked(&world, &["list"]);
    assert_eq!(
        (&listed["webhooks"][0]["url"], &listed["webhooks"][0]["description"]),
        (&json!(url), &json!("the lamp"))
    );
    for shown in [webhook(&world, &["list"]), webhook(&world, &["deliveries", id])] {
        assert!(shown.exit == 0 && shown.stdout.lines().count() == 2, "{}", shown.stdout);
    }
    assert_eq!(webhook(&world, &["redeliver", id, &request.id]).exit, 0);
    let again = requests.recv_timeout(PATIENCE).unwrap();
    assert!(again.id == request.id && again.is_signed_with(secret), "{again:?}");

    // Under another server key the secret is the same.
    let data = world.server.data_dir.to_str().unwrap().to_owned();
    assert!(world.server.term().unwrap().success());
    let location = match &world.database {
        Some(database) => vec!["--data", &data, "--store", &database.url],
        None => vec!["--data", &data],
    };
    let rotated = program(&[&["server-key", "rotate"], &location[..]].concat());
    assert_eq!(rotated.exit, 0, "{}", rotated.stderr);
    world.server.restart().unwrap();
    world.task(&world.server.admin_key).await;
    let request = requests.recv_timeout(PATIENCE).unwrap();
    assert!(request.is_signed_with(secret), "{request:?}");

    assert_eq!(webhook(&world, &["delete", id]).exit, 0);
    webhook(&world, &["delete", id]).must_be(Code::NotFound, "deleted twice");
    let log = world.server.log();
    assert!(!log.contains(secret) && !log.contains(&secret[6..]), "the secret is in the log");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receipt_reaches_its_endpoint_on_sqlite() {
    a_receipt_reaches_its_endpoint(Engine::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receipt_reaches_its_endpoint_on_postgresql() {
    a_receipt_reaches_its_endpoint(Engine::Postgres).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_inner_address_is_refused_and_only_admins_make_webhooks() {
    let world = World::start().await;
    let (url, requests) = endpoint();
    webhook(&world, &["create", &url]).must_be(Code::AddressRefused, "loopback");
    webhook(&world, &["create", "ftp://hooks.example/"]).must_be(Code::InvalidRequest, "ftp");
    webhook(&world, &["create", "https://hooks.example/", "--kind", "painted"]).must_be(Code::InvalidRequest, "a kind");
    let alice = world.key(json!({ "principal": "agent:alice" })).await;
    for path in ["/admin/webhooks", "/admin/webhooks/0198c0de-1a2b-7c3d-8e4f-5a6b7c8d9e10/delete"] {
        let reply = world.post(&alice, path, &json!({ "url": "https://hooks.example/" })).await;
        reply.must_be(Code::Forbidden, path);
    }
    // Its name is no better than its address.
    let named = url.replace("127.0.0.1", "localhost");
    let made = asked(&world, &["create", &named]);
    world.task(&world.server.admin_key).await;
    until("the attempt is recorded", || async {
        let listed = asked(&world, &["deliveries", made["webhook_id"].as_str().unwrap()]);
        let error = listed["deliveries"][0]["last_error"].as_str().unwrap_or_default().to_owned();
        error.contains("is no address of the public internet")
    })
    .await;
    assert!(requests.try_recv().is_err(), "something reached it");
}

#[tokio::test(flavor = "multi_thread")]
async fn as_many_deliveries_are_shown_as_were_asked_for() {
    const TASKS: usize = 205;
    let world = World::with(Engine::Sqlite, SETTINGS, &[]).await;
    let (url, _requests) = endpoint();
    let made = asked(&world, &["create", &url, "--kind", "task.assigned"]);
    let id = made["webhook_id"].as_str().unwrap();
    for _ in 0..TASKS {
        world.task(&world.server.admin_key).await;
    }
    let listed = |limit: &str| asked(&world, &["deliveries", id, "--limit", limit]);
    let count = |listed: &Json| listed["deliveries"].as_array().unwrap().len();
    until("all are there", || async { count(&listed("1000")) == TASKS }).await;
    let all = listed("1000");
    assert!(all["next_cursor"].is_null(), "{all}");
    let mut ids: Vec<&str> =
        all["deliveries"].as_array().unwrap().iter().map(|row| row["delivery_id"].as_str().unwrap()).collect();
    assert!(ids.is_sorted_by(|newer, older| newer > older), "each once, newest first");
    ids.truncate(3);
    let three = listed("3");
    assert!(count(&three) == 3 && three["next_cursor"].is_string(), "{three}");
    assert_eq!(three["deliveries"][2]["delivery_id"], ids[2]);
    let told = webhook(&world, &["deliveries", id, "--limit", "3"]);
    assert!(told.exit == 0 && told.stderr.contains("raise --limit"), "{}", told.stderr);
    let told = webhook(&world, &["deliveries", id, "--limit", "1000"]);
    assert!(told.exit == 0 && !told.stderr.contains("raise --limit"), "{}", told.stderr);
}
