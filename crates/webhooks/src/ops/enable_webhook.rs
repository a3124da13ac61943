//! Enable a webhook again that was disabled because its endpoint failed for too long or wanted nothing more.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Error, Example, OperationSpec, Result, Role, Route, Scope};
use waybill_store::{Ctx, Operation, Reply, Tx};

use crate::webhook::{self, WebhookId};

/// Deliveries that are brought forward. More wait for their own time, so that one call does not hold up every other write.
const AT_ONCE_MAX: i64 = 1_000;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EnableWebhook {
    pub webhook_id: WebhookId,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct EnabledWebhook {
    /// False when it was not disabled; nothing was changed then.
    pub ok: bool,
}

impl Operation for EnableWebhook {
    const SPEC: OperationSpec = OperationSpec {
        name: "enable_webhook",
        domain: "webhooks",
        route: Route::post("/admin/webhooks/{webhook_id}/enable"),
        tool: false,
        repeatable: true,
        roles: &[Role::Admin],
        scopes: &[Scope::AdminWrite],
        title: "Enable a webhook again",
        description: "Lets a disabled webhook have deliveries again, as if it had never failed. What had not been delivered when \
                      it was disabled, and has not been given up since, is sent at once; receipts from while it was \
                      disabled are not sent.",
        example: Example {
            arguments: r#"{"webhook_id": "0198c0de-1a2b-7c3d-8e4f-5a6b7c8d9e10"}"#,
            answer: r#"{"ok": true}"#,
        },
        ..OperationSpec::WRITE
    };
    type Output = EnabledWebhook;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<EnabledWebhook>> {
        const ENABLE: &str = "UPDATE webhooks SET disabled_at = NULL, disabled_reason = NULL, held = 0, ailing = 0, \
            failures = 0, failing_since = NULL, due_at = $3 \
            WHERE tenant = $1 AND webhook_id = $2 AND disabled_at IS NOT NULL";
        // What waits for a later attempt waits for an endpoint that failed.
        const AT_ONCE: &str = "UPDATE webhook_deliveries SET next_at = $3 \
            WHERE tenant = $1 AND webhook_id = $2 AND delivery_id IN (SELECT d.delivery_id FROM webhook_deliveries d \
            WHERE d.tenant = $1 AND d.webhook_id = $2 AND d.next_at > $3 ORDER BY d.next_at LIMIT $4)";
        const FIND: &str = "SELECT 1 FROM webhooks WHERE tenant = $1 AND webhook_id = $2";
        let (id, now) = (webhook::value(&self.webhook_id), ctx.now.into());
        if tx.execute(ENABLE, &[id, now]).await? == 0 {
            let found = tx.query_opt(FIND, &[id]).await?;
            return found.map(|_| Reply::Done(EnabledWebhook { ok: false })).ok_or_else(|| Error::not_found("webhook"));
        }
        tx.execute(AT_ONCE, &[id, now, AT_ONCE_MAX.into()]).await?;
        tx.wake(webhook::topic(), u32::MAX);
        Ok(Reply::Done(EnabledWebhook { ok: true }))
    }
}
