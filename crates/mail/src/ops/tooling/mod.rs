//! What clients read about mail itself: which tools there are, what they take, how the server is set, how busy it is.

use waybill_kernel::OperationSpec;
use waybill_store::Registry;

pub mod get_environment;
pub mod get_locks;
pub mod get_tool_metrics;
pub mod get_tool_schemas;
pub mod list_tools;

pub(crate) use super::files::READ;

pub(crate) fn register(registry: Registry) -> Registry {
    registry
        .with::<get_environment::GetEnvironment>()
        .with::<list_tools::ListTools>()
        .with::<get_tool_schemas::GetToolSchemas>()
        .with::<get_tool_metrics::GetToolMetrics>()
        .with::<get_locks::GetLocks>()
}

/// Every operation of mail, as the registry has them.
fn registry() -> Registry {
    crate::register(Registry::default())
}

/// Whether agents are offered it.
fn is_tool(spec: &OperationSpec) -> bool {
    spec.tool && spec.domain == crate::NAME
}
