//! What the operations of members have in common: only the mesh's own door calls them, and they look for themselves whether the
//! member is one.

use waybill_kernel::{OperationSpec, Role, Scope};

pub(crate) const DOMAIN: &str = "mesh";
const ROLES: &[Role] = &[Role::Agent];
const SCOPES: &[Scope] = &[Scope::MeshMember];

pub(crate) const fn read(name: &'static str) -> OperationSpec {
    OperationSpec {
        name,
        domain: DOMAIN,
        tool: false,
        roles: ROLES,
        scopes: SCOPES,
        title: name,
        description: name,
        ..OperationSpec::READ
    }
}

pub(crate) const fn write(name: &'static str) -> OperationSpec {
    OperationSpec {
        name,
        domain: DOMAIN,
        tool: false,
        roles: ROLES,
        scopes: SCOPES,
        title: name,
        description: name,
        ..OperationSpec::WRITE
    }
}
