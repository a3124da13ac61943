//! List the deliveries of a webhook: newest first, with what came of each and why.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_access::page;
use waybill_kernel::{Error, Example, OperationSpec, Result, Role, Route, Scope, cursor};
use waybill_store::{Ctx, Operation, Reply, Tx, Value};

use crate::delivery::DeliveryView;
use crate::webhook::{self, WebhookId};

/// After every id.
const END: [u8; 16] = [0xff; 16];

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListWebhookDeliveries {
    pub webhook_id: WebhookId,
    /// How many deliveries at most; 50 when left out, 200 when more is asked for.
    #[serde(default)]
    #[schemars(range(min = 1))]
    pub limit: Option<u32>,
    /// `next_cursor` of the page before.
    #[serde(default)]
    pub cursor: Option<String>,
}

/// The webhook's deliveries, newest first. Ended ones are kept for a week unless it is set otherwise.
#[derive(Debug, Serialize, JsonSchema)]
pub struct WebhookDeliveries {
    pub deliveries: Vec<DeliveryView>,
    /// Where the next page begins; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

impl Operation for ListWebhookDeliveries {
    const SPEC: OperationSpec = OperationSpec {
        name: "list_webhook_deliveries",
        domain: "webhooks",
        route: Route::get("/admin/webhooks/{webhook_id}/deliveries"),
        tool: false,
        roles: &[Role::Admin],
        scopes: &[Scope::AdminRead],
        title: "List deliveries of a webhook",
        description: "Shows what was sent to a webhook, newest first: what was accepted, what failed and why, and when the rest \
                      is tried again.",
        example: Example {
            arguments: r#"{"webhook_id": "0198c0de-1a2b-7c3d-8e4f-5a6b7c8d9e10", "limit": 1}"#,
            answer: r#"{"deliveries": [{"delivery_id": "0198c0e1-4d5e-7f60-9172-8d9e0f1a2b3c",
                "receipt_id": "0198c0e0-3c4d-7e5f-8061-7c8d9e0f1a2b", "receipt_type": "task.completed",
                "status": "pending", "attempts": 2, "created_at": "2026-01-05T12:35:04.350000Z",
                "last_attempt_at": "2026-01-05T12:35:09.350000Z", "last_status": 503, "last_error": "It answered 503.",
                "next_attempt_at": "2026-01-05T12:35:38.350000Z"}],
                "next_cursor": "0198c0e14d5e7f6091728d9e0f1a2b3caabbccddeeff"}"#,
        },
        ..OperationSpec::READ
    };
    type Output = WebhookDeliveries;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<WebhookDeliveries>> {
        const EXISTS: &str = "SELECT 1 FROM webhooks WHERE tenant = $1 AND webhook_id = $2";
        const SELECT: &str = "SELECT delivery_id, receipt_id, receipt_type, state, attempts, created_at, last_attempt_at, \
            last_status, last_error, next_at, ended_at FROM webhook_deliveries \
            WHERE tenant = $1 AND webhook_id = $2 AND delivery_id < $3 ORDER BY delivery_id DESC LIMIT $4";
        let size = page::size(self.limit)?;
        let scope = [&b"list_webhook_deliveries"[..], ctx.caller.tenant_id.as_bytes(), self.webhook_id.as_bytes()];
        let before = self.cursor.as_deref().map_or_else(|| Ok(END.to_vec()), |text| cursor::decode(&scope, text))?;
        let id = webhook::value(&self.webhook_id);
        if tx.query_opt(EXISTS, &[id]).await?.is_none() {
            return Err(Error::not_found("webhook"));
        }
        let params = [id, Value::from(before.as_slice()), Value::from(page::rows_to_read(size))];
        let rows = tx.query(SELECT, &params).await?;
        let mut deliveries = rows.iter().map(DeliveryView::read).collect::<Result<Vec<_>>>()?;
        let next_cursor = page::cut(&mut deliveries, size, |last| cursor::encode(&scope, last.delivery_id.as_bytes()));
        Ok(Reply::Done(WebhookDeliveries { deliveries, next_cursor }))
    }
}
