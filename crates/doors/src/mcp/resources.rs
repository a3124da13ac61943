//! Reads of the registry as MCP resources: which addresses there are, who is shown which, and what an address asks for.
//!
//! # The outside system
//! `resources/list` names what can be read as it stands, `resources/templates/list` URI templates (RFC 6570) for a client to
//! fill, and `resources/read` takes one address of either kind. A failed read is a protocol error: a resource has no other
//! way to say no.

use std::sync::Arc;

use rmcp::model;
use serde_json::Value as Json;
use waybill_kernel::{Caller, Error, Resource, Result};
use waybill_store::{Entry, Registry};

use crate::address::{self, Input, Kinds};

pub(super) const MIME: &str = "application/json";

/// No field of an operation is near as long in an address.
const URI_BYTES_MAX: usize = 8 << 10;

struct Offer {
    entry: Arc<dyn Entry>,
    resource: &'static Resource,
    kinds: Kinds,
    /// Fields of a query that mean nothing here, and are no mistake.
    ignored: &'static [&'static str],
}

/// The resources of one endpoint.
pub(super) struct Shelf(Vec<Offer>);

/// An address that leads to an operation.
pub(super) struct Found<'a> {
    offer: &'a Offer,
    uri: &'a str,
}

impl Shelf {
    /// # Panics
    /// When a template names what its operation has no field for.
    pub(super) fn new(registry: &Registry, domain: Option<&'static str>) -> Self {
        let mut offers = Vec::new();
        for entry in registry.entries().filter(|entry| domain.is_none_or(|domain| entry.spec().domain == domain)) {
            let known = registry.domains().find(|known| known.name == entry.spec().domain);
            let ignored = known.and_then(|known| known.mcp).map_or(&[][..], |mcp| mcp.ignored);
            for resource in entry.spec().resources {
                let kinds = Kinds::of(&entry.input_schema());
                for field in fields(resource) {
                    assert!(kinds.knows(field), "{} has no field {field}", entry.spec().name);
                }
                offers.push(Offer { entry: Arc::clone(entry), resource, kinds, ignored });
            }
        }
        Self(offers)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What this caller may read as it stands.
    pub(super) fn listed_for(&self, caller: &Caller) -> Vec<model::Resource> {
        let whole = self.allowed(caller).filter(|resource| !resource.path().contains('{'));
        whole
            .map(|resource| {
                let listed = model::Resource::new(resource.path(), resource.name);
                listed.with_description(resource.description).with_mime_type(MIME)
            })
            .collect()
    }

    /// What this caller may fill and read.
    pub(super) fn templates_for(&self, caller: &Caller) -> Vec<model::ResourceTemplate> {
        let variable = self.allowed(caller).filter(|resource| resource.template.contains('{'));
        variable
            .map(|resource| {
                let template = model::ResourceTemplate::new(resource.template, resource.name);
                template.with_description(resource.description).with_mime_type(MIME)
            })
            .collect()
    }

    fn allowed(&self, caller: &Caller) -> impl Iterator<Item = &'static Resource> {
        self.0.iter().filter(|offer| offer.entry.spec().allows(caller)).map(|offer| offer.resource)
    }

    pub(super) fn find<'a>(&'a self, uri: &'a str) -> Option<Found<'a>> {
        if uri.len() > URI_BYTES_MAX {
            return None;
        }
        let path = uri.split_once('?').map_or(uri, |(path, _)| path);
        let offer = self.0.iter().find(|offer| address::fits(offer.resource.path(), path))?;
        Some(Found { offer, uri })
    }
}

impl<'a> Found<'a> {
    pub(super) fn entry(&self) -> &'a dyn Entry {
        self.offer.entry.as_ref()
    }

    /// The object of arguments that the address stands for.
    pub(super) fn input(&self) -> Result<String> {
        self.arguments().map_err(|error| self.explained(error))
    }

    /// The error names fields of the operation, so it says beside them what the address may have.
    pub(super) fn explained(&self, error: Error) -> Error {
        error.with("template", self.offer.resource.template)
    }

    fn arguments(&self) -> Result<String> {
        let Offer { resource, kinds, ignored, .. } = self.offer;
        let (path, query) = self.uri.split_once('?').unwrap_or((self.uri, ""));
        let mut input = Input::default();
        for (field, json) in resource.fixed {
            let value: Json = serde_json::from_str(json).map_err(Error::internal)?;
            input.add(field, &value)?;
        }
        for (name, text) in address::path_fields(resource.path(), path)? {
            let field = resource.field(name);
            input.add(field, &kinds.value(field, text))?;
        }
        for (name, text) in address::query_fields(query)? {
            let Some(known) = resource.query().find(|known| *known == name) else {
                if ignored.iter().any(|ignored| *ignored == name) {
                    continue;
                }
                let shown: String = name.chars().take(64).collect();
                return Err(Error::invalid(format!("This resource has no field {shown:?} in its query.")));
            };
            let field = resource.field(known);
            input.add(field, &kinds.value(field, text))?;
        }
        Ok(input.text())
    }
}

/// Every field of the input that a resource writes.
fn fields(resource: &'static Resource) -> impl Iterator<Item = &'static str> {
    let in_path = resource.path().split('/').filter_map(address::variable);
    let named = in_path.chain(resource.query()).map(|name| resource.field(name));
    named.chain(resource.fixed.iter().map(|(field, _)| *field))
}

#[cfg(test)]
mod tests {
    use schemars::JsonSchema;
    use serde::{Deserialize, Serialize};
    use serde_json::json;
    use waybill_kernel::id::Uuid;
    use waybill_kernel::{Code, OperationSpec, Principal, PrincipalKind, Role, Roles, Route, Scope, Scopes, Tenant};
    use waybill_store::{Ctx, Domain, Mcp, Naming, Operation, Reply, Tx};

    use super::*;

    #[derive(Serialize, JsonSchema)]
    struct Output {}

    #[derive(Deserialize, JsonSchema)]
    #[expect(dead_code, reason = "only its schema is looked at")]
    struct Inbox {
        project_key: String,
        agent_name: String,
        #[serde(default)]
        urgent_only: bool,
        #[serde(default)]
        limit: Option<u32>,
    }

    const NAMES: &[(&str, &str)] = &[("agent", "agent_name"), ("project", "project_key")];

    impl Operation for Inbox {
        const SPEC: OperationSpec = OperationSpec {
            name: "inbox",
            domain: "mail",
            route: Route::get("/v1/inbox"),
            resources: &[
                Resource {
                    renamed: NAMES,
                    ..Resource::at("resource://inbox/{agent}{?project,urgent_only,limit}", "inbox", "An inbox.")
                },
                Resource {
                    renamed: NAMES,
                    fixed: &[("urgent_only", "true")],
                    ..Resource::at("resource://views/urgent/{agent}{?project}", "urgent", "What is urgent in it.")
                },
            ],
            roles: &[Role::Agent],
            scopes: &[Scope::TasksRead],
            ..OperationSpec::READ
        };
        type Output = Output;

        async fn run(&self, _: &Ctx<'_>, _: &mut Tx<'_>) -> Result<Reply<Output>> {
            unreachable!("nothing runs here")
        }
    }

    #[derive(Deserialize, JsonSchema)]
    #[expect(dead_code, reason = "only its schema is looked at")]
    struct Projects {
        #[serde(default)]
        limit: Option<u32>,
    }

    impl Operation for Projects {
        const SPEC: OperationSpec = OperationSpec {
            name: "projects",
            domain: "tasks",
            route: Route::get("/v1/projects"),
            resources: &[Resource::at("resource://projects{?limit}", "projects", "All projects.")],
            roles: &[Role::Admin],
            scopes: &[Scope::TasksRead],
            ..OperationSpec::READ
        };
        type Output = Output;

        async fn run(&self, _: &Ctx<'_>, _: &mut Tx<'_>) -> Result<Reply<Output>> {
            unreachable!("nothing runs here")
        }
    }

    fn shelf(domain: Option<&'static str>) -> Shelf {
        Shelf::new(&Registry::default().with::<Inbox>().with::<Projects>(), domain)
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

    #[test]
    fn each_caller_is_shown_what_it_may_read() {
        let all = shelf(None);
        let templates = |role| -> Vec<String> {
            all.templates_for(&caller(role)).into_iter().map(|template| template.uri_template).collect()
        };
        let inbox =
            ["resource://inbox/{agent}{?project,urgent_only,limit}", "resource://views/urgent/{agent}{?project}"];
        assert_eq!(templates(Role::Agent), inbox);
        assert_eq!(templates(Role::Admin), ["resource://projects{?limit}"]);
        assert!(all.listed_for(&caller(Role::Agent)).is_empty());
        assert_eq!(all.listed_for(&caller(Role::Admin))[0].uri, "resource://projects");
        assert!(shelf(Some("mail")).find("resource://projects").is_none());
        assert!(shelf(Some("nothing")).is_empty());
    }

    #[test]
    fn an_address_is_the_input_of_its_operation() {
        let shelf = shelf(None);
        let input = |uri: &str| -> Json {
            let found = shelf.find(uri).unwrap_or_else(|| panic!("{uri} leads nowhere"));
            serde_json::from_str(&found.input().unwrap()).unwrap()
        };
        assert_eq!(
            input("resource://inbox/BlueLake?project=%2Fdata%2Fx&limit=5&urgent_only=true"),
            json!({ "agent_name": "BlueLake", "project_key": "/data/x", "limit": 5, "urgent_only": true })
        );
        assert_eq!(
            input("resource://views/urgent/a%20b?project=/data/x"),
            json!({ "urgent_only": true, "agent_name": "a b", "project_key": "/data/x" })
        );
        assert_eq!(input("resource://projects"), json!({}));
        assert_eq!(input("resource://projects?limit=x"), json!({ "limit": "x" }));
    }

    #[test]
    fn a_field_that_the_domain_ignores_is_no_mistake() {
        const MAIL: Domain = Domain {
            name: "mail",
            title: "Mail",
            mcp: Some(Mcp { names: Naming::OfDomain, instructions: "", ignored: &["format"], typed_errors: true }),
            migrations: &[],
            register: |registry| registry.with::<Inbox>(),
            sweeps: |runner, _| runner,
            audit: &[],
            on_shards: false,
        };
        let shelf = Shelf::new(&Registry::default().with_domain(&MAIL).with::<Projects>(), None);
        let found = shelf.find("resource://inbox/a?format=json&limit=5").unwrap().input().unwrap();
        assert_eq!(serde_json::from_str::<Json>(&found).unwrap(), json!({ "agent_name": "a", "limit": 5 }));
        assert!(shelf.find("resource://projects?format=json").unwrap().input().is_err(), "another domain's");
    }

    #[test]
    fn what_is_wrong_with_an_address_is_said_with_its_template() {
        let shelf = shelf(None);
        for uri in
            ["resource://inbox", "resource://inbox/", "resource://inbox/a/b", "inbox/a", "", "resource://nothing/a"]
        {
            assert!(shelf.find(uri).is_none(), "{uri}");
        }
        assert!(shelf.find(&format!("resource://inbox/{}", "a".repeat(URI_BYTES_MAX))).is_none());
        for uri in [
            "resource://inbox/a?project_key=x",
            "resource://inbox/a?project=x&project=y",
            "resource://inbox/%ff",
            "resource://inbox/a%00b",
            "resource://views/urgent/a?urgent_only=false",
        ] {
            let error = shelf.find(uri).unwrap().input().unwrap_err();
            assert_eq!(error.code(), Code::InvalidRequest, "{uri}");
            assert!(error.detail("template").is_some(), "{uri}");
        }
    }
}
