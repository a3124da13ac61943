//! One file, one operation: its input, its output, its rule of access, and its SQL.

pub mod ack_receipt;
pub mod bootstrap;
pub mod cancel_task;
pub mod complete;
pub mod create_task;
pub mod export_chain;
pub mod fail;
pub mod follow_receipts;
pub mod get_config;
pub mod get_receipt;
pub mod get_task;
pub mod lease_next;
pub mod list_archived_receipts;
pub mod list_open_obligations;
pub mod list_receipts;
pub mod list_tasks;
pub mod renew_lease;
pub mod report_progress;
