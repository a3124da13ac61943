//! The local peer of a mesh: a durable outbox, a durable inbox, one link to the broker, and a socket for local programs.

pub mod backup;
pub mod config;
pub mod directory;
pub mod drain;
pub mod events;
pub mod files;
pub mod folder;
pub mod hooks;
pub mod host;
pub mod identity;
pub mod inbox;
pub mod ipc;
pub mod link;
pub mod lock;
pub mod metrics;
pub mod outbox;
pub mod recover;
pub mod reseal;
pub mod rotation;
pub mod run;
pub mod seal;
pub mod service;
mod shared_keys;
pub mod token;

pub use config::Settings;
pub use folder::Folder;
pub use identity::Membership;
pub use lock::Lock;
pub use outbox::Outbox;
pub use run::{Config, Daemon, Handle, Service};
