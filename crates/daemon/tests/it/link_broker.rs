//! A small broker on loopback: a real WebSocket and a few answers over HTTP, driven by the test frame by frame.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message as Raw;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_util::sync::CancellationToken;
use waybill_daemon::directory::{Change, Member, Standing, Topic};
use waybill_daemon::inbox::{Message as Received, Query};
use waybill_daemon::outbox::Status;
use waybill_daemon::seal::Draft;
use waybill_daemon::{Config, Daemon, Handle, Membership};
use waybill_kernel::clock::manual::ManualSource;
use waybill_kernel::entropy::{OsEntropy, SeededEntropy};
use waybill_kernel::id::digest_id;
use waybill_kernel::{Clock, Result, Time};
use waybill_mesh_protocol::challenge::{self, ChallengeNonce};
use waybill_mesh_protocol::frames::{Challenge, Deliver, Framed, HelloOk, HistoryPage, Message, Send, SendResult};
use waybill_mesh_protocol::negotiation::{FeatureResponse, Features};
use waybill_mesh_protocol::rotation::Rotation;
use waybill_mesh_protocol::{
    ClientFrame, CloseCode, DeliveryId, Destination, DestinationKind, Envelope, HistoryId, Identity, MemberKeys,
    MeshId, MessageId, ServerFrame,
};

use super::link_lists::{Lists, hold_back, listed};
use super::support::{self, Plan, START_US, identity, member};

/// Every wait of a test ends here: what has not come by then does not come.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// Short times, so that a test of silence is short.
pub const CONFIG: &str = "[link]\nbackoff_min_ms = 5\nbackoff_max_ms = 20\nping_ms = 200\ndead_ms = 2000\nanswer_ms = 5000\n\
                          history_page = 2\n[outbox]\nrestart_pause_ms = 0\nbackoff_min_ms = 1\nbackoff_max_ms = 1\n";

pub fn mesh() -> MeshId {
    MeshId(digest_id(&[b"mesh"]))
}

/// What becomes of a rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rotating {
    Taken,
    Refused,
    /// The broker takes it, and its answer is lost.
    AnswerLost,
    /// The broker does not hear of it.
    RequestLost,
    /// A proxy turns it away in words of its own, and the broker does not hear of it.
    TurnedAway,
}

/// What the broker answers over HTTP.
pub struct Http {
    pub plaintext: bool,
    pub alice: MemberKeys,
    pub bob: MemberKeys,
    /// Further members, as the list has them.
    pub others: Vec<Value>,
    pub lists: Lists,
    pub rotating: Rotating,
    pub files: HashMap<String, Vec<u8>>,
    /// Paths and queries of uploads, in their order.
    pub uploads: Vec<String>,
}

pub struct FakeBroker {
    pub address: SocketAddr,
    pub http: Arc<Mutex<Http>>,
    connections: mpsc::Receiver<Connection>,
}

impl FakeBroker {
    pub async fn start(plaintext: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (give, connections) = mpsc::channel(16);
        let http = Arc::new(Mutex::new(Http {
            plaintext,
            alice: identity(1).public(),
            bob: identity(2).public(),
            others: Vec::new(),
            lists: Lists::default(),
            rotating: Rotating::Taken,
            files: HashMap::new(),
            uploads: Vec::new(),
        }));
        let answers = Arc::clone(&http);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, give.clone(), Arc::clone(&answers)));
            }
        });
        Self { address, http, connections }
    }

    /// The daemon's next connection, before anything was said on it.
    pub async fn accept(&mut self) -> Connection {
        tokio::time::timeout(PATIENCE, self.connections.recv()).await.expect("no connection came").unwrap()
    }

    /// The next connection, greeted, with the place in history that it asks for.
    pub async fn greeted(&mut self) -> (Connection, u64) {
        let mut connection = self.accept().await;
        let plaintext = self.http.lock().unwrap().plaintext;
        connection.greet(plaintext).await;
        let after = connection.asked_history().await;
        (connection, after)
    }

    /// As a daemon finds a broker with nothing new.
    pub async fn ready(&mut self) -> Connection {
        let (mut connection, after) = self.greeted().await;
        connection.page(Vec::new(), after, false).await;
        connection
    }
}

async fn serve(mut stream: TcpStream, give: mpsc::Sender<Connection>, http: Arc<Mutex<Http>>) {
    let mut head = [0; 12];
    loop {
        match stream.peek(&mut head).await {
            Ok(bytes) if bytes == head.len() => break,
            Ok(0) | Err(_) => return,
            Ok(_) => tokio::time::sleep(Duration::from_millis(1)).await,
        }
    }
    if &head == b"GET /mesh/ws" {
        if let Ok(socket) = tokio_tungstenite::accept_async(stream).await {
            let _ = give.send(Connection { socket, early: VecDeque::new() }).await;
        }
        return;
    }
    let Some((head, body)) = request(&mut stream).await else { return };
    let answered = answer(&head, body, &mut http.lock().unwrap());
    let Some((status, body)) = answered else { return };
    hold_back(&head, &http).await;
    let head = format!("HTTP/1.1 {status} X\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
    let _ = stream.write_all(&[head.into_bytes(), body].concat()).await;
}

async fn request(stream: &mut TcpStream) -> Option<(String, Vec<u8>)> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).await.ok()?;
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).ok()?;
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    Some((head, body))
}

/// None where the connection is cut instead.
fn answer(head: &str, body: Vec<u8>, http: &mut Http) -> Option<(u16, Vec<u8>)> {
    let mut line = head.split(' ');
    let (method, target) = (line.next()?, line.next()?);
    let signer = head.split("key=").nth(1)?.get(..64)?;
    let path = target.split('?').next()?;
    match (method, path) {
        ("POST", "/mesh/v1/rotate") => {
            let body: Value = serde_json::from_slice(&body).ok()?;
            let rotation: Rotation = serde_json::from_value(body["rotation"].clone()).ok()?;
            rotation.verify(mesh()).unwrap();
            rotate(http, signer, &rotation)
        }
        ("POST", "/mesh/v1/files") => {
            let id = digest_id(&[&body]).to_string();
            http.files.insert(id.clone(), body);
            http.uploads.push(target.to_owned());
            Some((201, json!({ "file_id": id }).to_string().into_bytes()))
        }
        ("POST", "/mesh/v1/profile" | "/mesh/v1/topics/ops/unsubscribe") => Some((200, b"{}".to_vec())),
        ("GET", path) => match path.strip_prefix("/mesh/v1/files/") {
            Some(id) => http.files.get(id).map(|file| (200, file.clone())),
            None => Some((200, listed(path, http).to_string().into_bytes())),
        },
        _ => Some((404, json!({ "error": "not_found", "message": "no" }).to_string().into_bytes())),
    }
}

fn rotate(http: &mut Http, signer: &str, rotation: &Rotation) -> Option<(u16, Vec<u8>)> {
    let no = || Some((403, json!({ "error": "member_revoked", "message": "no" }).to_string().into_bytes()));
    let is_current = signer == http.alice.ed25519.to_string();
    // Asked again with the new keys, it says that it has them.
    let is_again = is_current && http.alice == rotation.keys;
    match http.rotating {
        Rotating::RequestLost if !is_again => return None,
        Rotating::TurnedAway if !is_again => return Some((403, b"<html>Forbidden</html>".to_vec())),
        _ => {}
    }
    if !is_current || (!is_again && (http.alice.ed25519 != rotation.old || http.rotating == Rotating::Refused)) {
        return no();
    }
    http.alice = rotation.keys;
    if http.rotating == Rotating::AnswerLost && !is_again {
        return None;
    }
    Some((200, json!({ "member_id": member(1), "keys": rotation.keys }).to_string().into_bytes()))
}

/// One connection of the daemon, seen from the broker.
pub struct Connection {
    socket: WebSocketStream<TcpStream>,
    /// Sent before the page of history was asked for: the drain waits for nobody.
    early: VecDeque<Send>,
}

impl Connection {
    pub async fn send(&mut self, frame: ServerFrame) {
        self.send_framed(frame.into()).await;
    }

    pub async fn send_framed(&mut self, frame: Framed<ServerFrame>) {
        self.send_text(frame.write().unwrap()).await;
    }

    pub async fn send_text(&mut self, text: String) {
        self.socket.send(Raw::text(text)).await.unwrap();
    }

    /// As far as the daemon reads it.
    pub async fn send_too_much(&mut self, bytes: usize) {
        let _ = self.socket.send(Raw::text("x".repeat(bytes))).await;
    }

    /// The next frame but pings, which are answered.
    pub async fn frame(&mut self) -> ClientFrame {
        loop {
            match self.next().await {
                Some(ClientFrame::Ping {}) => self.send(ServerFrame::Pong {}).await,
                Some(frame) => return frame,
                None => panic!("the daemon has closed the connection"),
            }
        }
    }

    /// None when the daemon has closed.
    async fn next(&mut self) -> Option<ClientFrame> {
        loop {
            let message = tokio::time::timeout(PATIENCE, self.socket.next()).await.expect("no frame came");
            match message {
                Some(Ok(Raw::Text(text))) => return Some(Framed::<ClientFrame>::read(text.as_bytes()).unwrap().frame),
                Some(Ok(Raw::Close(_)) | Err(_)) | None => return None,
                Some(Ok(_)) => {}
            }
        }
    }

    /// The code that the daemon closes with.
    pub async fn closed_with(&mut self) -> Option<u16> {
        loop {
            let message = tokio::time::timeout(PATIENCE, self.socket.next()).await.expect("nothing came");
            match message {
                Some(Ok(Raw::Close(frame))) => return frame.map(|frame| frame.code.into()),
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return None,
            }
        }
    }

    pub async fn close(mut self, code: CloseCode) {
        let frame = CloseFrame { code: code.code().into(), reason: code.name().into() };
        self.socket.close(Some(frame)).await.unwrap();
        // Until the other side has heard it.
        while let Some(Ok(_)) = self.socket.next().await {}
    }

    pub async fn hello(&mut self, plaintext: bool) {
        let nonce = ChallengeNonce::random(&OsEntropy);
        self.send(ServerFrame::Challenge(Challenge { nonce })).await;
        let ClientFrame::Hello(hello) = self.frame().await else { panic!("no hello") };
        let now = Time::from_micros(hello.time * 1_000_000);
        challenge::verify(&hello.key, &nonce, mesh(), hello.time, &hello.signature, now).unwrap();
        self.send(ServerFrame::HelloOk(HelloOk {
            mesh: mesh(),
            slug: "acme".parse().unwrap(),
            member_id: member(1),
            name: "alice".parse().unwrap(),
            plaintext,
            broker_version: "test".to_owned(),
        }))
        .await;
    }

    pub async fn greet(&mut self, plaintext: bool) {
        self.hello(plaintext).await;
        let ClientFrame::FeatureNegotiationRequest(request) = self.frame().await else { panic!("no negotiation") };
        self.agree(Features::default().answer(&request).unwrap()).await;
    }

    pub async fn agree(&mut self, response: FeatureResponse) {
        self.send(ServerFrame::FeatureNegotiationResponse(response)).await;
    }

    pub async fn asked_history(&mut self) -> u64 {
        loop {
            match self.frame().await {
                ClientFrame::History(request) => return request.after,
                ClientFrame::Send(send) => self.early.push_back(*send),
                other => panic!("{other:?}"),
            }
        }
    }

    pub async fn page(&mut self, messages: Vec<Message>, next_after: u64, more: bool) {
        self.send(ServerFrame::HistoryPage(HistoryPage { messages, next_after, more })).await;
    }

    pub async fn deliver(&mut self, message: Message) -> DeliveryId {
        let delivery_id = DeliveryId(digest_id(&[b"delivery", &message.seq.to_be_bytes()]));
        self.send(ServerFrame::Deliver(Box::new(Deliver { delivery_id, message }))).await;
        delivery_id
    }

    pub async fn acknowledged(&mut self) -> DeliveryId {
        match self.frame().await {
            ClientFrame::Delivered(delivered) => delivered.delivery_id,
            other => panic!("{other:?}"),
        }
    }

    pub async fn sent(&mut self) -> Send {
        if let Some(send) = self.early.pop_front() {
            return send;
        }
        match self.frame().await {
            ClientFrame::Send(send) => *send,
            other => panic!("{other:?}"),
        }
    }

    pub async fn answer(&mut self, result: SendResult) {
        self.send(ServerFrame::SendResult(Box::new(result))).await;
    }

    pub async fn accept(&mut self, send: &Send) {
        self.answer(accepted(send)).await;
    }
}

pub fn accepted(send: &Send) -> SendResult {
    let id = send.client_message_id.clone();
    let digest = digest_id(&[id.as_str().as_bytes()]);
    SendResult::accepted(id, MessageId(digest), HistoryId(digest))
}

/// A message as the broker passes it on.
pub fn message(seq: u64, sender: &Identity, number: u8, name: &str, envelope: Envelope) -> Message {
    let digest = digest_id(&[&seq.to_be_bytes()]);
    Message {
        client_message_id: format!("in-{seq}").parse().unwrap(),
        broker_message_id: MessageId(digest),
        history_id: HistoryId(digest),
        seq,
        sender_id: member(number),
        sender_name: name.parse().unwrap(),
        sender: sender.public(),
        accepted_at: Time::from_micros(START_US),
        envelope,
    }
}

/// From bob to alice, in plain text.
pub fn from_bob(seq: u64, text: &str) -> Message {
    let envelope = Envelope::new(Destination::dm(&identity(1).public_key()), text.as_bytes().to_vec());
    message(seq, &identity(2), 2, "bob", envelope)
}

/// The daemon of alice, linked to this broker.
pub struct Linked {
    pub handle: Handle,
    pub task: JoinHandle<Result<()>>,
    token: CancellationToken,
    pub home: Arc<TempDir>,
}

impl Linked {
    pub async fn start(broker: &FakeBroker, config: &'static str) -> Self {
        let plaintext = broker.http.lock().unwrap().plaintext;
        let home = Arc::new(tempfile::tempdir().unwrap());
        let folder = support::joined(home.path(), &Plan { config, tcp: false, plaintext });
        let membership = Membership::load(&folder).unwrap().unwrap();
        Membership { server: format!("http://{}", broker.address), ..membership }.save(&folder).unwrap();
        Self::start_in(home).await
    }

    async fn start_in(home: Arc<TempDir>) -> Self {
        // Pauses of the outbox pass while the test waits for frames.
        let clock = Arc::new(Clock::system());
        let config = support::config(home.path(), &ManualSource::at(START_US), false);
        let service = Daemon::open(Config { clock, ..config }).await.unwrap();
        let handle = service.handle();
        let known = |number, name: &str, keys| {
            let (id, name) = (member(number), name.to_owned());
            Change::Member(Member { id, name, keys, is_owner: number == 1, state: Standing::Active })
        };
        let topic = Topic { name: "ops".to_owned(), subscribed: true, epoch: None };
        let changes =
            vec![known(1, "alice", identity(1).public()), known(2, "bob", identity(2).public()), Change::Topic(topic)];
        handle.directory().learn(changes).await.unwrap();
        let token = CancellationToken::new();
        let task = tokio::spawn(service.run(token.clone()));
        Self { handle, task, token, home }
    }

    pub async fn restarted(self) -> Self {
        let home = Arc::clone(&self.home);
        self.stop().await;
        Self::start_in(home).await
    }

    pub async fn stop(self) {
        self.token.cancel();
        tokio::time::timeout(PATIENCE, self.task).await.expect("the daemon does not stop").unwrap().unwrap();
    }

    /// What the daemon ends with.
    pub async fn ended(self) -> waybill_kernel::Error {
        tokio::time::timeout(PATIENCE, self.task).await.expect("the daemon does not end").unwrap().unwrap_err()
    }

    pub async fn post(&self, id: &str, kind: DestinationKind, reference: &str, body: &str) {
        use waybill_daemon::outbox::Accept;
        let draft = Draft {
            destination_kind: kind,
            destination_ref: reference.to_owned(),
            reply_to: None,
            priority: Default::default(),
            meta: None,
            body: body.to_owned(),
            mentions: Vec::new(),
        };
        let parts = self.handle.link().parts();
        let accept = Accept {
            client_message_id: id.to_owned(),
            request_fingerprint: *draft.request_fingerprint().unwrap().as_bytes(),
            request: serde_json::to_string(&draft).unwrap(),
            parcel: parts.sealer.seal(id, &draft).unwrap(),
        };
        self.handle.outbox().accept(accept).await.unwrap();
    }

    pub async fn to_bob(&self, id: &str) {
        self.post(id, DestinationKind::Dm, &identity(2).public_key().to_string(), id).await;
    }

    pub async fn to_ops(&self, id: &str) {
        self.post(id, DestinationKind::Topic, "ops", id).await;
    }

    pub async fn inbox(&self) -> Vec<Received> {
        self.handle.link().parts().inbox.page(Query::default()).await.unwrap().messages
    }

    /// Waits until the row has this status.
    pub async fn becomes(&self, id: &str, status: Status) {
        let reached = async {
            while self.handle.outbox().known(id).await.unwrap().unwrap().status != status {
                // The outbox tells its one drain and nobody else.
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, reached).await.unwrap_or_else(|_| panic!("{id} does not become {status:?}"));
    }

    /// Waits until the inbox has so many messages.
    pub async fn received(&self, count: usize) -> Vec<Received> {
        let mut events = self.handle.events().subscribe(Some(0));
        let reached = async {
            loop {
                let messages = self.inbox().await;
                if messages.len() >= count {
                    return messages;
                }
                events.next().await;
            }
        };
        tokio::time::timeout(PATIENCE, reached).await.expect("the messages do not arrive")
    }
}

/// A generator whose keys are nobody else's in the test.
pub fn stranger(seed: u64) -> Identity {
    Identity::generate(&SeededEntropy::new(1_000 + seed))
}
