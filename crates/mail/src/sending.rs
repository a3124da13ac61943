//! Writing a message: its row, those of its recipients, their deliveries, what came with it and what the archive has to do, in one
//! transaction. A reader sees all of it or nothing.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::{Digest, Sha256};
use waybill_kernel::visible::unseen;
use waybill_kernel::{Error, Result, Tenant, Time, hex};
use waybill_store::{Ctx, STATEMENTS_MAX, Statement, Stored, Topic, Tx, Value};

use crate::Settings;
use crate::acting::{self, Agent, Project};
use crate::archive_rows::{self, ArchiveKind};
use crate::files_and_search;
use crate::recipients::Recipient;
use crate::rules::addresses::Kind;
use crate::rules::message::{Importance, too_large};
use crate::rules::projects;

const FILE_NAME_CHARS_MAX: usize = 255;

/// Woken when a message comes for this agent. Made of what the caller names it by, before anything is looked up.
pub fn inbox_topic(tenant: Tenant, project_key: &str, agent: &str) -> Topic {
    let name = format!("{}\0{}", projects::common_name(project_key), crate::rules::names::key(agent));
    Topic::new("mail.inbox", tenant, name.as_bytes())
}

/// A file that comes with a message.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(inline)]
pub struct File {
    /// What it is called, without a path.
    #[schemars(length(min = 1, max = FILE_NAME_CHARS_MAX))]
    pub name: String,
    /// Its bytes, in base64.
    pub content_base64: String,
    /// As in `image/png`; `application/octet-stream` unless given.
    pub media_type: Option<String>,
}

/// A file of a message, as it is shown.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct Attachment {
    pub name: String,
    pub media_type: String,
    pub bytes: usize,
    pub sha256: String,
    /// Its bytes, where the text is shown: of files up to 64 KiB as far as the page has room, and as the sender's
    /// attachments_policy says. get_attachment has every file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_base64: Option<String>,
}

/// A file that is to come with a message: its name, its media type and its bytes.
pub(crate) type Named = (String, String, Vec<u8>);

/// Decoded files, in order.
#[derive(Debug, Default)]
pub struct Files(Vec<(Attachment, [u8; 32], Vec<u8>)>);

impl Files {
    pub const NONE: Files = Files(Vec::new());

    pub fn decode(settings: &Settings, files: &[File]) -> Result<Self> {
        let mut decoded = Self::NONE;
        for file in files {
            decoded.add(settings, file.decode(settings.attachment_bytes_max)?)?;
        }
        Ok(decoded)
    }

    /// One more, within the bound of one file.
    pub(crate) fn add(&mut self, settings: &Settings, file: Named) -> Result<()> {
        if self.0.len() >= settings.attachments_max {
            let max = settings.attachments_max;
            return Err(Error::invalid(format!("A message has at most {max} attachments.")).with("limit", max));
        }
        let (max, together) = (settings.attachments_bytes_max, self.0.iter().map(|(one, ..)| one.bytes).sum::<usize>());
        if together + file.2.len() > max {
            return Err(too_large(&format!("The attachments have more than {max} bytes together."), max));
        }
        self.0.push(digested(file));
        Ok(())
    }

    /// Images that `smaller` has something better for, under the name that goes with it.
    pub(crate) fn convert(&mut self, smaller: impl Fn(&[u8]) -> Option<Vec<u8>>) {
        for file in &mut self.0 {
            if let Some(content) = smaller(&file.2) {
                let stem = file.0.name.rsplit_once('.').map_or(file.0.name.as_str(), |(stem, _)| stem);
                *file = digested((format!("{stem}.webp"), "image/webp".to_owned(), content));
            }
        }
    }

    /// As an archive has them: whoever sent them was held to the bounds of the time.
    pub(crate) fn restored(files: Vec<Named>) -> Self {
        Self(files.into_iter().map(digested).collect())
    }

    /// The rows of what came with the message of this number.
    pub(crate) fn rows(&self, id: i64) -> Vec<Statement<'_>> {
        let mut rows: Vec<Statement<'_>> = Vec::with_capacity(self.0.len());
        for (position, (attachment, digest, content)) in self.0.iter().enumerate() {
            rows.push(attached(id, position as i64, attachment, digest, content));
        }
        rows
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Of all of them together.
    pub(crate) fn bytes(&self) -> usize {
        self.0.iter().map(|(.., content)| content.len()).sum()
    }

    pub fn shown(&self) -> Vec<Attachment> {
        self.0.iter().map(|(attachment, ..)| attachment.clone()).collect()
    }
}

fn digested((name, media_type, content): Named) -> (Attachment, [u8; 32], Vec<u8>) {
    let digest: [u8; 32] = Sha256::digest(&content).into();
    let (bytes, sha256) = (content.len(), hex::encode(&digest));
    (Attachment { name, media_type, bytes, sha256, content_base64: None }, digest, content)
}

impl File {
    fn decode(&self, max: usize) -> Result<Named> {
        check_name(&self.name)?;
        let media_type = self.media_type.as_deref().unwrap_or("application/octet-stream");
        let plain = |c: char| c.is_ascii_alphanumeric() || "!#$&^_.+-/".contains(c);
        if media_type.len() > FILE_NAME_CHARS_MAX || !media_type.contains('/') || !media_type.chars().all(plain) {
            return Err(Error::invalid("An attachment's media_type is written as in image/png."));
        }
        if is_larger(&self.content_base64, max) {
            return Err(too_large(&format!("The attachment {:?} has more than {max} bytes.", self.name), max));
        }
        let content = decoded(&self.content_base64, max)
            .ok_or_else(|| Error::invalid(format!("content_base64 of {:?} is not base64.", self.name)))?;
        Ok((self.name.clone(), media_type.to_owned(), content))
    }
}

/// Of a file that comes with a message, wherever it comes from.
pub(crate) fn check_name(name: &str) -> Result<()> {
    let length = name.chars().count();
    if length == 0 || length > FILE_NAME_CHARS_MAX || name.contains(['/', '\\']) {
        let message = format!("An attachment's name has 1 to {FILE_NAME_CHARS_MAX} characters and no path.");
        return Err(Error::invalid(message));
    }
    match unseen(name) {
        Some(why) => Err(Error::invalid(format!("An attachment's name {why}."))),
        None => Ok(()),
    }
}

/// Whether it stands for more than `max` bytes, four characters for three: what is too large is not decoded first.
fn is_larger(base64: &str, max: usize) -> bool {
    let padding = base64.bytes().rev().take_while(|byte| *byte == b'=').count();
    (base64.len() / 4 * 3).saturating_sub(padding) > max
}

/// None for more than `max` bytes, and for what is no base64.
pub(crate) fn decoded(base64: &str, max: usize) -> Option<Vec<u8>> {
    if is_larger(base64, max) { None } else { STANDARD.decode(base64.as_bytes()).ok() }
}

/// A message that is about to be written.
pub struct Outgoing<'a> {
    pub project: &'a Project,
    pub sender: &'a Agent,
    pub recipients: &'a [Recipient],
    pub subject: &'a str,
    pub body: &'a str,
    pub importance: Importance,
    pub ack_required: bool,
    pub thread: Option<&'a str>,
    pub reply_to: Option<i64>,
    pub files: &'a Files,
    /// A request for contact, which opens nothing by itself.
    pub intro: bool,
}

/// A message as its sender is shown it.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct Payload {
    pub id: i64,
    pub project_id: i64,
    pub from: String,
    pub to: Vec<String>,
    pub cc: Vec<String>,
    pub bcc: Vec<String>,
    pub subject: String,
    /// Said once in an answer, however many projects the message went to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body_md: Option<String>,
    pub importance: Importance,
    pub ack_required: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reply_to: Option<i64>,
    pub attachments: Vec<Attachment>,
    pub created_ts: Time,
}

/// What went to the agents of one project.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct Delivery {
    /// Its absolute path.
    pub project: String,
    pub payload: Payload,
}

impl Outgoing<'_> {
    pub fn names(&self, kind: Kind) -> Vec<String> {
        self.recipients.iter().filter(|one| one.kind == kind).map(|one| one.shown(self.project)).collect()
    }

    fn payload(&self, id: i64, created_at: Time) -> Payload {
        Payload {
            id,
            project_id: self.project.id,
            from: self.sender.name.clone(),
            to: self.names(Kind::To),
            cc: self.names(Kind::Cc),
            bcc: self.names(Kind::Bcc),
            subject: self.subject.to_owned(),
            body_md: Some(self.body.to_owned()),
            importance: self.importance,
            ack_required: self.ack_required,
            thread_id: self.thread.map(str::to_owned),
            reply_to: self.reply_to,
            attachments: self.files.shown(),
            created_ts: created_at,
        }
    }

    /// The values of its row, from the project to the time.
    pub(crate) fn columns<'a>(&'a self, names: &'a str, attachments: Option<&'a str>, at: Time) -> Vec<Value<'a>> {
        vec![
            self.project.id.into(),
            self.sender.id.into(),
            Value::from(&self.sender.name),
            self.thread.into(),
            Value::Int(self.reply_to),
            self.subject.into(),
            self.body.into(),
            self.importance.as_str().into(),
            self.ack_required.into(),
            self.intro.into(),
            Value::from(names),
            attachments.into(),
            at.into(),
        ]
    }

    /// As the column `names` has them.
    pub(crate) fn all_names(&self) -> String {
        let [to, cc, bcc] = [Kind::To, Kind::Cc, Kind::Bcc].map(|kind| self.names(kind));
        json!({ "to": to, "cc": cc, "bcc": bcc }).to_string()
    }

    /// As the column `attachments` has them.
    pub(crate) fn attachments(&self) -> Result<Option<String>> {
        let files = self.files.shown();
        if files.is_empty() { Ok(None) } else { serde_json::to_string(&files).map(Some).map_err(Error::internal) }
    }

    /// The projects whose agents get it, the sender's own always among them: its archive has the message.
    pub(crate) fn projects(&self) -> Vec<&Project> {
        let mut projects = vec![self.project];
        for recipient in self.recipients {
            if projects.iter().all(|known| known.id != recipient.project.id) {
                projects.push(&recipient.project);
            }
        }
        projects
    }
}

/// Writes the message and wakes those it is for.
pub async fn deliver(ctx: &Ctx<'_>, tx: &mut Tx<'_>, message: &Outgoing<'_>) -> Result<Payload> {
    tx.check_room(ctx, Stored::Blobs, message.files.bytes()).await?;
    let id = insert(ctx, tx, message).await?;
    tx.add(Stored::Rows, message.subject.len() + message.body.len());
    tx.add(Stored::Blobs, message.files.bytes());
    for recipient in message.recipients {
        let topic = inbox_topic(ctx.caller.tenant, &recipient.project.human_key, &recipient.agent.name);
        tx.wake(topic, u32::MAX);
    }
    let mut statements: Vec<Statement<'_>> = Vec::new();
    for recipient in message.recipients {
        statements.push(received(message, id, ctx.now, recipient));
        statements.push(delivered(id, ctx.now, recipient));
    }
    statements.extend(message.files.rows(id));
    for project in message.projects() {
        statements.push(archive_rows::noting(tx, ctx.now, project.id, ArchiveKind::Message, id));
    }
    for some in statements.chunks(STATEMENTS_MAX) {
        tx.execute_all(some).await?;
    }
    files_and_search::index_message(tx, ctx.caller.tenant, message, id, ctx.now).await?;
    acting::touch(ctx, tx, message.sender).await?;
    Ok(message.payload(id, ctx.now))
}

async fn insert(ctx: &Ctx<'_>, tx: &mut Tx<'_>, message: &Outgoing<'_>) -> Result<i64> {
    const INSERT: &str = "INSERT INTO mail_messages (tenant, project, sender, sender_name, thread, reply_to, subject, body, \
        importance, ack_required, intro, names, attachments, created_at) \
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14) RETURNING message";
    let (names, attachments) = (message.all_names(), message.attachments()?);
    let params = message.columns(&names, attachments.as_deref(), ctx.now);
    let row = tx.query_opt(INSERT, &params).await?.ok_or_else(|| Error::internal("a message got no number"))?;
    row.int(0)
}

pub(crate) fn received<'a>(message: &Outgoing<'_>, id: i64, at: Time, recipient: &Recipient) -> Statement<'a> {
    const INSERT: &str = "INSERT INTO mail_recipients (tenant, message, agent, kind, sender, urgent, ack_required, intro, \
                          created_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)";
    let params = vec![
        id.into(),
        recipient.agent.id.into(),
        recipient.kind.as_str().into(),
        message.sender.id.into(),
        message.importance.is_urgent().into(),
        message.ack_required.into(),
        message.intro.into(),
        at.into(),
    ];
    (INSERT, params)
}

pub(crate) fn delivered<'a>(id: i64, at: Time, recipient: &Recipient) -> Statement<'a> {
    const INSERT: &str = "INSERT INTO mail_inbox_events (tenant, agent, message, at) VALUES ($1, $2, $3, $4)";
    (INSERT, vec![recipient.agent.id.into(), id.into(), at.into()])
}

fn attached<'a>(
    id: i64,
    position: i64,
    attachment: &'a Attachment,
    digest: &'a [u8; 32],
    content: &'a [u8],
) -> Statement<'a> {
    const INSERT: &str = "INSERT INTO mail_attachments (tenant, message, position, name, media_type, sha256, content) \
                          VALUES ($1, $2, $3, $4, $5, $6, $7)";
    let params = vec![
        id.into(),
        position.into(),
        Value::from(&attachment.name),
        Value::from(&attachment.media_type),
        Value::from(&digest[..]),
        Value::from(content),
    ];
    (INSERT, params)
}

/// One delivery for each project that has recipients. The text is not in the payload that is given and goes with the first: an
/// answer with a copy for every project has no bound, and is refused when everything has been done.
pub fn deliveries(payload: &Payload, body: Option<String>, recipients: &[Recipient]) -> Vec<Delivery> {
    debug_assert!(payload.body_md.is_none(), "the text would be repeated");
    let mut projects: Vec<&Project> = Vec::new();
    for recipient in recipients {
        if projects.iter().all(|known| known.id != recipient.project.id) {
            projects.push(&recipient.project);
        }
    }
    let of = |project: &Project| Delivery { project: project.human_key.clone(), payload: payload.clone() };
    let mut deliveries: Vec<Delivery> = projects.into_iter().map(of).collect();
    if let Some(first) = deliveries.first_mut() {
        first.payload.body_md = body;
    }
    deliveries
}

#[cfg(test)]
mod tests {
    use waybill_kernel::Code;

    use super::*;

    fn file(name: &str, content: &str) -> File {
        File { name: name.to_owned(), content_base64: content.to_owned(), media_type: None }
    }

    #[test]
    fn files_are_decoded_within_their_bounds() {
        let settings = Settings { attachment_bytes_max: 100, attachments_bytes_max: 150, ..Settings::default() };
        let decoded = Files::decode(&settings, &[file("a.txt", "aGVsbG8=")]).unwrap();
        let [(attachment, _, content)] = decoded.0.as_slice() else { panic!("one file") };
        assert_eq!((attachment.bytes, content.as_slice()), (5, &b"hello"[..]));
        assert_eq!(attachment.sha256, "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824");
        let code = |files: &[File]| Files::decode(&settings, files).map(|_| ()).unwrap_err().code();
        let large = STANDARD.encode([0; 101]);
        let hundred = STANDARD.encode([0; 100]);
        assert_eq!(code(&[file("a", &large)]), Code::PayloadTooLarge);
        assert_eq!(code(&[file("a", &STANDARD.encode([0; 10_000]))]), Code::PayloadTooLarge);
        assert!(Files::decode(&settings, &[file("a", &hundred)]).is_ok());
        assert_eq!(code(&[file("a", &hundred), file("b", &hundred)]), Code::PayloadTooLarge);
        for (name, content) in [("", "aGk="), ("a/b", "aGk="), ("a\\b", "aGk="), ("a", "no!"), ("a\u{0}", "aGk=")] {
            assert_eq!(code(&[file(name, content)]), Code::InvalidRequest, "{name:?} {content}");
        }
        assert_eq!(code(&vec![file("a", ""); settings.attachments_max + 1]), Code::InvalidRequest);
    }
}
