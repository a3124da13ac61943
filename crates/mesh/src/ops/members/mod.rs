//! What members do about themselves and each other.

mod ask_to_join;
mod connect;
mod disconnect;
mod issue_invite;
mod join_mesh;
mod keep_connections;
mod leave_mesh;
mod list_members;
mod mesh_events;
mod rename_member;
mod revoke_member;
mod rotate_keys;
mod set_profile;

pub use ask_to_join::AskToJoin;
pub use connect::{Connect, Connected, ConnectionId};
pub use disconnect::{Disconnect, Disconnected};
pub use issue_invite::{IssueInvite, IssuedInvite};
pub use join_mesh::{JoinMesh, Joined};
pub use keep_connections::{ConnectionRef, KeepConnections, KeptConnections};
pub use leave_mesh::{LeaveMesh, LeftMesh};
pub use list_members::{ListMembers, MemberView, Members};
pub use mesh_events::{MeshEvent, MeshEvents, ReadMeshEvents};
pub use rename_member::{RenameMember, RenamedMember};
pub use revoke_member::{RevokeMember, RevokedMember};
pub use rotate_keys::{RotateKeys, RotatedKeys};
pub use set_profile::{ProfileSet, SetProfile};
