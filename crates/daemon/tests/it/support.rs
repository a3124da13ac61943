//! A daemon in a folder of its own, with members and topics that it knows of and no broker to be reached.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use waybill_daemon::directory::{Change, Member, Standing, Topic};
use waybill_daemon::identity::{Mode, Stance, save_identity};
use waybill_daemon::outbox::{Outcome, Settled};
use waybill_daemon::{Config, Daemon, Folder, Handle, Membership};
use waybill_kernel::clock::manual::ManualSource;
use waybill_kernel::entropy::SeededEntropy;
use waybill_kernel::id::digest_id;
use waybill_kernel::{Clock, Entropy, Result};
use waybill_mesh_protocol::{Edition, Identity, MemberId, MeshId};

/// Nobody listens there.
const SERVER: &str = "http://127.0.0.1:9";
pub const START_US: i64 = 1_700_000_000_000_000;

pub struct Running {
    pub home: Arc<TempDir>,
    pub handle: Handle,
    pub time: ManualSource,
    pub bob: Identity,
    token: CancellationToken,
    task: JoinHandle<Result<()>>,
}

pub struct Plan {
    pub config: &'static str,
    pub tcp: bool,
    pub plaintext: bool,
}

impl Default for Plan {
    fn default() -> Self {
        Self { config: "", tcp: false, plaintext: true }
    }
}

pub fn member(number: u8) -> MemberId {
    MemberId(digest_id(&[b"member", &[number]]))
}

pub fn identity(number: u64) -> Identity {
    Identity::generate(&SeededEntropy::new(number))
}

pub fn stance(tcp: bool) -> Stance {
    Stance { mode: Mode::Persistent, tcp, hooks: false, persistent_in_ci: false }
}

/// A folder that has joined a mesh.
pub fn joined(home: &Path, plan: &Plan) -> Folder {
    let folder = Folder::open(home, "acme").unwrap();
    let alice = identity(1);
    let membership = Membership {
        server: SERVER.to_owned(),
        mesh: MeshId(digest_id(&[b"mesh"])),
        slug: "acme".to_owned(),
        member: member(1),
        name: "alice".to_owned(),
        owner: alice.public(),
        plaintext: plan.plaintext,
    };
    membership.save(&folder).unwrap();
    save_identity(&folder, &alice).unwrap();
    folder.write("config.toml", plan.config.as_bytes()).unwrap();
    folder
}

pub fn config(home: &Path, time: &ManualSource, tcp: bool) -> Config {
    Config {
        home: home.to_owned(),
        mesh: "acme".to_owned(),
        stance: stance(tcp),
        ephemeral: None,
        own: PathBuf::from("/bin/false"),
        edition: Edition::default(),
        clock: Arc::new(Clock::new(time.clone())),
        entropy: Arc::new(SeededEntropy::new(7)) as Arc<dyn Entropy>,
    }
}

pub async fn start(plan: Plan) -> Running {
    let home = Arc::new(tempfile::tempdir().unwrap());
    joined(home.path(), &plan);
    start_in(home, ManualSource::at(START_US), plan.tcp).await
}

pub async fn start_in(home: Arc<TempDir>, time: ManualSource, tcp: bool) -> Running {
    let config = config(home.path(), &time, tcp);
    start_as(home, time, config).await
}

pub async fn start_as(home: Arc<TempDir>, time: ManualSource, config: Config) -> Running {
    let service = Daemon::open(config).await.unwrap();
    let handle = service.handle();
    let (alice, bob) = (identity(1), identity(2));
    let known = |number, name: &str, keys| Member {
        id: member(number),
        name: name.to_owned(),
        keys,
        is_owner: number == 1,
        state: Standing::Active,
    };
    let topic = Topic { name: "ops".to_owned(), subscribed: true, epoch: None };
    let changes = vec![
        Change::Member(known(1, "alice", alice.public())),
        Change::Member(known(2, "bob", bob.public())),
        Change::Topic(topic),
    ];
    handle.directory().learn(changes).await.unwrap();
    let token = CancellationToken::new();
    let task = tokio::spawn(service.run(token.clone()));
    Running { home, handle, time, bob, token, task }
}

impl Running {
    pub fn socket(&self) -> PathBuf {
        self.handle.folder().socket().unwrap()
    }

    pub async fn call(&self, method: &str, target: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let mut stream = UnixStream::connect(self.socket()).await.unwrap();
        exchange(&mut stream, method, target, headers, body).await
    }

    pub async fn get(&self, target: &str) -> Answer {
        self.call("GET", target, &[], "").await
    }

    pub async fn post(&self, target: &str, body: &Value) -> Answer {
        self.call("POST", target, &[], &body.to_string()).await
    }

    pub async fn tcp(&self, method: &str, target: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let mut stream = TcpStream::connect(self.handle.tcp_address().unwrap()).await.unwrap();
        exchange(&mut stream, method, target, headers, body).await
    }

    pub fn local_token(&self) -> String {
        self.handle.folder().read_text("local_token").unwrap().unwrap().trim().to_owned()
    }

    /// Claims everything that is due and returns the row of this message.
    pub async fn claim(&self, id: &str) -> i64 {
        let claimed = self.handle.outbox().claim(64).await.unwrap();
        claimed.flights.iter().find(|flight| flight.client_message_id == id).unwrap().id
    }

    pub async fn settle(&self, row: i64, outcome: Outcome) -> Settled {
        self.handle.outbox().settle(row, outcome).await.unwrap().unwrap()
    }

    /// Stops and returns the folder, for another start in it.
    pub async fn stop(self) -> (Arc<TempDir>, ManualSource) {
        self.token.cancel();
        tokio::time::timeout(Duration::from_secs(30), self.task).await.unwrap().unwrap().unwrap();
        (self.home, self.time)
    }
}

pub fn delivered() -> Outcome {
    Outcome::Delivered { broker_message_id: "m-1".to_owned(), history_id: Some("h-1".to_owned()) }
}

pub fn refused() -> Outcome {
    Outcome::Refused { reason: "topic_unknown".to_owned() }
}

pub fn failed() -> Outcome {
    Outcome::Failed { reason: "503".to_owned(), retry_after: None }
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(':'));
        lines.into_iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    }

    #[track_caller]
    pub fn expect(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{self:?}");
        self.json()
    }
}

pub fn request(method: &str, target: &str, headers: &[(&str, &str)], body: &str) -> String {
    let mut text = format!("{method} {target} HTTP/1.1\r\ncontent-length: {}\r\n", body.len());
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        text.push_str("host: localhost\r\n");
    }
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text + "\r\n" + body
}

/// One request and its answer on a connection that may go on to be used.
pub async fn exchange<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    method: &str,
    target: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Answer {
    // The daemon may refuse a body by its head and close: what is written then is nobody's.
    let _ = stream.write_all(request(method, target, headers, body).as_bytes()).await;
    read_answer(stream).await
}

pub async fn read_head<S: AsyncRead + Unpin>(stream: &mut S) -> (u16, String) {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        assert_eq!(stream.read(&mut byte).await.unwrap(), 1, "the answer ends in its head: {head:?}");
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head)
}

async fn read_answer<S: AsyncRead + Unpin>(stream: &mut S) -> Answer {
    let (status, head) = read_head(stream).await;
    let mut answer = Answer { status, head, body: String::new() };
    let length: usize = answer.header("content-length").unwrap().parse().unwrap();
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.unwrap();
    answer.body = String::from_utf8(body).unwrap();
    answer
}
