//! Who is woken after a commit. A connection keeps a flag ([`waybill_store::Store::flag`]) of its member and one of its mesh, and
//! looks for deliveries when either is raised. A door reads a mesh's events once for all its connections.

use waybill_kernel::Tenant;
use waybill_mesh_protocol::{MemberId, MeshId};
use waybill_store::{Topic, Tx};

/// Members that one commit wakes one by one. Of more the whole mesh is woken: a transaction has room for 128 wakes.
pub(crate) const ONE_BY_ONE_MAX: usize = 64;

/// Something of this member has changed: deliveries, its connections, its standing.
pub fn member_topic(tenant: Tenant, mesh: MeshId, member: MemberId) -> Topic {
    Topic::new("mesh.member", tenant, &[mesh.as_bytes(), member.as_bytes()].concat())
}

/// Many members of the mesh have deliveries.
pub fn everybody_topic(tenant: Tenant, mesh: MeshId) -> Topic {
    Topic::new("mesh.everybody", tenant, mesh.as_bytes())
}

/// Something has happened to the mesh.
pub fn events_topic(tenant: Tenant, mesh: MeshId) -> Topic {
    Topic::new("mesh.events", tenant, mesh.as_bytes())
}

/// Every connection of the member, whichever node has it.
pub(crate) fn wake_member(tx: &mut Tx<'_>, tenant: Tenant, mesh: MeshId, member: MemberId) {
    tx.wake(member_topic(tenant, mesh, member), u32::MAX);
}

pub(crate) fn wake_everybody(tx: &mut Tx<'_>, tenant: Tenant, mesh: MeshId) {
    tx.wake(everybody_topic(tenant, mesh), u32::MAX);
}
