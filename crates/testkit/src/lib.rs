//! For tests only: real databases, the real program, and ways to break the link between them.
//!
//! Nothing here is part of the product; other crates name this one as a dev-dependency or not at all.

mod paths;
pub mod postgres;
pub mod proxy;
pub mod race;
pub mod redis;
pub mod rls;
pub mod server;
pub mod stores;
