//! One file per command.

pub mod backup;
pub mod daemon;
pub mod demo;
pub mod doctor;
pub mod guard;
pub mod key;
pub mod mail;
pub mod mcp;
pub mod mesh;
pub mod peer;
pub mod queue;
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
