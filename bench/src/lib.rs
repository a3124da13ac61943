//! What the programs that start a server from outside have in common: its process, single requests, and tables.

pub mod cluster;
pub mod http;
pub mod member;
pub mod process;
pub mod signed;
pub mod table;
