//! `waybill webhook …`

use serde_json::{Value as Json, json};
use waybill_kernel::Result;

use super::session::{Session, call, call_all};
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
/// Deliveries asked for at a time.
const PAGE: u64 = 200;

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
        Webhook::Deliveries { webhook_id, limit, reach } => deliveries(&webhook_id, limit, &reach).await,
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

async fn deliveries(webhook_id: &str, limit: u64, reach: &Reach) -> Result<()> {
    let session = Session::open(reach).await?;
    let gathered = gather(&session, webhook_id, limit).await;
    session.close().await;
    let answer = gathered?;
    output::list(reach.json, &answer, "deliveries", DELIVERIES)?;
    if reach.json || answer["next_cursor"].is_null() {
        Ok(())
    } else {
        output::note("There are older ones: raise --limit.")
    }
}

/// Page by page, until there are enough. With a cursor where there are more.
async fn gather(session: &Session, webhook_id: &str, limit: u64) -> Result<Json> {
    let (mut deliveries, mut cursor) = (Vec::new(), Json::Null);
    loop {
        let missing = limit.saturating_sub(deliveries.len() as u64);
        let input = json!({ "webhook_id": webhook_id, "limit": missing.min(PAGE), "cursor": cursor });
        let mut page = session.call("list_webhook_deliveries", input).await?;
        deliveries.extend(page["deliveries"].as_array_mut().map(std::mem::take).unwrap_or_default());
        cursor = page["next_cursor"].take();
        if cursor.is_null() || deliveries.len() as u64 >= limit {
            break;
        }
    }
    let mut answer = json!({ "deliveries": deliveries });
    if !cursor.is_null() {
        answer["next_cursor"] = cursor;
    }
    Ok(answer)
}
