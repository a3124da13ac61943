//! Ask for contact, have it approved where the caller acts for both agents, and write a first message.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Error, Example, OperationSpec, Profile, Result, Role, Route, Scope};
use waybill_store::{Ctx, Operation, Reply, Tx};

use crate::acting::{self, Agent, Project};
use crate::attaching::Whose;
use crate::contacts::{self, Asking, ContactRequested, Pair, REASON_CHARS_MAX, REQUEST_TTL_S, Status};
use crate::recipients::{self, Recipient};
use crate::rules::addresses::Kind;
use crate::rules::message::{self, Importance};
use crate::rules::threads;
use crate::sending::{self, Files, Outgoing, Payload};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MacroContactHandshake {
    /// The project's absolute path or slug.
    pub project_key: String,
    /// Your agent's name.
    #[serde(alias = "agent_name", alias = "from_agent")]
    pub requester: String,
    /// The agent that is asked.
    #[serde(alias = "to_agent")]
    pub target: String,
    /// Its project, where that is another.
    #[schemars(extend("x-rare" = true))]
    pub to_project: Option<String>,
    /// Why, for the one that is asked.
    #[serde(default)]
    #[schemars(length(max = REASON_CHARS_MAX))]
    pub reason: String,
    /// How long the request waits: 7 days unless given.
    #[schemars(range(min = 60, max = 31_536_000))]
    pub ttl_seconds: Option<i64>,
    /// Approve it at once, in the name of the agent that is asked: for those who may act for both.
    #[serde(default)]
    pub auto_accept: bool,
    /// The subject of a first message, which is sent if the contact is approved.
    pub welcome_subject: Option<String>,
    pub welcome_body: Option<String>,
    /// The thread of the first message.
    pub thread_id: Option<String>,
    /// Your agent's token, where another key has registered it.
    #[serde(alias = "requester_registration_token", alias = "sender_token")]
    #[schemars(extend("x-rare" = true))]
    pub registration_token: Option<String>,
    /// The other agent's, for auto_accept.
    pub target_registration_token: Option<String>,
    /// Accepted and without effect, as the three that follow: nobody is registered by being asked.
    #[schemars(extend("deprecated" = true))]
    pub register_if_missing: Option<bool>,
    #[schemars(extend("deprecated" = true))]
    pub program: Option<String>,
    #[schemars(extend("deprecated" = true))]
    pub model: Option<String>,
    #[schemars(extend("deprecated" = true))]
    pub task_description: Option<String>,
}

/// What came of the request.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Handshake {
    #[serde(flatten)]
    pub request: ContactRequested,
    /// The first message, if one was wanted and the contact is approved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub welcome_message: Option<Payload>,
}

impl Operation for MacroContactHandshake {
    const SPEC: OperationSpec = OperationSpec {
        name: "macro_contact_handshake",
        domain: crate::NAME,
        route: Route::post("/v1/mail/contacts/handshake"),
        profile: Profile::Full,
        roles: &[Role::Agent, Role::Admin, Role::System],
        scopes: &[Scope::MailWrite],
        title: "Ask for contact and say hello",
        description: "As request_contact; with auto_accept it is approved at once if you may act for both agents, and a welcome \
                      message is sent if the contact is approved.",
        example: Example {
            arguments: r#"{"project_key": "/data/projects/backend", "requester": "GreenCastle", "target": "BlueLake",
                "auto_accept": true}"#,
            answer: r#"{"from": "GreenCastle", "to": "BlueLake", "to_project": "/data/projects/backend", "status": "approved",
                "expires_ts": "2026-02-04T12:30:00.000000Z", "intro_message_id": 44}"#,
        },
        stores: true,
        ..OperationSpec::WRITE
    };
    type Output = Handshake;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Handshake>> {
        let ttl = contacts::ttl(self.ttl_seconds, REQUEST_TTL_S)?;
        let whose = Whose::new(&self.project_key, &self.requester, self.registration_token.as_deref());
        let asking = Asking::find(ctx, tx, &whose, self.to_project.as_deref(), &self.target).await?;
        if self.auto_accept {
            acting::may_act(ctx, &asking.to, self.target_registration_token.as_deref())?;
        }
        let requested = contacts::request(ctx, tx, asking.pair(), &self.reason, ttl).await?;
        let mut link = requested.link;
        if self.auto_accept {
            link = contacts::respond(ctx, tx, asking.pair(), true, None).await?.0;
        }
        let welcome_message = match link.status {
            Status::Approved => self.welcome(ctx, tx, asking.pair()).await?,
            _ => None,
        };
        Ok(Reply::Done(Handshake { request: asking.shown(&link, requested.intro), welcome_message }))
    }
}

impl MacroContactHandshake {
    async fn welcome(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, pair: Pair<'_>) -> Result<Option<Payload>> {
        let (Some(subject), Some(body)) = (&self.welcome_subject, &self.welcome_body) else { return Ok(None) };
        message::check(ctx.settings(), subject, body)?;
        if let Some(thread) = &self.thread_id {
            threads::check(thread)?;
            if threads::is_number(thread) {
                return Err(Error::invalid("thread_id of a first message is no bare number."));
            }
        }
        let (project, sender): (&Project, &Agent) = (pair.project, pair.from);
        let recipient = Recipient { kind: Kind::To, agent: pair.to.clone(), project: pair.to_project.clone() };
        let recipients = std::slice::from_ref(&recipient);
        let walls = recipients::walls(ctx, tx, project, sender, self.thread_id.as_deref(), recipients).await?;
        if !walls.is_empty() {
            return Err(walls.refusal(project, sender));
        }
        let message = Outgoing {
            project,
            sender,
            recipients,
            subject,
            body,
            importance: Importance::Normal,
            ack_required: false,
            thread: self.thread_id.as_deref(),
            reply_to: None,
            files: &Files::NONE,
            intro: false,
        };
        sending::deliver(ctx, tx, &message).await.map(Some)
    }
}
