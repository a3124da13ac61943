//! Send: one message to any number of agents, all of them or none.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use waybill_kernel::{Code, Error, Example, OperationSpec, Result, Role, Route, Scope};
use waybill_store::{Ctx, Operation, Reply, Tx};

use crate::Settings;
use crate::acting::{Acting, Project};
use crate::attaching::{Attaches, Enclosed, Given, Whose, add_given};
use crate::contacts::{self, Pair, REQUEST_TTL_S, Status};
use crate::keys;
use crate::recipients::{self, Recipient, Walls};
use crate::rules::addresses::Names;
use crate::rules::message::{self, Importance};
use crate::rules::threads;
use crate::sending::{self, Attachment, Delivery, File, Files, Outgoing, Payload};
use crate::sent::{self, Begun};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SendMessage {
    /// The project's absolute path or slug.
    pub project_key: String,
    /// Your agent's name.
    pub sender_name: String,
    /// Names of agents; `project:<path or slug>#<name>` for one of another project.
    #[serde(default)]
    pub to: Names,
    /// What it is about. At most 1 KiB.
    pub subject: String,
    /// The message, in Markdown. At most 1 MiB.
    pub body_md: String,
    #[serde(default)]
    pub cc: Names,
    /// Hidden from the others.
    #[serde(default)]
    pub bcc: Names,
    /// Files as bytes.
    #[serde(default)]
    #[schemars(extend("x-rare" = true))]
    pub attachments: Vec<File>,
    /// Files of the project by their paths, where the operator has set `mail.project_roots`.
    #[schemars(extend("x-rare" = true))]
    pub attachment_paths: Option<Vec<String>>,
    /// PNG, JPEG and GIF images become WebP where that is smaller. Nothing of them is lost.
    #[schemars(extend("x-rare" = true))]
    pub convert_images: Option<bool>,
    pub importance: Option<Importance>,
    /// The recipients are asked to acknowledge it.
    #[serde(default)]
    pub ack_required: bool,
    /// Letters, digits, dots, underscores and hyphens, as in FEAT-123.
    pub thread_id: Option<String>,
    /// Not offered.
    #[schemars(extend("deprecated" = true))]
    pub topic: Option<String>,
    /// Not offered: name the recipients.
    #[serde(default)]
    #[schemars(extend("deprecated" = true))]
    pub broadcast: bool,
    /// Ask those for contact who do not let you write. The message is not sent by that.
    #[serde(default)]
    #[schemars(extend("x-rare" = true))]
    pub auto_contact_if_blocked: bool,
    /// Your agent's registration token, to prove who is writing.
    #[schemars(extend("x-rare" = true))]
    pub sender_token: Option<String>,
    /// Makes the call safe to repeat within 24 hours.
    #[schemars(length(min = 1, max = 255))]
    #[schemars(extend("x-rare" = true))]
    pub idempotency_key: Option<String>,
    /// What `attachments` and `attachment_paths` have come to.
    #[serde(skip)]
    pub files: Files,
    #[serde(skip)]
    pub given: Given,
}

/// What was sent.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Sent {
    /// One for each project that has recipients.
    pub deliveries: Vec<Delivery>,
    pub count: usize,
    pub attachments: Vec<Attachment>,
    /// The sender has shown its token.
    pub verified_sender: bool,
    /// With `auto_contact_if_blocked`: who was asked for contact instead. Then nothing was sent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub contacts_requested: Vec<String>,
}

impl Operation for SendMessage {
    const SPEC: OperationSpec = OperationSpec {
        name: "send_message",
        domain: crate::NAME,
        route: Route::post("/v1/mail/messages"),
        roles: &[Role::Agent, Role::Admin, Role::System],
        scopes: &[Scope::MailWrite],
        title: "Send a message",
        description: "Writes to one or more agents by name. Everybody on the lists gets it, or, when a name is unknown or an \
                      agent has to be asked for contact first, nobody; the error then names all of them and what to do. Give \
                      an idempotency_key to be able to repeat the call safely after a lost answer.",
        example: Example {
            arguments: r#"{"project_key": "/data/projects/backend", "sender_name": "GreenCastle", "to": ["BlueLake"],
                "subject": "The login page", "body_md": "I changed `auth.rs`; please look.", "ack_required": true,
                "thread_id": "FEAT-123"}"#,
            answer: r#"{"deliveries": [{"project": "/data/projects/backend", "payload": {"id": 42, "project_id": 1,
                "from": "GreenCastle", "to": ["BlueLake"], "cc": [], "bcc": [], "subject": "The login page",
                "body_md": "I changed `auth.rs`; please look.", "importance": "normal", "ack_required": true,
                "thread_id": "FEAT-123", "attachments": [], "created_ts": "2026-01-05T12:30:00.000000Z"}}], "count": 1,
                "attachments": [], "verified_sender": false}"#,
        },
        ..OperationSpec::WRITE
    };
    const REPLAYS: bool = true;
    type Output = Sent;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Sent>> {
        self.check(ctx.settings())?;
        let key = self.given.keyed(self)?;
        let begun = sent::begin(ctx, tx, "send_message", &self.whose(), key).await?;
        let Begun { project, acting, scope, again } = begun;
        if let Some((payload, recipients)) = again {
            return Ok(Reply::Replay(of(payload, &recipients, acting.verified)));
        }
        self.given.check_read()?;
        sent::check_thread(tx, &project, self.thread_id.as_deref()).await?;
        let lists = [&self.to.0[..], &self.cc.0, &self.bcc.0];
        let recipients = recipients::resolve(ctx, tx, &project, lists).await?;
        let thread = self.thread_id.as_deref();
        let walls = recipients::walls(ctx, tx, &project, &acting.agent, thread, &recipients).await?;
        if !walls.is_empty() {
            return self.ask(ctx, tx, scope, &project, &acting, &walls).await;
        }
        let message = Outgoing {
            project: &project,
            sender: &acting.agent,
            recipients: &recipients,
            subject: &self.subject,
            body: &self.body_md,
            importance: self.importance.unwrap_or(Importance::Normal),
            ack_required: self.ack_required,
            thread,
            reply_to: None,
            files: &self.files,
            intro: false,
        };
        let payload = sent::deliver(ctx, tx, scope, &message).await?;
        Ok(Reply::Done(of(payload, &recipients, acting.verified)))
    }
}

impl Attaches for SendMessage {
    fn whose(&self) -> Whose {
        Whose::new(&self.project_key, &self.sender_name, self.sender_token.as_deref())
    }

    fn enclosed(&mut self) -> Enclosed<'_> {
        Enclosed {
            attachments: &mut self.attachments,
            attachment_paths: &mut self.attachment_paths,
            body: &mut self.body_md,
            convert_images: self.convert_images,
            files: &mut self.files,
            given: &mut self.given,
        }
    }

    fn key(&self) -> Option<&str> {
        self.idempotency_key.as_deref()
    }

    fn meaning(&self) -> serde_json::Value {
        let mut meaning = json!({
            "to": self.to, "cc": self.cc, "bcc": self.bcc, "subject": self.subject, "body_md": self.body_md,
            "importance": self.importance.unwrap_or(Importance::Normal), "ack_required": self.ack_required,
            "thread_id": self.thread_id,
        });
        add_given(&mut meaning, &self.attachments, self.attachment_paths.as_deref(), self.convert_images);
        meaning
    }
}

fn of(mut payload: Payload, recipients: &[Recipient], verified_sender: bool) -> Sent {
    let body = payload.body_md.take();
    Sent {
        deliveries: sending::deliveries(&payload, body, recipients),
        count: recipients.len(),
        attachments: payload.attachments,
        verified_sender,
        contacts_requested: Vec::new(),
    }
}

impl SendMessage {
    fn check(&self, settings: &Settings) -> Result<()> {
        if self.broadcast {
            return Err(Error::new(Code::BroadcastDisabled, "`broadcast` is not offered: name the recipients."));
        }
        if self.topic.as_deref().is_some_and(|topic| !topic.is_empty()) {
            return Err(Error::new(Code::FeatureDisabled, "`topic` is not offered: use thread_id."));
        }
        message::check(settings, &self.subject, &self.body_md)?;
        if let Some(thread) = &self.thread_id {
            threads::check(thread)?;
        }
        Ok(())
    }

    /// Nobody gets the message. Those who can be asked are asked where the sender wants that, which is then the answer: an error
    /// would take the requests back.
    async fn ask(
        &self,
        ctx: &Ctx<'_>,
        tx: &mut Tx<'_>,
        scope: keys::Scope<'_>,
        project: &Project,
        acting: &Acting,
        walls: &Walls,
    ) -> Result<Reply<Sent>> {
        if !self.auto_contact_if_blocked || !walls.blocked.is_empty() {
            return Err(walls.refusal(project, &acting.agent));
        }
        // It would remember that nothing was sent, and the message could never go out under it.
        keys::release(tx, scope).await?;
        let mut contacts_requested = Vec::new();
        for recipient in &walls.required {
            let pair = Pair { project, from: &acting.agent, to_project: &recipient.project, to: &recipient.agent };
            let ttl = contacts::ttl(None, REQUEST_TTL_S)?;
            let requested = contacts::request(ctx, tx, pair, &self.subject, ttl).await?;
            // It was asked before and has refused: to ask again would tell it nothing.
            if requested.link.status == Status::Blocked {
                return Err(walls.refusal(project, &acting.agent));
            }
            contacts_requested.push(recipient.shown(project));
        }
        let (deliveries, attachments) = (Vec::new(), Vec::new());
        Ok(Reply::Done(Sent {
            deliveries,
            count: 0,
            attachments,
            verified_sender: acting.verified,
            contacts_requested,
        }))
    }
}
