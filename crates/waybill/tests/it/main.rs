//! The whole program as its users meet it: over HTTP, over MCP and from the command line, on both stores.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

mod access;
mod bad_input;
mod caps;
mod cli;
mod demo;
mod equivalence;
mod events;
mod guard;
mod health;
mod hostile;
mod insecure_dev;
mod keeping;
mod lifecycle;
mod log;
mod mail;
mod mail_archive;
mod mail_reindex;
mod mcp;
mod mesh;
mod mesh_canaries;
mod mesh_editions;
mod pages;
mod queues;
mod receipts;
mod safety;
mod safety_shards;
mod scheduler;
mod shared_token;
mod snapshots;
mod sqs;
mod sqs_errors;
mod sqs_errors_stores;
mod startup;
mod webhooks;
mod worker;
mod world;
