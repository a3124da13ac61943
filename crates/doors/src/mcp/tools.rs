//! Operations as MCP tools: their names, schemas, hints, order, and who is shown which.
//!
//! # The outside system
//! A tool's input schema must be of type `object` at the root. One of the output is optional, and ours would be half of
//! the list: what comes back is structured and says itself, and `/openapi.json` describes it. Hints tell a client when to
//! ask its user before a call; a missing hint means the careful reading (writes, destroys, not idempotent), and for a tool
//! that only reads the others mean nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use waybill_kernel::{Caller, Mode, OperationSpec, Profile};
use waybill_store::{Entry, Naming, Registry};

use super::schema::Said;
use super::{McpSettings, ToolNames, schema};

/// Added to the output of a write that has been answered before: MCP's twin of the `X-Idempotent-Replay` header.
pub const REPLAY: &str = "idempotent_replay";

const PREFIX: &str = "asyncgate.";

struct Offer {
    entry: Arc<dyn Entry>,
    /// As each profile lists it, in their order.
    tools: [Tool; Profile::ALL.len()],
    /// Of those who name none.
    profile: Profile,
}

/// The tools of one endpoint. Schemas are made once, here, and not for every `tools/list`.
pub struct Toolbox(Vec<Offer>);

/// Why a name is no tool.
pub enum Missing {
    Unknown,
    /// Another profile than this one has it.
    Outside(Profile),
}

impl Toolbox {
    pub fn new(registry: &Registry, domain: Option<&'static str>, settings: &McpSettings) -> Self {
        let namer = Namer::new(registry, domain, settings.tool_names);
        let mut entries: Vec<&Arc<dyn Entry>> = registry
            .entries()
            .filter(|entry| registry.is_tool(entry.spec()) && domain.is_none_or(|domain| entry.spec().domain == domain))
            .collect();
        // Reads first: whoever tries the first tool of a list to see what happens changes nothing.
        entries.sort_by_key(|entry| entry.spec().mode == Mode::Write);
        // By domain, since a caller may see one and not the other.
        let mut said: BTreeMap<&str, [Said; Profile::ALL.len()]> = BTreeMap::new();
        let offers = entries.into_iter().map(|entry| {
            let spec = entry.spec();
            let profile = settings.profiles.get(spec.domain).copied().unwrap_or_default();
            let said = said.entry(spec.domain).or_default();
            let listed =
                |listing: Profile| tool(entry.as_ref(), namer.name(spec), listing, &mut said[listing as usize]);
            Offer { entry: Arc::clone(entry), tools: Profile::ALL.map(listed), profile }
        });
        Self(offers.collect())
    }

    /// What this caller may run. A tool it may not run can still be called, and says what is missing.
    pub fn shown_to(&self, caller: &Caller, asked: Option<Profile>) -> Vec<Tool> {
        let shown = self.0.iter().filter(|offer| offer.is_in(asked) && offer.entry.spec().allows(caller));
        shown.map(|offer| offer.listed(asked).clone()).collect()
    }

    /// May this caller run anything of a domain?
    pub fn has_for(&self, caller: &Caller, domain: &str) -> bool {
        self.0.iter().map(|offer| offer.entry.spec()).any(|spec| spec.domain == domain && spec.allows(caller))
    }

    pub fn find(&self, name: &str, asked: Option<Profile>) -> Result<&dyn Entry, Missing> {
        let offer = self.0.iter().find(|offer| offer.listed(asked).name == name).ok_or(Missing::Unknown)?;
        if offer.is_in(asked) { Ok(offer.entry.as_ref()) } else { Err(Missing::Outside(offer.profile_of(asked))) }
    }
}

impl Offer {
    fn profile_of(&self, asked: Option<Profile>) -> Profile {
        asked.unwrap_or(self.profile)
    }

    fn listed(&self, asked: Option<Profile>) -> &Tool {
        &self.tools[self.profile_of(asked) as usize]
    }

    fn is_in(&self, asked: Option<Profile>) -> bool {
        self.entry.spec().profile <= self.profile_of(asked)
    }
}

/// What tools are called on the wire, at one endpoint.
pub struct Namer {
    domains: BTreeMap<&'static str, Naming>,
    /// The endpoint serves one domain.
    is_alone: bool,
    names: ToolNames,
}

impl Namer {
    pub fn new(registry: &Registry, domain: Option<&str>, names: ToolNames) -> Self {
        let named = registry.domains().filter_map(|domain| Some((domain.name, domain.mcp?.names)));
        Self { domains: named.collect(), is_alone: domain.is_some(), names }
    }

    pub fn name(&self, spec: &OperationSpec) -> String {
        let naming = self.domains.get(spec.domain).copied().unwrap_or(Naming::OfProtocol);
        match (naming, self.names) {
            (Naming::OfProtocol, ToolNames::Prefixed) => format!("{PREFIX}{}", spec.name),
            (Naming::OfProtocol, ToolNames::Plain) => spec.name.to_owned(),
            (Naming::OfDomain, _) if self.is_alone => spec.name.to_owned(),
            (Naming::OfDomain, ToolNames::Prefixed) => format!("{}.{}", spec.domain, spec.name),
            (Naming::OfDomain, ToolNames::Plain) => format!("{}_{}", spec.domain, spec.name),
        }
    }
}

/// `said` is what the profile's list has said of fields by now, of tools that are in it.
fn tool(entry: &dyn Entry, name: String, listing: Profile, said: &mut Said) -> Tool {
    let spec = entry.spec();
    let input = match listing {
        Profile::Full => schema::input(entry.input_schema()),
        Profile::Minimal | Profile::Core if spec.profile <= listing => schema::brief(entry.input_schema(), said),
        // Neither listed nor callable.
        Profile::Minimal | Profile::Core => JsonObject::new(),
    };
    Tool::new(name, spec.description, Arc::new(input)).with_title(spec.title).with_annotations(hints(spec))
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
    use waybill_kernel::{Principal, PrincipalKind, Result, Role, Roles, Route, Scope, Scopes, Tenant};
    use waybill_store::effects::Runner;
    use waybill_store::{Ctx, Domain, Mcp, Operation, Reply, Settings, Tx};

    use super::*;

    #[derive(Serialize, JsonSchema)]
    struct Output {
        status: String,
    }

    macro_rules! operation {
        ($type:ident $name:literal $domain:literal $mode:ident $role:ident $tool:literal $profile:ident) => {
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
                    route: Route::post(concat!("/v1/", $domain, "/", $name)),
                    tool: $tool,
                    profile: Profile::$profile,
                    mode: Mode::$mode,
                    destructive: true,
                    repeatable: true,
                    roles: &[Role::$role],
                    scopes: &[Scope::TasksRead, Scope::TasksWrite],
                    title: "A title",
                    description: "A description.",
                    ..OperationSpec::READ
                };
                type Output = Output;

                async fn run(&self, _: &Ctx<'_>, _: &mut Tx<'_>) -> Result<Reply<Output>> {
                    unreachable!("nothing runs here")
                }
            }
        };
    }

    operation!(Create "create_task" "tasks" Write Agent true Minimal);
    operation!(Cancel "cancel_task" "tasks" Write Agent true Minimal);
    operation!(Get "get_task" "tasks" Read Agent true Minimal);
    operation!(Inspect "inspect" "admin" Read Admin true Minimal);
    operation!(Hidden "hidden" "tasks" Read Agent false Minimal);
    operation!(Send "send" "mail" Write Agent true Minimal);
    operation!(Fetch "get_task" "mail" Read Agent true Core);
    operation!(Product "product" "mail" Read Agent true Full);

    fn sweeps(runner: Runner, _: &Settings) -> Runner {
        runner
    }

    const TASKS: Domain = Domain {
        name: "tasks",
        title: "Tasks",
        mcp: Some(Mcp { names: Naming::OfProtocol, instructions: "", ignored: &[], typed_errors: false }),
        migrations: &[],
        register: |registry| registry.with::<Create>().with::<Cancel>().with::<Get>().with::<Hidden>(),
        sweeps,
        audit: &[],
        on_shards: false,
    };

    const MAIL: Domain = Domain {
        name: "mail",
        title: "Mail",
        mcp: Some(Mcp { names: Naming::OfDomain, instructions: "", ignored: &[], typed_errors: false }),
        register: |registry| registry.with::<Send>().with::<Fetch>().with::<Product>(),
        ..TASKS
    };

    fn toolbox(domain: Option<&'static str>, names: ToolNames) -> Toolbox {
        toolbox_with(domain, &McpSettings { tool_names: names, ..McpSettings::default() })
    }

    fn toolbox_with(domain: Option<&'static str>, settings: &McpSettings) -> Toolbox {
        Toolbox::new(&registry(), domain, settings)
    }

    fn registry() -> Registry {
        Registry::default().with_domain(&TASKS).with::<Inspect>().with_domain(&MAIL)
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
        shown_in(toolbox, role, None)
    }

    fn shown_in(toolbox: &Toolbox, role: Role, profile: Option<Profile>) -> Vec<String> {
        toolbox.shown_to(&caller(role), profile).iter().map(|tool| tool.name.to_string()).collect()
    }

    fn found(toolbox: &Toolbox, name: &str) -> Tool {
        toolbox.0.iter().find(|offer| offer.entry.spec().name == name).unwrap().listed(None).clone()
    }

    #[test]
    fn reads_come_first_and_each_caller_sees_its_own() {
        let tasks = toolbox(Some("tasks"), ToolNames::Plain);
        assert_eq!(shown(&tasks, Role::Agent), ["get_task", "create_task", "cancel_task"]);
        assert!(shown(&tasks, Role::Admin).is_empty());
        assert!(tasks.find("inspect", None).is_err());
        let all = toolbox(None, ToolNames::Plain);
        assert_eq!(shown(&all, Role::Admin), ["inspect"]);
        assert!(shown(&all, Role::Worker).is_empty());
        assert!(all.has_for(&caller(Role::Agent), "mail") && !all.has_for(&caller(Role::Admin), "mail"));
    }

    #[test]
    fn a_tool_answers_to_the_name_in_its_list_and_to_no_other() {
        let prefixed = toolbox(None, ToolNames::Prefixed);
        assert_eq!(shown(&prefixed, Role::Agent)[0], "asyncgate.get_task");
        assert!(prefixed.find("asyncgate.get_task", None).is_ok());
        assert!(prefixed.find("get_task", None).is_err());
        let plain = toolbox(None, ToolNames::Plain);
        assert!(plain.find("get_task", None).is_ok());
        assert!(plain.find("asyncgate.get_task", None).is_err());
        // Not offered, though registered.
        assert!(plain.find("hidden", None).is_err());
        // Offered, though not shown: the driver says why it is refused.
        assert!(plain.find("inspect", None).is_ok());
    }

    #[test]
    fn a_domain_that_keeps_its_names_has_them_plain_alone_and_prefixed_among_others() {
        let alone = toolbox(Some("mail"), ToolNames::Prefixed);
        assert_eq!(shown(&alone, Role::Agent), ["get_task", "send"]);
        let all = toolbox(None, ToolNames::Prefixed);
        let names =
            ["asyncgate.get_task", "mail.get_task", "asyncgate.create_task", "asyncgate.cancel_task", "mail.send"];
        assert_eq!(shown(&all, Role::Agent), names);
        // The same name in two domains leads to two operations.
        let domain = |name: &str| all.find(name, None).ok().map(|entry| entry.spec().domain);
        assert_eq!((domain("asyncgate.get_task"), domain("mail.get_task")), (Some("tasks"), Some("mail")));
        // For clients that refuse a dot.
        let plain = toolbox(None, ToolNames::Plain);
        assert_eq!(
            shown(&plain, Role::Agent),
            ["get_task", "mail_get_task", "create_task", "cancel_task", "mail_send"]
        );
    }

    #[test]
    fn an_operation_is_found_by_its_id_and_by_its_domain_and_name() {
        let registry = registry();
        let domain = |name: &str| registry.find(name).map(|entry| entry.spec().domain);
        assert_eq!((domain("get_task"), domain("tasks.get_task")), (Some("tasks"), Some("tasks")));
        assert_eq!((domain("mail.get_task"), domain("send")), (Some("mail"), Some("mail")));
        assert_eq!((domain("mail.create_task"), domain("nothing")), (None, None));
        let id = |name: &str| registry.find(name).map(|entry| registry.id(entry.spec()).into_owned());
        assert_eq!((id("send"), id("get_task")), (Some("mail.send".to_owned()), Some("get_task".to_owned())));
    }

    #[test]
    #[should_panic(expected = "mail.send is registered twice")]
    fn a_name_is_given_once_in_a_domain() {
        let _ = registry().with::<Send>();
    }

    #[test]
    fn a_profile_says_what_is_listed_and_what_can_be_called() {
        let mail = toolbox(Some("mail"), ToolNames::Prefixed);
        for (profile, names) in [
            (None, &["get_task", "send"][..]),
            (Some(Profile::Minimal), &["send"]),
            (Some(Profile::Core), &["get_task", "send"]),
            (Some(Profile::Full), &["get_task", "product", "send"]),
        ] {
            assert_eq!(shown_in(&mail, Role::Agent, profile), names, "{profile:?}");
            for name in ["get_task", "product", "send"] {
                assert_eq!(mail.find(name, profile).is_ok(), names.contains(&name), "{profile:?} {name}");
            }
        }
        assert!(matches!(mail.find("product", None), Err(Missing::Outside(Profile::Core))));
        // The operator's word holds where the client says none.
        let profiles = [("mail".to_owned(), Profile::Minimal)].into();
        let set = toolbox_with(None, &McpSettings { profiles, ..McpSettings::default() });
        assert!(!shown(&set, Role::Agent).contains(&"mail.get_task".to_owned()));
        assert!(shown(&set, Role::Agent).contains(&"asyncgate.get_task".to_owned()));
        assert!(shown_in(&set, Role::Agent, Some(Profile::Full)).contains(&"mail.product".to_owned()));
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
