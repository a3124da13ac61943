//! The door as members meet it: a real server in this process, a real store, sockets and requests over TCP.

mod challenge;
mod epochs;
mod frames;
mod http;
mod messages;
mod policies;
mod presence;
mod redis;
mod world;
