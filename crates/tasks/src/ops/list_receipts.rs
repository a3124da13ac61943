//! List receipts: what is addressed to a principal, or everything that was said about a task, oldest first.
//!
//! Receipts of a task are found by their links, from the one that assigned it on: an index by task would cost every create.
//! What is said of a schedule has no such link, and an index of its own.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Error, Example, OperationSpec, PrincipalKind, Result, Role, Route, Scope};
use waybill_store::effects::Feed;
use waybill_store::{Ctx, Operation, Reply, Tx};

use crate::lease;
use crate::receipts::inbox::{self, INBOX, Listed, Of};
use crate::receipts::{ReceiptId, ReceiptRecord, example_receipt, receipt_columns};
use crate::task::TaskId;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListReceipts {
    /// The kind of the addressee, with `to_id`.
    pub to_kind: Option<PrincipalKind>,
    /// To whom; yourself unless given. Only an admin may name another.
    pub to_id: Option<String>,
    /// Only receipts of this task, whoever they are addressed to. For its owner and for workers that hold or held it.
    pub task_id: Option<TaskId>,
    /// Only receipts after this one: `next_cursor` of the page before.
    pub since_receipt_id: Option<ReceiptId>,
    /// Receipts per page: 50 unless given, at most 200.
    #[schemars(range(min = 1))]
    pub limit: Option<i64>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct ReceiptList {
    pub receipts: Vec<ReceiptRecord>,
    /// Give it back as `since_receipt_id`. Absent when there was nothing after the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<ReceiptId>,
    /// The same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<ReceiptId>,
}

impl Operation for ListReceipts {
    const SPEC: OperationSpec = OperationSpec {
        name: "list_receipts",
        domain: "tasks",
        route: Route::get("/v1/receipts"),
        roles: &[Role::Agent, Role::Worker, Role::Admin, Role::System],
        scopes: &[Scope::ReceiptsRead],
        title: "List receipts",
        description: "Read the receipts addressed to you, oldest first, or with task_id all of one task; archived ones are \
                      not shown. Pass next_cursor back as since_receipt_id for what comes after; keep it to read what is \
                      new later.",
        example: Example {
            arguments: r#"{"task_id": "0198c0de-1a2b-7c3d-8e4f-5a6b7c8d9e0f",
                "since_receipt_id": "0198c0de-1a2b-7c3d-8e4f-5a6b7c8d9e1f"}"#,
            answer: concat!(
                r#"{"receipts": ["#,
                example_receipt!(""),
                r#"], "next_cursor": "0198c0e0-3c4d-7e5f-8061-7c8d9e0f1a2b", "cursor": "0198c0e0-3c4d-7e5f-8061-7c8d9e0f1a2b"}"#
            ),
        },
        ..OperationSpec::READ
    };
    const SETTLES: bool = true;
    type Output = ReceiptList;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<ReceiptList>> {
        let limit = inbox::page_size(ctx.settings(), "limit", self.limit)?;
        let Listed { receipts, last } = match self.task_id {
            Some(task_id) => {
                let addressee = self.addressee_within(ctx, tx, task_id).await?;
                let further = [task_id.as_bytes().into(), addressee.as_deref().into()];
                inbox::list(tx, OF_TASK, (self.since_receipt_id, Of::Task(task_id)), limit, &further).await?
            }
            None => {
                let addressee = inbox::whose(ctx, self.to_kind, self.to_id.as_deref())?;
                let since = (self.since_receipt_id, Of::Addressee(&addressee));
                inbox::list(tx, INBOX, since, limit, &[(&addressee).into()]).await?
            }
        };
        Ok(Reply::Done(ReceiptList { receipts, next_cursor: last, cursor: last }))
    }
}

/// `$6` is the task, `$7` an addressee or NULL. Every receipt of a task but the first and two kinds names another of the
/// task as its parent. The one kind is a completion that does not say where the work is, which the result names; the other
/// is what is said of a schedule, whose parent if it has one is another task's. What is archived has left its links behind, and leads to those that came after it. 20,000 is more than leases and the bounded
/// reports of a task come to.
const OF_TASK: Feed = Feed {
    sql: concat!(
        "WITH RECURSIVE linked (receipt_id) AS ( \
           SELECT assigned_receipt FROM tasks WHERE tenant = $1 AND task_id = $6 \
           UNION ALL SELECT receipt_id FROM results WHERE tenant = $1 AND task_id = $6 \
           UNION ALL SELECT receipt_id FROM receipts WHERE tenant = $1 AND task_id = $6 AND schedule_id IS NOT NULL \
           UNION ALL SELECT receipt_id FROM archived_receipts WHERE tenant = $1 AND task_id = $6 \
           UNION SELECT p.child_id FROM linked c JOIN receipt_parents p ON p.tenant = $1 AND p.parent_id = c.receipt_id \
         ) SELECT r.xact, r.seq, ",
        receipt_columns!(),
        " FROM receipts r WHERE r.tenant = $1 AND r.receipt_id IN (SELECT receipt_id FROM linked LIMIT 20000) \
         AND r.task_id = $6 AND ($7 IS NULL OR r.addressee = $7) \
         AND (r.xact, r.seq) > ($2, $3) AND r.xact < $4 ORDER BY r.xact, r.seq LIMIT $5"
    ),
};

impl ListReceipts {
    /// To whom the task's receipts must be addressed, if that was asked for, once it is clear that the caller may see them.
    async fn addressee_within(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, task_id: TaskId) -> Result<Option<String>> {
        const OWNER: &str = "SELECT owner FROM tasks WHERE tenant = $1 AND task_id = $2";
        let row = tx.query_opt(OWNER, &[task_id.as_bytes().into()]).await?.ok_or_else(|| Error::not_found("task"))?;
        let foreign = ctx.caller.require_owner(row.text(0)?, "task");
        if foreign.is_err() && !lease::was_held_by(tx, task_id, &ctx.caller.principal.to_string()).await? {
            foreign?;
        }
        match (self.to_kind, self.to_id.as_deref()) {
            (None, None) => Ok(None),
            (kind, id) => inbox::whose(ctx, kind, id).map(Some),
        }
    }
}
