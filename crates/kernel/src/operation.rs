//! What is known of an operation before it runs. The registry of these is the only list of operations: routes,
//! tools, OpenAPI, CLI verbs, the permission matrix and the equivalence tests are read from it.

use serde::Deserialize;

use crate::principal::{forbidden, out_of_scope};
use crate::{Caller, Result, Role, Scope};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Read,
    Write,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    Get,
    Post,
    Put,
    Delete,
}

impl Method {
    pub const fn as_str(self) -> &'static str {
        match self {
            Method::Get => "GET",
            Method::Post => "POST",
            Method::Put => "PUT",
            Method::Delete => "DELETE",
        }
    }

    /// Fields that the path does not name are the JSON body of the request; else they are its query.
    pub const fn has_body(self) -> bool {
        matches!(self, Method::Post | Method::Put)
    }
}

/// Where REST finds an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    pub method: Method,
    /// `{name}` parts are fields of the input.
    pub path: &'static str,
}

impl Route {
    pub const NONE: Route = Route::get("");

    pub const fn get(path: &'static str) -> Self {
        Self { method: Method::Get, path }
    }

    pub const fn post(path: &'static str) -> Self {
        Self { method: Method::Post, path }
    }

    pub const fn put(path: &'static str) -> Self {
        Self { method: Method::Put, path }
    }

    pub const fn delete(path: &'static str) -> Self {
        Self { method: Method::Delete, path }
    }

    /// Is this field of the input a part of the path?
    pub fn has_in_path(&self, field: &str) -> bool {
        self.path.split('/').any(|part| part.strip_prefix('{').and_then(|part| part.strip_suffix('}')) == Some(field))
    }
}

/// How many of a domain's tools an MCP client is offered: each profile has all of the one before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Profile {
    /// What nobody can do without.
    Minimal,
    /// What most need.
    #[default]
    Core,
    Full,
}

impl Profile {
    pub const ALL: [Profile; 3] = [Profile::Minimal, Profile::Core, Profile::Full];

    pub const fn as_str(self) -> &'static str {
        match self {
            Profile::Minimal => "minimal",
            Profile::Core => "core",
            Profile::Full => "full",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|profile| profile.as_str() == name)
    }
}

/// An address under which MCP clients read what an operation answers.
#[derive(Clone, Copy, Debug)]
pub struct Resource {
    /// A URI template (RFC 6570): `{name}` is a part of the path, `{?a,b}` at the end are fields of the query, which may
    /// be left away. As in `resource://inbox/{agent}{?project,limit}`.
    pub template: &'static str,
    /// What clients list it as; a template's is its own.
    pub name: &'static str,
    /// One line about what is read there.
    pub description: &'static str,
    /// Names of the template whose field of the input is called otherwise: (in the template, in the input).
    pub renamed: &'static [(&'static str, &'static str)],
    /// Fields of the input that the address itself decides, with their values as JSON.
    pub fixed: &'static [(&'static str, &'static str)],
}

impl Resource {
    pub const fn at(template: &'static str, name: &'static str, description: &'static str) -> Self {
        Self { template, name, description, renamed: &[], fixed: &[] }
    }

    /// The template without the fields of its query.
    pub fn path(&self) -> &'static str {
        self.template.split_once("{?").map_or(self.template, |(path, _)| path)
    }

    /// The names of the fields of its query.
    pub fn query(&self) -> impl Iterator<Item = &'static str> {
        let query = self.template.split_once("{?").and_then(|(_, query)| query.strip_suffix('}'));
        query.into_iter().flat_map(|query| query.split(','))
    }

    /// What the input calls a name of the template.
    pub fn field(&self, name: &'static str) -> &'static str {
        self.renamed.iter().find(|(known, _)| *known == name).map_or(name, |(_, field)| field)
    }
}

#[derive(Debug)]
pub struct OperationSpec {
    /// Its own within the domain. The MCP tool's name without its prefix; the CLI verb.
    pub name: &'static str,
    /// Which part of the product it belongs to: `/mcp/<domain>` serves one of them alone.
    pub domain: &'static str,
    /// [`Route::NONE`] for what only a protocol of its own domain calls.
    pub route: Route,
    /// Offered as an MCP tool?
    pub tool: bool,
    /// The smallest profile in which it is one.
    pub profile: Profile,
    /// Where MCP clients read its answer as a resource. For reads alone.
    pub resources: &'static [Resource],
    pub mode: Mode,
    /// Takes something away that somebody may be using: a client may want to ask its user first.
    pub destructive: bool,
    /// A second call with the same input changes nothing more.
    pub repeatable: bool,
    /// Ends work or gives room: still run when the disk is full.
    pub relieves: bool,
    /// Stores what somebody sends: refused when the tenant has stored as many bytes as it may. Not of an operation whose calls are
    /// repeated under a key: it looks by itself, behind its look for the key.
    pub stores: bool,
    /// Any one of these roles …
    pub roles: &'static [Role],
    /// … and any one of these scopes, or an admin's in their place.
    pub scopes: &'static [Scope],
    /// HTTP status of a first answer; a replay is always 200.
    pub status: u16,
    /// One line, for lists.
    pub title: &'static str,
    /// What an agent must know to use it at first reading.
    pub description: &'static str,
    pub example: Example,
}

/// A call as somebody might make it, in JSON.
#[derive(Debug)]
pub struct Example {
    /// All of them, whether path, query or body carries them.
    pub arguments: &'static str,
    /// Of a stream: what one event has to say.
    pub answer: &'static str,
}

impl Example {
    /// For an operation that is none of the product's.
    pub const NONE: Example = Example { arguments: "{}", answer: "{}" };
}

impl OperationSpec {
    /// What most reads have in common.
    pub const READ: OperationSpec = OperationSpec {
        name: "",
        domain: "",
        route: Route::NONE,
        tool: true,
        profile: Profile::Minimal,
        resources: &[],
        mode: Mode::Read,
        destructive: false,
        repeatable: true,
        relieves: false,
        stores: false,
        roles: &[],
        scopes: &[],
        status: 200,
        title: "",
        description: "",
        example: Example::NONE,
    };

    /// What most writes have in common.
    pub const WRITE: OperationSpec = OperationSpec { mode: Mode::Write, repeatable: false, ..Self::READ };

    /// May this caller run it at all? Ownership of the rows is the operation's own question.
    pub fn authorise(&self, caller: &Caller) -> Result<()> {
        if !caller.roles.contains_any(self.roles) {
            return Err(forbidden(
                format!("{} needs another role than this key has.", self.name),
                self.roles,
                &caller.roles,
            ));
        }
        if !caller.may_use(self.scopes, self.mode) {
            let required: Vec<_> = self.scopes.iter().map(|scope| scope.as_str()).collect();
            let message = format!("{} needs the scope {}.", self.name, required.join("|"));
            return Err(out_of_scope(message, self.scopes, &caller.scopes));
        }
        Ok(())
    }

    pub fn allows(&self, caller: &Caller) -> bool {
        self.authorise(caller).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::id::Uuid;
    use crate::{Code, Principal, PrincipalKind, Roles, Scopes, Tenant};

    fn spec(mode: Mode, scopes: &'static [Scope]) -> OperationSpec {
        OperationSpec { name: "operate", mode, roles: &[Role::Agent, Role::Admin], scopes, ..OperationSpec::WRITE }
    }

    fn caller(role: Role, scopes: &[Scope]) -> Caller {
        Caller {
            tenant: Tenant::DEFAULT,
            tenant_id: Uuid::nil(),
            principal: Principal::new(PrincipalKind::Agent, "alice").unwrap(),
            roles: Roles::new([role]),
            scopes: Scopes::new(scopes.iter().copied()),
            key: None,
        }
    }

    #[test]
    fn r60_an_admins_scope_stands_for_any_and_no_other_does() {
        let (read, write) = (spec(Mode::Read, &[Scope::TasksRead]), spec(Mode::Write, &[Scope::TasksWrite]));
        for (scope, reads, writes) in [
            (Scope::TasksRead, true, false),
            (Scope::TasksWrite, false, true),
            (Scope::TasksLease, false, false),
            (Scope::ReceiptsRead, false, false),
            (Scope::ReceiptsAck, false, false),
            (Scope::AdminRead, true, false),
            (Scope::AdminWrite, true, true),
        ] {
            let caller = caller(Role::Agent, &[scope]);
            assert_eq!((read.allows(&caller), write.allows(&caller)), (reads, writes), "{scope}");
        }
        // What an admin writes is not for those who only read.
        let administer = spec(Mode::Write, &[Scope::AdminWrite]);
        assert!(!administer.allows(&caller(Role::Admin, &[Scope::AdminRead])));
    }

    #[test]
    fn a_template_is_a_path_and_a_query() {
        let inbox = Resource {
            renamed: &[("agent", "agent_name")],
            ..Resource::at("resource://inbox/{agent}{?project,limit}", "inbox", "An inbox.")
        };
        assert_eq!(inbox.path(), "resource://inbox/{agent}");
        assert_eq!(inbox.query().collect::<Vec<_>>(), ["project", "limit"]);
        assert_eq!((inbox.field("agent"), inbox.field("limit")), ("agent_name", "limit"));
        let all = Resource::at("resource://projects", "projects", "All of them.");
        assert_eq!((all.path(), all.query().count()), ("resource://projects", 0));
    }

    #[test]
    fn each_profile_has_all_of_the_one_before_it() {
        assert!(Profile::ALL.is_sorted());
        for profile in Profile::ALL {
            assert_eq!(Profile::named(profile.as_str()), Some(profile));
        }
        assert_eq!(Profile::named("Core"), None);
    }

    #[test]
    fn a_scope_is_no_role_and_who_lacks_one_is_told_which() {
        let write = spec(Mode::Write, &[Scope::TasksWrite]);
        let error = write.authorise(&caller(Role::Worker, Scope::ALL)).unwrap_err();
        assert_eq!((error.code(), error.detail("required_role")), (Code::Forbidden, Some(&json!("agent|admin"))));
        let error = write.authorise(&caller(Role::Agent, &[Scope::AdminRead])).unwrap_err();
        assert_eq!((error.code(), error.detail("required_scope")), (Code::Forbidden, Some(&json!("tasks:write"))));
        assert_eq!(error.detail("your_scopes"), Some(&json!("admin:read")));
    }
}
