//! How often the tools of mail were called since the server started, and how long they took.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Example, OperationSpec, Resource, Route};
use waybill_store::{Answered, Flow, Procedure, Reply};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GetToolMetrics {}

#[derive(Debug, Serialize, JsonSchema)]
pub struct ToolMetrics {
    /// Those that were called, by name.
    pub tools: Vec<ToolFigures>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct ToolFigures {
    pub name: &'static str,
    pub tool_calls_total: u64,
    pub tool_errors_total: u64,
    /// Of a call on average, with its wait for the database.
    pub tool_latency_us: u64,
}

impl Procedure for GetToolMetrics {
    const SPEC: OperationSpec = OperationSpec {
        name: "get_tool_metrics",
        route: Route::get("/v1/mail/tooling/metrics"),
        resources: &[Resource::at(
            "resource://tooling/metrics",
            "tooling-metrics",
            "How often each tool of mail was called on this server, and how long it took.",
        )],
        tool: false,
        title: "Show how tools are used",
        description: "Calls, errors and times of the tools of mail since this server started.",
        example: Example {
            arguments: "{}",
            answer: r#"{"tools": [{"name": "send_message", "tool_calls_total": 812, "tool_errors_total": 3,
                "tool_latency_us": 940}]}"#,
        },
        ..super::READ
    };
    type Output = ToolMetrics;

    async fn call(self, flow: &Flow<'_>) -> Answered<ToolMetrics> {
        let registry = super::registry();
        let known: Vec<&str> = registry.entries().map(|entry| entry.spec().name).collect();
        let mut tools: Vec<ToolFigures> = flow
            .home()
            .operations(crate::NAME)
            .into_iter()
            .filter(|figures| known.contains(&figures.name))
            .map(|figures| ToolFigures {
                name: figures.name,
                tool_calls_total: figures.calls,
                tool_errors_total: figures.errors,
                tool_latency_us: figures.total_us.checked_div(figures.calls).unwrap_or_default(),
            })
            .collect();
        tools.sort_by_key(|tool| tool.name);
        Ok((Reply::Done(ToolMetrics { tools }), None))
    }
}
