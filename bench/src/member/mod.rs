//! A member of a mesh that has no daemon: it founds or joins a mesh, signs its requests, and can hold a socket. Light enough for
//! thousands in one process.

mod socket;

use std::fs::File;
use std::io::Read as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use waybill_mesh_protocol::challenge::{self, ChallengeNonce};
use waybill_mesh_protocol::frames::{ClientFrame, Framed, Hello, HistoryPage, Message};
use waybill_mesh_protocol::join::{JoinChallenge, JoinProof};
use waybill_mesh_protocol::negotiation::FeatureRequest;
use waybill_mesh_protocol::request_signature::{BodyHash, RequestNonce, SCHEME};
use waybill_mesh_protocol::seal::{Nonce, seal_box};
use waybill_mesh_protocol::{
    Base64, BoxSecret, Context as Purpose, Destination, Envelope, Identity, Invite, MeshId, PublicKey, TopicName,
};

pub use self::socket::{Heard, Socket};
use crate::http::{self, Response};

#[expect(clippy::disallowed_methods, reason = "a client of its own, by the time of its machine")]
fn unix_seconds() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn identity() -> Result<Identity> {
    Ok(Identity::from_secrets(&random()?, BoxSecret::from_bytes(random()?)))
}

/// A message of a mesh that the broker can read.
pub struct Read {
    pub id: String,
    pub sender: String,
    pub text: String,
}

#[derive(Clone)]
pub struct Member {
    pub addr: SocketAddr,
    pub mesh: MeshId,
    slug: String,
    identity: Identity,
}

impl Member {
    /// Makes a mesh that the broker can read, and is its owner.
    pub async fn found(addr: SocketAddr, admin: &str, slug: &str, name: &str) -> Result<Member> {
        let identity = identity()?;
        let wanted = json!({ "slug": slug, "name": name, "keys": identity.public(), "plaintext": true });
        let made =
            read(http::post(addr, "/v1/meshes", Some(admin), &wanted.to_string()).await?).context("a new mesh")?;
        let mesh = serde_json::from_value(made["mesh_id"].clone())?;
        Ok(Member { addr, mesh, slug: slug.to_owned(), identity })
    }

    /// For so many who join.
    pub async fn invite(&self, uses: u32) -> Result<String> {
        let issued = self.post("/mesh/v1/invites", &json!({ "uses": uses })).await.context("an invite")?;
        let invite = Invite {
            server: format!("http://{}", self.addr),
            mesh: self.mesh,
            slug: self.slug.parse()?,
            invite_id: serde_json::from_value(issued["invite_id"].clone())?,
            owner: self.identity.public(),
            issuer: self.identity.public_key(),
            uses: serde_json::from_value(issued["uses"].clone())?,
            expires_at: serde_json::from_value(issued["expires_at"].clone())?,
            plaintext: true,
        };
        Ok(invite.sign(&self.identity)?)
    }

    pub async fn join(addr: SocketAddr, text: &str, name: &str) -> Result<Member> {
        let (invite, identity) = (Invite::parse(text)?, identity()?);
        let ask = json!({ "mesh": invite.mesh }).to_string();
        let challenge = read(http::post(addr, "/mesh/v1/join/challenge", None, &ask).await?).context("a challenge")?;
        let challenge: JoinChallenge = serde_json::from_value(challenge)?;
        let proof = prove_keys(&identity, &challenge, &invite, name)?;
        let wanted = json!({
            "invite": text, "name": name, "keys": identity.public(), "nonce": challenge.nonce, "proof": proof,
        });
        read(http::post(addr, "/mesh/v1/join", None, &wanted.to_string()).await?).context("joining")?;
        Ok(Member { addr, mesh: invite.mesh, slug: invite.slug.to_string(), identity })
    }

    /// The same member, of a broker that is somewhere else now.
    pub fn at(&self, addr: SocketAddr) -> Member {
        Member { addr, ..self.clone() }
    }

    pub fn key(&self) -> PublicKey {
        self.identity.public_key()
    }

    /// A request with its own signature, which is good once. Bytes for a connection that is kept.
    pub fn request(&self, method: &str, path: &str, body: &str, more: &str) -> Result<String> {
        let (mesh, time) = (self.mesh.to_string(), unix_seconds().to_string());
        let (nonce, key) = (RequestNonce::from_bytes(random()?).to_string(), self.key());
        let hash = BodyHash::of(body.as_bytes()).to_string();
        let statement = [method, path, &mesh, &time, &nonce, &hash].join("\0");
        let signature = self.identity.sign(Purpose::Http, statement.as_bytes());
        let more = format!(
            "Authorization: {SCHEME} mesh={mesh},key={key},time={time},nonce={nonce},signature={signature}\r\n{more}"
        );
        Ok(format!("{}{body}", http::head(self.addr, method, path, None, body.len(), &more)))
    }

    pub async fn call(&self, method: &str, path: &str, body: &str) -> Result<Response> {
        http::send(self.addr, &self.request(method, path, body, "Connection: close\r\n")?).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Result<Value> {
        read(self.call("POST", path, &body.to_string()).await?).with_context(|| path.to_owned())
    }

    pub async fn create_topic(&self, topic: &str) -> Result<()> {
        self.post("/mesh/v1/topics", &json!({ "topic": topic })).await.map(drop)
    }

    pub async fn subscribe(&self, topic: &str) -> Result<()> {
        self.post(&format!("/mesh/v1/topics/{topic}/subscribe"), &json!({})).await.map(drop)
    }

    /// The body of `POST /mesh/v1/messages`, and of a frame `send` but for its `t`.
    pub fn message(id: &str, to: &Destination, text: &str) -> Value {
        json!({ "client_message_id": id, "envelope": Envelope::new(to.clone(), text.as_bytes().to_vec()) })
    }

    pub fn to_member(key: &PublicKey) -> Destination {
        Destination::dm(key)
    }

    pub fn to_topic(topic: &str) -> Result<Destination> {
        Ok(Destination::topic(&topic.parse::<TopicName>()?))
    }

    /// What the broker has for this member behind this place in the history, and the place to go on from.
    pub async fn history(&self, after: u64) -> Result<(Vec<Read>, u64)> {
        let answer = self.call("GET", &format!("/mesh/v1/history?after={after}&limit=500"), "").await?;
        let page: HistoryPage = serde_json::from_value(read(answer).context("history")?)?;
        let text = |message: &Message| String::from_utf8_lossy(&message.envelope.body.0).into_owned();
        let read = |message: &Message| Read {
            id: message.client_message_id.to_string(),
            sender: message.sender_name.to_string(),
            text: text(message),
        };
        Ok((page.messages.iter().map(read).collect(), page.next_after))
    }

    /// A socket that has proved whose it is, and agreed on what both can do.
    pub async fn connect(&self, from: Ipv4Addr, receive_bytes: Option<u32>) -> Result<Socket> {
        let mut socket = Socket::open(from, self.addr, receive_bytes).await?;
        self.prove(&mut socket).await?;
        Ok(socket)
    }

    async fn prove(&self, socket: &mut Socket) -> Result<()> {
        let asked = awaited(socket, "challenge").await?;
        let nonce: ChallengeNonce = serde_json::from_value(asked["nonce"].clone())?;
        let time = unix_seconds();
        let signature = challenge::sign(&self.identity, &nonce, self.mesh, time);
        let hello = Hello { mesh: self.mesh, key: self.key(), time, signature, client: Some("bench".to_owned()) };
        socket.say(&Framed::from(ClientFrame::Hello(hello)).write()?).await?;
        awaited(socket, "hello_ok").await?;
        let wanted = ClientFrame::FeatureNegotiationRequest(FeatureRequest::default());
        socket.say(&Framed::from(wanted).write()?).await?;
        let answer = awaited(socket, "feature_negotiation_response").await?;
        ensure!(answer["missing_required"] == json!([]), "the broker lacks features: {answer}");
        Ok(())
    }
}

/// Signs the broker's nonce with the one key and boxes it with the other.
fn prove_keys(identity: &Identity, challenge: &JoinChallenge, invite: &Invite, name: &str) -> Result<JoinProof> {
    let keys = identity.public();
    let statement = [
        challenge.nonce.as_bytes().as_slice(),
        challenge.box_key.as_bytes(),
        invite.mesh.as_bytes(),
        invite.invite_id.as_bytes(),
        keys.ed25519.as_bytes(),
        keys.x25519.as_bytes(),
        name.as_bytes(),
    ];
    let signature = identity.sign(Purpose::Join, &statement.concat());
    let nonce = Nonce::from_bytes(random()?);
    let boxed = seal_box(identity.box_secret(), &challenge.box_key, nonce, challenge.nonce.as_bytes())?;
    Ok(JoinProof { signature, boxed: Base64(boxed) })
}

async fn awaited(socket: &mut Socket, name: &str) -> Result<Value> {
    loop {
        match socket.hear().await? {
            Heard::Text(text) => {
                let frame: Value = serde_json::from_str(&text)?;
                ensure!(frame["t"] == name, "{name} was awaited, and {text} came");
                return Ok(frame);
            }
            Heard::Ping => {}
            Heard::Closed(code) => bail!("closed with {code} before {name}"),
        }
    }
}

fn read(answer: Response) -> Result<Value> {
    ensure!((200..300).contains(&answer.status), "answered {}: {}", answer.status, answer.body.trim());
    Ok(serde_json::from_str(&answer.body)?)
}
