//! What a domain brings to the program: its tables, its operations, what recurs about it, what clients are told of it.

use crate::effects::Runner;
use crate::{Migration, Registry, Settings};

#[derive(Clone, Copy)]
pub struct Domain {
    /// As the specs of its operations have it.
    pub name: &'static str,
    /// As people read it.
    pub title: &'static str,
    /// None for a domain whose operations are no tools.
    pub mcp: Option<Mcp>,
    pub migrations: &'static [Migration],
    /// Adds the operations that all doors share.
    pub register: fn(Registry) -> Registry,
    /// Starts what recurs, by the settings that the store was opened with.
    pub sweeps: fn(Runner, &Settings) -> Runner,
    /// What must hold between its rows, for whoever asks whether a database is whole.
    pub audit: &'static [Rule],
    /// Whether it keeps rows in other stores than home as well.
    pub on_shards: bool,
}

/// Rows that must not be there.
#[derive(Debug)]
pub struct Rule {
    /// What they are, in the plural.
    pub what: &'static str,
    /// Their ids, of every tenant, on either engine. One statement sees one state, also beside a server that writes; it reads
    /// one table from end to end and finds the rest by primary keys.
    pub sql: &'static str,
}

/// A domain as MCP clients meet it: `/mcp/<name>` serves it alone, `/mcp` together with the others.
#[derive(Clone, Copy)]
pub struct Mcp {
    pub names: Naming,
    /// What a client puts before its model, next to the list of tools. `{operation}` becomes the name that the tool has
    /// where this is read.
    pub instructions: &'static str,
    /// Arguments that clients of existing servers send with every tool and that mean nothing here: they are left away.
    pub ignored: &'static [&'static str],
    /// Errors also say what those clients read: `type`, `recoverable` and `data`.
    pub typed_errors: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    /// The same at both places, with the prefix of the protocol or without it, as the operator has set.
    OfProtocol,
    /// An operation's own name where the domain is served alone, and behind the domain's name where all are.
    OfDomain,
}
