//! List webhooks: newest first, disabled ones included, secrets never.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_access::page;
use waybill_kernel::{Caller, Example, OperationSpec, Result, Role, Route, Scope, cursor};
use waybill_store::{Ctx, Operation, Reply, Tx, Value};

use crate::webhook::{WebhookView, columns};

/// After every id.
const END: [u8; 16] = [0xff; 16];

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListWebhooks {
    /// How many webhooks at most; 50 when left out, 200 when more is asked for.
    #[serde(default)]
    #[schemars(range(min = 1))]
    pub limit: Option<u32>,
    /// `next_cursor` of the page before.
    #[serde(default)]
    pub cursor: Option<String>,
}

/// The tenant's webhooks, newest first.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Webhooks {
    pub webhooks: Vec<WebhookView>,
    /// Where the next page begins; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

fn scope(caller: &Caller) -> [&[u8]; 2] {
    [b"list_webhooks", caller.tenant_id.as_bytes()]
}

impl Operation for ListWebhooks {
    const SPEC: OperationSpec = OperationSpec {
        name: "list_webhooks",
        domain: "webhooks",
        route: Route::get("/admin/webhooks"),
        tool: false,
        roles: &[Role::Admin],
        scopes: &[Scope::AdminRead],
        title: "List webhooks",
        description: "Shows the webhooks of your tenant, newest first, and how they have been lately. Never shows a secret.",
        example: Example {
            arguments: r#"{"limit": 1}"#,
            answer: r#"{"webhooks": [{"webhook_id": "0198c0de-1a2b-7c3d-8e4f-5a6b7c8d9e10",
                "url": "https://hooks.example/waybill", "kinds": ["task.completed", "task.failed"],
                "description": "the build room's lamp", "created_at": "2026-01-05T12:30:00.000000Z",
                "created_by": "human:admin", "last_delivered_at": "2026-01-05T12:35:04.250000Z"}],
                "next_cursor": "0198c0de1a2b7c3d8e4f5a6b7c8d9e10aabbccddeeff"}"#,
        },
        ..OperationSpec::READ
    };
    type Output = Webhooks;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Webhooks>> {
        const SELECT: &str = concat!(
            "SELECT ",
            columns!(),
            " FROM webhooks WHERE tenant = $1 AND webhook_id < $2 ORDER BY webhook_id DESC LIMIT $3"
        );
        let size = page::size(self.limit)?;
        let scope = scope(ctx.caller);
        let before = self.cursor.as_deref().map_or_else(|| Ok(END.to_vec()), |text| cursor::decode(&scope, text))?;
        let rows = tx.query(SELECT, &[Value::from(before.as_slice()), Value::from(page::rows_to_read(size))]).await?;
        let mut webhooks = rows.iter().map(WebhookView::read).collect::<Result<Vec<_>>>()?;
        let next_cursor = page::cut(&mut webhooks, size, |last| cursor::encode(&scope, last.webhook_id.as_bytes()));
        Ok(Reply::Done(Webhooks { webhooks, next_cursor }))
    }
}
