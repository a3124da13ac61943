//! What a domain brings to the program: its tables, its operations, what recurs about it.

use crate::effects::Runner;
use crate::{Migration, Registry, Settings};

#[derive(Clone, Copy)]
pub struct Domain {
    /// As the specs of its operations have it.
    pub name: &'static str,
    pub migrations: &'static [Migration],
    /// Adds the operations that all doors share.
    pub register: fn(Registry) -> Registry,
    /// Starts what recurs, by the settings that the store was opened with.
    pub sweeps: fn(Runner, &Settings) -> Runner,
}
