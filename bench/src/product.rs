//! Single calls of the product, before anything is measured: keys of its callers, and the first tasks.

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::http;
use crate::process::Server;

/// Whoever owns the measured tasks, and whoever does them.
pub const OWNER: &str = "agent:bench";
const WORKER: &str = "worker:bench";

/// The keys of an agent that creates and of a worker that leases: what each may do is checked at every call.
#[derive(Clone)]
pub struct Keys {
    pub owner: String,
    pub worker: String,
}

impl Keys {
    pub async fn make(server: &Server) -> Result<Self> {
        Ok(Self { owner: key_for(server, OWNER).await?, worker: key_for(server, WORKER).await? })
    }
}

pub async fn key_for(server: &Server, principal: &str) -> Result<String> {
    text(&make_key(server, &json!({ "principal": principal })).await?, "key")
}

pub async fn make_key(server: &Server, input: &Value) -> Result<Value> {
    let admin = server.key.as_deref().context("no admin key")?;
    post(server, "/admin/keys", admin, input).await
}

pub async fn make_tenant(server: &Server, name: &str) -> Result<Value> {
    let admin = server.key.as_deref().context("no admin key")?;
    post(server, "/admin/tenants", admin, &json!({ "name": name })).await
}

/// The id of the task.
pub async fn create(server: &Server, owner: &str, body: &Value) -> Result<String> {
    text(&post(server, "/v1/tasks", owner, body).await?, "task_id")
}

/// Leases the next task for these capabilities and completes it; its id.
pub async fn work_one(server: &Server, worker: &str, capabilities: &[&str]) -> Result<String> {
    let claim = json!({ "max_tasks": 1, "capabilities": capabilities });
    let leased = post(server, "/v1/leases/claim", worker, &claim).await?;
    let task = leased["tasks"].get(0).context("there was nothing to lease")?;
    let (task_id, lease_id) = (text(task, "task_id")?, text(task, "lease_id")?);
    let done = json!({ "lease_id": lease_id, "result": 1, "artifacts": [{ "url": "memory:1" }] });
    post(server, &format!("/v1/tasks/{task_id}/complete"), worker, &done).await?;
    Ok(task_id)
}

pub async fn get(server: &Server, path: &str, key: &str) -> Result<Value> {
    read(path, http::get(server.http, path, Some(key)).await?)
}

async fn post(server: &Server, path: &str, key: &str, body: &Value) -> Result<Value> {
    read(path, http::post(server.http, path, Some(key), &body.to_string()).await?)
}

fn read(path: &str, answer: http::Response) -> Result<Value> {
    if !(200..300).contains(&answer.status) {
        bail!("{path} answered {}: {}", answer.status, answer.body.trim());
    }
    serde_json::from_str(&answer.body).with_context(|| format!("{path} answered with something else than JSON"))
}

fn text(answer: &Value, field: &str) -> Result<String> {
    Ok(answer[field].as_str().with_context(|| format!("no {field} in {answer}"))?.to_owned())
}
