//! The local peer of a mesh: a durable outbox, a durable inbox, one link to the broker, and a socket for local programs.
