//! Get: one receipt, for those it concerns, from the ledger or the archive.

use schemars::JsonSchema;
use serde::Deserialize;
use waybill_kernel::{Error, Example, OperationSpec, Resource, Result, Role, Route, Scope};
use waybill_store::{Ctx, Operation, Reply, Tx};

use crate::receipts::archive::archived;
use crate::receipts::{KeptReceipt, ReceiptId, ReceiptRecord, example_receipt, receipt_columns};

/// After a receipt's own columns.
const OWNER_AT: usize = 12;
const ARCHIVED_AT: usize = 13;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GetReceipt {
    pub receipt_id: ReceiptId,
}

impl Operation for GetReceipt {
    const SPEC: OperationSpec = OperationSpec {
        name: "get_receipt",
        domain: "tasks",
        route: Route::get("/v1/receipts/{receipt_id}"),
        resources: &[Resource::at("resource://receipts/{receipt_id}", "receipt", "One receipt.")],
        roles: &[Role::Agent, Role::Worker, Role::Admin, Role::System],
        scopes: &[Scope::ReceiptsRead],
        title: "Read a receipt",
        description: "Read one receipt: for its addressee, its sender, and the owner of the task it is about. Also from \
                      the archive, and then with archived_at.",
        example: Example {
            arguments: r#"{"receipt_id": "0198c0e0-3c4d-7e5f-8061-7c8d9e0f1a2b"}"#,
            answer: example_receipt!(""),
        },
        ..OperationSpec::READ
    };
    type Output = KeptReceipt;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<KeptReceipt>> {
        const LEDGER: &str = concat!(
            "SELECT ",
            receipt_columns!(),
            ", t.owner, CAST(NULL AS BIGINT) FROM receipts r LEFT JOIN tasks t ON t.tenant = $1 AND t.task_id = r.task_id \
             WHERE r.tenant = $1 AND r.receipt_id = $2"
        );
        const ARCHIVE: &str = concat!(
            "SELECT ",
            receipt_columns!(),
            ", t.owner, r.archived_at FROM ",
            archived!(),
            " LEFT JOIN tasks t ON t.tenant = $1 AND t.task_id = r.task_id WHERE p.tenant = $1 AND p.receipt_id = $2"
        );
        let id = [self.receipt_id.as_bytes().into()];
        let row = match tx.query_opt(LEDGER, &id).await? {
            Some(row) => row,
            None => tx.query_opt(ARCHIVE, &id).await?.ok_or_else(|| Error::not_found("receipt"))?,
        };
        let (sender, addressee, caller) = (row.text(3)?, row.text(4)?, ctx.caller.principal.to_string());
        if sender != caller && row.text_opt(OWNER_AT)? != Some(caller.as_str()) {
            ctx.caller.require_owner(addressee, "receipt")?;
        }
        let receipt = ReceiptRecord::from_row(&row, 0)?;
        Ok(Reply::Done(KeptReceipt { receipt, archived_at: row.time_opt(ARCHIVED_AT)? }))
    }
}
