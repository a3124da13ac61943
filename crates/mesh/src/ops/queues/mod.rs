//! Which queues of the tenant members may send to. Only the owner says so, and only on a mesh in plain text.

mod allow_queue;
mod disallow_queue;
mod list_allowed_queues;

pub use allow_queue::{AllowQueue, AllowedQueue};
pub use disallow_queue::{DisallowQueue, DisallowedQueue};
pub use list_allowed_queues::{AllowedQueueView, AllowedQueues, ListAllowedQueues};

/// Queues that one mesh may send to: a list that its owner reads as a whole.
pub const QUEUES_MAX: i64 = 100;
