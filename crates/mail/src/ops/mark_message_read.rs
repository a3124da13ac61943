//! Read: the first time counts.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Example, OperationSpec, Profile, Result, Role, Route, Scope, Time};
use waybill_store::{Ctx, Operation, Reply, Tx};

use crate::inbox::no_message;
use crate::rules::message::check_id;
use crate::{acting, archive_rows};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MarkMessageRead {
    /// The project's absolute path or slug.
    pub project_key: String,
    /// Your agent's name, which must have got the message.
    pub agent_name: String,
    #[schemars(range(min = 1))]
    pub message_id: i64,
    /// The agent's token, where another key has registered it.
    #[schemars(extend("x-rare" = true))]
    pub registration_token: Option<String>,
}

/// When the message was read.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Read {
    pub message_id: i64,
    pub read: bool,
    /// The first time.
    pub read_at: Time,
}

impl Operation for MarkMessageRead {
    const SPEC: OperationSpec = OperationSpec {
        name: "mark_message_read",
        domain: crate::NAME,
        route: Route::post("/v1/mail/messages/{message_id}/read"),
        profile: Profile::Core,
        repeatable: true,
        relieves: true,
        roles: &[Role::Agent, Role::Admin, Role::System],
        scopes: &[Scope::MailWrite],
        title: "Mark a message as read",
        description: "Notes that your agent has read a message. Repeated, it answers with the first time.",
        example: Example {
            arguments: r#"{"project_key": "/data/projects/backend", "agent_name": "BlueLake", "message_id": 42}"#,
            answer: r#"{"message_id": 42, "read": true, "read_at": "2026-01-05T12:31:00.000000Z"}"#,
        },
        ..OperationSpec::WRITE
    };
    type Output = Read;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Read>> {
        check_id(self.message_id)?;
        const READ: &str = "UPDATE mail_recipients SET read_at = $4 \
                            WHERE tenant = $1 AND message = $2 AND agent = $3 AND read_at IS NULL";
        const FOUND: &str = "SELECT read_at FROM mail_recipients WHERE tenant = $1 AND message = $2 AND agent = $3";
        let project = acting::project(tx, &self.project_key).await?;
        let token = self.registration_token.as_deref();
        let agent = acting::act_as(ctx, tx, &project, &self.agent_name, token).await?.agent;
        let whose = [self.message_id.into(), agent.id.into()];
        if tx.execute(READ, &[whose[0], whose[1], ctx.now.into()]).await? == 1 {
            archive_rows::changed(tx, ctx.now, project.id, agent.id).await?;
            acting::touch(ctx, tx, &agent).await?;
        }
        let row = tx.query_opt(FOUND, &whose).await?.ok_or_else(|| no_message(&agent))?;
        Ok(Reply::Done(Read { message_id: self.message_id, read: true, read_at: row.time(0)? }))
    }
}
