//! One thread, as `thread/{id}` shows it: what the caller's agents sent or received of it, in order.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Error, Example, OperationSpec, Resource, Result, Route, cursor};
use waybill_store::{Ctx, Operation, Reply, Tx};

use crate::acting::project;
use crate::inbox::MessageView;
use crate::pages;
use crate::search::find::Wanted;

const LIMIT: i64 = 50;
const LIMIT_MAX: i64 = 500;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GetThread {
    /// The project's absolute path or slug.
    pub project_key: String,
    /// The thread's id, or the number of the message that began it.
    #[schemars(length(min = 1, max = 128))]
    pub thread_id: String,
    /// With the text of each message.
    pub include_bodies: Option<bool>,
    /// 50 unless given.
    #[schemars(range(min = 1, max = 500))]
    pub limit: Option<i64>,
    /// `next_cursor` of the page before, for what is older.
    pub cursor: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Thread {
    pub thread_id: String,
    /// The newest of them, oldest first: a page ends at its limit, or at 2 MiB.
    pub messages: Vec<MessageView>,
    /// For what is older; absent when there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

impl Operation for GetThread {
    const SPEC: OperationSpec = OperationSpec {
        name: "get_thread",
        route: Route::get("/v1/mail/threads/{thread_id}"),
        resources: &[Resource {
            renamed: &[("project", "project_key")],
            ..Resource::at(
                "resource://thread/{thread_id}{?project,include_bodies,limit,cursor}",
                "thread",
                "A thread, oldest first.",
            )
        }],
        tool: false,
        title: "Read a thread",
        description: "The messages of a thread that your agents sent or received, oldest first: the newest 50 unless more are \
                      asked for.",
        example: Example {
            arguments: r#"{"project_key": "data-projects-backend", "thread_id": "FEAT-123"}"#,
            answer: r#"{"thread_id": "FEAT-123", "messages": [{"id": 12, "subject": "Release on Friday", "from": "BlueLake",
                "to": ["GreenCastle"], "created_ts": "2026-01-05T12:30:00.000000Z", "importance": "high",
                "ack_required": false, "kind": "to", "thread_id": "FEAT-123"}]}"#,
        },
        ..super::READ
    };
    type Output = Thread;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Thread>> {
        let limit = self.limit.unwrap_or(LIMIT);
        if !(1..=LIMIT_MAX).contains(&limit) {
            return Err(Error::invalid(format!("limit must be from 1 to {LIMIT_MAX}.")));
        }
        let project = project(tx, &self.project_key).await?;
        let (tenant, id) = (ctx.caller.tenant.0.to_be_bytes(), project.id.to_be_bytes());
        let scope: [&[u8]; 4] = [b"get_thread", &tenant, &id, self.thread_id.as_bytes()];
        let below = match &self.cursor {
            Some(cursor) => {
                let bytes = cursor::decode(&scope, cursor)?;
                i64::from_be_bytes(bytes.try_into().map_err(|_| cursor::refused())?)
            }
            None => i64::MAX,
        };
        let wanted = Wanted { thread: Some(self.thread_id.clone()), ..Wanted::new(ctx, &project, None) };
        // Their texts are read only when it is known how many of them a page has room for.
        let found = wanted.look(ctx, tx, None, below, limit + 1, 0).await?;
        if found.is_empty() {
            return Err(Error::not_found("thread"));
        }
        let mut views: Vec<MessageView> = found.into_iter().map(|found| found.view).collect();
        let is_cut = views.len() as i64 > limit;
        views.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        let shown = pages::fitted(tx, views, self.include_bodies.unwrap_or(false)).await?;
        let oldest = shown.messages.last().map(|message| message.id).filter(|_| is_cut || shown.has_more);
        let next_cursor = oldest.map(|id| cursor::encode(&scope, &id.to_be_bytes()));
        let messages = shown.messages.into_iter().rev().collect();
        Ok(Reply::Done(Thread { thread_id: self.thread_id.clone(), messages, next_cursor }))
    }
}
