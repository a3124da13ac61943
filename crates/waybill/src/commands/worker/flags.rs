//! The flags of `waybill worker`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// The server's own ceiling: a longer lease would be shortened to this.
pub const LEASE_TTL_S_MAX: u64 = 1_800;
const CONCURRENCY_MAX: u64 = 100;

#[derive(Subcommand)]
pub enum Worker {
    /// Lease tasks and do them: echo, sleep_then_return, http_get, and exec for the programs you name.
    Run(Run),
}

/// Which server to work for, and as whom.
#[derive(Args, Clone)]
pub struct Connection {
    /// The server.
    #[arg(long, alias = "url", env = "WAYBILL_URL", value_name = "URL", default_value = "http://127.0.0.1:7700")]
    pub server: String,
    /// The key to use with it; better in the environment or a file than on the command line. Neither shows it for long.
    #[arg(long, env = "WAYBILL_KEY", value_name = "KEY", hide_env_values = true)]
    pub key: Option<String>,
    /// A file that holds the key, `-` for stdin; it goes before the other two. Programs that run as the same user can read
    /// what this one can.
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// The name to lease under [default: that of the key].
    #[arg(long, value_name = "ID")]
    pub worker_id: Option<String>,
    /// How long the server waits for a sign of life before another worker gets the task.
    #[arg(long, value_name = "SECONDS", default_value_t = 300,
          value_parser = clap::value_parser!(u64).range(1..=LEASE_TTL_S_MAX))]
    pub lease_ttl_seconds: u64,
    /// What to log, as in `info` or `waybill=debug`.
    #[arg(long, env = "WAYBILL_LOG", value_name = "FILTER", default_value = "info")]
    pub log: String,
}

#[derive(Args)]
pub struct Run {
    #[command(flatten)]
    pub connection: Connection,
    /// Something this worker can do that a task may require; may be given several times.
    #[arg(long, value_name = "WORD")]
    pub capability: Vec<String>,
    /// Take only tasks of this type; may be given several times [default: all it has a handler for].
    #[arg(long, value_name = "TYPE")]
    pub accept_type: Vec<String>,
    /// Tasks done at the same time.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=CONCURRENCY_MAX))]
    pub concurrency: u64,
    /// End after this many tasks.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub max_tasks: Option<u64>,
    /// End after one task.
    #[arg(long, conflicts_with = "max_tasks")]
    pub once: bool,
    /// How long tasks in hand may go on after SIGTERM or Ctrl-C.
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub drain_seconds: u64,
    /// http_get: a host that may have any address, also one on this machine or network; may be given several times.
    #[arg(long, value_name = "HOST")]
    pub allow_host: Vec<String>,
    /// http_get: fetch from this host and no other; may be given several times.
    #[arg(long, value_name = "HOST")]
    pub only_host: Vec<String>,
    /// http_get: a port beside 80 and 443; may be given several times.
    #[arg(long, value_name = "PORT")]
    pub allow_port: Vec<u16>,
    /// http_get: how long a request may take in all.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub http_timeout_seconds: u64,
    /// http_get: bytes of the body that are kept.
    #[arg(long, value_name = "BYTES", default_value_t = 256 << 10)]
    pub http_body_bytes_max: usize,
    /// exec: a program that tasks may start under this name, as in backup=/usr/local/bin/backup; may be given several
    /// times. Arguments are passed as given; there is no shell.
    #[arg(long, value_name = "NAME=PATH")]
    pub exec: Vec<String>,
    /// exec: how long a program may run.
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub exec_timeout_seconds: u64,
    /// exec: bytes kept of each of stdout and stderr.
    #[arg(long, value_name = "BYTES", default_value_t = 128 << 10)]
    pub exec_output_bytes_max: usize,
}
