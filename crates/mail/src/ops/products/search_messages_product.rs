//! Search in all projects of a product.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Error, Example, OperationSpec, Profile, Result, Route, cursor};
use waybill_store::{Ctx, Operation, Reply, Tx};

use super::{own_agent, product, projects};
use crate::acting::{self, Project};
use crate::ops::find::search_messages::{Hit, Page, Position, Ranking, SearchMessages, look};
use crate::rules::addresses::Names;
use crate::rules::query::Query;
use crate::search::find::Found;

const LIMIT: i64 = 20;
const LIMIT_MAX: i64 = 200;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SearchMessagesProduct {
    pub product_key: String,
    /// As in search_messages.
    #[schemars(length(max = 1024))]
    pub query: String,
    /// 20 unless given.
    #[schemars(range(min = 1, max = 200))]
    pub limit: Option<i64>,
    /// Only in this project of the product.
    #[serde(alias = "project_key_filter", alias = "project_slug", alias = "proj")]
    pub project: Option<String>,
    /// Only from agents of this name.
    #[serde(alias = "from_agent", alias = "sender_name", alias = "from")]
    pub sender: Option<String>,
    /// Only what your agents of this name have sent or got. There may be less of it than the limit then.
    pub agent_name: Option<String>,
    /// The agent's token, where another key has registered it.
    #[schemars(extend("x-rare" = true))]
    pub registration_token: Option<String>,
    /// Only of this importance, or of one of these: low, normal, high, urgent.
    pub importance: Option<Names>,
    /// Only of this thread.
    pub thread_id: Option<String>,
    /// Not older: a moment (2026-01-05T12:30:00Z) or a day (2026-01-05).
    #[serde(alias = "date_from", alias = "after", alias = "since", alias = "created_after")]
    pub date_start: Option<String>,
    /// Older than this moment, or not after this day.
    #[serde(alias = "date_to", alias = "before", alias = "until", alias = "created_before")]
    pub date_end: Option<String>,
    /// With the beginning of each body.
    pub include_body_md: Option<bool>,
    /// There is one page: any cursor is refused.
    #[schemars(extend("deprecated" = true))]
    pub cursor: Option<String>,
    /// Accepted and without effect: the newest come first.
    #[schemars(extend("deprecated" = true))]
    pub ranking: Option<String>,
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
        if self.cursor.is_some() {
            return Err(cursor::refused());
        }
        let query = Query::read(&self.query)?;
        let filters = self.filters(limit);
        let page = filters.page()?;
        let product = product(tx, &self.product_key).await?;
        let only = match &self.project {
            Some(key) => Some(acting::project(tx, key).await?.id),
            None => None,
        };
        let mut all: Vec<ProductHit> = Vec::new();
        for project in projects(tx, &product).await? {
            if only.is_some_and(|only| only != project.id) {
                continue;
            }
            for found in self.of_project(ctx, tx, &project, &filters, &query, page).await? {
                // One that went from project to project is found in both, and shown once.
                if all.iter().all(|known| known.hit.id != found.view.id) {
                    let hit = Hit::new(found, &query, self.include_body_md.unwrap_or(false));
                    all.push(ProductHit { project: project.slug.clone(), hit });
                }
            }
            all.sort_by_key(|hit| std::cmp::Reverse(hit.hit.id));
            all.truncate(limit as usize);
        }
        Ok(Reply::Done(ProductHits { result: all }))
    }
}

impl SearchMessagesProduct {
    /// The same search in one project.
    fn filters(&self, limit: i64) -> SearchMessages {
        SearchMessages {
            query: Some(self.query.clone()),
            limit: Some(limit),
            sender: self.sender.clone(),
            importance: self.importance.clone(),
            thread_id: self.thread_id.clone(),
            date_start: self.date_start.clone(),
            date_end: self.date_end.clone(),
            include_body_md: self.include_body_md,
            ..SearchMessages::default()
        }
    }

    async fn of_project(
        &self,
        ctx: &Ctx<'_>,
        tx: &mut Tx<'_>,
        project: &Project,
        filters: &SearchMessages,
        query: &Query,
        page: Page,
    ) -> Result<Vec<Found>> {
        if let Some(sender) = &self.sender
            && acting::find_addressed(tx, project, sender).await?.is_none()
        {
            return Ok(Vec::new());
        }
        let token = self.registration_token.as_deref();
        let agent = match &self.agent_name {
            Some(name) => match own_agent(ctx, tx, project, name, token).await? {
                None => return Ok(Vec::new()),
                found => found,
            },
            None => None,
        };
        let (wanted, _) = filters.wanted(ctx, tx, project, agent.as_ref(), query).await?;
        let Some(wanted) = wanted else { return Ok(Vec::new()) };
        let (found, _) = look(ctx, tx, &wanted, Ranking::Recency, Position::BEGIN, page).await?;
        Ok(found)
    }
}
