//! The local peer of a mesh: a durable outbox, a durable inbox, one link to the broker, and a socket for local programs.

pub mod config;
pub mod events;
pub mod folder;
pub mod inbox;
pub mod lock;
pub mod outbox;

pub use config::Settings;
pub use folder::Folder;
pub use lock::Lock;
pub use outbox::Outbox;
