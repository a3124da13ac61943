//! The actions of SQS: which operation each of them is, and what its answer looks like on the wire.

use std::collections::HashMap;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::Response;
use serde::Serialize;
use waybill_doors::{Answers, Body, Commons, Driver};
use waybill_kernel::{Caller, RequestId, Result};
use waybill_queues::ops::{
    AddPermission, CancelMessageMoveTask, ChangeMessageVisibility, ChangeMessageVisibilityBatch, CreateQueue, Created,
    DeleteMessage, DeleteMessageBatch, DeleteQueue, Found, GetQueueAttributes, GetQueueUrl, ListDeadLetterSourceQueues,
    ListMessageMoveTasks, ListQueueTags, ListQueues, PurgeQueue, QueueNames, RECEIVED_BYTES_MAX, ReceiveMessage,
    RemovePermission, SendMessage, SendMessageBatch, SetQueueAttributes, StartMessageMoveTask, TagQueue, UntagQueue,
};
use waybill_queues::shards::{OnShards, Placed};
use waybill_queues::{Meters, Tally, Traffic, check_account, queue_name};
use waybill_store::shares::Share;
use waybill_store::{Operation, Reply};

use crate::query::Params;
use crate::reply::Protocol;
use crate::urls::Urls;
use crate::{json, query};

/// Which messages an action has had to do with.
type Messages<A> = fn(&<A as Operation>::Output) -> Tally;

/// One action.
pub(crate) trait Action: OnShards {
    /// What is written, where the operation's own output does not say it all.
    type Answer: Serialize;

    /// The queue that a request is about, if it is about one.
    fn queue_url(&self) -> Option<&str> {
        None
    }

    /// What it does with messages, if it does, and with which.
    const TRAFFIC: Option<(Traffic, Messages<Self>)> = None;

    /// Room that there must be for its answer before anything is done: of what was taken and finds none nobody hears until its
    /// visibility ends. Not held, since the call may wait; 0 where answers are small or can be had again.
    const ROOM_BYTES: usize = 0;

    fn answer(output: Self::Output, urls: &Urls) -> Self::Answer;
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct QueueUrl {
    queue_url: String,
}

impl Action for CreateQueue {
    type Answer = QueueUrl;

    fn answer(output: Created, urls: &Urls) -> QueueUrl {
        QueueUrl { queue_url: urls.queue(&output.queue_name) }
    }
}

impl Action for GetQueueUrl {
    type Answer = QueueUrl;

    fn answer(output: Found, urls: &Urls) -> QueueUrl {
        QueueUrl { queue_url: urls.queue(&output.queue_name) }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct QueueUrls {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    queue_urls: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_token: Option<String>,
}

impl Action for ListQueues {
    type Answer = QueueUrls;

    fn answer(output: QueueNames, urls: &Urls) -> QueueUrls {
        QueueUrls { queue_urls: urls.queues(&output.queue_names), next_token: output.next_token }
    }
}

/// SQS writes the list of this one action with a small letter.
#[derive(Serialize)]
pub(crate) struct SourceQueueUrls {
    #[serde(rename = "queueUrls")]
    queue_urls: Vec<String>,
    #[serde(rename = "NextToken", skip_serializing_if = "Option::is_none")]
    next_token: Option<String>,
}

impl Action for ListDeadLetterSourceQueues {
    type Answer = SourceQueueUrls;

    fn queue_url(&self) -> Option<&str> {
        Some(&self.queue_url)
    }

    fn answer(output: QueueNames, urls: &Urls) -> SourceQueueUrls {
        SourceQueueUrls { queue_urls: urls.queues(&output.queue_names), next_token: output.next_token }
    }
}

/// Of operations whose output is the answer.
macro_rules! as_it_is {
    ($($operation:ident { $($item:item)* })+) => {
        $(impl Action for $operation {
            type Answer = <$operation as Operation>::Output;

            $($item)*

            fn answer(output: Self::Output, _: &Urls) -> Self::Output {
                output
            }
        })+
    };
}

/// Those that name a queue by its URL, and what they have done with which messages.
macro_rules! about_a_queue {
    ($($operation:ident $([$traffic:ident $tally:expr])?;)+) => {
        as_it_is! {
            $($operation {
                $(const TRAFFIC: Option<(Traffic, Messages<Self>)> = Some((Traffic::$traffic, $tally));)?

                fn queue_url(&self) -> Option<&str> {
                    Some(&self.queue_url)
                }
            })+
        }
    };
}

about_a_queue! {
    DeleteQueue;
    GetQueueAttributes;
    SetQueueAttributes;
    PurgeQueue;
    TagQueue;
    UntagQueue;
    ListQueueTags;
    AddPermission;
    RemovePermission;
    SendMessage [Send |sent| Tally::new(1, sent.partition)];
    SendMessageBatch [Send |batch| {
        Tally::new(batch.successful.len(), batch.successful.iter().filter_map(|entry| entry.sent.partition))
    }];
    DeleteMessage [Delete |deleted| deleted.tally.clone()];
    DeleteMessageBatch [Delete |batch| batch.tally.clone()];
    ChangeMessageVisibility;
    ChangeMessageVisibilityBatch;
}

as_it_is! {
    ReceiveMessage {
        const TRAFFIC: Option<(Traffic, Messages<Self>)> = Some((Traffic::Receive, |received| {
            Tally::new(received.messages.len(), received.messages.iter().filter_map(|message| message.partition))
        }));
        const ROOM_BYTES: usize = RECEIVED_BYTES_MAX;

        fn queue_url(&self) -> Option<&str> {
            Some(&self.queue_url)
        }
    }
    StartMessageMoveTask {}
    CancelMessageMoveTask {}
    ListMessageMoveTasks {}
}

/// A request on its way to its operation.
pub(crate) struct Asked<'a> {
    pub(crate) driver: &'a Driver,
    pub(crate) commons: &'a Commons,
    pub(crate) caller: &'a Caller,
    pub(crate) urls: Urls,
    pub(crate) meters: &'a Meters,
    pub(crate) form: Form<'a>,
    /// Of the body, until the call has been made.
    pub(crate) room: Option<Share>,
    pub(crate) id: &'a RequestId,
}

/// What came with it.
pub(crate) enum Form<'a> {
    Json(Bytes),
    Query(Params<'a>),
}

impl Form<'_> {
    fn read<A: Action>(&self) -> Result<A> {
        match self {
            Self::Json(bytes) => json::read(bytes),
            Self::Query(params) => query::read(A::SPEC.name, params),
        }
    }

    fn protocol(&self) -> Protocol {
        match self {
            Self::Json(_) => Protocol::Json,
            Self::Query(_) => Protocol::Query,
        }
    }
}

pub(crate) type Handler = for<'a> fn(Asked<'a>) -> BoxFuture<'a, Result<Response<Body>>>;

/// By their names.
pub(crate) fn all() -> HashMap<&'static str, Handler> {
    HashMap::from([
        entry::<CreateQueue>(),
        entry::<GetQueueUrl>(),
        entry::<ListQueues>(),
        entry::<DeleteQueue>(),
        entry::<GetQueueAttributes>(),
        entry::<SetQueueAttributes>(),
        entry::<PurgeQueue>(),
        entry::<TagQueue>(),
        entry::<UntagQueue>(),
        entry::<ListQueueTags>(),
        entry::<AddPermission>(),
        entry::<RemovePermission>(),
        entry::<SendMessage>(),
        entry::<SendMessageBatch>(),
        entry::<ReceiveMessage>(),
        entry::<DeleteMessage>(),
        entry::<DeleteMessageBatch>(),
        entry::<ChangeMessageVisibility>(),
        entry::<ChangeMessageVisibilityBatch>(),
        entry::<ListDeadLetterSourceQueues>(),
        entry::<StartMessageMoveTask>(),
        entry::<CancelMessageMoveTask>(),
        entry::<ListMessageMoveTasks>(),
    ])
}

fn entry<A: Action>() -> (&'static str, Handler) {
    (A::SPEC.name, |asked| Box::pin(call::<A>(asked)))
}

async fn call<A: Action>(asked: Asked<'_>) -> Result<Response<Body>> {
    let Asked { driver, commons, caller, urls, meters, form, room, id } = asked;
    let admitted = driver.admit(const { &A::SPEC }, caller)?;
    commons.look_for_room(caller, A::ROOM_BYTES)?;
    // The call may wait, and many may: what is not needed any more is not kept for them, nor room for it.
    let (request, protocol): (Box<A>, _) = (Box::new(form.read()?), form.protocol());
    drop(form);
    if let Some(url) = request.queue_url() {
        check_account(url, &urls.account)?;
    }
    let counted = A::TRAFFIC.zip(request.queue_url().and_then(|url| queue_name(url).ok()).map(str::to_owned));
    let (reply, turn) = admitted.run(Placed(*request)).await?;
    drop(room);
    let (Reply::Done(output) | Reply::Replay(output) | Reply::Empty { answer: output, .. }) = reply;
    if let Some(((traffic, tally), queue)) = counted {
        meters.count(&urls.account, &queue, traffic, &tally(&output));
    }
    let mut response = protocol.answer(A::SPEC.name, &A::answer(output, &urls), id)?;
    drop(turn);
    response.extensions_mut().insert(Answers(A::SPEC.name.into()));
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_action_of_sqs_is_there_once() {
        assert_eq!(all().len(), 23);
    }
}
