//! Complete: the work is done. The task ends, its result is kept, and two receipts say so: one ends the owner's
//! obligation, the other tells the owner that there is something to fetch.
//!
//! A success should say where the work can be found (artifacts) or that it was delivered (proof). One that does not is
//! kept as well unless the server is strict, but its obligation stays open until the worker says it again with a place.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value as Tree, json};
use waybill_kernel::idempotency::Fingerprint;
use waybill_kernel::{Code, Error, Example, Json, OperationSpec, PrincipalKind, Result, Role, Route, Scope, Time};
use waybill_store::{Ctx, Operation, Reply, Row, Sharing, Statement, Stored, Tx, Value};

use crate::Settings;
use crate::anomaly::{self, Anomaly};
use crate::lease::{self, Hold, LeaseId, lease_is_live};
use crate::outcome::{EndReason, Ended, end_lease};
use crate::receipts::{self, Receipt, ReceiptId, ReceiptType};
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
        domain: "tasks",
        route: Route::post("/v1/tasks/{task_id}/complete"),
        repeatable: true,
        relieves: true,
        roles: &[Role::Worker, Role::Admin],
        scopes: &[Scope::TasksLease],
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
        ..OperationSpec::WRITE
    };
    const REPLAYS: bool = true;
    type Output = Completed;

    fn sharing(&self) -> Option<Sharing<'_>> {
        Some(Sharing::FREELY)
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Completed>> {
        let work = self.check(ctx.settings())?;
        let worker = lease::worker(ctx, self.worker_kind, self.worker_id.as_deref())?;
        let hold = Hold::new(ctx, self.task_id, self.lease_id, &worker);
        match tx.query_opt(SUCCEED, &hold.params(&[ctx.now.into()])).await? {
            Some(row) => {
                let task = Succeeded::read(&row)?;
                self.record(ctx, tx, &task, &worker, &work).await.map(|()| Reply::Done(Completed { ok: true }))
            }
            None => self.repeat(ctx, tx, &hold, &work).await,
        }
    }
}

pub(crate) const SUCCEED: &str = concat!(
    "UPDATE tasks SET status = 'succeeded', lease_id = NULL, worker = NULL, lease_expires_at = NULL, updated_at = $6 WHERE ",
    lease_is_live!(),
    " RETURNING owner, assigned_receipt, attempt, epoch, type"
);
/// Of a task that has succeeded before, as [`SUCCEED`] answers.
const SUCCEEDED: &str =
    "SELECT owner, assigned_receipt, attempt, epoch, type FROM tasks WHERE tenant = $1 AND task_id = $2";

/// What [`SUCCEED`] and [`SUCCEEDED`] answer with.
struct Succeeded<'r> {
    owner: &'r str,
    assigned: ReceiptId,
    attempt: i64,
    epoch: i64,
    kind: &'r str,
}

impl<'r> Succeeded<'r> {
    fn read(row: &'r Row) -> Result<Self> {
        Ok(Self {
            owner: row.text(0)?,
            assigned: ReceiptId::from_slice(row.bytes(1)?)?,
            attempt: row.int(2)?,
            epoch: row.int(3)?,
            kind: row.text(4)?,
        })
    }
}

/// What was handed in, checked. Its trees are small: a large result is kept as its text alone.
struct Work {
    /// The result, where a receipt may have room for it.
    told: Option<Tree>,
    summary: String,
    artifacts: Option<Tree>,
    proof: Option<Tree>,
    digest: Fingerprint,
    /// As if it did not say where the work is.
    unlocated_digest: Fingerprint,
}

impl Work {
    fn is_located(&self) -> bool {
        self.artifacts.is_some() || self.proof.is_some()
    }

    fn completed_body(&self, attempt: i64) -> Tree {
        let mut body = json!({ "result_summary": self.summary, "completion_metadata": { "attempt": attempt } });
        if let Some(artifacts) = &self.artifacts {
            body["artifacts"] = artifacts.clone();
        }
        if let Some(proof) = &self.proof {
            body["delivery_proof"] = proof.clone();
        }
        body
    }

    fn ready_body(&self, settings: &Settings) -> Tree {
        let mut body = json!({ "status": Status::Succeeded });
        if let Some(artifacts) = &self.artifacts {
            body["artifacts"] = artifacts.clone();
        }
        with_result(settings, body, self.told.as_ref())
    }
}

impl Complete {
    fn check(&self, settings: &Settings) -> Result<Work> {
        let (bytes, max) = (self.result.as_str().len(), settings.result_bytes_max);
        if bytes > max {
            let message = format!("The result has {bytes} bytes; at most {max} are allowed.");
            return Err(Error::new(Code::PayloadTooLarge, message).with("limit_bytes", max));
        }
        // Pointers cannot be left out of the receipt as a large result can, so they must fit.
        let small = |given: &Option<Json>| match given {
            Some(given) => receipts::tree(settings, "Artifacts and proof make", given).map(Some),
            None => Ok(None),
        };
        // Nothing in it is as good as nothing.
        let artifacts = small(&self.artifacts)?.filter(|artifacts| !is_empty(artifacts));
        let proof = small(&self.delivery_proof)?.filter(|proof| !is_empty(proof));
        check_artifacts(settings, artifacts.as_ref())?;
        proof.as_ref().map_or(Ok(()), check_proof)?;
        // The tree of a large result is dropped when this function returns.
        let result: Tree = serde_json::from_str(self.result.as_str()).map_err(Error::internal)?;
        let work = Work {
            summary: summary(&result),
            digest: Fingerprint::of(&(&result, &artifacts, &proof))?,
            unlocated_digest: Fingerprint::of(&(&result, None::<()>, None::<()>))?,
            told: (bytes <= settings.receipt_body_bytes_max).then_some(result),
            artifacts,
            proof,
        };
        if settings.strict_locatability && !work.is_located() {
            return Err(Error::new(Code::LocatabilityRequired, Code::LocatabilityRequired.entry().title));
        }
        receipts::check_body(settings, "Artifacts and proof make", &work.completed_body(0))?;
        Ok(work)
    }

    async fn record(
        &self,
        ctx: &Ctx<'_>,
        tx: &mut Tx<'_>,
        task: &Succeeded<'_>,
        worker: &str,
        work: &Work,
    ) -> Result<()> {
        let settings = ctx.settings::<Settings>();
        let Succeeded { owner, assigned, attempt, epoch, kind } = *task;
        let parents: &[ReceiptId] = if work.is_located() { &[assigned] } else { &[] };
        let completed = self.completed_receipt(settings, work, owner, worker, attempt, parents);
        let completed_id = completed.id;
        let parent = std::slice::from_ref(&completed_id);
        let ready_id = ReceiptId(ctx.ids.next());
        let ready = Receipt::result_ready(ready_id, self.task_id, owner, parent, work.ready_body(settings));
        let end = end_lease(self.task_id.as_bytes(), epoch, ctx.now, EndReason::Completed, Some(&work.digest), None);
        let [artifacts, proof] = [&work.artifacts, &work.proof].map(|tree| tree.as_ref().map(Tree::to_string));
        let result = self.result_row(ctx, artifacts.as_deref(), proof.as_deref(), &completed_id);
        tx.add(Stored::Rows, self.result.as_str().len());
        receipts::emit_all(tx, ctx, vec![result, end], &[completed, ready]).await?;
        if !work.is_located() {
            self.report_unlocated(ctx, tx, owner, assigned, worker).await?;
        }
        let success = Success { task_id: self.task_id, kind, owner, result: work.told.as_ref() };
        schedules::succeeded(tx, ctx, success).await?;
        tx.wake(self.task_id.topic(ctx.caller.tenant), u32::MAX);
        Ok(())
    }

    fn result_row<'a>(
        &'a self,
        ctx: &Ctx<'_>,
        artifacts: Option<&'a str>,
        proof: Option<&'a str>,
        receipt: &'a ReceiptId,
    ) -> Statement<'a> {
        const RESULT: &str = "INSERT INTO results (tenant, task_id, outcome, result, artifacts, delivery_proof, located, \
                              receipt_id, completed_at) VALUES ($1, $2, 'succeeded', $3, $4, $5, $6, $7, $8)";
        let params = vec![
            Value::from(self.task_id.as_bytes()),
            Value::from(self.result.as_str()),
            Value::from(artifacts),
            Value::from(proof),
            Value::from(artifacts.is_some() || proof.is_some()),
            Value::from(receipt.as_bytes()),
            Value::from(ctx.now),
        ];
        (RESULT, params)
    }

    fn completed_receipt<'a>(
        &'a self,
        settings: &Settings,
        work: &Work,
        owner: &'a str,
        worker: &'a str,
        attempt: i64,
        parents: &'a [ReceiptId],
    ) -> Receipt<'a> {
        let parent = parents.first().map(|parent| parent.as_bytes().to_vec()).unwrap_or_default();
        // The parents are part of it: the completion that was stripped of them and the one that repairs it are two.
        let parts = [self.task_id.as_bytes(), worker.as_bytes(), self.lease_id.as_bytes(), &parent];
        Receipt {
            id: receipts::keyed_id(ReceiptType::TaskCompleted, &self.lease_id.0, &parts),
            kind: ReceiptType::TaskCompleted,
            from: worker,
            to: owner,
            task_id: Some(self.task_id),
            lease_id: Some(self.lease_id),
            schedule_id: None,
            parents,
            unlocated: parents.is_empty(),
            body: with_result(settings, work.completed_body(attempt), work.told.as_ref()).into(),
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

    /// For a lease that is not live. If this worker ended it with the same call, it gets the same answer again; if the call now adds
    /// where the work is, that is added.
    async fn repeat(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, hold: &Hold<'_>, work: &Work) -> Result<Reply<Completed>> {
        let Some(ended) = Ended::find(tx, hold).await? else { return Err(lease::refusal(ctx, tx, hold).await) };
        let recorded = if work.is_located() { self.with_recorded_result(tx).await? } else { None };
        let whole = recorded.as_ref().map(|whole| whole.check(ctx.settings())).transpose()?;
        let (call, work) = (recorded.as_ref().unwrap_or(self), whole.as_ref().unwrap_or(work));
        if ended.is_repeated_by(ctx, EndReason::Completed, work.digest) {
            return Ok(Reply::Replay(Completed { ok: true }));
        }
        if ended.went_back_to_the_queue() {
            return Err(lease::refusal(ctx, tx, hold).await);
        }
        // The digest tells whether this is the success that did not say where its work is.
        let is_same_result = ended.is_repeated_by(ctx, EndReason::Completed, work.unlocated_digest);
        if is_same_result && work.is_located() && call.locate(ctx, tx, hold, work).await? {
            return Ok(Reply::Done(Completed { ok: true }));
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
        let result = row.text_opt(0)?.map(Json::from_stored).transpose()?;
        Ok(result.map(|result| Self { result, ..self.clone() }))
    }

    /// The repair of a success that did not say where its work is: only for the same result, and only once.
    async fn locate(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, hold: &Hold<'_>, work: &Work) -> Result<bool> {
        const LOCATE: &str = "UPDATE results SET artifacts = $3, delivery_proof = $4, located = 1 \
            WHERE tenant = $1 AND task_id = $2 AND outcome = 'succeeded' AND located = 0";
        const AGAIN: &str = "UPDATE leases SET digest = $4 WHERE tenant = $1 AND task_id = $2 AND lease_id = $3";
        let [artifacts, proof] = [&work.artifacts, &work.proof].map(|tree| tree.as_ref().map(Tree::to_string));
        let params =
            [Value::from(self.task_id.as_bytes()), Value::from(artifacts.as_deref()), Value::from(proof.as_deref())];
        if tx.execute(LOCATE, &params).await? == 0 {
            return Ok(false);
        }
        let row = tx.query_opt(SUCCEEDED, &[self.task_id.as_bytes().into()]).await?;
        let row = row.ok_or_else(|| Error::internal("a result without its task"))?;
        let task = Succeeded::read(&row)?;
        let assigned = [task.assigned];
        let completed = self.completed_receipt(ctx.settings(), work, task.owner, hold.worker, task.attempt, &assigned);
        let again: Statement<'_> = (
            AGAIN,
            vec![
                self.task_id.as_bytes().into(),
                self.lease_id.as_bytes().into(),
                work.digest.as_bytes().as_slice().into(),
            ],
        );
        receipts::emit_all(tx, ctx, vec![again], &[completed]).await?;
        Ok(true)
    }
}

fn check_artifacts(settings: &Settings, artifacts: Option<&Tree>) -> Result<()> {
    if artifacts.is_some_and(|artifacts| !is_pointer(artifacts)) {
        return Err(Error::invalid("artifacts must be an object or a list of objects."));
    }
    let max = settings.receipt_artifacts_max;
    let count = artifacts.and_then(Tree::as_array).map_or(0, Vec::len);
    if count > max {
        let message = format!("There are {count} artifacts; at most {max} are allowed.");
        return Err(Error::new(Code::ReceiptTooLarge, message).with("limit", max));
    }
    Ok(())
}

/// `{mode, target, status, at, proof}`; of these only the mode must be there.
fn check_proof(proof: &Tree) -> Result<()> {
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
fn with_result(settings: &Settings, mut body: Tree, result: Option<&Tree>) -> Tree {
    if let Some(result) = result {
        body["result_payload"] = result.clone();
    }
    if result.is_none() || receipts::body_text(&body).len() > settings.receipt_body_bytes_max {
        if let Some(fields) = body.as_object_mut() {
            fields.remove("result_payload");
        }
        body["how_to_retrieve"] = json!({ "operation": "get_task", "reason": "too large for a receipt" });
    }
    body
}

/// Long enough to recognise the result by, short enough for a list.
fn summary(result: &Tree) -> String {
    const SUMMARY_CHARS_MAX: usize = 200;
    let text = result.as_str().map_or_else(|| result.to_string(), str::to_owned);
    text.chars().take(SUMMARY_CHARS_MAX).collect()
}

fn is_pointer(artifacts: &Tree) -> bool {
    artifacts.is_object() || artifacts.as_array().is_some_and(|list| list.iter().all(Tree::is_object))
}

fn is_empty(value: &Tree) -> bool {
    match value {
        Tree::Null => true,
        Tree::Array(list) => list.is_empty(),
        Tree::Object(fields) => fields.is_empty(),
        _ => false,
    }
}
