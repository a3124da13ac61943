//! What operators do with queues over REST, MCP and the command line, beside the actions of SQS. Where SQS has an action
//! for it, that action does the work: there is one set of rules and one way of writing.

pub mod cancel_redrive;
pub mod create_queue;
pub mod get_queue;
pub mod list_queues;
pub mod list_redrives;
pub mod peek_messages;
pub mod purge_queue;
pub mod set_queue_attributes;
pub mod start_redrive;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;
use waybill_kernel::{Error, OperationSpec, Result, Route, Scope};
use waybill_store::{Ctx, Operation, Registry, Reply, Tx};

use super::get_queue_attributes::GetQueueAttributes;
use crate::counts::Counts;
use crate::rules::attributes::{ARN, CREATED, MESSAGES, MESSAGES_DELAYED, MESSAGES_NOT_VISIBLE, MODIFIED};
use crate::rules::names::{is_name, unknown_queue};
use crate::shards::{Placed, all_at_home};

/// Whoever uses queues may know what there is.
const ANY: &[Scope] = &[Scope::QueuesSend, Scope::QueuesReceive, Scope::QueuesManage];
/// Whoever may receive a message may look at it.
const LOOK: &[Scope] = &[Scope::QueuesReceive, Scope::QueuesManage];
const MANAGE: &[Scope] = &[Scope::QueuesManage];

/// In the order in which they are shown.
pub(crate) fn register(registry: Registry) -> Registry {
    registry
        .with::<Placed<list_queues::ListQueues>>()
        .with::<Placed<create_queue::CreateQueue>>()
        .with::<Placed<get_queue::GetQueue>>()
        .with::<Placed<set_queue_attributes::SetQueueAttributes>>()
        .with::<Placed<peek_messages::PeekMessages>>()
        .with::<Placed<purge_queue::PurgeQueue>>()
        .with::<Placed<start_redrive::StartRedrive>>()
        .with::<Placed<list_redrives::ListRedrives>>()
        .with::<Placed<cancel_redrive::CancelRedrive>>()
}

all_at_home! { cancel_redrive::CancelRedrive, list_redrives::ListRedrives }

const fn read(name: &'static str, route: Route, scopes: &'static [Scope]) -> OperationSpec {
    OperationSpec { route, ..super::read(name, scopes) }
}

const fn write(name: &'static str, route: Route) -> OperationSpec {
    OperationSpec { route, ..super::write(name, MANAGE) }
}

/// How many messages a queue has. Exact while nothing is being sent or received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct Depth {
    /// Could be received now.
    pub visible: i64,
    /// Received, and not yet visible again.
    pub in_flight: i64,
    /// Never received, and not yet visible.
    pub delayed: i64,
}

impl Depth {
    /// Of two stores together.
    pub(crate) fn and(self, more: Self) -> Self {
        Self {
            visible: self.visible + more.visible,
            in_flight: self.in_flight + more.in_flight,
            delayed: self.delayed + more.delayed,
        }
    }
}

impl From<Counts> for Depth {
    fn from(counts: Counts) -> Self {
        Self { visible: counts.visible, in_flight: counts.not_visible, delayed: counts.delayed }
    }
}

/// An operator names a queue by its name alone.
fn named(queue: &str) -> Result<&str> {
    if is_name(queue) { Ok(queue) } else { Err(unknown_queue(queue)) }
}

/// The answer of an SQS action that runs as a part of another operation.
async fn answer<O: Operation>(ctx: &Ctx<'_>, tx: &mut Tx<'_>, action: &O) -> Result<O::Output> {
    match action.run(ctx, tx).await? {
        Reply::Done(answer) | Reply::Replay(answer) | Reply::Empty { answer, .. } => Ok(answer),
    }
}

/// What GetQueueAttributes shows of a queue, told apart.
struct Shown {
    arn: String,
    depth: Depth,
    /// Those that can be set, and have a value.
    attributes: BTreeMap<String, String>,
}

impl Shown {
    async fn load(ctx: &Ctx<'_>, tx: &mut Tx<'_>, name: &str) -> Result<Self> {
        let all = GetQueueAttributes { queue_url: name.to_owned(), attribute_names: vec!["All".to_owned()] };
        let mut attributes = answer(ctx, tx, &all).await?.attributes;
        let mut take = |name: &str| attributes.remove(name).unwrap_or_default();
        let arn = take(ARN);
        let [visible, in_flight, delayed] = [MESSAGES, MESSAGES_NOT_VISIBLE, MESSAGES_DELAYED].map(&mut take);
        let _ = [CREATED, MODIFIED].map(&mut take);
        let number = |text: String| text.parse::<i64>().map_err(Error::internal);
        let depth = Depth { visible: number(visible)?, in_flight: number(in_flight)?, delayed: number(delayed)? };
        Ok(Self { arn, depth, attributes })
    }
}
