//! Contents of large messages. A receive takes them like all others, but does not read them where it takes them: on SQLite that
//! is the one writer, and whoever receives large messages would hold up everybody who writes. They are read once they are
//! taken, by a reader, in its caller's turn.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Error, OperationSpec, Result, Scope};
use waybill_store::shares::Share;
use waybill_store::{Ctx, Flow, Operation, Reply, Store, Tx, Value};

use crate::message::{Message, MessageAttributes, MessageId};
use crate::ops::read;
use crate::rules::contents::asked_for;
use crate::rules::digest;

#[derive(Debug, Deserialize, JsonSchema)]
struct ReadContents {
    /// By number and id: the number of a message that is gone may be another's by now.
    wanted: Vec<(i64, MessageId)>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Contents {
    mid: i64,
    body: String,
    /// As JSON.
    attributes: Option<String>,
}

impl Operation for ReadContents {
    const SPEC: OperationSpec = read("ReadContents", &[Scope::QueuesReceive]);
    type Output = Vec<Contents>;

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Vec<Contents>>> {
        const CONTENTS: &str = "SELECT body, attributes FROM messages WHERE tenant = $1 AND mid = $2 AND id = $3";
        let mut found = Vec::with_capacity(self.wanted.len());
        for (mid, id) in &self.wanted {
            let params = [Value::from(*mid), id.as_bytes().into()];
            if let Some(row) = tx.query_opt(CONTENTS, &params).await? {
                let attributes = row.text_opt(1)?.map(str::to_owned);
                found.push(Contents { mid: *mid, body: row.text(0)?.to_owned(), attributes });
            }
        }
        Ok(Reply::Done(found))
    }
}

/// Fills in what a receive in `store` has left out. A message that has gone meanwhile is not shown. Answers with the turn in
/// which it was read, to be kept until there is room for the answer.
pub(crate) async fn complete(
    flow: &Flow<'_>,
    store: &Store,
    messages: &mut Vec<Message>,
    names: &[String],
) -> Result<Option<Share>> {
    let wanted: Vec<(i64, MessageId)> =
        messages.iter().filter_map(|message| Some((message.unread?, message.message_id))).collect();
    if wanted.is_empty() {
        return Ok(None);
    }
    let (reply, turn) = store.run_in_turn(ReadContents { wanted }, flow.caller.clone()).await?;
    let (Reply::Done(mut found) | Reply::Replay(mut found) | Reply::Empty { answer: mut found, .. }) = reply;
    let mut failure = None;
    messages.retain_mut(|message| {
        let Some(mid) = message.unread.take() else { return true };
        let Some(index) = found.iter().position(|contents| contents.mid == mid) else { return false };
        let Contents { body, attributes, .. } = found.swap_remove(index);
        if let Err(error) = message.fill(body, attributes.as_deref(), names) {
            failure = Some(error);
        }
        true
    });
    failure.map_or(Ok(turn), Err)
}

impl Message {
    /// What its sender wrote. Attributes are JSON; those that were asked for are shown.
    pub(crate) fn fill(&mut self, body: String, attributes: Option<&str>, names: &[String]) -> Result<()> {
        if let Some(text) = attributes.filter(|_| !names.is_empty()) {
            let all: MessageAttributes = serde_json::from_str(text).map_err(Error::internal)?;
            self.message_attributes = asked_for(all, names);
            self.md5_of_message_attributes = digest::of_attributes(&self.message_attributes);
        }
        self.body = body;
        Ok(())
    }
}
