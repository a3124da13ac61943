//! Meshes as operators see them.

mod check_mesh;
mod close_mesh;
mod create_mesh;
mod get_mesh;
mod list_meshes;
mod revoke_mesh_member;
mod set_mesh_policy;

pub use check_mesh::{CheckMesh, MeshCheck};
pub use close_mesh::{CloseMesh, ClosedMesh};
pub use create_mesh::{CreateMesh, CreatedMesh};
pub use get_mesh::GetMesh;
pub use list_meshes::{ListMeshes, Meshes};
pub use revoke_mesh_member::{RevokeMeshMember, RevokedMeshMember};
pub use set_mesh_policy::{PolicySet, SetMeshPolicy};
use waybill_kernel::{OperationSpec, Role, Route, Scope};

use crate::spec::DOMAIN;

const ANYBODY: &[Role] = &[Role::Agent, Role::Worker, Role::Admin, Role::System];
const SCOPES: &[Scope] = &[Scope::MeshManage];

const fn read(name: &'static str, route: Route) -> OperationSpec {
    OperationSpec { name, domain: DOMAIN, route, tool: false, roles: ANYBODY, scopes: SCOPES, ..OperationSpec::READ }
}

const fn write(name: &'static str, route: Route) -> OperationSpec {
    OperationSpec { name, domain: DOMAIN, route, tool: false, roles: ANYBODY, scopes: SCOPES, ..OperationSpec::WRITE }
}
