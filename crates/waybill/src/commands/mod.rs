//! One file per command.

pub mod backup;
pub mod demo;
pub mod doctor;
pub mod key;
pub mod mcp;
pub mod receipts;
pub mod restore;
pub mod scheduler;
pub mod serve;
pub mod server_key;
pub mod session;
pub mod sweeps;
pub mod tenant;
pub mod watched;
pub mod webhook;
pub mod worker;
