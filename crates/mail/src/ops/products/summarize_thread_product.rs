//! What a thread comes to over all projects of a product.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Error, Example, OperationSpec, Profile, Result, Route};
use waybill_store::{Ctx, Operation, Reply, Tx};

use super::{own_agent, product, projects};
use crate::ops::find::summarize_thread::{
    ExampleView, MESSAGES_MAX, SummaryView, Wanted, examples, limit, newest, sum_up,
};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SummarizeThreadProduct {
    pub product_key: String,
    #[schemars(length(min = 1, max = 128))]
    pub thread_id: String,
    /// The newest messages of each project that are read: 50 unless given.
    #[schemars(range(min = 1, max = 200))]
    #[schemars(extend("x-rare" = true))]
    pub per_thread_limit: Option<i64>,
    /// With the first messages of the thread.
    pub include_examples: Option<bool>,
    /// Only what your agents of this name have sent or got.
    pub agent_name: Option<String>,
    /// The agent's token, where another key has registered it.
    #[schemars(extend("x-rare" = true))]
    pub registration_token: Option<String>,
    /// Accepted and without effect: summaries are made by rules.
    #[schemars(extend("deprecated" = true))]
    pub llm_mode: Option<bool>,
    /// Accepted and without effect.
    #[schemars(extend("deprecated" = true))]
    pub llm_model: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct ProductSummary {
    pub thread_id: String,
    /// The slugs of the projects that have messages of it.
    pub projects: Vec<String>,
    pub summary: SummaryView,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub examples: Vec<ExampleView>,
}

impl Operation for SummarizeThreadProduct {
    const SPEC: OperationSpec = OperationSpec {
        name: "summarize_thread_product",
        route: Route::post("/v1/mail/products/summarize"),
        profile: Profile::Full,
        title: "Summarize a product's thread",
        description: "As summarize_thread, over all projects of a product that have messages of the thread.",
        example: Example {
            arguments: r#"{"product_key": "shop", "thread_id": "FEAT-123"}"#,
            answer: r#"{"thread_id": "FEAT-123", "projects": ["data-projects-backend"], "summary": {
                "participants": ["BlueLake"], "key_points": ["deploy on Friday"], "action_items": [], "total_messages": 1,
                "open_actions": 0, "done_actions": 0, "mentions": [], "code_references": []}}"#,
        },
        ..super::READ
    };
    type Output = ProductSummary;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<ProductSummary>> {
        let limit = limit(self.per_thread_limit)?;
        let thread = self.thread_id.trim();
        if thread.is_empty() || thread.chars().count() > 128 {
            return Err(Error::invalid("thread_id must have 1 to 128 characters."));
        }
        let product = product(tx, &self.product_key).await?;
        let token = self.registration_token.as_deref();
        let (mut found, mut slugs) = (Vec::new(), Vec::new());
        for project in projects(tx, &product).await? {
            let agent = match &self.agent_name {
                Some(name) => match own_agent(ctx, tx, &project, name, token).await? {
                    None => continue,
                    found => found,
                },
                None => None,
            };
            let wanted = Wanted { project: &project, agent: agent.as_ref(), limit };
            let some = newest(ctx, tx, &wanted, thread).await?;
            if !some.is_empty() {
                slugs.push(project.slug);
            }
            found.extend(some);
            // Only the newest of all are kept, so what is held does not grow with the number of projects.
            found.sort_by_key(|found| std::cmp::Reverse(found.view.id));
            found.dedup_by_key(|found| found.view.id);
            found.truncate(MESSAGES_MAX as usize);
        }
        if found.is_empty() {
            return Err(Error::not_found("thread"));
        }
        found.reverse();
        let summary = SummaryView::new(sum_up(&found), found.len());
        let examples = if self.include_examples.unwrap_or(false) { examples(found) } else { Vec::new() };
        Ok(Reply::Done(ProductSummary { thread_id: thread.to_owned(), projects: slugs, summary, examples }))
    }
}
