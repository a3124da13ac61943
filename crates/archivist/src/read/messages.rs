//! Messages: their files, what came with them, and the pages of threads that they are on.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use waybill_archive::layout::{AttachmentRef, Digest, DigestEntry, Message, canonical_path};
use waybill_kernel::{Error, Result, hex};
use waybill_store::{Row, STATEMENTS_MAX, Statement, Tx};

use crate::draft::{Filed, Line};
use crate::{Draft, Item, Owner};

/// Ids of one page of a thread, as the layout has it.
const PAGE_IDS: i64 = 100;

macro_rules! message_columns {
    ($body:literal) => {
        concat!(
            "m.message, m.project, m.sender_name, m.thread, m.reply_to, m.subject, ",
            $body,
            ", m.importance, m.ack_required, m.intro, m.names, m.attachments, m.created_at, p.human_key, p.slug \
             FROM mail_messages m JOIN mail_projects p ON p.tenant = $1 AND p.project = m.project WHERE m.tenant = $1 "
        )
    };
}

/// As they are stored.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Names {
    to: Vec<String>,
    cc: Vec<String>,
    bcc: Vec<String>,
}

fn stored<'a, T: Deserialize<'a> + Default>(text: Option<&'a str>) -> Result<T> {
    text.map_or(Ok(T::default()), |text| serde_json::from_str(text).map_err(Error::internal))
}

fn read(row: &Row) -> Result<(i64, Message)> {
    let names: Names = stored(Some(row.text(10)?))?;
    let message = Message {
        id: row.int(0)?,
        from: row.text(2)?.to_owned(),
        from_project: None,
        to: names.to,
        cc: names.cc,
        bcc: names.bcc,
        subject: row.text(5)?.to_owned(),
        thread_id: row.text_opt(3)?.map(str::to_owned),
        reply_to: row.int_opt(4)?,
        importance: row.text(7)?.to_owned(),
        ack_required: row.bool(8)?,
        intro: row.bool(9)?,
        created: row.time(12)?,
        project: row.text(13)?.to_owned(),
        project_slug: row.text(14)?.to_owned(),
        attachments: stored(row.text_opt(11)?)?,
        body: row.text(6)?.to_owned(),
    };
    Ok((row.int(1)?, message))
}

/// Bytes that a message takes with its attachments, from the columns `octet_length(body)` and `attachments` at `at`.
pub(crate) fn size_of(row: &Row, at: usize) -> Result<usize> {
    let body = row.int_opt(at)?.unwrap_or_default();
    let attachments: Vec<AttachmentRef> = stored(row.text_opt(at + 1)?)?;
    let total = attachments.iter().map(|file| file.bytes).fold(body.unsigned_abs(), u64::saturating_add);
    Ok(usize::try_from(total).unwrap_or(usize::MAX))
}

/// Messages of one window.
pub(crate) struct Messages<'a> {
    pub owner: &'a Owner,
    pub ids: &'a [i64],
}

impl Messages<'_> {
    /// Adds each with what came with it, and the pages of threads that they are on. Those that are gone are left out.
    pub(crate) async fn file(&self, tx: &mut Tx<'_>, draft: &mut Draft) -> Result<()> {
        let mut pages: BTreeMap<i64, BTreeSet<String>> = BTreeMap::new();
        // Two statements for each.
        for ids in self.ids.chunks(STATEMENTS_MAX / 2) {
            for (filed, line) in self.some(tx, ids).await? {
                if filed.is_home
                    && let Some(thread) = &filed.message.thread_id
                {
                    pages.entry(filed.message.id.div_euclid(PAGE_IDS)).or_default().insert(thread.clone());
                }
                if !filed.message.attachments.is_empty() {
                    self.attachments(tx, filed.message.id, draft).await?;
                }
                draft.lines.push(line);
                draft.items.push(Item::Message(Box::new(filed)));
            }
        }
        for (page, threads) in pages {
            self.digests(tx, page, &threads, draft).await?;
        }
        Ok(())
    }

    async fn some(&self, tx: &mut Tx<'_>, ids: &[i64]) -> Result<Vec<(Filed, Line)>> {
        const MESSAGE: &str = concat!("SELECT ", message_columns!("m.body"), "AND m.message = $2");
        const INBOXES: &str = "SELECT a.name FROM mail_recipients r JOIN mail_agents a ON a.tenant = $1 AND a.agent = r.agent \
            WHERE r.tenant = $1 AND r.message = $2 AND a.project = $3 ORDER BY r.agent";
        let looks = ids.iter().flat_map(|id| -> [Statement<'_>; 2] {
            [(MESSAGE, vec![(*id).into()]), (INBOXES, vec![(*id).into(), self.owner.project.into()])]
        });
        let found = tx.as_tenant(self.owner.tenant).query_all(&looks.collect::<Vec<_>>()).await?;
        let mut filed = Vec::with_capacity(ids.len());
        for pair in found.chunks(2) {
            let ([row], inboxes) = (pair[0].as_slice(), &pair[1]) else { continue };
            let (project, message) = read(row)?;
            let inboxes = inboxes.iter().map(|row| row.text(0).map(str::to_owned)).collect::<Result<Vec<_>>>()?;
            let is_home = project == self.owner.project;
            let line = Line::message(&message, is_home);
            filed.push((Filed { message, is_home, inboxes }, line));
        }
        Ok(filed)
    }

    async fn attachments(&self, tx: &mut Tx<'_>, id: i64, draft: &mut Draft) -> Result<()> {
        const CONTENT: &str =
            "SELECT sha256, content FROM mail_attachments WHERE tenant = $1 AND message = $2 ORDER BY position";
        for row in tx.as_tenant(self.owner.tenant).query(CONTENT, &[id.into()]).await? {
            let content = row.bytes(1)?.to_vec().into();
            draft.items.push(Item::Attachment { sha256: hex::encode(row.bytes(0)?), content });
        }
        Ok(())
    }

    /// The whole of these threads' pages among a hundred ids, read in one go.
    async fn digests(&self, tx: &mut Tx<'_>, page: i64, threads: &BTreeSet<String>, draft: &mut Draft) -> Result<()> {
        // One character more than a digest shows, so that it can tell that there is more.
        const ON_PAGE: &str = concat!(
            "SELECT ",
            message_columns!("substr(m.body, 1, 1201)"),
            "AND m.project = $2 AND m.message >= $3 AND m.message < $4 AND m.thread IS NOT NULL ORDER BY m.message"
        );
        let from = page * PAGE_IDS;
        let params = [self.owner.project.into(), from.into(), (from + PAGE_IDS).into()];
        let rows = tx.as_tenant(self.owner.tenant).query(ON_PAGE, &params).await?;
        let mut pages: BTreeMap<String, Digest> = BTreeMap::new();
        for row in &rows {
            let (_, message) = read(row)?;
            let Some(thread) = message.thread_id.clone().filter(|thread| threads.contains(thread)) else { continue };
            // One that cannot be filed has a row of its own that says so.
            let Ok(path) = canonical_path(message.id, message.created, &message.subject) else { continue };
            pages.entry(thread).or_default().put(message.id, DigestEntry::of(&message, &path));
        }
        draft.items.extend(pages.into_iter().map(|(thread, page)| Item::Digest { thread, message: from, page }));
        Ok(())
    }
}
