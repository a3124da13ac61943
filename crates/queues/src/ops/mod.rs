//! One file per action of the SQS API, and those of operators in a folder of their own.

pub mod add_permission;
pub mod cancel_message_move_task;
pub mod change_message_visibility;
pub mod change_message_visibility_batch;
pub mod create_queue;
pub mod delete_message;
pub mod delete_message_batch;
pub mod delete_queue;
pub mod get_queue_attributes;
pub mod get_queue_url;
pub mod list_dead_letter_source_queues;
pub mod list_message_move_tasks;
pub mod list_queue_tags;
pub mod list_queues;
pub mod operator;
pub mod purge_queue;
pub mod receive_message;
pub mod remove_permission;
pub mod send_message;
pub mod send_message_batch;
pub mod set_queue_attributes;
pub mod start_message_move_task;
pub mod tag_queue;
pub mod untag_queue;

pub use add_permission::AddPermission;
pub use cancel_message_move_task::CancelMessageMoveTask;
pub use change_message_visibility::ChangeMessageVisibility;
pub use change_message_visibility_batch::ChangeMessageVisibilityBatch;
pub use create_queue::{CreateQueue, Created};
pub use delete_message::DeleteMessage;
pub use delete_message_batch::DeleteMessageBatch;
pub use delete_queue::DeleteQueue;
pub use get_queue_attributes::GetQueueAttributes;
pub use get_queue_url::{Found, GetQueueUrl};
pub use list_dead_letter_source_queues::ListDeadLetterSourceQueues;
pub use list_message_move_tasks::ListMessageMoveTasks;
pub use list_queue_tags::ListQueueTags;
pub use list_queues::{ListQueues, QueueNames};
pub use purge_queue::PurgeQueue;
pub use receive_message::{BYTES_MAX as RECEIVED_BYTES_MAX, ReceiveMessage};
pub use remove_permission::RemovePermission;
pub use send_message::SendMessage;
pub use send_message_batch::SendMessageBatch;
pub use set_queue_attributes::SetQueueAttributes;
pub use start_message_move_task::StartMessageMoveTask;
pub use tag_queue::TagQueue;
pub use untag_queue::UntagQueue;
use waybill_kernel::{OperationSpec, Role, Scope};

use crate::NAME;
use crate::shards::all_at_home;

all_at_home! {
    CancelMessageMoveTask, GetQueueUrl, ListDeadLetterSourceQueues, ListMessageMoveTasks, ListQueueTags, ListQueues,
    TagQueue, UntagQueue,
}

const ROLES: &[Role] = &[Role::Agent, Role::Worker, Role::Admin, Role::System];

/// A write that only the protocol of queues offers: no REST route, no tool.
const fn write(name: &'static str, scopes: &'static [Scope]) -> OperationSpec {
    OperationSpec { name, domain: NAME, tool: false, roles: ROLES, scopes, ..OperationSpec::WRITE }
}

pub(crate) const fn read(name: &'static str, scopes: &'static [Scope]) -> OperationSpec {
    OperationSpec { name, domain: NAME, tool: false, roles: ROLES, scopes, ..OperationSpec::READ }
}
