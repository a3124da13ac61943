//! Fetch: an agent's inbox, the newest first. Reading does not mark anything as read unless that is asked for.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::principal::out_of_scope;
use waybill_kernel::{Code, Error, Example, Mode, OperationSpec, Result, Role, Route, Scope, Time};
use waybill_store::{Ctx, Operation, Reply, Tx};

use crate::Settings;
use crate::acting;
use crate::inbox::{self, MessageView};
use crate::pages::{self, LIMIT_MAX, LIMIT_USUAL, List, Page, Shown};
use crate::rules::message::page;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FetchInbox {
    /// The project's absolute path or slug.
    pub project_key: String,
    /// Your agent's name.
    pub agent_name: String,
    /// Messages at most: 20 unless given, at most 1,000.
    #[schemars(range(min = 1))]
    pub limit: Option<i64>,
    /// Only those of high or urgent importance.
    #[serde(default)]
    pub urgent_only: bool,
    /// Only those that have not been read.
    #[serde(default)]
    pub unread_only: bool,
    /// Only those whose acknowledgement was due half an hour after they came and has not been given.
    #[serde(default)]
    #[schemars(extend("x-rare" = true))]
    pub ack_overdue_only: bool,
    /// Only those that came after this time.
    #[schemars(extend("x-rare" = true))]
    pub since_ts: Option<Time>,
    /// With the text of each message.
    #[serde(default)]
    pub include_bodies: bool,
    /// Mark what is shown as read.
    #[serde(default)]
    pub mark_read: bool,
    /// The agent's token, where another key has registered it.
    #[schemars(extend("x-rare" = true))]
    pub registration_token: Option<String>,
    /// Not offered.
    #[schemars(extend("deprecated" = true))]
    pub topic: Option<String>,
}

/// Messages, the newest first.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Inbox {
    pub result: Vec<MessageView>,
    /// There are more: a page ends at its limit, or at 2 MiB; with ack_overdue_only and another filter 1,000 that are overdue
    /// are looked at. What is left out was not marked as read.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_more: bool,
}

impl Operation for FetchInbox {
    const SPEC: OperationSpec = OperationSpec {
        name: "fetch_inbox",
        domain: crate::NAME,
        route: Route::post("/v1/mail/inbox"),
        repeatable: true,
        roles: &[Role::Agent, Role::Admin, Role::System],
        scopes: &[Scope::MailRead, Scope::MailWrite],
        title: "Fetch an inbox",
        description: "The messages your agent has got, the newest first. Nothing is marked as read unless mark_read says so; \
                      use acknowledge_message for those that ask for it.",
        example: Example {
            arguments: r#"{"project_key": "/data/projects/backend", "agent_name": "BlueLake", "include_bodies": true}"#,
            answer: r#"{"result": [{"id": 42, "subject": "The login page", "from": "GreenCastle", "to": ["BlueLake"],
                "created_ts": "2026-01-05T12:30:00.000000Z", "importance": "normal", "ack_required": true, "kind": "to",
                "thread_id": "FEAT-123", "body_md": "I changed `auth.rs`; please look."}]}"#,
        },
        ..OperationSpec::WRITE
    };
    type Output = Inbox;

    /// Almost all calls only read, and need not wait for a writer.
    fn mode(&self) -> Mode {
        if self.mark_read { Mode::Write } else { Mode::Read }
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Inbox>> {
        if self.mark_read && !ctx.caller.may_use(&[Scope::MailWrite], Mode::Write) {
            let message = "mark_read needs the scope mail:write.";
            return Err(out_of_scope(message, &[Scope::MailWrite], &ctx.caller.scopes));
        }
        let wanted = self.page(ctx)?;
        let project = acting::project(tx, &self.project_key).await?;
        let token = self.registration_token.as_deref();
        let agent = acting::act_as(ctx, tx, &project, &self.agent_name, token).await?.agent;
        let Shown { messages: mut result, has_more } = pages::read(tx, &project, &agent, wanted).await?;
        if self.mark_read {
            inbox::mark_read(ctx, tx, &agent, &mut result).await?;
            acting::touch(ctx, tx, &agent).await?;
        }
        Ok(Reply::Done(Inbox { result, has_more }))
    }
}

impl FetchInbox {
    fn page(&self, ctx: &Ctx<'_>) -> Result<Page> {
        if self.topic.as_deref().is_some_and(|topic| !topic.is_empty()) {
            return Err(Error::new(Code::FeatureDisabled, "`topic` is not offered: no message has one."));
        }
        let list = match (self.ack_overdue_only, self.urgent_only, self.unread_only) {
            (false, false, false) => List::All,
            (false, true, false) => List::Urgent,
            (false, false, true) => List::Unread,
            (false, true, true) => List::UrgentUnread,
            (true, false, false) => List::AckOpen,
            (true, urgent, unread) => List::AckOpenAnd { urgent, unread },
        };
        let before = self.ack_overdue_only.then(|| inbox::overdue(ctx.now, ctx.settings::<Settings>()));
        let limit = page(self.limit, LIMIT_USUAL, LIMIT_MAX)?;
        Ok(Page { list, after: self.since_ts, before, limit, bodies: self.include_bodies })
    }
}
