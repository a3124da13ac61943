//! Create: the task, and in the same transaction the receipt that makes it an obligation of its owner.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::idempotency::{Decision, Found, OnMismatch, Policy, Presented, decide};
use waybill_kernel::principal::forbidden;
use waybill_kernel::{Code, Error, Example, Json, OperationSpec, Principal, Result, Role, Route, Scope};
use waybill_store::{Ctx, Operation, Reply, Sharing, Stored, Tx, Value};

use crate::Settings;
use crate::lease;
use crate::needs;
use crate::receipts::{self, Body, Receipt, ReceiptId, ReceiptType, SCHEMA_VERSION};
use crate::rules::Status;
use crate::schedules;
use crate::settings::seconds_of;
use crate::task::{Requirements, TaskId};

const TYPE_CHARS_MAX: usize = 200;
pub(crate) const KEY_CHARS_MAX: usize = 255;
const ATTEMPTS_MAX: i64 = 1_000;
const BACKOFF_S_MAX: i64 = 86_400;
const DELAY_S_MAX: i64 = 366 * 86_400;

/// The first request with a key decides; later ones get its task back, whatever else they say.
const KEY_POLICY: Policy = Policy { on_mismatch: OnMismatch::FirstWins, window: None };

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateTask {
    /// What kind of work this is; workers choose by it. 1 to 200 characters.
    #[serde(rename = "type")]
    #[schemars(length(min = 1, max = 200))]
    pub kind: String,
    /// Anything the worker needs, as JSON. At most 1 MiB.
    #[serde(default)]
    pub payload: Json,
    #[serde(default)]
    pub requirements: Requirements,
    /// Higher goes first.
    #[serde(default)]
    pub priority: i32,
    /// Makes the call safe to repeat: a second call of the same owner with the same key returns the first call's task.
    #[schemars(length(min = 1, max = 255))]
    pub idempotency_key: Option<String>,
    /// How often the task may be executed, counting the first time.
    #[schemars(range(min = 1, max = 1000))]
    pub max_attempts: Option<i64>,
    /// Pause before the first retry; doubles each time, up to 15 minutes.
    #[schemars(range(min = 0, max = 86_400))]
    pub retry_backoff_seconds: Option<i64>,
    /// No worker is given the task before this many seconds have passed.
    #[serde(default)]
    #[schemars(range(min = 0, max = 31_622_400))]
    pub delay_seconds: i64,
    /// Who owns the task, as `agent:alice`; you unless given. For admins, and for schedulers that fire it.
    pub created_by: Option<Principal>,
    /// Which run of the owner created it, for the record.
    #[schemars(length(min = 1, max = 255))]
    pub principal_instance_id: Option<String>,
    /// Accepted and ignored: the receipt of assignment is always written.
    #[serde(default)]
    #[schemars(extend("deprecated" = true))]
    #[expect(dead_code, reason = "older clients send it; the receipt is what terminators need as their parent")]
    emit_assignment_receipt: Option<bool>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Created {
    pub task_id: TaskId,
    pub status: Status,
}

#[derive(Serialize)]
struct Assignment<'a> {
    instructions: Instructions<'a>,
    requirements: &'a Requirements,
    result_delivery: ResultDelivery,
    timeouts: Timeouts,
    schema_version: &'static str,
}

#[derive(Serialize)]
struct Instructions<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
}

#[derive(Serialize)]
struct ResultDelivery {
    mode: &'static str,
    operation: &'static str,
}

#[derive(Serialize)]
struct Timeouts {
    lease_ttl: i64,
}

impl Operation for CreateTask {
    const SPEC: OperationSpec = OperationSpec {
        name: "create_task",
        domain: "tasks",
        route: Route::post("/v1/tasks"),
        roles: &[Role::Agent, Role::Admin, Role::System],
        scopes: &[Scope::TasksWrite],
        status: 201,
        title: "Hand over a task",
        description: "Hand work to whichever worker can do it, and go on without waiting. The task is durable when this \
                      answers: it survives crashes, is given to one worker at a time and ends exactly once. Returns its \
                      task_id; read the outcome later with get_task. Give an idempotency_key to be able to repeat the \
                      call safely after a lost answer.",
        example: Example {
            arguments: r#"{"type": "report.render", "payload": {"month": "2025-12"},
                "requirements": {"capabilities": ["pdf"]}, "priority": 5, "idempotency_key": "report-2025-12"}"#,
            answer: r#"{"task_id": "0198c0de-1a2b-7c3d-8e4f-5a6b7c8d9e0f", "status": "queued"}"#,
        },
        ..OperationSpec::WRITE
    };
    const REPLAYS: bool = true;
    type Output = Created;

    fn sharing(&self) -> Option<Sharing<'_>> {
        Some(Sharing::FREELY)
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Created>> {
        let payload = self.check(ctx.settings())?;
        let task_id = TaskId(ctx.ids.next());
        let assigned = ReceiptId(ctx.ids.next());
        let creator = ctx.caller.principal.to_string();
        let owner = self.owner(ctx, tx).await?.to_string();
        if let Err(refusal) = tx.check_room(ctx, Stored::Rows, 1).await {
            // Whoever did not get the answer has to learn that the task is there.
            return self.known(ctx, tx, &owner).await?.map(Reply::Replay).ok_or(refusal);
        }
        if !self.insert(ctx, tx, task_id, assigned, &owner, payload).await? {
            let missing = || Error::internal("a task was refused for a key that no task has");
            return self.known(ctx, tx, &owner).await?.map(Reply::Replay).ok_or_else(missing);
        }
        let receipt = Receipt {
            id: assigned,
            kind: ReceiptType::TaskAssigned,
            from: &creator,
            to: &owner,
            task_id: Some(task_id),
            lease_id: None,
            schedule_id: None,
            parents: &[],
            unlocated: false,
            body: self.assignment(ctx.settings())?,
        };
        receipts::emit(tx, ctx, receipt).await?;
        schedules::fired(tx, self.idempotency_key.as_deref(), &owner).await?;
        let topic = lease::claimable(ctx.caller.tenant);
        match self.delay_seconds {
            0 => tx.wake(topic, 1),
            seconds => tx.wake_at(topic, ctx.now, ctx.now.after(seconds_of(seconds))),
        }
        Ok(Reply::Done(Created { task_id, status: Status::Queued }))
    }
}

impl CreateTask {
    /// The payload as it will be stored, if everything about the request is in order.
    fn check(&self, settings: &Settings) -> Result<&str> {
        length("type", &self.kind, TYPE_CHARS_MAX)?;
        if let Some(key) = &self.idempotency_key {
            length("idempotency_key", key, KEY_CHARS_MAX)?;
        }
        if let Some(instance) = &self.principal_instance_id {
            length("principal_instance_id", instance, KEY_CHARS_MAX)?;
        }
        range("max_attempts", self.max_attempts.unwrap_or(1), 1, ATTEMPTS_MAX)?;
        range("retry_backoff_seconds", self.retry_backoff_seconds.unwrap_or(0), 0, BACKOFF_S_MAX)?;
        range("delay_seconds", self.delay_seconds, 0, DELAY_S_MAX)?;
        self.requirements.check()?;
        let payload = self.payload.as_str();
        let max = settings.payload_bytes_max;
        if payload.len() > max {
            let message = format!("The payload has {} bytes; at most {max} are allowed.", payload.len());
            return Err(Error::new(Code::PayloadTooLarge, message).with("limit_bytes", max));
        }
        Ok(payload)
    }

    /// What the receipt of assignment says.
    fn assignment(&self, settings: &Settings) -> Result<Body> {
        let text = serde_json::to_string(&Assignment {
            instructions: Instructions { kind: &self.kind },
            requirements: &self.requirements,
            result_delivery: ResultDelivery { mode: "retrieve", operation: "get_task" },
            timeouts: Timeouts { lease_ttl: settings.lease_ttl_s },
            schema_version: SCHEMA_VERSION,
        });
        text.map(Body::Text).map_err(Error::internal)
    }

    /// Whose task it is. A delegate may name one principal: the owner of the schedule that the key says was fired.
    async fn owner<'a>(&'a self, ctx: &'a Ctx<'_>, tx: &mut Tx<'_>) -> Result<&'a Principal> {
        let caller = &ctx.caller.principal;
        let Some(named) = &self.created_by else { return Ok(caller) };
        if named == caller || ctx.caller.sees_all_owners() {
            return Ok(named);
        }
        if !ctx.caller.has(Role::Delegate) {
            let message = format!("The key belongs to {caller}; it cannot create a task of {named}.");
            return Err(forbidden(message, &[Role::Admin, Role::Delegate], &ctx.caller.roles));
        }
        if schedules::owner(tx, self.idempotency_key.as_deref()).await?.is_some_and(|owner| owner == named.to_string())
        {
            return Ok(named);
        }
        let message = format!(
            "A delegate creates tasks of whoever owns the schedule that idempotency_key names; {named} owns no such schedule."
        );
        Err(forbidden(message, &[Role::Admin], &ctx.caller.roles))
    }

    /// False when the owner has a task under the key: nothing was written then.
    async fn insert(
        &self,
        ctx: &Ctx<'_>,
        tx: &mut Tx<'_>,
        task_id: TaskId,
        assigned: ReceiptId,
        owner: &str,
        payload: &str,
    ) -> Result<bool> {
        let settings = ctx.settings::<Settings>();
        let needs = needs::key(&self.requirements.capabilities);
        let requirements = serde_json::to_string(&self.requirements).map_err(Error::internal)?;
        let params = [
            Value::from(task_id.as_bytes()),
            Value::from(self.kind.as_str()),
            Value::from(payload),
            Value::from(owner),
            Value::from(self.principal_instance_id.as_deref()),
            Value::from(&requirements),
            Value::from(i64::from(self.priority)),
            Value::from(self.max_attempts.unwrap_or(settings.max_attempts)),
            Value::from(self.retry_backoff_seconds.unwrap_or(settings.retry_backoff_s)),
            Value::from(self.idempotency_key.as_deref()),
            Value::from(ctx.now),
            Value::from(ctx.now.after(seconds_of(self.delay_seconds))),
            Value::from(assigned.as_bytes()),
            Value::from(&needs[..]),
            Value::from(self.delay_seconds > 0),
            Value::from(&settings.instance_id),
        ];
        let inserted = tx
            .execute(
                "INSERT INTO tasks (tenant, task_id, status, type, payload, owner, owner_instance, requirements, priority,
                     attempt, max_attempts, retry_backoff_s, idempotency_key, created_at, updated_at, next_eligible_at,
                     assigned_receipt, needs, held, instance, epoch, renewals, expiries, progress_receipts)
                 VALUES ($1, $2, 'queued', $3, $4, $5, $6, $7, $8, 0, $9, $10, $11, $12, $12, $13, $14, $15, $16, $17,
                     0, 0, 0, 0)
                 ON CONFLICT (tenant, owner, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING",
                &params,
            )
            .await?;
        if inserted == 1 {
            tx.add(Stored::Rows, payload.len());
        }
        Ok(inserted == 1)
    }

    /// What the owner has under the key, if the call has one.
    async fn known(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, owner: &str) -> Result<Option<Created>> {
        let row = tx
            .query_opt(
                "SELECT task_id, status, created_at FROM tasks WHERE tenant = $1 AND owner = $2 AND idempotency_key = $3",
                &[owner.into(), self.idempotency_key.as_deref().into()],
            )
            .await?;
        let Some(row) = row else { return Ok(None) };
        let found = Found { fingerprint: None, at: row.time(2)? };
        let presented = Presented { fingerprint: None, now: ctx.now };
        match decide(Some(found), presented, KEY_POLICY) {
            Decision::Replay => Ok(Some(Created {
                task_id: TaskId::from_slice(row.bytes(0)?)?,
                status: Status::from_stored(row.text(1)?)?,
            })),
            decision => Err(Error::internal(format!("a key that never expires was judged {decision:?}"))),
        }
    }
}

pub(crate) fn length(field: &str, text: &str, max: usize) -> Result<()> {
    if text.is_empty() || text.chars().count() > max {
        return Err(Error::invalid(format!("{field} must have 1 to {max} characters.")));
    }
    Ok(())
}

fn range(field: &str, value: i64, min: i64, max: i64) -> Result<()> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(Error::invalid(format!("{field} must be between {min} and {max}.")))
}
