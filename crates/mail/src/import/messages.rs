//! Messages of an archive, with their recipients, what came with them, their deliveries and their words.

use waybill_kernel::{Mode, Result, Tenant, Time};
use waybill_store::{Ctx, Row, STATEMENTS_MAX, Statement, Stored, Tx, Work};

use super::{BATCH_MAX, Put, check_number, check_text, numbered};
use crate::acting::{Agent, Project};
use crate::archive_rows::{self, ArchiveKind};
use crate::files_and_search::index_message;
use crate::recipients::Recipient;
use crate::rules::message::Importance;
use crate::sending::{Files, Outgoing, delivered, received};
use crate::settings::{BODY_BYTES_MAX, SUBJECT_BYTES_MAX};

const RECIPIENTS_MAX: usize = 1_000;
const WORD_BYTES_MAX: usize = 1_024;

#[derive(Clone, Debug)]
pub struct FileRecord {
    pub name: String,
    pub media_type: String,
    pub content: Vec<u8>,
}

#[derive(Clone, Debug)]
pub struct MessageRecord {
    pub number: i64,
    /// The sender's.
    pub project: Project,
    pub sender: Agent,
    pub recipients: Vec<Recipient>,
    pub subject: String,
    pub body: String,
    pub importance: String,
    pub ack_required: bool,
    pub intro: bool,
    pub thread: Option<String>,
    pub reply_to: Option<i64>,
    pub files: Vec<FileRecord>,
    pub created_at: Time,
}

/// At most [`BATCH_MAX`] of them.
pub struct PutMessages {
    pub tenant: Tenant,
    pub records: Vec<MessageRecord>,
    pub archived: bool,
}

impl Work for PutMessages {
    /// In the order of the records.
    type Output = Vec<Put>;

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Vec<Put>> {
        assert!(self.records.len() <= BATCH_MAX, "more than {BATCH_MAX} messages at once");
        let tx = &mut *tx.as_tenant(self.tenant);
        let mut outcomes = Vec::with_capacity(self.records.len());
        for record in &self.records {
            outcomes.push(match check(record) {
                Err(why) => Put::Refused(why),
                Ok(importance) => self.put(ctx, tx, record, importance).await?,
            });
        }
        Ok(outcomes)
    }
}

impl PutMessages {
    async fn put(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, record: &MessageRecord, importance: Importance) -> Result<Put> {
        let of = |file: &FileRecord| (file.name.clone(), file.media_type.clone(), file.content.clone());
        let files = Files::restored(record.files.iter().map(of).collect());
        let message = Outgoing {
            project: &record.project,
            sender: &record.sender,
            recipients: &record.recipients,
            subject: &record.subject,
            body: &record.body,
            importance,
            ack_required: record.ack_required,
            thread: record.thread.as_deref(),
            reply_to: record.reply_to,
            files: &files,
            intro: record.intro,
        };
        if let Some(put) = there(tx, &message, record).await? {
            return Ok(put);
        }
        if insert(tx, &message, record).await? == 0 {
            // Another tenant's, or written meanwhile.
            let taken = || Put::Refused("its number is taken by another message".to_owned());
            return Ok(there(tx, &message, record).await?.unwrap_or_else(taken));
        }
        tx.add(Stored::Rows, message.subject.len() + message.body.len());
        let left = Left::of(tx, record.number).await?;
        let mut statements: Vec<Statement<'_>> = Vec::new();
        for recipient in &record.recipients {
            if !left.recipients.contains(&recipient.agent.id) {
                statements.push(received(&message, record.number, record.created_at, recipient));
            }
            if !left.delivered.contains(&recipient.agent.id) {
                statements.push(delivered(record.number, record.created_at, recipient));
            }
        }
        if !left.has_files {
            tx.add(Stored::Blobs, files.bytes());
            statements.extend(files.rows(record.number));
        }
        if self.archived {
            for project in message.projects() {
                statements.push(archive_rows::noting(tx, ctx.now, project.id, ArchiveKind::Message, record.number));
            }
        }
        for some in statements.chunks(STATEMENTS_MAX) {
            tx.execute_all(some).await?;
        }
        index_message(tx, self.tenant, &message, record.number, record.created_at).await?;
        Ok(Put::Written)
    }
}

/// What stands beside a message that is gone: a damaged database may have lost the one and kept the other, which then knows better
/// than the archive what was read.
struct Left {
    recipients: Vec<i64>,
    delivered: Vec<i64>,
    has_files: bool,
}

impl Left {
    async fn of(tx: &mut Tx<'_>, number: i64) -> Result<Self> {
        const RECIPIENTS: &str = "SELECT agent FROM mail_recipients WHERE tenant = $1 AND message = $2";
        // By the recipients that are left: deliveries are not found by their message.
        const DELIVERED: &str = "SELECT e.agent FROM mail_recipients r \
            JOIN mail_inbox_events e ON e.tenant = $1 AND e.agent = r.agent AND e.message = $2 \
            WHERE r.tenant = $1 AND r.message = $2";
        const FILES: &str = "SELECT count(*) FROM mail_attachments WHERE tenant = $1 AND message = $2";
        let of = |sql| -> Statement<'_> { (sql, vec![number.into()]) };
        let answers = tx.query_all(&[of(RECIPIENTS), of(DELIVERED), of(FILES)]).await?;
        let agents = |rows: &[Row]| rows.iter().map(|row| row.int(0)).collect::<Result<Vec<_>>>();
        let files = answers[2].first().map_or(Ok(0), |row| row.int(0))?;
        Ok(Self { recipients: agents(&answers[0])?, delivered: agents(&answers[1])?, has_files: files > 0 })
    }
}

fn check(record: &MessageRecord) -> std::result::Result<Importance, String> {
    check_number(record.number)?;
    check_text("its subject", &record.subject, SUBJECT_BYTES_MAX)?;
    check_text("its body", &record.body, BODY_BYTES_MAX)?;
    if record.recipients.is_empty() {
        return Err("it is for nobody".to_owned());
    }
    if record.recipients.len() > RECIPIENTS_MAX {
        return Err(format!("it is for {} agents; at most {RECIPIENTS_MAX} are taken", record.recipients.len()));
    }
    if let Some(thread) = &record.thread {
        // Kept as it is, also where nobody could begin such a thread here.
        check_text("its thread", thread, WORD_BYTES_MAX)?;
    }
    if let Some(reply_to) = record.reply_to {
        check_number(reply_to)?;
    }
    for file in &record.files {
        check_text("the name of an attachment", &file.name, WORD_BYTES_MAX)?;
        check_text("the media type of an attachment", &file.media_type, WORD_BYTES_MAX)?;
    }
    let known = Importance::ALL.iter().copied().find(|known| known.as_str() == record.importance);
    known.ok_or_else(|| format!("its importance {:?} is none", record.importance.chars().take(40).collect::<String>()))
}

/// What of this number is there: the same, or another one, which stays.
async fn there(tx: &mut Tx<'_>, message: &Outgoing<'_>, record: &MessageRecord) -> Result<Option<Put>> {
    const STORED: &str = "SELECT project, sender, thread, subject, body, importance, ack_required, names, created_at, attachments, \
        reply_to FROM mail_messages WHERE tenant = $1 AND message = $2";
    let Some(row) = tx.query_opt(STORED, &[record.number.into()]).await? else { return Ok(None) };
    let same = is_same(&row, message, record.created_at)?;
    let taken = || Put::Refused("its number is taken by another message".to_owned());
    Ok(Some(if same { Put::Known } else { taken() }))
}

fn is_same(row: &Row, message: &Outgoing<'_>, created_at: Time) -> Result<bool> {
    Ok(row.int(0)? == message.project.id
        && row.int(1)? == message.sender.id
        && row.text_opt(2)? == message.thread
        && row.text(3)? == message.subject
        && row.text(4)? == message.body
        && row.text(5)? == message.importance.as_str()
        && row.bool(6)? == message.ack_required
        && row.text(7)? == message.all_names()
        && row.time(8)? == created_at
        && row.text_opt(9)? == message.attachments()?.as_deref()
        && row.int_opt(10)? == message.reply_to)
}

async fn insert(tx: &mut Tx<'_>, message: &Outgoing<'_>, record: &MessageRecord) -> Result<u64> {
    const INSERT: waybill_store::Sql = numbered!(
        "mail_messages",
        "tenant, project, sender, sender_name, thread, reply_to, subject, body, importance, ack_required, intro, names, \
         attachments, created_at, message",
        "$1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15"
    );
    let (names, attachments) = (message.all_names(), message.attachments()?);
    let mut params = message.columns(&names, attachments.as_deref(), record.created_at);
    params.push(record.number.into());
    let sql = tx.text(INSERT);
    tx.execute(sql, &params).await
}
