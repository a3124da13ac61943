//! `waybill webhook …`

use serde_json::{Value as Json, json};
use waybill_kernel::Result;

use super::session::{call, call_all};
use crate::cli::{Reach, Webhook};
use crate::output;

const WEBHOOKS: &[&str] = &[
    "webhook_id",
    "url",
    "kinds",
    "created_at",
    "last_delivered_at",
    "failing_since",
    "disabled_reason",
    "description",
];
const DELIVERIES: &[&str] =
    &["delivery_id", "receipt_type", "status", "attempts", "last_status", "last_error", "next_attempt_at", "ended_at"];

pub async fn run(command: Webhook) -> Result<()> {
    match command {
        Webhook::Create { endpoint, kind, description, reach } => {
            let mut input = json!({ "url": endpoint, "kinds": kind });
            if let Some(description) = description {
                input["description"] = json!(description);
            }
            show_secret(&reach, &call(&reach, "create_webhook", input).await?)
        }
        Webhook::List { reach } => {
            let webhooks = call_all(&reach, "list_webhooks", "webhooks").await?;
            output::list(reach.json, &json!({ "webhooks": webhooks }), "webhooks", WEBHOOKS)
        }
        Webhook::Delete { webhook_id, reach } => {
            let answer = call(&reach, "delete_webhook", json!({ "webhook_id": webhook_id })).await?;
            output::answer(reach.json, &answer, "Deleted. What is on its way may still arrive.")
        }
        Webhook::Enable { webhook_id, reach } => {
            let answer = call(&reach, "enable_webhook", json!({ "webhook_id": webhook_id })).await?;
            let text = if answer["ok"] == true { "Enabled." } else { "It was not disabled; nothing was changed." };
            output::answer(reach.json, &answer, text)
        }
        Webhook::Deliveries { webhook_id, limit, reach } => {
            let input = json!({ "webhook_id": webhook_id, "limit": limit });
            let answer = call(&reach, "list_webhook_deliveries", input).await?;
            output::list(reach.json, &answer, "deliveries", DELIVERIES)
        }
        Webhook::Redeliver { webhook_id, delivery_id, reach } => {
            let input = json!({ "webhook_id": webhook_id, "delivery_id": delivery_id });
            let answer = call(&reach, "redeliver_webhook", input).await?;
            output::answer(reach.json, &answer, "It is sent again.")
        }
    }
}

fn show_secret(reach: &Reach, answer: &Json) -> Result<()> {
    if reach.json {
        return output::json(answer);
    }
    output::line(&output::cell(&answer["secret"]))?;
    let note = format!(
        "Webhook {} for {}. The secret is shown only this once; docs/webhooks.md says how to verify with it.",
        output::cell(&answer["webhook_id"]),
        output::cell(&answer["url"])
    );
    output::note(&note)
}
