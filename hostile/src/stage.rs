//! The data folder that every attack begins with: tenants, keys and tasks, made once by a server that is stopped again.
//! Each attack has a copy and a process of its own, so that none inherits what another has left, and so that no key
//! has been shown to its process before. On PostgreSQL the database is copied as well.

use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;
use waybill_bench::cluster::Cluster;
use waybill_bench::http;
use waybill_bench::member::Member;
use waybill_bench::process::Server;
use waybill_bench::signed::Signer;

use crate::attacks::{Attack, mesh};
use crate::caller::CALL_MAX;
use crate::scale::Scale;
use crate::{limits, say, wire};

/// The folder that is copied, and the database.
const STAGE: &str = "stage";
const INNOCENT_TENANT: &str = "innocent";
/// Nearly the largest payload that a task may have, or a message.
const LARGE_BYTES: usize = 1_000_000;
/// As many as fill a page of list_tasks.
const LARGE_TASKS: usize = 9;
/// As many as one receive may ask for.
const LARGE_MESSAGES: usize = 10;
pub const MAIL_PROJECT: &str = "/data/hostile";
/// As many as a message may have.
const MAIL_RECIPIENTS: usize = 100;
/// Of every mesh: all of its members are in it.
pub const MESH_TOPIC: &str = "all";
/// With a hundred words each.
const MAIL_MESSAGES: usize = 100;

#[derive(Clone)]
pub struct Minted {
    pub id: String,
    pub key: String,
}

#[derive(Clone)]
pub struct Attacker {
    pub minted: Minted,
    /// A small task of its own that nobody works on.
    pub task: String,
}

/// An SQS key, and a queue that it has made.
#[derive(Clone)]
pub struct Queue {
    pub key_id: String,
    pub access_key_id: String,
    pub secret: String,
    pub name: &'static str,
}

impl Queue {
    pub fn signer(&self, addr: SocketAddr) -> Signer {
        Signer { addr, id: self.access_key_id.clone(), secret: self.secret.clone() }
    }
}

/// A key for mail, and agents that it has registered in one project.
#[derive(Clone)]
pub struct Mailbox {
    pub minted: Minted,
    pub agents: Vec<String>,
    /// The end of the first one's inbox.
    pub cursor: String,
}

/// The attackers' mesh: all of its members are in one topic.
#[derive(Clone)]
pub struct Meshed {
    pub owner: Member,
    pub members: Vec<Member>,
}

pub struct Stage {
    waybill: PathBuf,
    dir: PathBuf,
    settings: Vec<OsString>,
    /// None on SQLite.
    cluster: Option<Cluster>,
    pub cast: Cast,
}

/// Who and what there is.
#[derive(Clone)]
pub struct Cast {
    pub admin: String,
    /// Agents of the operator's own tenant: nobody stands nearer to the operator.
    pub attackers: Vec<Attacker>,
    pub innocent: Minted,
    /// Also the innocent tenant's.
    pub new: Vec<Minted>,
    /// To be revoked.
    pub spare: Vec<Minted>,
    /// An attacker's, which stays empty.
    pub queue: Queue,
    /// An attacker's, with messages that are nearly as large as a message may be and always visible.
    pub large_queue: Queue,
    pub innocent_queue: Queue,
    /// An attacker's.
    pub mail: Mailbox,
    pub mesh: Meshed,
    /// The owner of the attackers' largest mesh, whose members never connect. It takes long to make: None where no attack needs it.
    pub crowd: Option<Member>,
    /// Two members of the innocent tenant's mesh.
    pub innocent_mesh: [Member; 2],
    /// Tasks of the first attacker that nobody works on, each nearly as large as a task may be.
    pub large_tasks: Vec<String>,
}

impl Stage {
    /// For these attacks.
    pub async fn make(
        waybill: &Path,
        dir: &Path,
        scale: &Scale,
        attacks: &[Attack],
        cluster: Option<Cluster>,
    ) -> Result<Self> {
        let settings = scale.write_settings(&dir.join("hostile.toml"))?;
        let data = dir.join(STAGE);
        let mut given = settings.clone();
        if let Some(cluster) = &cluster {
            given.extend(store(cluster.database(STAGE).await?));
        }
        let server = Server::waybill_with(waybill, &data, &given).await?;
        let cast = Cast::make(&server, scale, attacks).await?;
        server.stop().await?;
        Ok(Self { waybill: waybill.to_owned(), dir: dir.to_owned(), settings, cluster, cast })
    }

    /// A server of its own on a copy of everything, with the ordinary limit of open files.
    pub async fn open(&self, name: &str) -> Result<(Server, PathBuf)> {
        let data = self.dir.join(name);
        copy(&self.dir.join(STAGE), &data).context("copying the data folder")?;
        let mut given = self.settings.clone();
        if let Some(cluster) = &self.cluster {
            let database = cluster.copy(STAGE, &name.replace('-', "_")).await.context("copying the database")?;
            given.extend(store(database));
        }
        limits::ordinary()?;
        let server = Server::waybill_with(&self.waybill, &data, &given).await;
        limits::raise()?;
        Ok((server?, data))
    }
}

fn store(url: String) -> [OsString; 2] {
    ["--store".into(), url.into()]
}

impl Cast {
    async fn make(server: &Server, scale: &Scale, attacks: &[Attack]) -> Result<Self> {
        let operator = Operator { server, admin: server.key.as_deref().context("no admin key")? };
        operator.post("/admin/tenants", operator.admin, &json!({ "name": INNOCENT_TENANT })).await?;
        let mut attackers = Vec::new();
        for minted in operator.keys("attacker", None, scale.attacker_keys).await? {
            let task = operator.task(&minted, &json!({ "type": "small" })).await?;
            attackers.push(Attacker { minted, task });
        }
        let first = attackers.first().context("an attack without a key")?;
        let mut large_tasks = Vec::new();
        for _ in 0..LARGE_TASKS {
            let task = json!({ "type": "large", "payload": { "text": "x".repeat(LARGE_BYTES) } });
            large_tasks.push(operator.task(&first.minted, &task).await?);
        }
        Ok(Self {
            queue: operator.queue("held", None, 0).await?,
            large_queue: operator.queue("large", None, LARGE_MESSAGES).await?,
            innocent_queue: operator.queue("innocent", Some(INNOCENT_TENANT), 0).await?,
            mail: operator.mailbox().await?,
            mesh: operator.mesh(scale.mesh_members).await?,
            crowd: operator.crowd(scale.fanout_members, attacks).await?,
            innocent_mesh: operator.innocent_mesh().await?,
            admin: operator.admin.to_owned(),
            innocent: operator.key("agent:innocent", Some(INNOCENT_TENANT)).await?,
            new: operator.keys("new", Some(INNOCENT_TENANT), scale.new_keys).await?,
            spare: operator.keys("spare", None, scale.spare_keys).await?,
            attackers,
            large_tasks,
        })
    }
}

struct Operator<'a> {
    server: &'a Server,
    admin: &'a str,
}

impl Operator<'_> {
    async fn keys(&self, name: &str, tenant: Option<&str>, count: usize) -> Result<Vec<Minted>> {
        let mut keys = Vec::new();
        for number in 0..count {
            keys.push(self.key(&format!("agent:{name}-{number}"), tenant).await?);
        }
        Ok(keys)
    }

    async fn key(&self, principal: &str, tenant: Option<&str>) -> Result<Minted> {
        let mut wanted = json!({ "principal": principal });
        if let Some(tenant) = tenant {
            wanted["tenant"] = tenant.into();
        }
        let made = self.post("/admin/keys", self.admin, &wanted).await?;
        Ok(Minted { id: text(&made, "key_id")?, key: text(&made, "key")? })
    }

    async fn mesh(&self, members: usize) -> Result<Meshed> {
        let (owner, members) = mesh::populate(self.server.http, self.admin, "attackers", members).await?;
        Ok(Meshed { owner, members })
    }

    async fn crowd(&self, members: usize, attacks: &[Attack]) -> Result<Option<Member>> {
        if !attacks.contains(&Attack::MeshFanout) {
            return Ok(None);
        }
        say(&format!("making a mesh of {members} members and its owner"));
        let (owner, _) = mesh::populate(self.server.http, self.admin, "crowd", members).await?;
        Ok(Some(owner))
    }

    async fn innocent_mesh(&self) -> Result<[Member; 2]> {
        let wanted = json!({ "principal": "agent:meshes", "tenant": INNOCENT_TENANT, "scopes": ["mesh:manage"] });
        let key = text(&self.post("/admin/keys", self.admin, &wanted).await?, "key")?;
        let (owner, mut members) = mesh::populate(self.server.http, &key, "innocent", 1).await?;
        Ok([owner, members.pop().context("nobody has joined")?])
    }

    /// A key with a queue, and so many large messages in it.
    async fn queue(&self, name: &'static str, tenant: Option<&str>, messages: usize) -> Result<Queue> {
        let mut wanted = json!({ "principal": format!("agent:queues-{name}"), "sqs": true });
        if let Some(tenant) = tenant {
            wanted["tenant"] = tenant.into();
        }
        let made = self.post("/admin/keys", self.admin, &wanted).await?;
        let addr = self.server.sqs.context("no listener for SQS clients")?;
        let queue = Queue {
            key_id: text(&made, "key_id")?,
            access_key_id: text(&made, "access_key_id")?,
            secret: text(&made, "secret_access_key")?,
            name,
        };
        let signer = queue.signer(addr);
        let create = signer.post(
            "CreateQueue",
            &json!({ "QueueName": name, "Attributes": { "VisibilityTimeout": "0" } }).to_string(),
        )?;
        sent(addr, &create).await.context("CreateQueue")?;
        let message = json!({ "QueueUrl": format!("/{name}"), "MessageBody": "x".repeat(LARGE_BYTES) }).to_string();
        for _ in 0..messages {
            sent(addr, &signer.post("SendMessage", &message)?).await.context("SendMessage")?;
        }
        Ok(queue)
    }

    /// Everybody may write to each of its agents, and some messages can be found.
    async fn mailbox(&self) -> Result<Mailbox> {
        let wanted = json!({ "principal": "agent:mail", "scopes": ["mail:read", "mail:write"] });
        let made = self.post("/admin/keys", self.admin, &wanted).await?;
        let minted = Minted { id: text(&made, "key_id")?, key: text(&made, "key")? };
        self.post("/v1/mail/projects", &minted.key, &json!({ "human_key": MAIL_PROJECT })).await?;
        let mut agents = Vec::new();
        for _ in 0..=MAIL_RECIPIENTS {
            let agent = json!({ "project_key": MAIL_PROJECT, "program": "p", "model": "m" });
            let agent = text(&self.post("/v1/mail/agents", &minted.key, &agent).await?, "name")?;
            let open = json!({ "project_key": MAIL_PROJECT, "agent_name": agent, "policy": "open" });
            self.post("/v1/mail/contacts/policy", &minted.key, &open).await?;
            agents.push(agent);
        }
        for number in 0..MAIL_MESSAGES {
            let body: String = (0..100).map(|word| format!("w{} ", number * 100 + word)).collect();
            let message = json!({
                "project_key": MAIL_PROJECT, "sender_name": agents[0], "to": [agents[1]], "subject": "words", "body_md": body,
            });
            self.post("/v1/mail/messages", &minted.key, &message).await?;
        }
        let path =
            format!("/v1/mail/inbox/events?project_key={MAIL_PROJECT}&agent_name={}&position_now=true", agents[0]);
        let answer = http::get(self.server.http, &path, Some(&minted.key)).await?;
        let answer: Value = serde_json::from_str(&answer.body).context("the inbox's end")?;
        Ok(Mailbox { minted, agents, cursor: text(&answer, "next_cursor")? })
    }

    async fn task(&self, owner: &Minted, task: &Value) -> Result<String> {
        text(&self.post("/v1/tasks", &owner.key, task).await?, "task_id")
    }

    async fn post(&self, path: &str, key: &str, body: &Value) -> Result<Value> {
        let answer = http::post(self.server.http, path, Some(key), &body.to_string()).await?;
        if !(200..300).contains(&answer.status) {
            bail!("{path} answered {}: {}", answer.status, answer.body.trim());
        }
        serde_json::from_str(&answer.body).with_context(|| format!("{path} answered with something else than JSON"))
    }
}

/// A whole request, which must be answered with 200.
async fn sent(to: SocketAddr, request: &[u8]) -> Result<()> {
    let mut stream = wire::connect(wire::OPERATOR, to).await?;
    stream.write_all(request).await?;
    let mut answer = [0; 512];
    let read = timeout(CALL_MAX, stream.read(&mut answer)).await.context("no answer")??;
    let answer = String::from_utf8_lossy(&answer[..read]);
    if answer.get(9..12) != Some("200") {
        bail!("{}", answer.trim());
    }
    Ok(())
}

fn text(answer: &Value, field: &str) -> Result<String> {
    Ok(answer[field].as_str().with_context(|| format!("no {field} in {answer}"))?.to_owned())
}

/// With the modes: a server refuses a folder that others may write to.
fn copy(from: &Path, to: &Path) -> Result<()> {
    DirBuilder::new().mode(0o700).create(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}
