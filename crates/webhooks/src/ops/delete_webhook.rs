//! Delete a webhook. Nothing more is sent to it but what is on its way; its deliveries are forgotten in their own time.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Error, Example, OperationSpec, Result, Role, Route, Scope};
use waybill_store::{Ctx, Operation, Reply, Tx};

use crate::webhook::{self, WebhookId};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeleteWebhook {
    pub webhook_id: WebhookId,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct DeletedWebhook {
    pub ok: bool,
}

impl Operation for DeleteWebhook {
    const SPEC: OperationSpec = OperationSpec {
        name: "delete_webhook",
        domain: "webhooks",
        route: Route::post("/admin/webhooks/{webhook_id}/delete"),
        tool: false,
        destructive: true,
        relieves: true,
        roles: &[Role::Admin],
        scopes: &[Scope::AdminWrite],
        title: "Delete a webhook",
        description: "Ends a webhook: what has not been delivered to it is not delivered any more.",
        example: Example {
            arguments: r#"{"webhook_id": "0198c0de-1a2b-7c3d-8e4f-5a6b7c8d9e10"}"#,
            answer: r#"{"ok": true}"#,
        },
        ..OperationSpec::WRITE
    };
    type Output = DeletedWebhook;

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<DeletedWebhook>> {
        const DELETE: &str = "DELETE FROM webhooks WHERE tenant = $1 AND webhook_id = $2";
        if tx.execute(DELETE, &[webhook::value(&self.webhook_id)]).await? == 0 {
            return Err(Error::not_found("webhook"));
        }
        Ok(Reply::Done(DeletedWebhook { ok: true }))
    }
}
