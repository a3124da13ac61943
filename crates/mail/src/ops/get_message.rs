//! One message, for its parties.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Code, Error, Example, OperationSpec, Resource, Result, Role, Route, Scope};
use waybill_store::{Ctx, Operation, Reply, Tx};

use crate::acting::{self, Project};
use crate::inbox::{self, MESSAGE_COLUMNS, MessageView, SENT, message_columns};
use crate::pages;
use crate::rules::addresses::Kind;
use crate::rules::message::check_id;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GetMessage {
    #[schemars(range(min = 1))]
    pub message_id: i64,
    /// The project's absolute path or slug.
    pub project_key: String,
    /// As which agent. Left out, as any of yours.
    pub agent_name: Option<String>,
    /// The agent's token, where another key has registered it.
    #[schemars(extend("x-rare" = true))]
    pub registration_token: Option<String>,
}

/// A message with its text.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Message {
    #[serde(flatten)]
    pub message: MessageView,
}

impl Operation for GetMessage {
    const SPEC: OperationSpec = OperationSpec {
        name: "get_message",
        domain: crate::NAME,
        route: Route::get("/v1/mail/messages/{message_id}"),
        resources: &[Resource {
            renamed: &[("project", "project_key"), ("agent", "agent_name")],
            ..Resource::at("resource://message/{message_id}{?project,agent}", "message", "One message with its text.")
        }],
        tool: false,
        roles: &[Role::Agent, Role::Admin, Role::System],
        scopes: &[Scope::MailRead],
        title: "Show a message",
        description: "A message that an agent of yours has sent or got, with its text. Changes nothing.",
        example: Example {
            arguments: r#"{"message_id": 42, "project_key": "/data/projects/backend"}"#,
            answer: r#"{"id": 42, "subject": "The login page", "from": "GreenCastle", "to": ["BlueLake"],
                "created_ts": "2026-01-05T12:30:00.000000Z", "importance": "normal", "ack_required": true, "kind": "to",
                "thread_id": "FEAT-123", "body_md": "I changed `auth.rs`; please look."}"#,
        },
        ..OperationSpec::READ
    };
    type Output = Message;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Message>> {
        let mut message = self.shown(ctx, tx).await?;
        pages::inline_one(tx, &mut message).await?;
        Ok(Reply::Done(Message { message }))
    }
}

impl GetMessage {
    /// As the caller may see it; for others than its parties there is none.
    pub(crate) async fn shown(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<MessageView> {
        check_id(self.message_id)?;
        let project = acting::project(tx, &self.project_key).await?;
        let none = || {
            Error::new(Code::NotFound, "No agent of yours has sent or got such a message.")
                .with_cure("Check message_id against fetch_inbox.")
        };
        if let Some(name) = &self.agent_name {
            let token = self.registration_token.as_deref();
            let agent = acting::act_as(ctx, tx, &project, name, token).await?.agent;
            let found = inbox::find(tx, &project, &agent, self.message_id).await?.ok_or_else(none)?;
            return Ok(found.view);
        }
        self.of_any(ctx, tx, &project).await?.ok_or_else(none)
    }

    /// From the parties of the message to their principals, and not from the caller's agents: they may be many.
    async fn of_any(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, home: &Project) -> Result<Option<MessageView>> {
        const FIND: &str = concat!(
            "SELECT ",
            message_columns!(),
            ", m.body, EXISTS (SELECT 1 FROM mail_agents a WHERE a.tenant = $1 AND a.agent = m.sender \
                AND (a.principal = $3 OR $4 = 1)), \
             (SELECT r.kind FROM mail_recipients r JOIN mail_agents b ON b.tenant = $1 AND b.agent = r.agent \
                WHERE r.tenant = $1 AND r.message = m.message AND b.principal = $3 ORDER BY r.agent LIMIT 1) \
             FROM mail_messages m WHERE m.tenant = $1 AND m.message = $2"
        );
        let principal = ctx.caller.principal.to_string();
        let params = [self.message_id.into(), (&principal).into(), ctx.caller.sees_all_owners().into()];
        let Some(row) = tx.query_opt(FIND, &params).await? else { return Ok(None) };
        let kind = match (row.bool(MESSAGE_COLUMNS + 1)?, row.text_opt(MESSAGE_COLUMNS + 2)?) {
            (true, _) => SENT,
            (false, Some(kind)) => Kind::stored(kind).as_str(),
            (false, None) => return Ok(None),
        };
        let mut message = MessageView::read(&row, kind, home)?;
        message.body_md = row.text_opt(MESSAGE_COLUMNS)?.map(str::to_owned);
        Ok(Some(message))
    }
}
