//! Acknowledge: read and confirmed. The first times count.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use waybill_kernel::{Example, OperationSpec, Result, Role, Route, Scope, Time};
use waybill_store::{Ctx, Operation, Reply, Tx};

use crate::inbox::no_message;
use crate::keys::{self, Claim};
use crate::rules::message::check_id;
use crate::{acting, archive_rows};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AcknowledgeMessage {
    /// The project's absolute path or slug.
    pub project_key: String,
    /// Your agent's name, which must have got the message.
    pub agent_name: String,
    #[schemars(range(min = 1))]
    pub message_id: i64,
    /// Makes the call safe to repeat; it is so without one.
    #[schemars(length(min = 1, max = 255))]
    #[schemars(extend("x-rare" = true))]
    pub idempotency_key: Option<String>,
    /// The agent's token, where another key has registered it.
    #[schemars(extend("x-rare" = true))]
    pub registration_token: Option<String>,
}

/// When the message was read and acknowledged.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Acknowledged {
    pub message_id: i64,
    pub acknowledged: bool,
    /// The first time.
    pub acknowledged_at: Time,
    /// The first time.
    pub read_at: Time,
}

impl Operation for AcknowledgeMessage {
    const SPEC: OperationSpec = OperationSpec {
        name: "acknowledge_message",
        domain: crate::NAME,
        route: Route::post("/v1/mail/messages/{message_id}/ack"),
        repeatable: true,
        relieves: true,
        roles: &[Role::Agent, Role::Admin, Role::System],
        scopes: &[Scope::MailWrite],
        title: "Acknowledge a message",
        description: "Confirms that your agent has read a message, and marks it as read. Repeated, it answers with the first \
                      times.",
        example: Example {
            arguments: r#"{"project_key": "/data/projects/backend", "agent_name": "BlueLake", "message_id": 42}"#,
            answer: r#"{"message_id": 42, "acknowledged": true, "acknowledged_at": "2026-01-05T12:31:00.000000Z",
                "read_at": "2026-01-05T12:31:00.000000Z"}"#,
        },
        ..OperationSpec::WRITE
    };
    const REPLAYS: bool = true;
    type Output = Acknowledged;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Acknowledged>> {
        check_id(self.message_id)?;
        const ACK: &str = "UPDATE mail_recipients SET ack_at = $4, read_at = coalesce(read_at, $4) \
                           WHERE tenant = $1 AND message = $2 AND agent = $3 AND ack_at IS NULL";
        const FOUND: &str =
            "SELECT ack_at, read_at FROM mail_recipients WHERE tenant = $1 AND message = $2 AND agent = $3";
        let project = acting::project(tx, &self.project_key).await?;
        let token = self.registration_token.as_deref();
        let agent = acting::act_as(ctx, tx, &project, &self.agent_name, token).await?.agent;
        let scope = keys::Scope {
            project: project.id,
            agent: agent.id,
            tool: "acknowledge_message",
            key: self.idempotency_key.as_deref(),
        };
        let claim = keys::claim(ctx, tx, scope, &json!({ "message_id": self.message_id })).await?;
        let whose = [self.message_id.into(), agent.id.into()];
        if claim == Claim::Fresh && tx.execute(ACK, &[whose[0], whose[1], ctx.now.into()]).await? == 1 {
            archive_rows::changed(tx, ctx.now, project.id, agent.id).await?;
            acting::touch(ctx, tx, &agent).await?;
        }
        let row = tx.query_opt(FOUND, &whose).await?.ok_or_else(|| no_message(&agent))?;
        let answer = Acknowledged {
            message_id: self.message_id,
            acknowledged: true,
            acknowledged_at: row.time(0)?,
            read_at: row.time(1)?,
        };
        Ok(if claim == Claim::Fresh { Reply::Done(answer) } else { Reply::Replay(answer) })
    }
}
