//! What opens an obligation, what ends one, and which receipts are refused.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value as Json, json};
use waybill_kernel::id::Uuid;
use waybill_kernel::{Caller, Code, OperationSpec, Result, Role};
use waybill_store::{Ctx, Operation, Reply, Tx};
use waybill_tasks::receipts::{self, Receipt, ReceiptId, ReceiptType};
use waybill_testkit::stores::{self, TestStore};

use crate::support::{NOBODY, ok, plain_task, refusal, spec, task, text, texts};

waybill_testkit::both! {
    a12_5_a_completion_with_artifacts_closes_the_obligation,
    a12_5_one_without_leaves_it_open_with_an_anomaly_until_the_worker_says_where_the_work_is,
    a12_5_a_terminal_failure_and_a_cancel_close_it_and_a_retry_does_not,
    a12_6_a_terminal_receipt_without_a_parent_of_the_tenant_that_it_can_end_is_refused,
    a12_6_one_that_ends_anothers_obligation_is_accepted,
    a12_6_further_parents_of_a_terminal_receipt_must_exist_in_the_tenant,
    a12_6_too_many_parents_and_artifacts_and_too_large_a_body_are_refused_cleanly,
    a12_6_a_result_larger_than_a_receipt_completes,
}

pub fn worker(on: &TestStore, id: &str) -> Caller {
    stores::caller(&on.admin, &format!("worker:{id}"), &[Role::Worker]).unwrap()
}

/// The one claimable task, taken: what a worker sends with everything it says about it.
pub async fn claimed(on: &TestStore, worker: &Caller) -> Json {
    let leased = ok(on, worker, "lease_next", json!({})).await;
    let task = &leased["tasks"][0];
    json!({ "task_id": text(task, "task_id"), "lease_id": text(task, "lease_id") })
}

pub fn with(mut input: Json, further: Json) -> Json {
    input.as_object_mut().unwrap().extend(further.as_object().unwrap().clone());
    input
}

pub async fn open(on: &TestStore, caller: &Caller) -> Vec<String> {
    texts(&ok(on, caller, "list_open_obligations", json!({})).await["open_obligations"], "task_id")
}

/// Types of the receipts of a task, in order.
pub async fn types(on: &TestStore, caller: &Caller, task_id: &str) -> Vec<String> {
    texts(&ok(on, caller, "list_receipts", json!({ "task_id": task_id })).await["receipts"], "receipt_type")
}

async fn a12_5_a_completion_with_artifacts_closes_the_obligation(on: TestStore) {
    let (alice, worker) = (on.agent("alice").unwrap(), worker(&on, "w"));
    let task_id = plain_task(&on, &alice).await;
    let hold = claimed(&on, &worker).await;
    assert_eq!(open(&on, &alice).await, [task_id.as_str()]);
    ok(&on, &worker, "complete", with(hold, json!({ "result": 1, "artifacts": [{ "url": "x" }] }))).await;
    assert!(open(&on, &alice).await.is_empty());
    let expected = ["task.assigned", "task.accepted", "task.completed", "task.result_ready"];
    assert_eq!(types(&on, &alice, &task_id).await, expected);
}

async fn a12_5_one_without_leaves_it_open_with_an_anomaly_until_the_worker_says_where_the_work_is(on: TestStore) {
    let (alice, worker) = (on.agent("alice").unwrap(), worker(&on, "w"));
    let task_id = plain_task(&on, &alice).await;
    let hold = claimed(&on, &worker).await;
    ok(&on, &worker, "complete", with(hold.clone(), json!({ "result": 1, "artifacts": [] }))).await;
    assert_eq!(open(&on, &alice).await, [task_id.as_str()]);
    let stripped = ["task.assigned", "task.accepted", "task.completed", "task.result_ready", "system.anomaly"];
    assert_eq!(types(&on, &alice, &task_id).await, stripped, "the completion has no parents and is still of the task");
    ok(&on, &worker, "complete", with(hold, json!({ "result": 1, "artifacts": { "url": "x" } }))).await;
    assert!(open(&on, &alice).await.is_empty());
    assert_eq!(types(&on, &alice, &task_id).await[5..], ["task.completed"]);
}

async fn a12_5_a_terminal_failure_and_a_cancel_close_it_and_a_retry_does_not(on: TestStore) {
    let (alice, worker) = (on.agent("alice").unwrap(), worker(&on, "w"));
    let task_id = task(&on, &alice, json!({ "type": "work", "max_attempts": 2, "retry_backoff_seconds": 0 })).await;
    for (requeued, still_open) in [(true, vec![task_id.clone()]), (false, vec![])] {
        let hold = claimed(&on, &worker).await;
        let failed = ok(&on, &worker, "fail", with(hold, json!({ "error": "e", "retryable": true }))).await;
        assert_eq!(failed["requeued"], requeued);
        assert_eq!(open(&on, &alice).await, still_open);
    }
    let canceled = plain_task(&on, &alice).await;
    assert_eq!(open(&on, &alice).await, [canceled.as_str()]);
    ok(&on, &alice, "cancel_task", json!({ "task_id": canceled })).await;
    assert!(open(&on, &alice).await.is_empty());
}

/// A receipt as only a mistake in an operation would write it.
#[derive(Deserialize, JsonSchema)]
struct Write {
    kind: String,
    parents: Vec<String>,
    #[serde(default)]
    body_bytes: usize,
}

impl Operation for Write {
    const SPEC: OperationSpec = spec("write_receipt");
    type Output = ();

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<()>> {
        let kind = *ReceiptType::ALL.iter().find(|kind| kind.as_str() == self.kind).unwrap();
        let parents: Vec<ReceiptId> = self.parents.iter().map(|id| ReceiptId(id.parse::<Uuid>().unwrap())).collect();
        let (from, id) = (ctx.caller.principal.to_string(), ReceiptId(ctx.ids.next()));
        // What the version takes is part of the body.
        let text = "x".repeat(self.body_bytes.saturating_sub(r#"{"schema_version":"1","t":""}"#.len()));
        let (to, parents, body) = ("agent:alice", parents.as_slice(), json!({ "t": text }));
        let receipt = Receipt {
            id,
            kind,
            from: &from,
            to,
            task_id: None,
            lease_id: None,
            schedule_id: None,
            parents,
            unlocated: false,
            body: body.into(),
        };
        receipts::emit(tx, ctx, receipt).await.map(Reply::Done)
    }
}

pub async fn write(
    on: &TestStore,
    caller: &Caller,
    kind: ReceiptType,
    parents: &[String],
    body_bytes: usize,
) -> Option<Code> {
    let write = Write { kind: kind.as_str().to_owned(), parents: parents.to_vec(), body_bytes };
    on.store.run(write, caller.clone()).await.err().map(|error| error.code())
}

pub async fn assigned(on: &TestStore, caller: &Caller) -> String {
    let task_id = plain_task(on, caller).await;
    let listed = ok(on, caller, "list_receipts", json!({ "task_id": task_id })).await;
    text(&listed["receipts"][0], "receipt_id")
}

async fn a12_6_a_terminal_receipt_without_a_parent_of_the_tenant_that_it_can_end_is_refused(on: TestStore) {
    let alice = on.agent("alice").unwrap();
    let foreign = assigned(&on, &on.tenant("other").await.unwrap()).await;
    let own = assigned(&on, &alice).await;
    let before = on.count("SELECT count(*) FROM receipts").await.unwrap();
    for kind in [ReceiptType::TaskCompleted, ReceiptType::TaskFailed, ReceiptType::TaskCanceled] {
        assert_eq!(write(&on, &alice, kind, &[], 0).await, Some(Code::ParentRequired));
        for parent in [NOBODY.to_owned(), foreign.clone()] {
            assert_eq!(write(&on, &alice, kind, &[parent], 0).await, Some(Code::ParentNotFound));
        }
    }
    let not_its_kind = write(&on, &alice, ReceiptType::ScheduleDeleted, std::slice::from_ref(&own), 0).await;
    assert_eq!(not_its_kind, Some(Code::ParentNotFound), "a schedule's end is none of a task");
    assert_eq!(on.count("SELECT count(*) FROM receipts").await.unwrap(), before);
    assert_eq!(on.count("SELECT count(*) FROM receipts WHERE open = 1").await.unwrap(), 2);
}

async fn a12_6_further_parents_of_a_terminal_receipt_must_exist_in_the_tenant(on: TestStore) {
    let alice = on.agent("alice").unwrap();
    let foreign = assigned(&on, &on.tenant("other").await.unwrap()).await;
    let (own, further) = (assigned(&on, &alice).await, assigned(&on, &alice).await);
    // Both would be ended if both could be; a receipt that ended before is still a parent.
    assert_eq!(write(&on, &alice, ReceiptType::TaskCanceled, std::slice::from_ref(&further), 0).await, None);
    let before = on.count("SELECT count(*) FROM receipts").await.unwrap();
    for missing in [NOBODY.to_owned(), foreign] {
        for parents in [[own.clone(), missing.clone()], [missing.clone(), own.clone()]] {
            let refused = write(&on, &alice, ReceiptType::TaskCompleted, &parents, 0).await;
            assert_eq!(refused, Some(Code::ParentNotFound), "{parents:?}");
        }
    }
    assert_eq!(on.count("SELECT count(*) FROM receipts").await.unwrap(), before);
    assert_eq!(open(&on, &alice).await.len(), 1, "nothing was ended");
    assert_eq!(write(&on, &alice, ReceiptType::TaskCompleted, &[own, further], 0).await, None);
    assert!(open(&on, &alice).await.is_empty());
}

async fn a12_6_one_that_ends_anothers_obligation_is_accepted(on: TestStore) {
    let alice = on.agent("alice").unwrap();
    let parent = assigned(&on, &alice).await;
    let bob = on.agent("bob").unwrap();
    assert_eq!(write(&on, &bob, ReceiptType::TaskCompleted, &[parent], 0).await, None);
    assert!(open(&on, &alice).await.is_empty());
}

async fn a12_6_too_many_parents_and_artifacts_and_too_large_a_body_are_refused_cleanly(on: TestStore) {
    let (alice, worker) = (on.agent("alice").unwrap(), worker(&on, "w"));
    let parent = assigned(&on, &alice).await;
    let parents = |count: usize| [vec![parent.clone()], vec![NOBODY.to_owned(); count - 1]].concat();
    let too_large = Some(Code::ReceiptTooLarge);
    assert_eq!(write(&on, &alice, ReceiptType::TaskProgress, &parents(11), 0).await, too_large);
    assert_eq!(write(&on, &alice, ReceiptType::TaskProgress, &[], 65_537).await, too_large);
    assert_eq!(write(&on, &alice, ReceiptType::TaskProgress, &[], 65_536).await, None);
    let hold = claimed(&on, &worker).await;
    let pointers = |count| json!({ "artifacts": vec![json!({ "url": "x" }); count] });
    let refused = refusal(&on, &worker, "complete", with(hold.clone(), pointers(101))).await;
    assert_eq!(Some(refused), too_large);
    let large = json!({ "artifacts": { "url": "x".repeat(65_536) } });
    assert_eq!(Some(refusal(&on, &worker, "complete", with(hold.clone(), large)).await), too_large);
    assert_eq!(open(&on, &alice).await.len(), 1, "nothing was changed");
    ok(&on, &worker, "complete", with(hold, pointers(100))).await;
}

async fn a12_6_a_result_larger_than_a_receipt_completes(on: TestStore) {
    let (alice, worker) = (on.agent("alice").unwrap(), worker(&on, "w"));
    let task_id = plain_task(&on, &alice).await;
    let hold = claimed(&on, &worker).await;
    let result = "x".repeat(70_000);
    ok(&on, &worker, "complete", with(hold, json!({ "result": result, "artifacts": { "url": "x" } }))).await;
    let listed = ok(&on, &alice, "list_receipts", json!({ "task_id": task_id })).await;
    for receipt in &listed["receipts"].as_array().unwrap()[2..] {
        assert!(receipt["body"]["result_payload"].is_null(), "{}", receipt["receipt_type"]);
        assert_eq!(receipt["body"]["how_to_retrieve"]["operation"], "get_task");
    }
    let shown = ok(&on, &alice, "get_task", json!({ "task_id": task_id })).await;
    assert_eq!(shown["result"]["result"], json!(result));
}
