//! A task as it is stored and as it is shown.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Error, Json, Principal, PrincipalKind, Result, Tenant, Time, id_type};
use waybill_store::{Row, Topic};

use crate::rules::Status;

id_type!(
    /// Identifies a task within its tenant.
    TaskId
);

impl TaskId {
    /// Woken whenever the task's state changes.
    pub fn topic(self, tenant: Tenant) -> Topic {
        Topic::new("task", tenant, self.as_bytes())
    }
}

pub(crate) const NAMES_MAX: usize = 64;
pub(crate) const NAME_CHARS_MAX: usize = 128;

/// What a worker must offer to be given the task.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(inline)]
pub struct Requirements {
    /// A worker must have all of these. Case matters.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 128)))]
    pub capabilities: Vec<String>,
    /// For people and lists; not matched against workers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 128)))]
    pub tags: Vec<String>,
}

impl Requirements {
    pub fn check(&self) -> Result<()> {
        for (field, names) in [("capabilities", &self.capabilities), ("tags", &self.tags)] {
            if names.len() > NAMES_MAX {
                return Err(Error::invalid(format!("requirements.{field} has more than {NAMES_MAX} entries.")));
            }
            if names.iter().any(|name| name.is_empty() || name.chars().count() > NAME_CHARS_MAX) {
                return Err(Error::invalid(format!(
                    "requirements.{field} has an entry that is empty or longer than {NAME_CHARS_MAX} characters."
                )));
            }
        }
        Ok(())
    }
}

/// The principal that owns the task: fixed at creation.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct Owner {
    pub principal_kind: PrincipalKind,
    pub principal_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance_id: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct TaskRecord {
    pub task_id: TaskId,
    #[serde(rename = "type")]
    pub kind: String,
    pub status: Status,
    pub payload: Json,
    pub created_by: Owner,
    pub requirements: Json,
    pub priority: i64,
    /// Failures reported so far. A lease that ran out is not one.
    pub attempt: i64,
    pub max_attempts: i64,
    pub retry_backoff_seconds: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    pub created_at: Time,
    pub updated_at: Time,
    /// No worker is given the task before this time.
    pub next_eligible_at: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// The newest report of whoever works on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// Present once the task has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<Outcome>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct Progress {
    pub progress: Json,
    pub updated_at: Time,
}

/// How a task ended.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct Outcome {
    pub outcome: Status,
    /// What came out, if the task succeeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<Json>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Json>,
    /// Where the work can be found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub artifacts: Option<Json>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delivery_proof: Option<Json>,
    pub completed_at: Time,
}

/// The columns [`TaskRecord::from_row`] reads, in its order. `t` is a task, `p` its progress and `r` its result, or NULLs.
macro_rules! columns {
    () => {
        "t.task_id, t.type, t.status, t.payload, t.owner, t.owner_instance, t.requirements, t.priority, t.attempt, \
         t.max_attempts, t.retry_backoff_s, t.idempotency_key, t.created_at, t.updated_at, t.next_eligible_at, \
         t.started_at, p.progress, p.updated_at, r.outcome, r.result, r.error, r.artifacts, r.delivery_proof, \
         r.completed_at"
    };
}

/// `FROM` for those columns.
macro_rules! task_with_result {
    () => {
        "FROM tasks t LEFT JOIN results r ON r.tenant = $1 AND r.task_id = t.task_id \
         LEFT JOIN task_progress p ON p.tenant = $1 AND p.task_id = t.task_id"
    };
}

/// A task as an example shows it.
macro_rules! example_task {
    () => {
        r#"{"task_id": "0198c0de-1a2b-7c3d-8e4f-5a6b7c8d9e0f", "type": "report.render", "status": "succeeded",
         "payload": {"month": "2025-12"}, "created_by": {"principal_kind": "agent", "principal_id": "alice"},
         "requirements": {"capabilities": ["pdf"]}, "priority": 5, "attempt": 0, "max_attempts": 3,
         "retry_backoff_seconds": 30, "idempotency_key": "report-2025-12",
         "created_at": "2026-01-05T12:30:00.000000Z", "updated_at": "2026-01-05T12:35:04.250000Z",
         "next_eligible_at": "2026-01-05T12:30:00.000000Z", "started_at": "2026-01-05T12:30:04.250000Z",
         "progress": {"progress": {"percent": 80}, "updated_at": "2026-01-05T12:30:04.250000Z"},
         "result": {"outcome": "succeeded", "result": {"pages": 12},
         "artifacts": [{"url": "https://files.example/report.pdf"}],
         "completed_at": "2026-01-05T12:35:04.250000Z"}}"#
    };
}

pub(crate) use {columns, example_task, task_with_result};

impl TaskRecord {
    pub(crate) fn from_row(row: &Row) -> Result<Self> {
        let owner =
            Principal::from_stored(row.text(4)?).map_err(|error| Error::internal(format!("stored owner: {error}")))?;
        Ok(Self {
            task_id: TaskId::from_slice(row.bytes(0)?)?,
            kind: row.text(1)?.to_owned(),
            status: Status::from_stored(row.text(2)?)?,
            payload: Json::from_stored(row.text(3)?)?,
            created_by: Owner {
                principal_kind: owner.kind,
                principal_id: owner.id,
                instance_id: row.text_opt(5)?.map(str::to_owned),
            },
            requirements: Json::from_stored(row.text(6)?)?,
            priority: row.int(7)?,
            attempt: row.int(8)?,
            max_attempts: row.int(9)?,
            retry_backoff_seconds: row.int(10)?,
            idempotency_key: row.text_opt(11)?.map(str::to_owned),
            created_at: row.time(12)?,
            updated_at: row.time(13)?,
            next_eligible_at: row.time(14)?,
            started_at: row.time_opt(15)?,
            progress: Progress::from_row(row)?,
            result: Outcome::from_row(row)?,
        })
    }
}

impl Progress {
    fn from_row(row: &Row) -> Result<Option<Self>> {
        let Some(progress) = row.text_opt(16)? else { return Ok(None) };
        Ok(Some(Self { progress: Json::from_stored(progress)?, updated_at: row.time(17)? }))
    }
}

impl Outcome {
    fn from_row(row: &Row) -> Result<Option<Self>> {
        let Some(outcome) = row.text_opt(18)? else { return Ok(None) };
        let json = |column| row.text_opt(column)?.map(Json::from_stored).transpose();
        Ok(Some(Self {
            outcome: Status::from_stored(outcome)?,
            result: json(19)?,
            error: json(20)?,
            artifacts: json(21)?,
            delivery_proof: json(22)?,
            completed_at: row.time(23)?,
        }))
    }
}
