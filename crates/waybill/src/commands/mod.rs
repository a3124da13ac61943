//! One file per command.

pub mod key;
pub mod mcp;
pub mod receipts;
pub mod serve;
pub mod session;
pub mod sweeps;
pub mod tenant;
