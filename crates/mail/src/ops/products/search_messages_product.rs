//! Search in all projects of a product.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Error, Example, OperationSpec, Profile, Result, Route};
use waybill_store::{Ctx, Operation, Reply, Tx};

use super::{product, projects};
use crate::ops::find::search_messages::{Hit, Page, Position, Ranking, look};
use crate::rules::query::Query;
use crate::search::find::Wanted;

const LIMIT: i64 = 20;
const LIMIT_MAX: i64 = 200;
/// Of a body, for the excerpt.
const EXCERPT_CHARS: i64 = 2_000;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SearchMessagesProduct {
    pub product_key: String,
    /// As in search_messages, without filters in it.
    #[schemars(length(max = 1024))]
    pub query: String,
    /// 20 unless given.
    #[schemars(range(min = 1, max = 200))]
    pub limit: Option<i64>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct ProductHits {
    /// Newest first.
    pub result: Vec<ProductHit>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct ProductHit {
    /// The slug of the project it was found in.
    pub project: String,
    #[serde(flatten)]
    pub hit: Hit,
}

impl Operation for SearchMessagesProduct {
    const SPEC: OperationSpec = OperationSpec {
        name: "search_messages_product",
        route: Route::post("/v1/mail/products/search"),
        profile: Profile::Full,
        title: "Search a product",
        description: "Search the mail of your agents in all projects of a product, newest first.",
        example: Example {
            arguments: r#"{"product_key": "shop", "query": "deploy", "limit": 1}"#,
            answer: r#"{"result": [{"project": "data-projects-backend", "id": 12, "subject": "Release on Friday",
                "from": "BlueLake", "to": ["GreenCastle"], "created_ts": "2026-01-05T12:30:00.000000Z", "importance": "high",
                "ack_required": false, "thread_id": "FEAT-123", "snippet": "We deploy at noon."}]}"#,
        },
        ..super::READ
    };
    type Output = ProductHits;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<ProductHits>> {
        let limit = self.limit.unwrap_or(LIMIT);
        if !(1..=LIMIT_MAX).contains(&limit) {
            return Err(Error::invalid(format!("limit must be from 1 to {LIMIT_MAX}.")));
        }
        let query = Query::read(&self.query)?;
        let product = product(tx, &self.product_key).await?;
        if query.is_unsearchable {
            return Ok(Reply::Done(ProductHits { result: Vec::new() }));
        }
        let page = Page { skip: 0, limit: limit as usize, body_chars: EXCERPT_CHARS };
        let mut all: Vec<ProductHit> = Vec::new();
        for project in projects(tx, &product).await? {
            let mut wanted = Wanted::new(ctx, &project);
            wanted.expr.clone_from(&query.expr);
            let (found, _) = look(ctx, tx, &wanted, Ranking::Recency, Position::BEGIN, page).await?;
            for found in found {
                // One that went from project to project is found in both, and shown once.
                if all.iter().all(|known| known.hit.id != found.view.id) {
                    all.push(ProductHit { project: project.slug.clone(), hit: Hit::new(found, &query, false) });
                }
            }
            all.sort_by_key(|hit| std::cmp::Reverse(hit.hit.id));
            all.truncate(limit as usize);
        }
        Ok(Reply::Done(ProductHits { result: all }))
    }
}
