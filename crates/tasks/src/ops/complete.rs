//! Complete: the work is done. The task ends, its result is kept, and two receipts say so: one ends the owner's
//! obligation, the other tells the owner that there is something to fetch.
//!
//! A success should say where the work can be found (artifacts) or that it was delivered (proof). One that does not is
//! kept as well unless the server is strict, but its obligation stays open until the worker says it again with a place.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};
use waybill_kernel::idempotency::Fingerprint;
use waybill_kernel::{
    Code, Door, Error, Example, Method, Mode, OperationSpec, PrincipalKind, Result, Role, Scope, Time,
};
use waybill_store::{Ctx, Operation, Reply, Row, Statement, Tx, Value};

use crate::Settings;
use crate::anomaly::{self, Anomaly};
use crate::lease::{self, Hold, LeaseId, lease_is_live};
use crate::outcome::{EndReason, Ended, end_lease};
use crate::receipts::{self, Receipt, ReceiptId, ReceiptType, SYSTEM};
use crate::rules::Status;
use crate::schedules::{self, Success};
use crate::task::TaskId;

#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Complete {
    pub task_id: TaskId,
    pub lease_id: LeaseId,
    /// Who you are; your key says it anyway, and must agree.
    #[schemars(extend("deprecated" = true))]
    pub worker_id: Option<String>,
    /// With `worker_id`.
    #[schemars(extend("deprecated" = true))]
    pub worker_kind: Option<PrincipalKind>,
    /// What came out, as JSON. At most 1 MiB.
    #[serde(default)]
    pub result: Json,
    /// Where the work can be found: an object that points to it, or a list of up to 100.
    pub artifacts: Option<Json>,
    /// That it was delivered: {mode: push|store, target, status, at, proof}.
    pub delivery_proof: Option<Json>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Completed {
    pub ok: bool,
}

impl Operation for Complete {
    const SPEC: OperationSpec = OperationSpec {
        name: "complete",
        door: Door::Tasks,
        method: Method::Post,
        path: "/v1/tasks/{task_id}/complete",
        tool: true,
        mode: Mode::Write,
        destructive: false,
        repeatable: true,
        relieves: true,
        roles: &[Role::Worker, Role::Admin],
        scopes: &[Scope::TasksLease],
        status: 200,
        title: "Complete a task",
        description: "Hand in the result of a task you hold; the task has then succeeded for good. Say where the work can be \
                      found (artifacts) or that it was delivered (delivery_proof): without either the owner's obligation \
                      stays open until you call again with one, the result left out. Safe to repeat with the same \
                      content after a lost answer.",
        example: Example {
            arguments: r#"{"task_id": "0198c0de-1a2b-7c3d-8e4f-5a6b7c8d9e0f",
                "lease_id": "0198c0df-2b3c-7d4e-9f50-6b7c8d9e0f1a", "result": {"pages": 12},
                "artifacts": [{"url": "https://files.example/report.pdf"}]}"#,
            answer: r#"{"ok": true}"#,
        },
    };
    const REPLAYS: bool = true;
    type Output = Completed;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Completed>> {
        const SUCCEED: &str = concat!(
            "UPDATE tasks SET status = 'succeeded', lease_id = NULL, worker = NULL, lease_expires_at = NULL, \
             updated_at = $6 WHERE ",
            lease_is_live!(),
            " RETURNING owner, assigned_receipt, attempt, epoch, created_at, type"
        );
        let work = self.check(ctx.settings())?;
        let worker = lease::worker(ctx, self.worker_kind, self.worker_id.as_deref())?;
        let hold = Hold::new(ctx, self.task_id, self.lease_id, &worker);
        match tx.query_opt(SUCCEED, &hold.params(&[ctx.now.into()])).await? {
            Some(task) => {
                self.record(ctx, tx, &task, &worker, &work).await.map(|()| Reply::Done(Completed { ok: true }))
            }
            None => self.repeat(ctx, tx, &hold, &work).await,
        }
    }
}

/// What was handed in, in the form it is stored.
struct Work {
    result: String,
    artifacts: Option<String>,
    delivery_proof: Option<String>,
    digest: Fingerprint,
}

impl Work {
    fn is_located(&self) -> bool {
        self.artifacts.is_some() || self.delivery_proof.is_some()
    }
}

impl Complete {
    fn check(&self, settings: &Settings) -> Result<Work> {
        let result = self.result.to_string();
        let max = settings.result_bytes_max;
        if result.len() > max {
            let message = format!("The result has {} bytes; at most {max} are allowed.", result.len());
            return Err(Error::new(Code::PayloadTooLarge, message).with("limit_bytes", max));
        }
        let (artifacts, proof) = (self.artifacts(), self.proof());
        if artifacts.is_some_and(|artifacts| !is_pointer(artifacts)) {
            return Err(Error::invalid("artifacts must be an object or a list of objects."));
        }
        proof.map_or(Ok(()), check_proof)?;
        let max = settings.receipt_artifacts_max;
        let count = artifacts.and_then(Json::as_array).map_or(0, Vec::len);
        if count > max {
            let message = format!("There are {count} artifacts; at most {max} are allowed.");
            return Err(Error::new(Code::ReceiptTooLarge, message).with("limit", max));
        }
        let work = Work {
            result,
            artifacts: artifacts.map(Json::to_string),
            delivery_proof: proof.map(Json::to_string),
            digest: self.digest()?,
        };
        if settings.strict_locatability && !work.is_located() {
            return Err(Error::new(Code::LocatabilityRequired, Code::LocatabilityRequired.entry().title));
        }
        // Pointers cannot be left out of the receipt as a large result can, so they must fit.
        receipts::check_body(settings, "Artifacts and proof make", &self.completed_body(0))?;
        Ok(work)
    }

    /// Of what a repetition is compared by.
    fn digest(&self) -> Result<Fingerprint> {
        Fingerprint::of(&json!([self.result, self.artifacts(), self.proof()]))
    }

    /// Nothing in it is as good as nothing.
    fn artifacts(&self) -> Option<&Json> {
        self.artifacts.as_ref().filter(|artifacts| !is_empty(artifacts))
    }

    fn proof(&self) -> Option<&Json> {
        self.delivery_proof.as_ref().filter(|proof| !is_empty(proof))
    }

    async fn record(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, task: &Row, worker: &str, work: &Work) -> Result<()> {
        let settings = ctx.settings::<Settings>();
        let owner = task.text(0)?;
        let assigned = ReceiptId::from_slice(task.bytes(1)?)?;
        let parents: &[ReceiptId] = if work.is_located() { &[assigned] } else { &[] };
        let completed = self.completed_receipt(settings, owner, worker, task.int(2)?, parents);
        let completed_id = completed.id;
        let ready = self.ready_receipt(settings, ReceiptId(ctx.ids.next()), owner, std::slice::from_ref(&completed_id));
        let end =
            end_lease(self.task_id.as_bytes(), task.int(3)?, ctx.now, EndReason::Completed, Some(&work.digest), None);
        let result = self.result_row(ctx, work, &completed_id);
        receipts::emit_all(tx, ctx, vec![result, end], &[completed, ready]).await?;
        if !work.is_located() {
            self.report_unlocated(ctx, tx, owner, assigned, worker).await?;
        }
        let success = Success { task_id: self.task_id, kind: task.text(5)?, owner, result: &self.result };
        schedules::succeeded(tx, ctx, success).await?;
        tx.wake(self.task_id.topic(ctx.caller.tenant), u32::MAX);
        Ok(())
    }

    fn result_row<'a>(&'a self, ctx: &Ctx<'_>, work: &'a Work, receipt: &'a ReceiptId) -> Statement<'a> {
        const RESULT: &str = "INSERT INTO results (tenant, task_id, outcome, result, artifacts, delivery_proof, located, \
                              receipt_id, completed_at) VALUES ($1, $2, 'succeeded', $3, $4, $5, $6, $7, $8)";
        let params = vec![
            Value::from(self.task_id.as_bytes()),
            Value::from(&work.result),
            Value::from(work.artifacts.as_deref()),
            Value::from(work.delivery_proof.as_deref()),
            Value::from(work.is_located()),
            Value::from(receipt.as_bytes()),
            Value::from(ctx.now),
        ];
        (RESULT, params)
    }

    fn completed_receipt<'a>(
        &'a self,
        settings: &Settings,
        owner: &'a str,
        worker: &'a str,
        attempt: i64,
        parents: &'a [ReceiptId],
    ) -> Receipt<'a> {
        let parent = parents.first().map(|parent| parent.as_bytes().to_vec()).unwrap_or_default();
        // The parents are part of it: the completion that was stripped of them and the one that repairs it are two.
        let parts = [self.task_id.as_bytes(), worker.as_bytes(), self.lease_id.as_bytes(), &parent];
        Receipt {
            id: receipts::keyed_id(ReceiptType::TaskCompleted, &parts),
            kind: ReceiptType::TaskCompleted,
            from: worker,
            to: owner,
            task_id: Some(self.task_id),
            lease_id: Some(self.lease_id),
            schedule_id: None,
            parents,
            unlocated: parents.is_empty(),
            body: with_result(settings, self.completed_body(attempt), &self.result),
        }
    }

    fn completed_body(&self, attempt: i64) -> Json {
        let mut body =
            json!({ "result_summary": summary(&self.result), "completion_metadata": { "attempt": attempt } });
        self.add_pointers(&mut body);
        body
    }

    fn add_pointers(&self, body: &mut Json) {
        if let Some(artifacts) = self.artifacts() {
            body["artifacts"] = artifacts.clone();
        }
        if let Some(proof) = self.proof() {
            body["delivery_proof"] = proof.clone();
        }
    }

    fn ready_receipt<'a>(
        &'a self,
        settings: &Settings,
        id: ReceiptId,
        owner: &'a str,
        parents: &'a [ReceiptId],
    ) -> Receipt<'a> {
        let mut body = json!({ "status": Status::Succeeded });
        if let Some(artifacts) = self.artifacts() {
            body["artifacts"] = artifacts.clone();
        }
        Receipt {
            id,
            kind: ReceiptType::TaskResultReady,
            from: SYSTEM,
            to: owner,
            task_id: Some(self.task_id),
            lease_id: None,
            schedule_id: None,
            parents,
            unlocated: false,
            body: with_result(settings, body, &self.result),
        }
    }

    async fn report_unlocated(
        &self,
        ctx: &Ctx<'_>,
        tx: &mut Tx<'_>,
        owner: &str,
        assigned: ReceiptId,
        worker: &str,
    ) -> Result<()> {
        tracing::warn!(task_id = %self.task_id, worker, "a task was completed without saying where its work is");
        let anomaly = Anomaly {
            kind: anomaly::Kind::LocatabilityMissing,
            to: owner,
            task_id: Some(self.task_id),
            related: Some(assigned),
            crossing: self.lease_id.as_bytes(),
            details: json!({ "worker": worker, "lease_id": self.lease_id }),
            recommended_action: "Let the worker call complete again, with artifacts or a delivery_proof.",
        };
        anomaly::report(tx, ctx, anomaly).await
    }

    /// The lease is not live. If this worker ended it by the same words, it is told so again; if it now adds where the
    /// work is, that is added.
    async fn repeat(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, hold: &Hold<'_>, work: &Work) -> Result<Reply<Completed>> {
        let Some(ended) = Ended::find(tx, hold).await? else { return Err(lease::refusal(ctx, tx, hold).await) };
        let whole = if work.is_located() { self.with_recorded_result(tx).await? } else { None };
        let digest = whole.as_ref().map_or(Ok(work.digest), Self::digest)?;
        if ended.is_repeated_by(ctx, EndReason::Completed, digest) {
            return Ok(Reply::Replay(Completed { ok: true }));
        }
        if ended.went_back_to_the_queue() {
            return Err(lease::refusal(ctx, tx, hold).await);
        }
        // The success in question is the one that was recorded: of the same result, without a place.
        let bare = Fingerprint::of(&json!([self.result, null, null]))?;
        let same_result = whole.is_some() || ended.is_repeated_by(ctx, EndReason::Completed, bare);
        let completed = ended.reason == EndReason::Completed.as_str();
        if completed && same_result && work.is_located() {
            let whole = whole.as_ref().unwrap_or(self);
            if whole.locate(ctx, tx, hold, work, &digest).await? {
                return Ok(Reply::Done(Completed { ok: true }));
            }
        }
        Err(Error::new(
            Code::InvalidStateTransition,
            "This lease has already ended the task, with another outcome or other content; nothing was changed.",
        ))
    }

    /// The same call with the result that the task has, if it names none: whoever only adds where the work is need not say
    /// again what came out.
    async fn with_recorded_result(&self, tx: &mut Tx<'_>) -> Result<Option<Self>> {
        const RESULT: &str = "SELECT result FROM results WHERE tenant = $1 AND task_id = $2 AND outcome = 'succeeded'";
        if !self.result.is_null() {
            return Ok(None);
        }
        let Some(row) = tx.query_opt(RESULT, &[self.task_id.as_bytes().into()]).await? else { return Ok(None) };
        let result = row.text_opt(0)?.map(serde_json::from_str).transpose().map_err(Error::internal)?;
        Ok(result.map(|result| Self { result, ..self.clone() }))
    }

    /// The repair of a success that did not say where its work is: only once.
    async fn locate(
        &self,
        ctx: &Ctx<'_>,
        tx: &mut Tx<'_>,
        hold: &Hold<'_>,
        work: &Work,
        digest: &Fingerprint,
    ) -> Result<bool> {
        const LOCATE: &str = "UPDATE results SET artifacts = $3, delivery_proof = $4, located = 1 \
            WHERE tenant = $1 AND task_id = $2 AND outcome = 'succeeded' AND located = 0";
        const TASK: &str =
            "SELECT owner, assigned_receipt, attempt, epoch FROM tasks WHERE tenant = $1 AND task_id = $2";
        const AGAIN: &str = "UPDATE leases SET digest = $4 WHERE tenant = $1 AND task_id = $2 AND lease_id = $3";
        let params = [
            Value::from(self.task_id.as_bytes()),
            Value::from(work.artifacts.as_deref()),
            Value::from(work.delivery_proof.as_deref()),
        ];
        if tx.execute(LOCATE, &params).await? == 0 {
            return Ok(false);
        }
        let task = tx.query_opt(TASK, &[self.task_id.as_bytes().into()]).await?;
        let task = task.ok_or_else(|| Error::internal("a result without its task"))?;
        let assigned = [ReceiptId::from_slice(task.bytes(1)?)?];
        let completed = self.completed_receipt(ctx.settings(), task.text(0)?, hold.worker, task.int(2)?, &assigned);
        let again: Statement<'_> = (
            AGAIN,
            vec![self.task_id.as_bytes().into(), self.lease_id.as_bytes().into(), digest.as_bytes().as_slice().into()],
        );
        receipts::emit_all(tx, ctx, vec![again], &[completed]).await?;
        Ok(true)
    }
}

/// `{mode, target, status, at, proof}`; of these only the mode must be there.
fn check_proof(proof: &Json) -> Result<()> {
    let refused = |what: &str| Err(Error::invalid(format!("delivery_proof{what}.")));
    if !proof.is_object() {
        return refused(" must be an object");
    }
    if !matches!(proof["mode"].as_str(), Some("push" | "store")) {
        return refused(".mode must be \"push\" or \"store\"");
    }
    let given = |field: &str| proof.get(field).filter(|value| !value.is_null());
    if let Some(field) = ["target", "proof"].into_iter().find(|field| given(field).is_some_and(|it| !it.is_object())) {
        return refused(&format!(".{field} must be an object"));
    }
    if given("status").is_some_and(|status| !status.is_string()) {
        return refused(".status must be a text");
    }
    if given("at").is_some_and(|at| Time::deserialize(at).is_err()) {
        return refused(".at must be a time like 2026-01-05T12:30:00Z");
    }
    Ok(())
}

/// The result in the receipt, where there is room for it; otherwise how to get it.
fn with_result(settings: &Settings, mut body: Json, result: &Json) -> Json {
    body["result_payload"] = result.clone();
    if receipts::body_text(&body).len() > settings.receipt_body_bytes_max {
        if let Some(fields) = body.as_object_mut() {
            fields.remove("result_payload");
        }
        body["how_to_retrieve"] = json!({ "operation": "get_task", "reason": "too large for a receipt" });
    }
    body
}

/// Long enough to recognise the result by, short enough for a list.
fn summary(result: &Json) -> String {
    const SUMMARY_CHARS_MAX: usize = 200;
    let text = result.as_str().map_or_else(|| result.to_string(), str::to_owned);
    text.chars().take(SUMMARY_CHARS_MAX).collect()
}

fn is_pointer(artifacts: &Json) -> bool {
    artifacts.is_object() || artifacts.as_array().is_some_and(|list| list.iter().all(Json::is_object))
}

fn is_empty(value: &Json) -> bool {
    match value {
        Json::Null => true,
        Json::Array(list) => list.is_empty(),
        Json::Object(fields) => fields.is_empty(),
        _ => false,
    }
}
