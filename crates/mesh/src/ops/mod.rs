//! One file per operation. Those in `manage` are for whoever holds a key with the scope `mesh:manage`; all others are for members,
//! who come through the mesh's own door.

pub mod files;
pub mod manage;
pub mod members;
pub mod messages;
pub mod queues;
pub mod topics;
