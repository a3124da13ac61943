//! Tasks: work that is handed over, and the receipts that prove who promised and who delivered.

pub mod ops;
pub mod receipts;
pub mod rules;
mod settings;
mod task;

pub use settings::Settings;
pub use task::{Outcome, Requirements, TaskId, TaskRecord};
use waybill_store::{Migration, Registry};

pub const MIGRATIONS: &[Migration] =
    &[Migration { version: 3, name: "tasks", sql: include_str!("../schema/V0003__tasks.sql") }];

pub fn register(registry: Registry) -> Registry {
    registry
        .with::<ops::create_task::CreateTask>()
        .with::<ops::get_task::GetTask>()
        .with::<ops::list_tasks::ListTasks>()
        .with::<ops::cancel_task::CancelTask>()
}
