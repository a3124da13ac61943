//! List archived receipts: what has left the ledger, in the order in which it was written. Asked for by itself: no other list
//! shows it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Example, OperationSpec, PrincipalKind, Result, Role, Route, Scope, cursor};
use waybill_store::effects::{Cursor, Feed};
use waybill_store::{Ctx, Operation, Reply, Row, Tx};

use crate::receipts::inbox::{self, RECEIPT_AT};
use crate::receipts::{KeptReceipt, ReceiptId, ReceiptRecord, archive, example_receipt, receipt_columns};
use crate::task::TaskId;

/// After a receipt's own columns.
const ARCHIVED_AT: usize = RECEIPT_AT + 12;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListArchivedReceipts {
    /// The kind of the addressee, with `to_id`.
    pub to_kind: Option<PrincipalKind>,
    /// Only what was addressed to this principal.
    pub to_id: Option<String>,
    /// Only receipts of this task.
    pub task_id: Option<TaskId>,
    /// Only receipts after this one: `next_cursor` of the page before.
    pub since_receipt_id: Option<ReceiptId>,
    /// Receipts per page: 50 unless given, at most 200.
    #[schemars(range(min = 1))]
    pub limit: Option<i64>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct ArchivedReceipts {
    pub receipts: Vec<KeptReceipt>,
    /// Give it back as `since_receipt_id`. Absent when there was nothing after the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<ReceiptId>,
}

macro_rules! page {
    ($filter:literal) => {
        concat!(
            "SELECT r.xact, r.seq, ",
            receipt_columns!(),
            ", r.archived_at FROM archived_receipts r WHERE r.tenant = $1",
            $filter,
            " AND (r.xact, r.seq) > ($2, $3) AND r.xact < $4 ORDER BY r.xact, r.seq LIMIT $5"
        )
    };
}

const ALL: Feed = Feed { sql: page!("") };
const OF_ADDRESSEE: Feed = Feed { sql: page!(" AND r.addressee = $6") };
/// `$7` is an addressee or NULL.
const OF_TASK: Feed = Feed { sql: page!(" AND r.task_id = $6 AND ($7 IS NULL OR r.addressee = $7)") };

impl Operation for ListArchivedReceipts {
    const SPEC: OperationSpec = OperationSpec {
        name: "list_archived_receipts",
        domain: "admin",
        route: Route::get("/v1/receipts/archive"),
        tool: false,
        roles: &[Role::Admin],
        scopes: &[Scope::AdminRead],
        title: "List archived receipts",
        description: "Read archived receipts, oldest first: all of \
                      the tenant, or those of a task or an addressee. Pass next_cursor back as since_receipt_id.",
        example: Example {
            arguments: r#"{"task_id": "0198c0de-1a2b-7c3d-8e4f-5a6b7c8d9e0f"}"#,
            answer: concat!(
                r#"{"receipts": ["#,
                example_receipt!(r#", "archived_at": "2026-01-12T12:35:10.000000Z""#),
                r#"], "next_cursor": "0198c0e0-3c4d-7e5f-8061-7c8d9e0f1a2b"}"#
            ),
        },
        ..OperationSpec::READ
    };
    type Output = ArchivedReceipts;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<ArchivedReceipts>> {
        let limit = inbox::page_size(ctx.settings(), "limit", self.limit)?;
        let addressee = match (self.to_kind, self.to_id.as_deref()) {
            (None, None) => None,
            (kind, id) => Some(inbox::whose(ctx, kind, id)?),
        };
        let after = match self.since_receipt_id {
            None => Cursor::START,
            Some(since) => {
                let row = archive::locate(tx, since).await?.ok_or_else(cursor::refused)?;
                Cursor { xact: row.int(0)?, seq: row.int(1)? }
            }
        };
        let page = match (self.task_id, &addressee) {
            (Some(task), to) => OF_TASK.read(tx, after, limit, &[task.as_bytes().into(), to.as_deref().into()]).await?,
            (None, Some(to)) => OF_ADDRESSEE.read(tx, after, limit, &[to.into()]).await?,
            (None, None) => ALL.read(tx, after, limit, &[]).await?,
        };
        let kept = |row: &Row| {
            let receipt = ReceiptRecord::from_row(row, RECEIPT_AT)?;
            Ok(KeptReceipt { receipt, archived_at: row.time_opt(ARCHIVED_AT)? })
        };
        let receipts: Vec<KeptReceipt> = page.rows.iter().map(kept).collect::<Result<_>>()?;
        let next_cursor = receipts.last().map(|kept| kept.receipt.receipt_id);
        Ok(Reply::Done(ArchivedReceipts { receipts, next_cursor }))
    }
}
