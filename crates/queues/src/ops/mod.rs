//! One file per action of the SQS API.

pub mod create_queue;
pub mod delete_message;
pub mod get_queue_url;
pub mod receive_message;
pub mod send_message;

use waybill_kernel::{OperationSpec, Role, Scope};

use crate::NAME;

const ROLES: &[Role] = &[Role::Agent, Role::Worker, Role::Admin, Role::System];

/// A write that only the protocol of queues offers: no REST route, no tool.
const fn write(name: &'static str, scopes: &'static [Scope]) -> OperationSpec {
    OperationSpec { name, domain: NAME, tool: false, roles: ROLES, scopes, ..OperationSpec::WRITE }
}

const fn read(name: &'static str, scopes: &'static [Scope]) -> OperationSpec {
    OperationSpec { name, domain: NAME, tool: false, roles: ROLES, scopes, ..OperationSpec::READ }
}
