//! Receipts: proofs of transitions, written in the transaction of the transition they prove.

use serde_json::{Value as Json, json};
use waybill_kernel::{Error, Result, id_type};
use waybill_store::{Ctx, Tx, Value};

use crate::task::TaskId;

id_type!(
    /// Identifies a receipt within its tenant.
    ReceiptId
);

/// The server's own identity.
pub const SYSTEM: &str = "system:asyncgate";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReceiptType {
    TaskAssigned,
    TaskCanceled,
    TaskResultReady,
}

impl ReceiptType {
    pub const fn as_str(self) -> &'static str {
        match self {
            ReceiptType::TaskAssigned => "task.assigned",
            ReceiptType::TaskCanceled => "task.canceled",
            ReceiptType::TaskResultReady => "task.result_ready",
        }
    }

    /// Opens an obligation that stays until a receipt of a terminating type names it as its parent.
    const fn is_obligation(self) -> bool {
        matches!(self, ReceiptType::TaskAssigned)
    }

    /// Ends the obligation it names as its parent.
    const fn is_terminal(self) -> bool {
        matches!(self, ReceiptType::TaskCanceled)
    }
}

pub struct Receipt<'a> {
    pub kind: ReceiptType,
    pub from: &'a str,
    pub to: &'a str,
    pub task_id: TaskId,
    pub parent: Option<ReceiptId>,
    pub body: Json,
}

/// Writes one receipt, its link to its parent, and ends the obligation it ends.
pub async fn emit(tx: &mut Tx<'_>, ctx: &Ctx<'_>, id: ReceiptId, receipt: Receipt<'_>) -> Result<()> {
    assert!(
        !receipt.kind.is_terminal() || receipt.parent.is_some(),
        "a terminal receipt without a parent would leave its obligation open for ever"
    );
    let mut body = receipt.body;
    body["schema_version"] = json!("1");
    let body = body.to_string();
    let params = [
        Value::from(id.as_bytes()),
        Value::from(receipt.kind.as_str()),
        Value::from(receipt.from),
        Value::from(receipt.to),
        Value::from(receipt.task_id.as_bytes()),
        Value::from(&body),
        Value::from(receipt.kind.is_obligation()),
        Value::from(ctx.now),
    ];
    tx.execute(
        "INSERT INTO receipts (tenant, receipt_id, receipt_type, sender, addressee, task_id, body, open, created_at)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
        &params,
    )
    .await?;
    match receipt.parent {
        Some(parent) => link(tx, parent, id, receipt.kind).await,
        None => Ok(()),
    }
}

async fn link(tx: &mut Tx<'_>, parent: ReceiptId, child: ReceiptId, kind: ReceiptType) -> Result<()> {
    tx.execute(
        "INSERT INTO receipt_parents (tenant, parent_id, child_id, child_type) VALUES ($1, $2, $3, $4)",
        &[parent.as_bytes().into(), child.as_bytes().into(), kind.as_str().into()],
    )
    .await?;
    if !kind.is_terminal() {
        return Ok(());
    }
    let ended = tx
        .execute(
            "UPDATE receipts SET open = 0 WHERE tenant = $1 AND receipt_id = $2 AND open = 1",
            &[parent.as_bytes().into()],
        )
        .await?;
    // The transition was guarded, so nobody else can have ended the same obligation.
    if ended == 1 { Ok(()) } else { Err(Error::internal(format!("receipt {parent} was not an open obligation"))) }
}
