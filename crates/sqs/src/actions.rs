//! The actions of SQS: which operation each of them is, and what its answer looks like on the wire.

use std::collections::HashMap;

use futures_util::future::BoxFuture;
use http::Response;
use serde::Serialize;
use waybill_doors::{Answers, Body, Driver, Read, RequestId};
use waybill_kernel::{Caller, Result};
use waybill_queues::check_account;
use waybill_queues::ops::create_queue::{CreateQueue, Created};
use waybill_queues::ops::delete_message::{DeleteMessage, Deleted};
use waybill_queues::ops::get_queue_url::{Found, GetQueueUrl};
use waybill_queues::ops::receive_message::{ReceiveMessage, Received};
use waybill_queues::ops::send_message::{SendMessage, Sent};
use waybill_store::{Operation, Reply};

use crate::json;
use crate::urls::Urls;

/// One action.
pub(crate) trait Action: Operation {
    /// What is written, where the operation's own output does not say it all.
    type Answer: Serialize;

    /// The queue that a request is about, if it is about one.
    fn queue_url(&self) -> Option<&str> {
        None
    }

    /// What follows from the request alone, before a transaction is taken for it.
    fn check(&self) -> Result<()> {
        Ok(())
    }

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

/// Of an operation whose output is the answer.
macro_rules! as_it_is {
    ($($operation:ident -> $output:ident $({ $check:item })?;)+) => {
        $(impl Action for $operation {
            type Answer = $output;

            fn queue_url(&self) -> Option<&str> {
                Some(&self.queue_url)
            }

            $($check)?

            fn answer(output: $output, _: &Urls) -> $output {
                output
            }
        })+
    };
}

as_it_is! {
    SendMessage -> Sent {
        fn check(&self) -> Result<()> {
            self.checked().map(drop)
        }
    };
    ReceiveMessage -> Received;
    DeleteMessage -> Deleted;
}

/// A request on its way to its operation.
pub(crate) struct Asked<'a> {
    pub(crate) driver: &'a Driver,
    pub(crate) caller: &'a Caller,
    pub(crate) urls: Urls,
    pub(crate) read: Read,
    pub(crate) id: &'a RequestId,
}

type Handler = for<'a> fn(Asked<'a>) -> BoxFuture<'a, Result<Response<Body>>>;

/// By their names.
pub(crate) fn all() -> HashMap<&'static str, Handler> {
    HashMap::from([
        entry::<CreateQueue>(),
        entry::<GetQueueUrl>(),
        entry::<SendMessage>(),
        entry::<ReceiveMessage>(),
        entry::<DeleteMessage>(),
    ])
}

fn entry<A: Action>() -> (&'static str, Handler) {
    (A::SPEC.name, |asked| Box::pin(call::<A>(asked)))
}

async fn call<A: Action>(asked: Asked<'_>) -> Result<Response<Body>> {
    let Asked { driver, caller, urls, read: Read { bytes, room }, id } = asked;
    let admitted = driver.admit(const { &A::SPEC }, caller)?;
    let request: A = json::read(&bytes)?;
    // The call may wait, and many may: what is not needed any more is not kept for them.
    drop(bytes);
    if let Some(url) = request.queue_url() {
        check_account(url, &urls.account)?;
    }
    request.check()?;
    let (reply, turn) = admitted.run(request).await?;
    drop(room);
    let (Reply::Done(output) | Reply::Replay(output) | Reply::Empty { answer: output, .. }) = reply;
    let mut response = json::answer(&A::answer(output, &urls), id)?;
    drop(turn);
    response.extensions_mut().insert(Answers(A::SPEC.name));
    Ok(response)
}
