//! A message's row in the index, in the transaction that sends it: whoever has the answer finds the message.

use waybill_kernel::{Result, Tenant, Time};
use waybill_store::{Sql, Tx, Value};

use crate::rules::terms::{Indexed, Space};
use crate::sending::Outgoing;

/// Which of the two forms the index has here.
const FORM: Sql = Sql { sqlite: "fts5", postgres: "tsvector" };

/// A message as the index sees it.
pub(crate) struct Words<'a> {
    pub tenant: Tenant,
    pub project: i64,
    pub sender: i64,
    pub principal: &'a str,
    /// The project of each recipient, and who acts for it.
    pub recipients: Vec<(i64, &'a str)>,
    pub thread: Option<&'a str>,
    pub importance: &'a str,
    pub subject: &'a str,
    pub body: &'a str,
}

pub(crate) async fn index_message(
    tx: &mut Tx<'_>,
    tenant: Tenant,
    message: &Outgoing<'_>,
    id: i64,
    at: Time,
) -> Result<()> {
    let words = Words {
        tenant,
        project: message.project.id,
        sender: message.sender.id,
        principal: &message.sender.principal,
        recipients: message.recipients.iter().map(|one| (one.project.id, one.agent.principal.as_str())).collect(),
        thread: message.thread,
        importance: message.importance.as_str(),
        subject: message.subject,
        body: message.body,
    };
    index(tx, &words, id, at).await
}

pub(crate) async fn index(tx: &mut Tx<'_>, words: &Words<'_>, id: i64, at: Time) -> Result<()> {
    const FTS5: &str = "INSERT INTO mail_fts (rowid, marks, subject, body) VALUES ($2, $3, $4, $5)";
    const TSVECTOR: &str =
        "INSERT INTO mail_search (tenant, message, created_at, words) VALUES ($1, $2, $3, $4::text::tsvector)";
    let indexed = indexed(words, id);
    if tx.text(FORM) == FORM.sqlite {
        let [marks, subject, body] = indexed.columns();
        let params = [id.into(), Value::from(&marks), Value::from(&subject), Value::from(&body)];
        return tx.execute(FTS5, &params).await.map(drop);
    }
    let words = indexed.tsvector();
    tx.execute(TSVECTOR, &[id.into(), at.into(), Value::from(&words)]).await.map(drop)
}

/// Found in the sender's project by all its parties, and by its recipients in theirs.
fn indexed(message: &Words<'_>, id: i64) -> Indexed {
    let of = |project: i64| Space { tenant: message.tenant, project };
    let home = of(message.project);
    let own_thread = id.to_string();
    let mut spaces = vec![home];
    let mut marks = vec![home.party(message.principal)];
    for (project, principal) in &message.recipients {
        let theirs = of(*project);
        if !spaces.contains(&theirs) {
            spaces.push(theirs);
        }
        marks.extend([home, theirs].map(|space| space.party(principal)));
    }
    for space in &spaces {
        marks.push(space.everybody());
        marks.push(space.sender(message.sender));
        // A message without a thread begins one by its number, if it is answered; and by its number each can be looked up.
        marks.push(space.thread(&own_thread));
        marks.extend(message.thread.map(|thread| space.thread(thread)));
        marks.push(space.importance(message.importance));
    }
    marks.sort_unstable();
    marks.dedup();
    Indexed::new(&spaces, marks, message.subject, message.body)
}
