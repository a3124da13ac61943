//! The tools of mail and what each is for.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Example, Mode, OperationSpec, Resource, Result, Route};
use waybill_store::{Ctx, Operation, Reply, Tx};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListTools {}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Directory {
    pub tools: Vec<ToolView>,
    /// Addresses that can be read.
    pub resources: Vec<ResourceView>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct ToolView {
    pub name: &'static str,
    pub title: &'static str,
    pub description: &'static str,
    /// The smallest profile that has it.
    pub profile: &'static str,
    pub writes: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct ResourceView {
    pub address: &'static str,
    pub description: &'static str,
}

impl Operation for ListTools {
    const SPEC: OperationSpec = OperationSpec {
        name: "list_tools",
        route: Route::get("/v1/mail/tooling/directory"),
        resources: &[Resource::at(
            "resource://tooling/directory",
            "tooling-directory",
            "The tools and resources of mail, and what each is for.",
        )],
        tool: false,
        title: "List the tools of mail",
        description: "The tools and resources of mail, with the smallest profile that has each tool.",
        example: Example {
            arguments: "{}",
            answer: r#"{"tools": [{"name": "send_message", "title": "Send a message", "description": "Writes to …",
                "profile": "minimal", "writes": true}], "resources": [{"address": "resource://projects",
                "description": "The tenant's projects."}]}"#,
        },
        ..super::READ
    };
    type Output = Directory;

    async fn run(&self, ctx: &Ctx<'_>, _: &mut Tx<'_>) -> Result<Reply<Directory>> {
        let (mut tools, mut resources) = (Vec::new(), Vec::new());
        for entry in super::registry().entries() {
            let spec = entry.spec();
            if !spec.allows(ctx.caller) {
                continue;
            }
            if super::is_tool(spec) {
                tools.push(ToolView {
                    name: spec.name,
                    title: spec.title,
                    description: spec.description,
                    profile: spec.profile.as_str(),
                    writes: spec.mode == Mode::Write,
                });
            }
            let shown =
                |resource: &Resource| ResourceView { address: resource.template, description: resource.description };
            resources.extend(spec.resources.iter().map(shown));
        }
        Ok(Reply::Done(Directory { tools, resources }))
    }
}
