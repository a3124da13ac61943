//! Acknowledge: the addressee says that it has read a receipt. Ends nothing; it is a receipt about a receipt.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use waybill_kernel::principal::forbidden;
use waybill_kernel::{Error, Example, OperationSpec, PrincipalKind, Result, Role, Route, Scope};
use waybill_store::{Ctx, Operation, Reply, Tx};

use crate::actor::actor;
use crate::receipts::{self, Receipt, ReceiptId, ReceiptType, SYSTEM, archive};
use crate::task::TaskId;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AckReceipt {
    pub receipt_id: ReceiptId,
    /// Accepted if it is yours.
    #[schemars(extend("deprecated" = true))]
    pub principal_kind: Option<PrincipalKind>,
    /// Accepted if it is yours.
    #[schemars(extend("deprecated" = true))]
    pub principal_id: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Acknowledged {
    pub ok: bool,
}

impl Operation for AckReceipt {
    const SPEC: OperationSpec = OperationSpec {
        name: "ack_receipt",
        domain: "tasks",
        route: Route::post("/v1/receipts/{receipt_id}/ack"),
        repeatable: true,
        roles: &[Role::Agent, Role::Worker, Role::Admin, Role::System],
        scopes: &[Scope::ReceiptsAck],
        title: "Acknowledge a receipt",
        description: "Say that you have read a receipt addressed to you. It is put on record and changes nothing else: an \
                      obligation stays open. Safe to repeat.",
        example: Example {
            arguments: r#"{"receipt_id": "0198c0e0-3c4d-7e5f-8061-7c8d9e0f1a2b"}"#,
            answer: r#"{"ok": true}"#,
        },
        ..OperationSpec::WRITE
    };
    const REPLAYS: bool = true;
    type Output = Acknowledged;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Acknowledged>> {
        let row = archive::locate(tx, self.receipt_id).await?.ok_or_else(|| Error::not_found("receipt"))?;
        let caller = actor(ctx, self.principal_kind, self.principal_id.as_deref(), PrincipalKind::Agent)?;
        if row.text(2)? != caller && !ctx.caller.has(Role::Admin) {
            let message = "Only its addressee may acknowledge a receipt.";
            return Err(forbidden(message, &[Role::Admin], &ctx.caller.roles));
        }
        let parents = [self.receipt_id];
        let receipt = Receipt {
            // Once per receipt and reader.
            id: receipts::keyed_id(
                ReceiptType::ReceiptAcknowledged,
                &self.receipt_id.0,
                &[self.receipt_id.as_bytes(), caller.as_bytes()],
            ),
            kind: ReceiptType::ReceiptAcknowledged,
            from: &caller,
            to: SYSTEM,
            task_id: row.bytes_opt(3)?.map(TaskId::from_slice).transpose()?,
            lease_id: None,
            schedule_id: None,
            parents: &parents,
            unlocated: false,
            body: json!({ "acknowledged_receipt_id": self.receipt_id }).into(),
        };
        let answer = Acknowledged { ok: true };
        let written = receipts::emit_once(tx, ctx, receipt).await?;
        if written { Ok(Reply::Done(answer)) } else { Ok(Reply::Replay(answer)) }
    }
}
