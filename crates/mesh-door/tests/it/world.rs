//! A server with one mesh, and members that speak to it.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value as Json, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_util::sync::CancellationToken;
use waybill_access::{Access, ServerKey};
use waybill_doors::{Commons, Driver, Gatekeeper, Listener, Server};
use waybill_kernel::Time;
use waybill_kernel::entropy::OsEntropy;
use waybill_mesh::ops::manage::CreateMesh;
use waybill_mesh_door::{Mesh, Opening, Settings};
use waybill_mesh_protocol::challenge::{self, ChallengeNonce, unix_seconds};
use waybill_mesh_protocol::join::{JoinChallenge, JoinProof, Joining};
use waybill_mesh_protocol::request_signature::{RequestNonce, Signed};
use waybill_mesh_protocol::{Destination, Envelope, Identity, Invite, MeshId, TopicName, sign_request};
use waybill_store::{Reply, Store};
use waybill_testkit::stores::{self, Chosen, TestStore};

/// Before a test gives up on something that must happen.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(10);

pub struct World {
    pub test: TestStore,
    pub node: Node,
    pub mesh: MeshId,
    pub owner: Identity,
}

/// One server on a store.
pub struct Node {
    pub address: SocketAddr,
    stopping: CancellationToken,
    running: JoinHandle<()>,
}

pub struct Wanted {
    pub door: Settings,
    pub chosen: Chosen,
    pub policy: &'static str,
    pub encrypted: bool,
    pub postgres: bool,
}

impl Default for Wanted {
    fn default() -> Self {
        let (door, chosen) = (Settings::default(), Chosen::default());
        Self { door, chosen, policy: "prefer_newest", encrypted: false, postgres: false }
    }
}

impl Node {
    pub async fn start(store: &Store, registry: waybill_store::Registry, door: Settings) -> Self {
        let settings = waybill_doors::Settings::default();
        let access = Access::new(store.clone(), waybill_access::Settings::default(), &ServerKey::generate(&OsEntropy));
        let gatekeeper = Gatekeeper::new(access, None);
        let driver = Driver::new(registry, store.clone(), gatekeeper, PATIENCE);
        let commons = Commons::new(&settings, &OsEntropy);
        let (stopping, stopped) = (CancellationToken::new(), CancellationToken::new());
        let mesh = Mesh::new(Opening {
            driver,
            store: store.clone(),
            commons: commons.clone(),
            settings: door,
            edition: waybill_mesh_protocol::Edition::default(),
            stopped: stopped.clone(),
        })
        .await;
        let server = Server::new(commons, &settings, stopping.clone());
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.address().unwrap();
        server.open(listener, mesh.unwrap());
        let running = tokio::spawn(async move {
            server.run().await;
            stopped.cancel();
        });
        Self { address, stopping, running }
    }

    /// Ends when every socket has.
    pub async fn stop(self) {
        self.stopping.cancel();
        tokio::time::timeout(PATIENCE, self.running).await.unwrap().unwrap();
    }
}

impl World {
    pub async fn start() -> Self {
        Self::with(Wanted::default()).await
    }

    pub async fn with(wanted: Wanted) -> Self {
        let Wanted { door, chosen, policy, encrypted, postgres } = wanted;
        let test = match postgres {
            true => stores::open_postgres_set(chosen).await.unwrap(),
            false => stores::open_sqlite_set(chosen).await.unwrap(),
        };
        let owner = Identity::generate(&OsEntropy);
        let mut create = CreateMesh::new("builds".parse().unwrap(), "owner".parse().unwrap(), owner.public());
        create.plaintext = !encrypted;
        create.connection_policy = serde_json::from_value(json!(policy)).unwrap();
        let Reply::Done(created) = test.store.run(create, test.admin.clone()).await.unwrap() else { panic!() };
        let node = Node::start(&test.store, waybill_store::Registry::default(), door).await;
        Self { test, node, mesh: created.mesh_id, owner }
    }

    pub fn now(&self) -> Time {
        self.test.store.now()
    }

    /// A new member, by an invite of the owner.
    pub async fn join(&self, name: &str) -> Identity {
        let issued = self.post(&self.owner, "/mesh/v1/invites", &json!({})).await;
        assert_eq!(issued.status, 201, "{}", issued.json);
        let invite = Invite {
            server: format!("http://{}", self.node.address),
            mesh: self.mesh,
            slug: "builds".parse().unwrap(),
            invite_id: serde_json::from_value(issued.json["invite_id"].clone()).unwrap(),
            owner: self.owner.public(),
            issuer: self.owner.public_key(),
            uses: 1,
            expires_at: serde_json::from_value(issued.json["expires_at"].clone()).unwrap(),
            plaintext: issued.json["plaintext"].as_bool().unwrap(),
        };
        let identity = Identity::generate(&OsEntropy);
        let asked =
            self.request("POST", "/mesh/v1/join/challenge", None, json!({ "mesh": self.mesh }).to_string()).await;
        assert_eq!(asked.status, 200, "{}", asked.json);
        let challenge: JoinChallenge = serde_json::from_value(asked.json).unwrap();
        let name = name.parse().unwrap();
        let joining = Joining { mesh: self.mesh, invite: invite.invite_id, name: &name };
        let proof = JoinProof::make(&identity, &challenge, joining, &OsEntropy).unwrap();
        let body = json!({ "invite": invite.sign(&self.owner).unwrap(), "name": name, "keys": identity.public(),
            "nonce": challenge.nonce, "proof": proof });
        let joined = self.request("POST", "/mesh/v1/join", None, body.to_string()).await;
        assert_eq!(joined.status, 201, "{}", joined.json);
        identity
    }

    /// A topic to which all of these subscribe.
    pub async fn topic(&self, name: &str, members: &[&Identity]) {
        for (index, member) in members.iter().enumerate() {
            let made = match index {
                0 => self.post(member, "/mesh/v1/topics", &json!({ "topic": name })).await,
                _ => self.post(member, &format!("/mesh/v1/topics/{name}/subscribe"), &json!({})).await,
            };
            assert!(made.status < 300, "{}", made.json);
        }
    }

    pub fn signature(&self, identity: &Identity, method: &str, target: &str, body: &[u8]) -> String {
        let nonce = RequestNonce::random(&OsEntropy);
        sign_request(identity, self.mesh, Signed::new(method, target, body), self.now(), nonce)
    }

    pub async fn post(&self, identity: &Identity, target: &str, body: &Json) -> Answer {
        let body = body.to_string();
        let signature = self.signature(identity, "POST", target, body.as_bytes());
        self.request("POST", target, Some(&signature), body).await
    }

    pub async fn get(&self, identity: &Identity, target: &str) -> Answer {
        let signature = self.signature(identity, "GET", target, b"");
        self.request("GET", target, Some(&signature), String::new()).await
    }

    pub async fn request(
        &self,
        method: &str,
        target: &str,
        signature: Option<&str>,
        body: impl Into<Vec<u8>>,
    ) -> Answer {
        let headers = signature.map(|text| format!("Authorization: {text}\r\n")).unwrap_or_default();
        self.raw(method, target, &headers, body).await
    }

    pub async fn raw(&self, method: &str, target: &str, headers: &str, body: impl Into<Vec<u8>>) -> Answer {
        let body = body.into();
        let head = format!(
            "{method} {target} HTTP/1.1\r\nHost: mesh\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n{headers}\r\n",
            body.len()
        );
        let mut socket = TcpStream::connect(self.node.address).await.unwrap();
        let mut text = Vec::new();
        let talk = async {
            socket.write_all(head.as_bytes()).await.unwrap();
            // Who is refused early is not read to the end.
            let _ = socket.write_all(&body).await;
            socket.read_to_end(&mut text).await.unwrap();
        };
        tokio::time::timeout(PATIENCE, talk).await.unwrap();
        Answer::read(&text)
    }

    /// A socket that has not said who it is.
    pub async fn socket(&self) -> Socket {
        Socket::open(self.node.address).await
    }

    /// A socket that is open.
    pub async fn connect(&self, identity: &Identity) -> Socket {
        self.connect_at(self.node.address, identity).await
    }

    pub async fn connect_at(&self, address: SocketAddr, identity: &Identity) -> Socket {
        let mut socket = Socket::open(address).await;
        socket.greet(self, identity).await;
        socket.expect("hello_ok").await;
        socket.say(&json!({ "t": "feature_negotiation_request", "require": ["max_payload"] })).await;
        socket.expect("feature_negotiation_response").await;
        socket
    }

    /// Waits until a statement counts this many.
    pub async fn until(&self, sql: &str, count: i64) {
        let waited = tokio::time::timeout(PATIENCE, async {
            while self.test.count(sql).await.unwrap() != count {
                tokio::time::sleep(POLL).await;
            }
        });
        assert!(waited.await.is_ok(), "{sql} is not {count}");
    }

    pub async fn connections(&self, count: i64) {
        self.until("SELECT count(*) FROM mesh_connections", count).await;
    }
}

pub struct Answer {
    pub status: u16,
    pub head: String,
    pub json: Json,
    pub body: Vec<u8>,
}

impl Answer {
    fn read(text: &[u8]) -> Self {
        let end = text.windows(4).position(|part| part == b"\r\n\r\n").expect("an answer has a head");
        let head = String::from_utf8_lossy(&text[..end]).to_lowercase();
        let body = text[end + 4..].to_vec();
        let body = if head.contains("transfer-encoding: chunked") { unchunked(&body) } else { body };
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Self { status, head, json: serde_json::from_slice(&body).unwrap_or(Json::Null), body }
    }
}

fn unchunked(mut body: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    while let Some(end) = body.windows(2).position(|part| part == b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&body[..end]).unwrap(), 16).unwrap();
        whole.extend_from_slice(&body[end + 2..end + 2 + size]);
        body = &body[end + 4 + size..];
    }
    whole
}

pub struct Socket(pub WebSocketStream<TcpStream>);

impl Socket {
    pub async fn open(address: SocketAddr) -> Self {
        Self::try_open(address).await.unwrap()
    }

    /// The status of the refusal.
    pub async fn try_open(address: SocketAddr) -> Result<Self, u16> {
        let stream = TcpStream::connect(address).await.unwrap();
        match tokio_tungstenite::client_async(format!("ws://{address}/mesh/ws"), stream).await {
            Ok((socket, _)) => Ok(Self(socket)),
            Err(tokio_tungstenite::tungstenite::Error::Http(response)) => Err(response.status().as_u16()),
            Err(error) => panic!("{error}"),
        }
    }

    pub async fn challenged(&mut self) -> ChallengeNonce {
        let challenge = self.expect("challenge").await;
        serde_json::from_value(challenge["nonce"].clone()).unwrap()
    }

    /// Answers the challenge.
    pub async fn greet(&mut self, world: &World, identity: &Identity) {
        let nonce = self.challenged().await;
        self.say(&hello(world, identity, &nonce, unix_seconds(world.now()))).await;
    }

    pub async fn say(&mut self, frame: &Json) {
        self.0.send(Message::text(frame.to_string())).await.unwrap();
    }

    /// It leaves with the flush.
    pub async fn feed(&mut self, frame: &Json) {
        self.0.feed(Message::text(frame.to_string())).await.unwrap();
    }

    pub async fn flush(&mut self) {
        self.0.flush().await.unwrap();
    }

    /// The next frame, or `{"close": code, "reason": …}`.
    pub async fn next(&mut self) -> Json {
        loop {
            let next = tokio::time::timeout(PATIENCE, self.0.next()).await.expect("nothing comes");
            match next {
                Some(Ok(Message::Text(text))) => return serde_json::from_str(text.as_str()).unwrap(),
                Some(Ok(Message::Close(Some(frame)))) => {
                    return json!({ "close": u16::from(frame.code), "reason": frame.reason.as_str() });
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => return json!({ "broken": error.to_string() }),
                None => return json!({ "close": null }),
            }
        }
    }

    /// The next frame of a kind; what comes before it is passed over.
    pub async fn expect(&mut self, kind: &str) -> Json {
        loop {
            let frame = self.next().await;
            assert!(frame["t"].is_string(), "{frame} instead of {kind}");
            if frame["t"] == kind {
                return frame;
            }
        }
    }

    /// The number and reason that it is closed with; what comes before is passed over.
    pub async fn closed(&mut self) -> (u64, String) {
        loop {
            let frame = self.next().await;
            if frame["t"].is_null() {
                let code = frame["close"].as_u64().unwrap_or_else(|| panic!("{frame}"));
                return (code, frame["reason"].as_str().unwrap().to_owned());
            }
        }
    }

    /// Sends a message and answers with what became of it.
    pub async fn send(&mut self, id: &str, envelope: &Envelope) -> Json {
        self.say(&json!({ "t": "send", "client_message_id": id, "envelope": envelope })).await;
        self.expect("send_result").await
    }

    pub async fn acknowledge(&mut self, delivery: &Json) {
        self.say(&json!({ "t": "delivered", "delivery_id": delivery["delivery_id"] })).await;
    }
}

pub fn hello(world: &World, identity: &Identity, nonce: &ChallengeNonce, time: i64) -> Json {
    let signature = challenge::sign(identity, nonce, world.mesh, time);
    json!({ "t": "hello", "mesh": world.mesh, "key": identity.public_key(), "time": time, "signature": signature })
}

pub fn dm(to: &Identity, text: &str) -> Envelope {
    Envelope::new(Destination::dm(&to.public_key()), text.as_bytes().to_vec())
}

pub fn post(topic: &str, text: &str) -> Envelope {
    let topic: TopicName = topic.parse().unwrap();
    Envelope::new(Destination::topic(&topic), text.as_bytes().to_vec())
}
