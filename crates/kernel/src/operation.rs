//! What is known of an operation before it runs. The registry of these is the only list of operations: routes,
//! tools, OpenAPI, CLI verbs, the permission matrix and the equivalence tests are read from it.

use crate::principal::forbidden;
use crate::{Caller, Code, Error, Result, Role, Scope};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Read,
    Write,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    Get,
    Post,
}

/// Which part of the product an operation belongs to: `/mcp/<door>` serves one of them alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    Tasks,
    Admin,
}

#[derive(Debug)]
pub struct OperationSpec {
    /// REST operation id; the MCP tool's name without its prefix; the CLI verb.
    pub name: &'static str,
    pub door: Door,
    pub method: Method,
    /// `{name}` parts are fields of the input.
    pub path: &'static str,
    /// Offered as an MCP tool?
    pub tool: bool,
    pub mode: Mode,
    /// Takes something away that somebody may be using: a client may want to ask its user first.
    pub destructive: bool,
    /// A second call with the same input changes nothing more.
    pub repeatable: bool,
    /// Ends work or gives room: still run when the disk is full.
    pub relieves: bool,
    /// Any one of these roles …
    pub roles: &'static [Role],
    /// … and any one of these scopes.
    pub scopes: &'static [Scope],
    /// HTTP status of a first answer; a replay is always 200.
    pub status: u16,
    /// One line, for lists.
    pub title: &'static str,
    /// What an agent must know to use it at first reading.
    pub description: &'static str,
}

impl OperationSpec {
    /// May this caller run it at all? Ownership of the rows is the operation's own question.
    pub fn authorise(&self, caller: &Caller) -> Result<()> {
        if !caller.roles.contains_any(self.roles) {
            return Err(forbidden(
                format!("{} needs another role than this key has.", self.name),
                self.roles,
                &caller.roles,
            ));
        }
        if !caller.scopes.contains_any(self.scopes) {
            let required: Vec<_> = self.scopes.iter().map(|scope| scope.as_str()).collect();
            let required = required.join("|");
            return Err(Error::new(Code::Forbidden, format!("{} needs the scope {required}.", self.name))
                .with("required_scope", required)
                .with("your_scopes", caller.scopes.to_string()));
        }
        Ok(())
    }

    pub fn allows(&self, caller: &Caller) -> bool {
        self.authorise(caller).is_ok()
    }
}
