//! The task operations, typed as far as a worker or an agent needs them.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};
use waybill_kernel::id::Uuid;
use waybill_kernel::{Error, Method, Result, Time};

use crate::client::{Client, Repeat, Request};

/// What the server waits at most, whatever is asked.
const WAIT_S_MAX: u64 = 20;

/// Fields left out keep the server's defaults.
#[derive(Clone, Debug, Default, Serialize)]
pub struct NewTask {
    #[serde(rename = "type")]
    pub kind: String,
    pub payload: Json,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requirements: Option<Json>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_seconds: Option<i64>,
    /// Who owns it, as `agent:alice`; the caller unless given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_by: Option<String>,
}

#[derive(Debug, Deserialize)]
pub struct Created {
    pub task_id: Uuid,
    pub status: String,
}

/// The parts of a task's record that callers act on; everything else stays in `rest`.
#[derive(Debug, Deserialize)]
pub struct Task {
    pub task_id: Uuid,
    pub status: String,
    pub attempt: i64,
    #[serde(flatten)]
    pub rest: serde_json::Map<String, Json>,
}

impl Task {
    /// Who owns it, as `agent:alice`.
    pub fn owner(&self) -> Option<String> {
        let owner = self.rest.get("created_by")?;
        Some(format!("{}:{}", owner["principal_kind"].as_str()?, owner["principal_id"].as_str()?))
    }

    pub fn has_ended(&self) -> bool {
        matches!(self.status.as_str(), "succeeded" | "failed" | "canceled")
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct Claim {
    /// The id of the key's principal, for servers and keys that leave it to the caller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<String>,
    /// Which run of the worker this is, for the record.
    pub worker_instance_id: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub capabilities: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub accept_types: Vec<String>,
    pub max_tasks: usize,
    pub lease_ttl_seconds: u64,
    pub wait_seconds: u64,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Lease {
    pub task_id: Uuid,
    pub lease_id: Uuid,
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default)]
    pub payload: Json,
    pub attempt: i64,
    pub expires_at: Time,
}

/// Who acts on which task under which lease: what every call of a worker carries.
#[derive(Clone, Debug)]
pub struct LeaseRef {
    /// As in the claim.
    pub worker_id: Option<String>,
    pub task_id: Uuid,
    pub lease_id: Uuid,
}

impl LeaseRef {
    fn fields(&self) -> Json {
        let mut fields = json!({ "task_id": self.task_id, "lease_id": self.lease_id });
        if let Some(worker_id) = &self.worker_id {
            fields["worker_id"] = worker_id.as_str().into();
        }
        fields
    }
}

#[derive(Debug, Deserialize)]
pub struct Renewed {
    pub expires_at: Time,
}

pub struct Completion {
    pub result: Json,
    /// Where the work can be found; without it the obligation stays open.
    pub artifacts: Json,
}

impl Completion {
    /// A result that lives on the task itself.
    pub fn stored(result: Json, task_id: Uuid) -> Self {
        Self { result, artifacts: json!([{ "type": "task_result", "task_id": task_id }]) }
    }
}

pub struct Failure {
    pub error: Json,
    pub retryable: bool,
}

#[derive(Debug, Deserialize)]
pub struct Failed {
    pub requeued: bool,
    #[serde(default)]
    pub next_eligible_at: Option<Time>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct ReceiptPrincipal {
    pub kind: String,
    pub id: String,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Receipt {
    pub receipt_id: Uuid,
    pub receipt_type: String,
    pub created_at: Time,
    pub from: ReceiptPrincipal,
    pub to: ReceiptPrincipal,
    #[serde(default)]
    pub parents: Vec<Uuid>,
    #[serde(default)]
    pub body: Json,
}

/// What the key is good for.
#[derive(Debug, Deserialize)]
pub struct Identity {
    pub principal: String,
    pub roles: Vec<String>,
    pub scopes: Vec<String>,
}

impl Identity {
    /// May it create tasks that belong to this principal? Its own; a delegate's too, once their schedule is known.
    pub fn may_create_for(&self, owner: &str) -> bool {
        let has = |held: &[String], any_of: &[&str]| held.iter().any(|word| any_of.contains(&word.as_str()));
        has(&self.roles, &["agent", "admin", "system"])
            && has(&self.scopes, &["tasks:write", "admin:write"])
            && (self.principal == owner || has(&self.roles, &["delegate", "admin", "system"]))
    }
}

#[derive(Deserialize)]
struct Leases {
    tasks: Vec<Lease>,
}

#[derive(Deserialize)]
struct Receipts {
    receipts: Vec<Receipt>,
    #[serde(default)]
    next_cursor: Option<String>,
}

/// Receipts asked for at a time, and at most in all: a task has a thousand.
const RECEIPTS_PAGE: usize = 200;
const RECEIPTS_MAX: usize = 2_000;

impl Client {
    /// Sent again only when it carries a key: without one a second sending could be a second task.
    pub async fn create_task(&self, task: &NewTask) -> Result<Created> {
        let repeat = if task.idempotency_key.is_some() { Repeat::Safe } else { Repeat::Never };
        let input = serde_json::to_value(task).map_err(Error::internal)?;
        self.read(post("/v1/tasks", input, repeat)).await
    }

    /// Waits up to `wait` (at most 20 s) for the task to end.
    pub async fn get_task(&self, task_id: Uuid, wait: Duration) -> Result<Task> {
        self.read(task_request(task_id, wait)).await
    }

    /// As `get_task`, sent once: for whoever watches a task beside other ways to learn of its end, and must not press a server
    /// that has no place for one more who waits.
    pub async fn watch_task(&self, task_id: Uuid, wait: Duration) -> Result<Task> {
        self.read(Request { repeat: Repeat::Never, ..task_request(task_id, wait) }).await
    }

    /// Never sent twice by itself: the answer that was lost may have held a lease. Whoever lost one asks again later, and
    /// the lease nobody knows of runs out.
    pub async fn lease_next(&self, claim: &Claim) -> Result<Vec<Lease>> {
        let input = serde_json::to_value(claim).map_err(Error::internal)?;
        let wait = Duration::from_secs(claim.wait_seconds);
        let path = "/v1/leases/claim";
        let request = Request { method: Method::Post, path, input, repeat: Repeat::Never, wait };
        self.read::<Leases>(request).await.map(|leases| leases.tasks)
    }

    /// Sent once: whoever holds a lease decides by its own clock how often to try.
    pub async fn renew_lease(&self, lease: &LeaseRef, extend_by: Duration) -> Result<Renewed> {
        let mut input = lease.fields();
        input["extend_by_seconds"] = extend_by.as_secs().into();
        self.read(post("/v1/leases/renew", input, Repeat::Never)).await
    }

    /// Each one that arrives leaves a receipt, so it is sent once.
    pub async fn report_progress(&self, lease: &LeaseRef, progress: Json) -> Result<()> {
        let mut input = lease.fields();
        input["progress"] = progress;
        self.call(post("/v1/tasks/{task_id}/progress", input, Repeat::Never)).await.map(drop)
    }

    /// A repeat with the lease that produced the recorded outcome gets the first answer.
    pub async fn complete(&self, lease: &LeaseRef, completion: &Completion) -> Result<()> {
        let mut input = lease.fields();
        input["result"] = completion.result.clone();
        input["artifacts"] = completion.artifacts.clone();
        self.call(post("/v1/tasks/{task_id}/complete", input, Repeat::Safe)).await.map(drop)
    }

    pub async fn fail(&self, lease: &LeaseRef, failure: &Failure) -> Result<Failed> {
        let mut input = lease.fields();
        input["error"] = failure.error.clone();
        input["retryable"] = failure.retryable.into();
        self.read(post("/v1/tasks/{task_id}/fail", input, Repeat::Safe)).await
    }

    pub async fn whoami(&self) -> Result<Identity> {
        let (input, repeat, wait) = (json!({}), Repeat::Safe, Duration::ZERO);
        self.read(Request { method: Method::Get, path: "/v1/whoami", input, repeat, wait }).await
    }

    /// Every receipt of a task, oldest first.
    pub async fn task_receipts(&self, task_id: Uuid) -> Result<Vec<Receipt>> {
        let mut all: Vec<Receipt> = Vec::new();
        let mut since = Json::Null;
        loop {
            let input = json!({ "task_id": task_id, "limit": RECEIPTS_PAGE, "since_receipt_id": since });
            let request = Request {
                method: Method::Get,
                path: "/v1/receipts",
                input,
                repeat: Repeat::Safe,
                wait: Duration::ZERO,
            };
            let page: Receipts = self.read(request).await?;
            let full = page.receipts.len() == RECEIPTS_PAGE;
            all.extend(page.receipts);
            match page.next_cursor {
                Some(cursor) if full && all.len() < RECEIPTS_MAX => since = cursor.into(),
                _ => return Ok(all),
            }
        }
    }
}

fn task_request(task_id: Uuid, wait: Duration) -> Request<'static> {
    let wait = wait.min(Duration::from_secs(WAIT_S_MAX));
    let input = json!({ "task_id": task_id, "wait_seconds": wait.as_secs() });
    Request { method: Method::Get, path: "/v1/tasks/{task_id}", input, repeat: Repeat::Safe, wait }
}

fn post(path: &str, input: Json, repeat: Repeat) -> Request<'_> {
    Request { method: Method::Post, path, input, repeat, wait: Duration::ZERO }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_creates_for_others_as_a_delegate_or_an_admin_and_never_without_role_and_scope() {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        for (roles, scopes, own, others) in [
            ("agent worker delegate", "tasks:write tasks:lease", true, true),
            ("agent worker", "tasks:write tasks:lease", true, false),
            ("worker delegate", "tasks:write tasks:lease", false, false),
            ("agent delegate", "tasks:read tasks:lease", false, false),
            ("agent delegate", "admin:write", true, true),
            ("admin", "tasks:write", true, true),
            ("system", "tasks:write", true, true),
            ("", "tasks:write", false, false),
        ] {
            let principal = "service:scheduler".to_owned();
            let key = Identity { principal, roles: words(roles), scopes: words(scopes) };
            let may = (key.may_create_for("service:scheduler"), key.may_create_for("agent:alice"));
            assert_eq!(may, (own, others), "{roles} with {scopes}");
        }
    }
}
