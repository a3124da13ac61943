//! `waybill webhook …`

use serde_json::{Value as Json, json};
use waybill_kernel::Result;

use super::session::Session;
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
        Webhook::List { reach } => list(&reach).await,
        Webhook::Delete { webhook_id, reach } => {
            let answer = call(&reach, "delete_webhook", json!({ "webhook_id": webhook_id })).await?;
            show(&reach, &answer, "Deleted. What is on its way may still arrive.")
        }
        Webhook::Enable { webhook_id, reach } => {
            let answer = call(&reach, "enable_webhook", json!({ "webhook_id": webhook_id })).await?;
            let was_disabled = answer["ok"] == json!(true);
            show(&reach, &answer, if was_disabled { "Enabled." } else { "It was not disabled; nothing was changed." })
        }
        Webhook::Deliveries { webhook_id, limit, reach } => {
            let input = json!({ "webhook_id": webhook_id, "limit": limit });
            let answer = call(&reach, "list_webhook_deliveries", input).await?;
            if reach.json {
                return output::json(&answer);
            }
            output::table(DELIVERIES, answer["deliveries"].as_array().map_or(&[], Vec::as_slice))
        }
        Webhook::Redeliver { webhook_id, delivery_id, reach } => {
            let input = json!({ "webhook_id": webhook_id, "delivery_id": delivery_id });
            let answer = call(&reach, "redeliver_webhook", input).await?;
            show(&reach, &answer, "It is sent again.")
        }
    }
}

async fn call(reach: &Reach, operation: &str, input: Json) -> Result<Json> {
    let session = Session::open(reach).await?;
    let answer = session.call(operation, input).await;
    session.close().await;
    answer
}

fn show(reach: &Reach, answer: &Json, told: &str) -> Result<()> {
    if reach.json { output::json(answer) } else { output::line(told) }
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

async fn list(reach: &Reach) -> Result<()> {
    let session = Session::open(reach).await?;
    let webhooks = session.call_all("list_webhooks", "webhooks").await;
    session.close().await;
    let webhooks = webhooks?;
    if reach.json {
        return output::json(&json!({ "webhooks": webhooks }));
    }
    output::table(WEBHOOKS, &webhooks)
}
