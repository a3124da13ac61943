//! The broker: meshes, members, topics, messages that are accepted once and delivered until they are acknowledged.
//!
//! Operators manage meshes with an API key. Everybody else is a member, comes through the mesh's own door, and is known by a
//! signature: the door finds out who has signed ([`authenticate`]), and runs the operations as the caller it is given. Each
//! of them looks in its own transaction whether the member is one.

pub mod audit;
mod check;
mod connections;
mod counters;
mod ending;
mod epochs;
mod events;
mod join_secret;
pub mod limiter;
mod members;
mod mesh;
mod metrics;
pub mod ops;
mod posts;
mod rows;
mod settings;
mod spec;
pub mod sweeps;
pub mod wakes;

pub use check::{Finding, NightlyCheck};
pub use connections::forget_connections;
pub use events::EventKind;
pub use limiter::{Limiter, Limits};
pub use members::{Membership, Standing, authenticate, guest};
pub use mesh::{MeshView, Policy};
pub use settings::Settings;
use waybill_store::{Domain, Migration, Registry};

pub const DOMAIN: Domain = Domain {
    name: spec::DOMAIN,
    title: "Mesh",
    mcp: None,
    migrations: MIGRATIONS,
    register,
    sweeps: sweeps::start,
    audit: &[],
    on_shards: false,
};

const MIGRATIONS: &[Migration] = &[
    Migration { version: 60, name: "mesh", sql: include_str!("../schema/V0060__mesh.sql") },
    Migration { version: 61, name: "mesh_messages", sql: include_str!("../schema/V0061__mesh_messages.sql") },
    Migration { version: 62, name: "mesh_files", sql: include_str!("../schema/V0062__mesh_files.sql") },
    Migration { version: 66, name: "mesh_queues", sql: include_str!("../schema/V0066__mesh_queues.sql") },
    Migration { version: 67, name: "mesh_audit", sql: include_str!("../schema/V0067__mesh_audit.sql") },
    Migration { version: 68, name: "mesh_floors", sql: include_str!("../schema/V0068__mesh_floors.sql") },
];

fn register(registry: Registry) -> Registry {
    registry
        .with::<ops::manage::CreateMesh>()
        .with::<ops::manage::ListMeshes>()
        .with::<ops::manage::GetMesh>()
        .with::<ops::manage::SetMeshPolicy>()
        .with::<ops::manage::CheckMesh>()
        .with::<ops::manage::RevokeMeshMember>()
        .with::<ops::manage::CloseMesh>()
}
