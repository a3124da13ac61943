//! The door as members meet it: a real server in this process, a real store, sockets and requests over TCP.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

mod challenge;
mod epochs;
mod frames;
mod http;
mod messages;
mod policies;
mod presence;
mod redis;
mod world;
