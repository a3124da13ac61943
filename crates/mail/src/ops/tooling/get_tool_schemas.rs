//! What the tools of mail take.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};
use waybill_kernel::{Error, Example, OperationSpec, Resource, Result, Route};
use waybill_store::{Ctx, Operation, Reply, Tx};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GetToolSchemas {
    /// Only of this tool.
    pub tool: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Schemas {
    /// JSON Schemas of the arguments, by the tool's name.
    pub schemas: Map<String, Json>,
}

impl Operation for GetToolSchemas {
    const SPEC: OperationSpec = OperationSpec {
        name: "get_tool_schemas",
        route: Route::get("/v1/mail/tooling/schemas"),
        resources: &[Resource::at(
            "resource://tooling/schemas{?tool}",
            "tooling-schemas",
            "What the tools of mail take, as JSON Schemas.",
        )],
        tool: false,
        title: "Show what tools take",
        description: "The JSON Schemas of the arguments of the tools of mail, or of one of them.",
        example: Example { arguments: r#"{"tool": "whois"}"#, answer: r#"{"schemas": {"whois": {"type": "object"}}}"# },
        ..super::READ
    };
    type Output = Schemas;

    async fn run(&self, ctx: &Ctx<'_>, _: &mut Tx<'_>) -> Result<Reply<Schemas>> {
        let wanted = |name: &str| self.tool.as_deref().is_none_or(|tool| tool == name);
        let mut schemas = Map::new();
        for entry in super::registry().entries() {
            let spec = entry.spec();
            if super::is_tool(spec) && spec.allows(ctx.caller) && wanted(spec.name) {
                schemas.insert(spec.name.to_owned(), entry.input_schema());
            }
        }
        if schemas.is_empty() {
            return Err(Error::not_found("tool"));
        }
        Ok(Reply::Done(Schemas { schemas }))
    }
}
