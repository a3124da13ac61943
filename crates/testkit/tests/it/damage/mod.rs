//! SQLite's files hurt from outside: what start-up refuses, what a running program survives, and what it says.

mod backup;
mod backup_shards;
mod disk_full;
mod failed_fsync;
mod gone_while_running;
mod lost_commits;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value as Json, json};
use waybill_testkit::server::Server;

/// Status and body of one request with the admin's key.
fn send(server: &Server, method: &str, path: &str, body: Option<&Json>) -> (u16, Json) {
    let address = server.base_url.strip_prefix("http://").unwrap();
    let body = body.map(Json::to_string).unwrap_or_default();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nAuthorization: Bearer {}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        server.admin_key,
        body.len(),
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, serde_json::from_str(body).unwrap_or(Json::Null))
}

/// Creates the task of this key, or finds it.
fn create(server: &Server, key: &str, payload: &str) -> (u16, Json) {
    let task = json!({ "type": "t", "payload": payload, "idempotency_key": key });
    send(server, "POST", "/v1/tasks", Some(&task))
}

fn id_of(task: &Json) -> String {
    task["task_id"].as_str().unwrap_or_else(|| panic!("no task_id in {task}")).to_owned()
}

fn exists(server: &Server, task_id: &str) -> bool {
    send(server, "GET", &format!("/v1/tasks/{task_id}"), None).0 == 200
}

fn readiness(server: &Server) -> (u16, Json) {
    send(server, "GET", "/readyz", None)
}

/// Asks again until it is so; what is waited for takes a second or two.
fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
