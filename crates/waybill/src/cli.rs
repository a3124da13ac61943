//! The command line. Every flag can also be set in the environment and, where it configures the server, in the file.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::commands::daemon::Daemon;
use crate::commands::demo::Demo;
use crate::commands::guard::Guard;
use crate::commands::mail::Mail;
use crate::commands::mesh::Mesh;
use crate::commands::peer;
use crate::commands::queue::Queue;
use crate::commands::scheduler::Scheduler;
use crate::commands::worker::Worker;
use crate::commands::worker::flags::Connection;

#[derive(Parser)]
#[command(
    name = "waybill",
    version,
    about = "Hand work and words to others, and prove afterwards what was promised, delivered and done."
)]
#[command(disable_help_subcommand = true, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Run the server. The first start makes the data folder and an admin key.
    Serve(Serve),
    /// API keys: make, list, rotate, revoke.
    Key {
        #[command(subcommand)]
        command: Key,
    },
    /// The server's own key: replace it, or say which one a database goes with.
    ServerKey {
        #[command(subcommand)]
        command: ServerKey,
    },
    /// Tenants: make, list.
    Tenant {
        #[command(subcommand)]
        command: Tenant,
    },
    /// Receipts: prove that none was altered or dropped, write them to a file.
    Receipts {
        #[command(subcommand)]
        command: Receipts,
    },
    /// Webhooks: have receipts posted to your endpoints, and see what came of it.
    Webhook {
        #[command(subcommand)]
        command: Webhook,
    },
    /// Queues of SQS clients: see what is in them, make and change them, move dead letters back.
    Queue {
        #[command(subcommand)]
        command: Queue,
    },
    /// Mail between agents: write, read, and say who is working on which files.
    Mail {
        #[command(subcommand)]
        command: Mail,
    },
    /// Keep commits from taking files that another agent has reserved.
    Guard {
        #[command(subcommand)]
        command: Guard,
    },
    /// Meshes of members on many hosts: make, join, invite, revoke, topics.
    Mesh {
        #[command(subcommand)]
        command: Mesh,
    },
    /// The local peer of a mesh: start, stop, look after.
    Daemon {
        #[command(subcommand)]
        command: Daemon,
    },
    /// Send a message to a member of a mesh.
    Send(peer::Send),
    /// Post a message to a topic of a mesh.
    Post(peer::Post),
    /// Show the messages that have come over a mesh.
    Inbox(peer::Inbox),
    /// List the members of a mesh, as its daemon knows them.
    Peers(peer::home::At),
    /// Show the server's recurring work: when each last ran, what it did, how late it is.
    Sweeps {
        #[command(flatten)]
        reach: Reach,
    },
    /// Copy the database into a new folder, while the server serves or while none runs.
    Backup(Backup),
    /// Make a data folder from a backup.
    Restore(Restore),
    /// Check a deployment and say what is wrong and what to do. Changes nothing.
    Doctor(Doctor),
    /// Serve the tools of a running server over stdin and stdout, for MCP clients that start programs.
    Mcp(Mcp),
    /// Do tasks of a running server.
    Worker {
        #[command(subcommand)]
        command: Worker,
    },
    /// Create tasks of a running server on time.
    Scheduler {
        #[command(subcommand)]
        command: Scheduler,
    },
    /// See it at work, on a server of its own that leaves nothing behind.
    Demo(Demo),
    /// Print the completion script of a shell.
    Completions { shell: clap_complete::Shell },
}

impl Command {
    /// Of those that work for a server, beside programs of others.
    pub fn connection(&self) -> Option<&Connection> {
        match self {
            Command::Worker { command: Worker::Run(flags) } => Some(&flags.connection),
            Command::Scheduler { command: Scheduler::Run(flags) } => Some(&flags.connection),
            _ => None,
        }
    }
}

/// Where the server's data and settings are.
#[derive(Args, Clone, Default)]
pub struct Location {
    /// The data folder [default: ~/.local/share/waybill].
    #[arg(long, env = "WAYBILL_DATA", value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// `sqlite`, or `postgres://user@host/database` [default: sqlite].
    #[arg(long, env = "WAYBILL_STORE", value_name = "STORE", hide_env_values = true)]
    pub store: Option<String>,
    /// A TOML file with settings; flags and the environment go before it.
    #[arg(long, env = "WAYBILL_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The server's own key, for nodes that share a database [default: server.key in the data folder].
    #[arg(long, env = "WAYBILL_SERVER_KEY_FILE", value_name = "FILE")]
    pub server_key_file: Option<PathBuf>,
}

#[derive(Args)]
pub struct Serve {
    #[command(flatten)]
    pub location: Location,
    /// Where to listen for HTTP [default: 127.0.0.1:7700].
    #[arg(long, env = "WAYBILL_HTTP", value_name = "ADDR")]
    pub http: Option<SocketAddr>,
    /// A socket in the file system to serve HTTP on as well, for this user alone.
    #[arg(long, env = "WAYBILL_SOCKET", value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Where to listen for SQS clients [default: 127.0.0.1:9324].
    #[arg(long, env = "WAYBILL_SQS", value_name = "ADDR")]
    pub sqs: Option<SocketAddr>,
    /// Let requests without a key do everything. For development on this machine only.
    #[arg(long, env = "WAYBILL_INSECURE_DEV")]
    pub insecure_dev: bool,
    /// A proxy that you trust stands before the server, ends TLS, and is all that reaches it.
    #[arg(long, env = "WAYBILL_TRUSTED_PROXY")]
    pub trusted_proxy: bool,
    /// What to log, as in `info` or `waybill=debug,request=off` [default: info].
    #[arg(long, env = "WAYBILL_LOG", value_name = "FILTER")]
    pub log: Option<String>,
    /// `text` or `json` [default: text].
    #[arg(long, env = "WAYBILL_LOG_FORMAT", value_name = "FORMAT")]
    pub log_format: Option<crate::config::LogFormat>,
}

/// Which server a command speaks to: the one at --url, else the one that runs on the data folder, else none: then the
/// command opens the data folder itself.
#[derive(Args, Clone, Default)]
pub struct Reach {
    #[command(flatten)]
    pub location: Location,
    /// A running server, as in http://127.0.0.1:7700.
    #[arg(long, env = "WAYBILL_URL", value_name = "URL")]
    pub url: Option<String>,
    /// The key to use with it [default: the data folder's admin.key, for the server that runs on that folder].
    #[arg(long, env = "WAYBILL_KEY", value_name = "KEY", hide_env_values = true)]
    pub key: Option<String>,
    /// Print JSON instead of a table.
    #[arg(long)]
    pub json: bool,
}

#[derive(Subcommand)]
pub enum Key {
    /// Make a key. It is shown once.
    Create {
        /// Who the key acts as, as in agent:alice or worker:builder-1.
        #[arg(long)]
        principal: String,
        /// agent, worker, admin, system or delegate; may be given several times [default: by the principal's kind].
        #[arg(long)]
        role: Vec<String>,
        /// Narrow the key to these scopes, as in tasks:read; may be given several times.
        #[arg(long)]
        scope: Vec<String>,
        /// The key ends after this many seconds.
        #[arg(long, value_name = "SECONDS")]
        expires_in: Option<u64>,
        /// The tenant's name or id, for operators.
        #[arg(long)]
        tenant: Option<String>,
        /// A key for SQS clients: an access key id and a secret access key.
        #[arg(long)]
        sqs: bool,
        #[command(flatten)]
        reach: Reach,
    },
    /// List the tenant's keys, without their secrets.
    List {
        #[command(flatten)]
        reach: Reach,
    },
    /// Make a key like an existing one; the old one ends after the overlap.
    Rotate {
        key_id: String,
        /// How long both keys are good for [default: one day].
        #[arg(long, value_name = "SECONDS")]
        overlap: Option<u64>,
        #[command(flatten)]
        reach: Reach,
    },
    /// End a key: at once on the server that is asked, within a minute on every other.
    Revoke {
        key_id: String,
        #[command(flatten)]
        reach: Reach,
    },
}

#[derive(Subcommand)]
pub enum ServerKey {
    /// Make a new one in the data folder, in the place of the old. API keys stay good: each is verified in full at its next use.
    Rotate {
        #[command(flatten)]
        location: Location,
    },
    /// Let the database go with the one that is here, where the one it went with is lost.
    Adopt {
        #[command(flatten)]
        location: Location,
    },
}

#[derive(Subcommand)]
pub enum Tenant {
    /// Make a tenant.
    Create {
        name: String,
        /// [default: free]
        #[arg(long)]
        tier: Option<String>,
        #[command(flatten)]
        reach: Reach,
    },
    /// List the tenants.
    List {
        #[command(flatten)]
        reach: Reach,
    },
}

#[derive(Subcommand)]
pub enum Receipts {
    /// Check every receipt of the tenant and the chain they were sealed into; exit code 8 when anything is wrong.
    Verify {
        /// Check this export instead, without any server; `-` for stdin.
        file: Option<PathBuf>,
        /// The head of an earlier check or export: the chain must still lead through it.
        #[arg(long, value_name = "LINK")]
        head: Option<String>,
        #[command(flatten)]
        reach: Reach,
    },
    /// Write the tenant's receipts with their chain, one JSON object per line.
    Export {
        /// Where to [default: stdout].
        file: Option<PathBuf>,
        #[command(flatten)]
        reach: Reach,
    },
}

#[derive(Subcommand)]
pub enum Webhook {
    /// Have receipts posted to a URL. The secret that signs them is shown once.
    Create {
        /// Where to post them: http or https.
        endpoint: String,
        /// Only receipts of this type, as in task.completed, or events of meshes, as in mesh.member_joined; may be given several
        /// times [default: all receipts].
        #[arg(long, value_name = "TYPE")]
        kind: Vec<String>,
        /// For people, in lists.
        #[arg(long)]
        description: Option<String>,
        #[command(flatten)]
        reach: Reach,
    },
    /// List the tenant's webhooks, without their secrets.
    List {
        #[command(flatten)]
        reach: Reach,
    },
    /// Send nothing more to a webhook.
    Delete {
        webhook_id: String,
        #[command(flatten)]
        reach: Reach,
    },
    /// Send to a webhook again that was disabled because it failed or wanted nothing more.
    Enable {
        webhook_id: String,
        #[command(flatten)]
        reach: Reach,
    },
    /// Show what was sent to a webhook, newest first, and what came of it.
    Deliveries {
        webhook_id: String,
        /// How many at most.
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=10_000))]
        limit: u64,
        #[command(flatten)]
        reach: Reach,
    },
    /// Send a delivery again, whatever has become of it.
    Redeliver {
        webhook_id: String,
        delivery_id: String,
        #[command(flatten)]
        reach: Reach,
    },
}

#[derive(Args)]
pub struct Backup {
    /// The folder to make; it must not exist yet.
    #[arg(value_name = "DESTINATION")]
    pub destination: PathBuf,
    /// Put the server's own key into it as well: whoever has the backup then has both.
    #[arg(long)]
    pub with_keys: bool,
    #[command(flatten)]
    pub location: Location,
    /// Print the manifest as JSON.
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct Restore {
    /// The folder that `waybill backup` made.
    #[arg(value_name = "BACKUP")]
    pub backup: PathBuf,
    #[command(flatten)]
    pub location: Location,
    /// Print JSON instead of text.
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct Doctor {
    /// Leave out whether indexes agree with their tables, which takes longest.
    #[arg(long)]
    pub quick: bool,
    #[command(flatten)]
    pub location: Location,
    /// Print JSON instead of a table.
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct Mcp {
    /// The server [default: the one that runs on the data folder].
    #[arg(long, env = "WAYBILL_URL", value_name = "URL")]
    pub url: Option<String>,
    /// The key of the agent that uses the tools.
    #[arg(long, env = "WAYBILL_KEY", value_name = "KEY", hide_env_values = true)]
    pub key: Option<String>,
    #[command(flatten)]
    pub wanted: crate::commands::mcp::Wanted,
    #[command(flatten)]
    pub location: Location,
}
