//! The data folder that every attack begins with: tenants, keys and tasks, made once by a server that is stopped again.
//! Each attack has a copy and a process of its own, so that none inherits what another has left, and so that no key
//! has been shown to its process before.

use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use waybill_bench::http;
use waybill_bench::process::Server;
use waybill_bench::signed::Signer;

use crate::limits;
use crate::scale::Scale;

const INNOCENT_TENANT: &str = "innocent";
/// Nearly the largest payload that a task may have.
const LARGE_BYTES: usize = 1_000_000;
/// As many as fill a page of list_tasks.
const LARGE_TASKS: usize = 9;

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

#[derive(Clone)]
pub struct Queue {
    pub key_id: String,
    pub access_key_id: String,
    pub secret: String,
    pub name: &'static str,
}

pub struct Stage {
    waybill: PathBuf,
    dir: PathBuf,
    settings: Vec<OsString>,
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
    /// An SQS key of an attacker, and a queue that it has made.
    pub queue: Queue,
    /// Tasks of the first attacker that nobody works on, each nearly as large as a task may be.
    pub large_tasks: Vec<String>,
}

impl Stage {
    pub async fn make(waybill: &Path, dir: &Path, scale: &Scale) -> Result<Self> {
        let settings = scale.write_settings(&dir.join("hostile.toml"))?;
        let data = dir.join("stage");
        let server = Server::waybill_with(waybill, &data, &settings).await?;
        let cast = Cast::make(&server, scale).await?;
        server.stop().await?;
        Ok(Self { waybill: waybill.to_owned(), dir: dir.to_owned(), settings, cast })
    }

    /// A server of its own on a copy of the folder, with the ordinary limit of open files.
    pub async fn open(&self, name: &str) -> Result<(Server, PathBuf)> {
        let data = self.dir.join(name);
        copy(&self.dir.join("stage"), &data).context("copying the data folder")?;
        limits::ordinary()?;
        let server = Server::waybill_with(&self.waybill, &data, &self.settings).await;
        limits::raise()?;
        Ok((server?, data))
    }
}

impl Cast {
    async fn make(server: &Server, scale: &Scale) -> Result<Self> {
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
            queue: operator.queue().await?,
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

    async fn queue(&self) -> Result<Queue> {
        let made = self.post("/admin/keys", self.admin, &json!({ "principal": "agent:queues", "sqs": true })).await?;
        let [key_id, id, secret] = ["key_id", "access_key_id", "secret_access_key"].map(|field| text(&made, field));
        let (addr, name) = (self.server.sqs.context("no listener for SQS clients")?, "held");
        let signer = Signer { addr, id: id?, secret: secret? };
        let create = signer.presigned(&format!("Action=CreateQueue&QueueName={name}&Version=2012-11-05"))?;
        let answer = http::get(addr, &create, None).await?;
        if answer.status != 200 {
            bail!("CreateQueue answered {}: {}", answer.status, answer.body.trim());
        }
        Ok(Queue { key_id: key_id?, access_key_id: signer.id, secret: signer.secret, name })
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
