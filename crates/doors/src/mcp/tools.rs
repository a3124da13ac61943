//! Operations as MCP tools: their names, schemas, hints, order, and who is shown which.
//!
//! # The outside system
//! A tool's input schema must be of type `object` at the root. One of the output is optional, and ours would be half of
//! the list: what comes back is structured and says itself, and `/openapi.json` describes it. Hints tell a client when to
//! ask its user before a call; a missing hint means the careful reading (writes, destroys, not idempotent), and for a tool
//! that only reads the others mean nothing.

use std::sync::Arc;

use rmcp::model::{Tool, ToolAnnotations};
use waybill_kernel::{Caller, Mode, OperationSpec};
use waybill_store::{Entry, Registry};

use super::{ToolNames, schema};

/// Added to the output of a write that has been answered before: MCP's twin of the `X-Idempotent-Replay` header.
pub const REPLAY: &str = "idempotent_replay";

const PREFIX: &str = "asyncgate.";

struct Offer {
    entry: Arc<dyn Entry>,
    tool: Tool,
}

/// The tools of one endpoint. Schemas are made once, here, and not for every `tools/list`.
pub struct Toolbox(Vec<Offer>);

impl Toolbox {
    pub fn new(registry: &Registry, domain: Option<&'static str>, names: ToolNames) -> Self {
        let mut offers: Vec<_> = registry
            .entries()
            .filter(|entry| entry.spec().tool && domain.is_none_or(|domain| entry.spec().domain == domain))
            .map(|entry| Offer { entry: Arc::clone(entry), tool: tool(entry.as_ref(), names) })
            .collect();
        // Reads first: whoever tries the first tool of a list to see what happens changes nothing.
        offers.sort_by_key(|offer| offer.entry.spec().mode == Mode::Write);
        Self(offers)
    }

    /// What this caller may run. A tool it may not run can still be called, and says what is missing.
    pub fn shown_to(&self, caller: &Caller) -> Vec<Tool> {
        let allowed = self.0.iter().filter(|offer| offer.entry.spec().allows(caller));
        allowed.map(|offer| offer.tool.clone()).collect()
    }

    pub fn find(&self, name: &str) -> Option<&dyn Entry> {
        self.0.iter().find(|offer| offer.tool.name == name).map(|offer| offer.entry.as_ref())
    }
}

pub fn name(operation: &str, names: ToolNames) -> String {
    match names {
        ToolNames::Prefixed => format!("{PREFIX}{operation}"),
        ToolNames::Plain => operation.to_owned(),
    }
}

fn tool(entry: &dyn Entry, names: ToolNames) -> Tool {
    let spec = entry.spec();
    Tool::new(name(spec.name, names), spec.description, Arc::new(schema::input(entry.input_schema())))
        .with_title(spec.title)
        .with_annotations(hints(spec))
}

fn hints(spec: &OperationSpec) -> ToolAnnotations {
    let hints = ToolAnnotations::new().open_world(false);
    match spec.mode {
        Mode::Read => hints.read_only(true),
        Mode::Write => hints.destructive(spec.destructive).idempotent(spec.repeatable),
    }
}

#[cfg(test)]
mod tests {
    use schemars::JsonSchema;
    use serde::{Deserialize, Serialize};
    use serde_json::json;
    use waybill_kernel::id::Uuid;
    use waybill_kernel::{Example, Principal, PrincipalKind, Result, Role, Roles, Route, Scope, Scopes, Tenant};
    use waybill_store::{Ctx, Operation, Reply, Tx};

    use super::*;

    #[derive(Serialize, JsonSchema)]
    struct Output {
        status: String,
    }

    macro_rules! operation {
        ($type:ident $name:literal $domain:literal $mode:ident $role:ident $tool:literal) => {
            #[derive(Deserialize, JsonSchema)]
            #[serde(deny_unknown_fields)]
            #[expect(dead_code, reason = "only its schema is looked at")]
            struct $type {
                task_id: String,
            }

            impl Operation for $type {
                const SPEC: OperationSpec = OperationSpec {
                    name: $name,
                    domain: $domain,
                    route: Route::post(concat!("/v1/", $name)),
                    tool: $tool,
                    mode: Mode::$mode,
                    destructive: true,
                    repeatable: true,
                    relieves: false,
                    roles: &[Role::$role],
                    scopes: &[Scope::TasksRead, Scope::TasksWrite],
                    status: 200,
                    title: "A title",
                    description: "A description.",
                    example: Example::NONE,
                };
                type Output = Output;

                async fn run(&self, _: &Ctx<'_>, _: &mut Tx<'_>) -> Result<Reply<Output>> {
                    unreachable!("nothing runs here")
                }
            }
        };
    }

    operation!(Create "create_task" "tasks" Write Agent true);
    operation!(Cancel "cancel_task" "tasks" Write Agent true);
    operation!(Get "get_task" "tasks" Read Agent true);
    operation!(Inspect "inspect" "admin" Read Admin true);
    operation!(Hidden "hidden" "tasks" Read Agent false);

    fn toolbox(domain: Option<&'static str>, names: ToolNames) -> Toolbox {
        let registry = Registry::default().with::<Create>().with::<Cancel>().with::<Get>().with::<Inspect>();
        Toolbox::new(&registry.with::<Hidden>(), domain, names)
    }

    fn caller(role: Role) -> Caller {
        Caller {
            tenant: Tenant(1),
            tenant_id: Uuid::nil(),
            principal: Principal::new(PrincipalKind::Agent, "alice").unwrap(),
            roles: Roles::new([role]),
            scopes: Scopes::new([Scope::TasksRead]),
            key: None,
        }
    }

    fn shown(toolbox: &Toolbox, role: Role) -> Vec<String> {
        toolbox.shown_to(&caller(role)).iter().map(|tool| tool.name.to_string()).collect()
    }

    fn found(toolbox: &Toolbox, name: &str) -> Tool {
        toolbox.0.iter().find(|offer| offer.entry.spec().name == name).unwrap().tool.clone()
    }

    #[test]
    fn reads_come_first_and_each_caller_sees_its_own() {
        let all = toolbox(None, ToolNames::Plain);
        assert_eq!(shown(&all, Role::Agent), ["get_task", "create_task", "cancel_task"]);
        assert_eq!(shown(&all, Role::Admin), ["inspect"]);
        assert!(shown(&all, Role::Worker).is_empty());
        let tasks = toolbox(Some("tasks"), ToolNames::Plain);
        assert!(shown(&tasks, Role::Admin).is_empty());
        assert!(tasks.find("inspect").is_none());
    }

    #[test]
    fn a_tool_answers_to_the_name_in_its_list_and_to_no_other() {
        let prefixed = toolbox(None, ToolNames::Prefixed);
        assert_eq!(shown(&prefixed, Role::Agent)[0], "asyncgate.get_task");
        assert!(prefixed.find("asyncgate.get_task").is_some());
        assert!(prefixed.find("get_task").is_none());
        let plain = toolbox(None, ToolNames::Plain);
        assert!(plain.find("get_task").is_some());
        assert!(plain.find("asyncgate.get_task").is_none());
        // Not offered, though registered.
        assert!(plain.find("hidden").is_none());
        // Offered, though not shown: the driver says why it is refused.
        assert!(plain.find("inspect").is_some());
    }

    #[test]
    fn a_tool_carries_what_an_agent_needs() {
        let cancel = found(&toolbox(None, ToolNames::Prefixed), "cancel_task");
        assert_eq!(
            serde_json::to_value(cancel).unwrap(),
            json!({
                "name": "asyncgate.cancel_task",
                "title": "A title",
                "description": "A description.",
                "inputSchema": {
                    "type": "object",
                    "properties": { "task_id": { "type": "string" } },
                    "required": ["task_id"],
                },
                "annotations": {
                    "destructiveHint": true,
                    "idempotentHint": true,
                    "openWorldHint": false,
                },
            })
        );
    }
}
