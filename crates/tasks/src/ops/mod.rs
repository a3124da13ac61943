//! One file, one operation: its input, its output, its rule of access, and its SQL.

pub mod cancel_task;
pub mod create_task;
pub mod get_task;
pub mod list_tasks;
