//! The inboxes of an agent's name in all projects of a product. Marks nothing as read.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Example, OperationSpec, Profile, Result, Route, Time};
use waybill_store::{Ctx, Operation, Reply, Tx};

use super::{nobody, own_agent, product, projects};
use crate::inbox::MessageView;
use crate::pages::{self, LIMIT_USUAL, List};
use crate::rules::message::page;

const LIMIT_MAX: i64 = 200;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FetchInboxProduct {
    pub product_key: String,
    /// The agents of this name that you registered.
    pub agent_name: String,
    /// Messages at most: 20 unless given, at most 200.
    #[schemars(range(min = 1))]
    pub limit: Option<i64>,
    /// Only those of high or urgent importance.
    pub urgent_only: Option<bool>,
    /// Only those that came after this time.
    pub since_ts: Option<Time>,
    /// With the text of each message.
    pub include_bodies: Option<bool>,
    /// The agent's token, where another key has registered it.
    #[schemars(extend("x-rare" = true))]
    pub registration_token: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct ProductInbox {
    /// Newest first.
    pub result: Vec<ProductMessage>,
    /// There are more: a page ends at its limit, or at 2 MiB.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_more: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct ProductMessage {
    /// The slug of the project whose inbox it is in.
    pub project: String,
    #[serde(flatten)]
    pub message: MessageView,
}

impl Operation for FetchInboxProduct {
    const SPEC: OperationSpec = OperationSpec {
        name: "fetch_inbox_product",
        route: Route::post("/v1/mail/products/inbox"),
        profile: Profile::Full,
        title: "Fetch a product's inboxes",
        description: "The messages of your agents of one name in all projects of a product, newest first. Nothing is marked as \
                      read.",
        example: Example {
            arguments: r#"{"product_key": "shop", "agent_name": "BlueLake"}"#,
            answer: r#"{"result": [{"project": "data-projects-backend", "id": 42, "subject": "The login page",
                "from": "GreenCastle", "to": ["BlueLake"], "created_ts": "2026-01-05T12:30:00.000000Z",
                "importance": "normal", "ack_required": true, "kind": "to", "thread_id": "FEAT-123"}]}"#,
        },
        ..super::READ
    };
    type Output = ProductInbox;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<ProductInbox>> {
        let limit = page(self.limit, LIMIT_USUAL, LIMIT_MAX)?;
        let product = product(tx, &self.product_key).await?;
        let token = self.registration_token.as_deref();
        let list = if self.urgent_only.unwrap_or(false) { List::Urgent } else { List::All };
        let wanted = pages::Page { list, after: self.since_ts, before: None, limit, bodies: false };
        let (mut all, mut is_known, mut has_more): (Vec<ProductMessage>, bool, bool) = (Vec::new(), false, false);
        for project in projects(tx, &product).await? {
            let Some(agent) = own_agent(ctx, tx, &project, &self.agent_name, token).await? else { continue };
            is_known = true;
            let shown = pages::read(tx, &project, &agent, wanted).await?;
            has_more |= shown.has_more;
            all.extend(
                shown.messages.into_iter().map(|message| ProductMessage { project: project.slug.clone(), message }),
            );
            // Only the newest of all are kept, so what is held does not grow with the number of projects.
            all.sort_by_key(|item| std::cmp::Reverse((item.message.created_ts, item.message.id)));
            has_more |= all.len() > limit as usize;
            all.truncate(limit as usize);
        }
        if !is_known {
            return Err(nobody());
        }
        let (slugs, messages): (Vec<_>, Vec<_>) = all.into_iter().map(|item| (item.project, item.message)).unzip();
        let shown = pages::fitted(tx, messages, self.include_bodies.unwrap_or(false)).await?;
        let pairs = slugs.into_iter().zip(shown.messages);
        let result = pairs.map(|(project, message)| ProductMessage { project, message }).collect();
        Ok(Reply::Done(ProductInbox { result, has_more: has_more || shown.has_more }))
    }
}
