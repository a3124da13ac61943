//! Tasks: work that is handed over, and the receipts that prove who promised and who delivered.

pub mod actor;
mod anomaly;
pub mod audit;
mod cron;
mod figures;
mod lease;
mod lines;
mod metrics;
mod misuse;
mod needs;
pub mod ops;
mod outcome;
mod process;
pub mod receipts;
mod relationship;
pub mod rules;
mod schedules;
mod settings;
pub mod sweeps;
mod task;

pub use figures::measure;
pub use lease::LeaseId;
pub use process::Process;
pub use settings::Settings;
pub use task::{Outcome, Requirements, TaskId, TaskRecord};
use waybill_store::effects::{Follow, Runner};
use waybill_store::{Domain, Mcp, Migration, Naming, Registry};

pub const DOMAIN: Domain = Domain {
    name: "tasks",
    title: "Tasks",
    mcp: Some(Mcp { names: Naming::OfProtocol, instructions: INSTRUCTIONS, ignored: &[], typed_errors: false }),
    migrations: MIGRATIONS,
    register,
    sweeps: start_sweeps,
    audit: audit::RULES,
    on_shards: false,
};

const INSTRUCTIONS: &str = "Waybill hands work to others and keeps it safe. A task is a piece of work that a worker takes \
    and answers later, maybe long after this conversation; whatever crashes in between, it ends exactly once, as \
    succeeded, failed or canceled.\n\
    1. `{create_task}` hands work over and returns a task_id at once. Give it an idempotency_key that follows from the \
    work (such as \"invoice-4711-check\"): when you do not know whether a call arrived, send it again with the same key, \
    and you get the task that exists instead of a second one.\n\
    2. `{get_task}` with wait_seconds returns as soon as the task has ended or the time is up. While the task is still \
    open, call it again; no pause between calls is needed.\n\
    3. `{list_tasks}` finds your tasks again. `{cancel_task}` ends one that nobody needs any more.\n\
    A failed call says what happened (error, message) and what to do about it (help).";

const MIGRATIONS: &[Migration] = &[
    Migration { version: 3, name: "tasks", sql: include_str!("../schema/V0003__tasks.sql") },
    Migration { version: 6, name: "relationships", sql: include_str!("../schema/V0006__relationships.sql") },
    Migration { version: 7, name: "sweeps", sql: include_str!("../schema/V0007__sweeps.sql") },
    Migration { version: 8, name: "archive", sql: include_str!("../schema/V0008__archive.sql") },
    Migration { version: 9, name: "misuses", sql: include_str!("../schema/V0009__misuses.sql") },
    Migration { version: 11, name: "lines", sql: include_str!("../schema/V0011__lines.sql") },
    Migration { version: 12, name: "cron_watch", sql: include_str!("../schema/V0012__cron_watch.sql") },
    Migration { version: 13, name: "contract", sql: include_str!("../schema/V0013__contract.sql") },
    Migration { version: 75, name: "receipts_by_order", sql: include_str!("../schema/V0075__receipts_by_order.sql") },
];

fn start_sweeps(runner: Runner, settings: &waybill_store::Settings) -> Runner {
    let settings: &Settings = settings.get();
    runner
        .with(sweeps::ExpiredLeases::new(settings))
        .with(sweeps::Anomalies::new(settings))
        .with(Follow(sweeps::Seal::new(settings)))
        .with(sweeps::Archive::new(settings))
}

fn register(registry: Registry) -> Registry {
    registry
        .with::<ops::create_task::CreateTask>()
        .with::<ops::get_task::GetTask>()
        .with::<ops::list_tasks::ListTasks>()
        .with::<ops::cancel_task::CancelTask>()
        .with::<ops::lease_next::LeaseNext>()
        .with::<ops::renew_lease::RenewLease>()
        .with::<ops::report_progress::ReportProgress>()
        .with::<ops::complete::Complete>()
        .with::<ops::fail::Fail>()
        .with::<ops::list_open_obligations::ListOpenObligations>()
        .with::<ops::list_receipts::ListReceipts>()
        .with::<ops::get_receipt::GetReceipt>()
        .with::<ops::ack_receipt::AckReceipt>()
        .with::<ops::get_config::GetConfig>()
        .with::<ops::bootstrap::Bootstrap>()
        .with::<ops::export_chain::ExportChain>()
        .with::<ops::list_archived_receipts::ListArchivedReceipts>()
        .with_stream::<ops::follow_receipts::FollowReceipts>()
}
