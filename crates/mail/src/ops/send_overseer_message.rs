//! A message of the person who oversees the agents: no policy keeps it from its readers.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Example, OperationSpec, Result, Role, Route, Scope};
use waybill_store::{Ctx, Operation, Reply, Tx};

use crate::agents;
use crate::recipients;
use crate::rules::addresses::Names;
use crate::rules::message::{self, Importance};
use crate::rules::threads;
use crate::sending::{self, Files, Outgoing, Payload};
use crate::{Settings, acting, sent};

/// Before the text, for agents that are in the middle of something.
const PREAMBLE: &str = "This message is from the person who oversees this project. Pause what you are doing, do what it asks, \
                        and then go on with what you were doing.\n\n---\n\n";

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SendOverseerMessage {
    /// The project's absolute path or slug.
    pub project_key: String,
    /// Names of agents.
    pub to: Names,
    /// What it is about. At most 1 KiB.
    pub subject: String,
    /// The message, in Markdown. At most 1 MiB.
    pub body_md: String,
    /// The thread it belongs to.
    pub thread_id: Option<String>,
}

/// The message as it was sent.
#[derive(Debug, Serialize, JsonSchema)]
pub struct OverseerSent {
    #[serde(flatten)]
    pub message: Payload,
    pub count: usize,
}

impl Operation for SendOverseerMessage {
    const SPEC: OperationSpec = OperationSpec {
        name: "send_overseer_message",
        domain: crate::NAME,
        route: Route::post("/v1/mail/overseer/messages"),
        tool: false,
        roles: &[Role::Admin, Role::System],
        scopes: &[Scope::MailWrite],
        title: "Write as the overseer",
        description: "Writes to agents as HumanOverseer, with high importance and whatever their contact policies say. The text \
                      begins with the request to pause, do what it asks and go on. For admins.",
        example: Example {
            arguments: r#"{"project_key": "/data/projects/backend", "to": ["BlueLake"], "subject": "Stop the release",
                "body_md": "The tests of the login page fail."}"#,
            answer: r#"{"id": 45, "project_id": 1, "from": "HumanOverseer", "to": ["BlueLake"], "cc": [], "bcc": [],
                "subject": "Stop the release", "body_md": "This message is from …", "importance": "high", "ack_required": false,
                "attachments": [], "created_ts": "2026-01-05T12:30:00.000000Z", "count": 1}"#,
        },
        stores: true,
        ..OperationSpec::WRITE
    };
    type Output = OverseerSent;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<OverseerSent>> {
        let body = format!("{PREAMBLE}{}", self.body_md);
        message::check(ctx.settings::<Settings>(), &self.subject, &body)?;
        if let Some(thread) = &self.thread_id {
            threads::check(thread)?;
        }
        let project = acting::project(tx, &self.project_key).await?;
        sent::check_thread(tx, &project, self.thread_id.as_deref()).await?;
        let overseer = agents::overseer(ctx, tx, &project).await?;
        let recipients = recipients::resolve(ctx, tx, &project, [&self.to.0, &[], &[]]).await?;
        let outgoing = Outgoing {
            project: &project,
            sender: &overseer,
            recipients: &recipients,
            subject: &self.subject,
            body: &body,
            importance: Importance::High,
            ack_required: false,
            thread: self.thread_id.as_deref(),
            reply_to: None,
            files: &Files::NONE,
            intro: false,
        };
        let message = sending::deliver(ctx, tx, &outgoing).await?;
        Ok(Reply::Done(OverseerSent { message, count: recipients.len() }))
    }
}
