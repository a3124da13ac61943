//! Deliver again: whatever has become of a delivery, it is due at once and has all its attempts before it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Code, Error, Example, OperationSpec, Result, Role, Route, Scope, Time};
use waybill_store::{Ctx, Operation, Reply, Tx, Value};

use crate::Settings;
use crate::webhook::{self, DeliveryId, TOUCH, WebhookId};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RedeliverWebhook {
    pub webhook_id: WebhookId,
    pub delivery_id: DeliveryId,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Redelivered {
    pub ok: bool,
    /// Later while the endpoint rests because it did not answer.
    pub next_attempt_at: Time,
}

impl Operation for RedeliverWebhook {
    const SPEC: OperationSpec = OperationSpec {
        name: "redeliver_webhook",
        domain: "webhooks",
        route: Route::post("/admin/webhooks/{webhook_id}/deliveries/{delivery_id}/redeliver"),
        tool: false,
        repeatable: true,
        roles: &[Role::Admin],
        scopes: &[Scope::AdminWrite],
        title: "Deliver again to a webhook",
        description: "Sends a delivery again, with the same `webhook-id`, whether it had been accepted or had failed.",
        example: Example {
            arguments: r#"{"webhook_id": "0198c0de-1a2b-7c3d-8e4f-5a6b7c8d9e10",
                "delivery_id": "0198c0e1-4d5e-7f60-9172-8d9e0f1a2b3c"}"#,
            answer: r#"{"ok": true, "next_attempt_at": "2026-01-05T12:40:00.000000Z"}"#,
        },
        ..OperationSpec::WRITE
    };
    type Output = Redelivered;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Redelivered>> {
        const AGAIN: &str = "UPDATE webhook_deliveries SET state = 'pending', attempts = 0, next_at = $4, ended_at = NULL, \
                             keep_until = $5 WHERE tenant = $1 AND webhook_id = $2 AND delivery_id = $3";
        const DISABLED: &str = "SELECT disabled_at FROM webhooks WHERE tenant = $1 AND webhook_id = $2";
        let (id, now) = (webhook::value(&self.webhook_id), Value::from(ctx.now));
        if tx.execute(TOUCH, &[id, now]).await? == 0 {
            let disabled = tx.query_opt(DISABLED, &[id]).await?.is_some();
            return Err(if disabled {
                Error::new(Code::InvalidStateTransition, "The webhook is disabled.")
                    .with_cure("Enable the webhook first, with enable_webhook.")
            } else {
                Error::not_found("webhook")
            });
        }
        let give_up_at = ctx.now.after(ctx.settings::<Settings>().give_up());
        let params = [id, Value::from(self.delivery_id.as_bytes()), now, Value::from(give_up_at)];
        if tx.execute(AGAIN, &params).await? == 0 {
            return Err(Error::not_found("delivery of this webhook"));
        }
        tx.wake(webhook::topic(), u32::MAX);
        Ok(Reply::Done(Redelivered { ok: true, next_attempt_at: ctx.now }))
    }
}
