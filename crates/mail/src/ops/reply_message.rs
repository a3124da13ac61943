//! Reply: in the thread of the message, to whoever wrote it unless others are named.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use waybill_kernel::{Error, Example, OperationSpec, Result, Role, Route, Scope};
use waybill_store::{Ctx, Operation, Reply, Tx};

use crate::Settings;
use crate::acting::{Agent, Project};
use crate::attaching::{Attaches, Enclosed, Given, Whose, add_given};
use crate::inbox::{self, Found};
use crate::recipients::{self, Recipient};
use crate::rules::addresses::{Kind, Names};
use crate::rules::message::{self, Importance};
use crate::rules::threads;
use crate::sending::{self, Delivery, File, Files, Outgoing, Payload};
use crate::sent::{self, Begun};

const PREFIX_CHARS_MAX: usize = 64;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplyMessage {
    /// The project's absolute path or slug.
    pub project_key: String,
    /// The message that is answered, which your agent must have sent or got.
    #[schemars(range(min = 1))]
    pub message_id: i64,
    /// Your agent's name.
    pub sender_name: String,
    /// The answer, in Markdown. At most 1 MiB.
    pub body_md: String,
    /// Who gets it; whoever wrote the message unless given.
    #[serde(default)]
    pub to: Names,
    #[serde(default)]
    pub cc: Names,
    /// Hidden from the others.
    #[serde(default)]
    pub bcc: Names,
    /// Before the subject, once: `Re:` unless given.
    #[schemars(length(max = PREFIX_CHARS_MAX))]
    #[schemars(extend("x-rare" = true))]
    pub subject_prefix: Option<String>,
    /// That of the message unless given.
    pub importance: Option<Importance>,
    /// As the message asked for unless given.
    pub ack_required: Option<bool>,
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

/// The answer as it was sent.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Replied {
    #[serde(flatten)]
    pub message: Payload,
    pub deliveries: Vec<Delivery>,
    pub count: usize,
    /// The sender has shown its token.
    pub verified_sender: bool,
}

impl Operation for ReplyMessage {
    const SPEC: OperationSpec = OperationSpec {
        name: "reply_message",
        domain: crate::NAME,
        route: Route::post("/v1/mail/messages/{message_id}/reply"),
        roles: &[Role::Agent, Role::Admin, Role::System],
        scopes: &[Scope::MailWrite],
        title: "Reply to a message",
        description: "Answers a message in its thread: same subject, importance and wish for acknowledgement, to whoever wrote \
                      it unless you name others. A reply to a message of your own goes to those who got it.",
        example: Example {
            arguments: r#"{"project_key": "/data/projects/backend", "message_id": 42, "sender_name": "BlueLake",
                "body_md": "Looks good."}"#,
            answer: r#"{"id": 43, "project_id": 1, "from": "BlueLake", "to": ["GreenCastle"], "cc": [], "bcc": [],
                "subject": "Re: The login page", "body_md": "Looks good.", "importance": "normal", "ack_required": true,
                "thread_id": "FEAT-123", "reply_to": 42, "attachments": [], "created_ts": "2026-01-05T12:35:00.000000Z",
                "deliveries": [{"project": "/data/projects/backend", "payload": {"id": 43, "project_id": 1,
                "from": "BlueLake", "to": ["GreenCastle"], "cc": [], "bcc": [], "subject": "Re: The login page",
                "importance": "normal", "ack_required": true, "thread_id": "FEAT-123", "reply_to": 42, "attachments": [],
                "created_ts": "2026-01-05T12:35:00.000000Z"}}], "count": 1, "verified_sender": false}"#,
        },
        ..OperationSpec::WRITE
    };
    const REPLAYS: bool = true;
    type Output = Replied;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Replied>> {
        message::check_id(self.message_id)?;
        let prefix = self.subject_prefix.as_deref().unwrap_or("Re:");
        if prefix.chars().count() > PREFIX_CHARS_MAX {
            return Err(Error::invalid(format!("subject_prefix has at most {PREFIX_CHARS_MAX} characters.")));
        }
        let key = self.given.keyed(self)?;
        let begun = sent::begin(ctx, tx, "reply_message", &self.whose(), key).await?;
        let Begun { project, acting, scope, again } = begun;
        if let Some((payload, recipients)) = again {
            return Ok(Reply::Replay(of(payload, &recipients, acting.verified)));
        }
        self.given.check_read()?;
        let parent = inbox::find(tx, &project, &acting.agent, self.message_id).await?;
        let parent = parent.ok_or_else(|| inbox::no_message(&acting.agent))?;
        let settings: &Settings = ctx.settings();
        let mut subject = threads::reply_subject(prefix, &parent.view.subject);
        // Whoever answers has not written it: the end of a long one goes, and not the answer.
        subject.truncate(subject.floor_char_boundary(settings.subject_bytes_max));
        message::check(settings, &subject, &self.body_md)?;
        let thread = parent.view.thread_id.clone().unwrap_or_else(|| self.message_id.to_string());
        let recipients = self.recipients(ctx, tx, &project, &acting.agent, &parent).await?;
        let walls = recipients::walls(ctx, tx, &project, &acting.agent, Some(&thread), &recipients).await?;
        if !walls.is_empty() {
            return Err(walls.refusal(&project, &acting.agent));
        }
        let message = Outgoing {
            project: &project,
            sender: &acting.agent,
            recipients: &recipients,
            subject: &subject,
            body: &self.body_md,
            importance: self.importance.unwrap_or(parent.view.importance),
            ack_required: self.ack_required.unwrap_or(parent.view.ack_required),
            thread: Some(&thread),
            reply_to: Some(self.message_id),
            files: &self.files,
            intro: false,
        };
        let payload = sent::deliver(ctx, tx, scope, &message).await?;
        Ok(Reply::Done(of(payload, &recipients, acting.verified)))
    }
}

impl Attaches for ReplyMessage {
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
            "message_id": self.message_id, "body_md": self.body_md, "to": self.to, "cc": self.cc, "bcc": self.bcc,
            "subject_prefix": self.subject_prefix, "importance": self.importance, "ack_required": self.ack_required,
        });
        add_given(&mut meaning, &self.attachments, self.attachment_paths.as_deref(), self.convert_images);
        meaning
    }
}

fn of(mut message: Payload, recipients: &[Recipient], verified_sender: bool) -> Replied {
    let body = message.body_md.take();
    let deliveries = sending::deliveries(&message, None, recipients);
    message.body_md = body;
    Replied { message, deliveries, count: recipients.len(), verified_sender }
}

impl ReplyMessage {
    /// Those who are named; otherwise who wrote the message, or who got it when the agent wrote it itself: those in `to`, else those in
    /// `cc`, else those who were hidden, who stay so.
    async fn recipients(
        &self,
        ctx: &Ctx<'_>,
        tx: &mut Tx<'_>,
        project: &Project,
        sender: &Agent,
        parent: &Found,
    ) -> Result<Vec<Recipient>> {
        let mut own = Vec::new();
        if self.to.0.is_empty() {
            own = match parent.sender == sender.id {
                false => vec![recipients::by_number(tx, parent.sender).await?],
                true => sent::recipients(tx, self.message_id).await?,
            };
        }
        let first = [Kind::To, Kind::Cc, Kind::Bcc].into_iter().find(|kind| own.iter().any(|one| one.kind == *kind));
        let [mut to, mut cc, mut bcc] = [&self.to, &self.cc, &self.bcc].map(|names| names.0.clone());
        let names = own.iter().filter(|one| Some(one.kind) == first).map(|one| one.shown(project));
        match first {
            Some(Kind::Cc) => cc.extend(names),
            Some(Kind::Bcc) => bcc.extend(names),
            Some(Kind::To) | None => to.extend(names),
        }
        recipients::resolve(ctx, tx, project, [&to, &cc, &bcc]).await
    }
}
