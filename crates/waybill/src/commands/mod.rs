//! One file per command.

pub mod backup;
pub mod doctor;
pub mod key;
pub mod mcp;
pub mod receipts;
pub mod restore;
pub mod serve;
pub mod session;
pub mod sweeps;
pub mod tenant;
pub mod watched;
