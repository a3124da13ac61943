//! ReceiveMessage: up to ten messages, each invisible to others for a time. May wait for one.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Caller, Error, OperationSpec, Result, Scope, Time};
use waybill_store::{Ctx, Operation, Reply, Row, Tx, Until, Wait};

use super::write;
use crate::flights::{MESSAGES_MAX, Taken, Takes};
use crate::message::{Message, MessageAttributes, MessageId};
use crate::queue::{Queue, topic};
use crate::rules::contents::{self, TRACE_HEADER, Wanted};
use crate::rules::handle::{Handle, Token};
use crate::rules::names::queue_name;
use crate::rules::{check_range, digest};

const VISIBILITY_S_MAX: i64 = 43_200;
const WAIT_S_MAX: i64 = 20;
/// Times that a receive makes way for itself through messages that are no longer kept.
const ROUNDS_MAX: usize = 8;

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase")]
pub struct ReceiveMessage {
    #[serde(default)]
    pub queue_url: String,
    pub max_number_of_messages: Option<i64>,
    /// Takes the place of the queue's; 0 leaves the messages visible.
    pub visibility_timeout: Option<i64>,
    /// Without it the call waits for as long as the queue's own setting says.
    pub wait_time_seconds: Option<i64>,
    /// The older name of the list that follows.
    #[serde(default)]
    pub attribute_names: Vec<String>,
    #[serde(default)]
    pub message_system_attribute_names: Vec<String>,
    #[serde(default)]
    pub message_attribute_names: Vec<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "PascalCase")]
pub struct Received {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<Message>,
}

impl Operation for ReceiveMessage {
    const SPEC: OperationSpec = write("ReceiveMessage", &[Scope::QueuesReceive]);
    type Output = Received;

    fn wait(&self, caller: &Caller) -> Option<Wait> {
        // How long a queue wants to be waited for is known when it has been read.
        let seconds = self.wait_time_seconds.unwrap_or(WAIT_S_MAX);
        let seconds = Some(seconds).filter(|seconds| (0..=WAIT_S_MAX).contains(seconds))?;
        let name = queue_name(&self.queue_url).ok()?;
        Wait::up_to(u32::try_from(seconds).ok()?, topic(caller.tenant, name))
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Received>> {
        let (limit, wanted) = self.check()?;
        let queue = Queue::load(tx, &self.queue_url).await?;
        let timeout_s = self.visibility_timeout.unwrap_or_else(|| queue.attributes.visibility_timeout_s());
        let visible_at = ctx.now.after(Duration::from_secs(u64::try_from(timeout_s).unwrap_or(0)));
        let token: Token = ctx.ids.next().into_bytes();
        let mut takes = Takes::new(queue.part, ctx.now, token, visible_at);
        takes.refuse_crowd(tx).await?;

        let show = Show { request: self, wanted: &wanted, generation: queue.generation, token };
        let (messages, more) = show.gather(tx, &mut takes, limit, queue.kept_since(ctx.now)).await?;
        let mut until = Until::default();
        match (messages.is_empty(), more) {
            (false, _) => {}
            // Behind more expired messages than one receive deletes there may be others.
            (true, true) => until.look = Some(ctx.now),
            (true, false) => until.due = takes.next_due(tx).await?,
        }
        if self.wait_time_seconds.is_none() {
            until.at_most = Some(Duration::from_secs(u64::try_from(queue.attributes.wait_s()).unwrap_or(0)));
        }
        takes.tidy(tx).await?;
        let is_empty = messages.is_empty();
        let answer = Received { messages };
        Ok(if is_empty { Reply::Empty { answer, until } } else { Reply::Done(answer) })
    }
}

impl ReceiveMessage {
    fn check(&self) -> Result<(usize, Wanted)> {
        let limit = self.max_number_of_messages.unwrap_or(1);
        let limit = check_range("MaxNumberOfMessages", limit, 1, MESSAGES_MAX as i64)?;
        check_range("VisibilityTimeout", self.visibility_timeout.unwrap_or(0), 0, VISIBILITY_S_MAX)?;
        check_range("WaitTimeSeconds", self.wait_time_seconds.unwrap_or(0), 0, WAIT_S_MAX)?;
        let wanted = Wanted::checked(&self.attribute_names, &self.message_system_attribute_names)?;
        Ok((usize::try_from(limit).unwrap_or(1), wanted))
    }
}

/// How this receive shows messages.
struct Show<'a> {
    request: &'a ReceiveMessage,
    wanted: &'a Wanted,
    generation: i64,
    token: Token,
}

impl Show<'_> {
    /// Takes messages until there are enough or none are left; true when it gave up before that. What is no longer
    /// kept is deleted and does not count.
    async fn gather(
        &self,
        tx: &mut Tx<'_>,
        takes: &mut Takes,
        limit: usize,
        kept_since: Time,
    ) -> Result<(Vec<Message>, bool)> {
        let mut messages = Vec::new();
        for _ in 0..ROUNDS_MAX {
            let taken = takes.take(tx, limit - messages.len()).await?;
            if taken.is_empty() {
                return Ok((messages, false));
            }
            let rows = takes.fetch(tx, &taken).await?;
            let before = messages.len();
            let mut dropped = Vec::new();
            for taken in &taken {
                match find(&rows, taken.mid)? {
                    Some(row) if row.time(6)? > kept_since => messages.push(self.message(row, taken)?),
                    _ => dropped.push(taken.mid),
                }
            }
            if dropped.is_empty() {
                return Ok((messages, false));
            }
            takes.drop(tx, &dropped).await?;
            if messages.len() == before {
                takes.drop_expired(tx, kept_since).await?;
            }
            if messages.len() == limit {
                return Ok((messages, false));
            }
        }
        Ok((messages, true))
    }

    fn message(&self, row: &Row, taken: &Taken) -> Result<Message> {
        let attributes = match row.text_opt(4)? {
            Some(text) if !self.request.message_attribute_names.is_empty() => {
                let all: MessageAttributes = serde_json::from_str(text).map_err(Error::internal)?;
                contents::asked_for(all, &self.request.message_attribute_names)
            }
            _ => MessageAttributes::new(),
        };
        let handle = Handle { generation: self.generation, mid: taken.mid, token: self.token };
        Ok(Message {
            message_id: MessageId::from_slice(row.bytes(1)?)?,
            receipt_handle: handle.encode(),
            md5_of_body: digest::hex(row.bytes(3)?),
            body: row.text(2)?.to_owned(),
            attributes: self.system_attributes(row, taken)?,
            md5_of_message_attributes: digest::of_attributes(&attributes),
            message_attributes: attributes,
        })
    }

    fn system_attributes(&self, row: &Row, taken: &Taken) -> Result<BTreeMap<String, String>> {
        let all = [
            ("SenderId", Some(row.text(7)?.to_owned())),
            ("SentTimestamp", Some(millis(row.time(6)?))),
            ("ApproximateReceiveCount", Some(taken.receives.to_string())),
            ("ApproximateFirstReceiveTimestamp", Some(millis(taken.first_at))),
            ("MessageGroupId", row.text_opt(8)?.map(str::to_owned)),
            (TRACE_HEADER, row.text_opt(5)?.map(str::to_owned)),
        ];
        let shown = all.into_iter().filter(|(name, _)| self.wanted.has(name));
        Ok(shown.filter_map(|(name, value)| Some((name.to_owned(), value?))).collect())
    }
}

/// One of ten rows at most.
fn find(rows: &[Row], mid: i64) -> Result<Option<&Row>> {
    for row in rows {
        if row.int(0)? == mid {
            return Ok(Some(row));
        }
    }
    Ok(None)
}

fn millis(time: Time) -> String {
    (time.micros() / 1_000).to_string()
}
