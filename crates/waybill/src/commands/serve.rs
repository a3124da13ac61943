//! `waybill serve`: from the configuration to a listening server, and back down without losing an answer.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use waybill_access::{Access, ServerKey};
use waybill_doors::{Beside, Commons, Doors, Driver, Gatekeeper, Http, Listener, MetricsHandle, Server};
use waybill_kernel::entropy::OsEntropy;
use waybill_kernel::{Error, Result};
use waybill_mesh_door::Mesh;
use waybill_sqs::Sqs;
use waybill_store::Backend;

use crate::cli::Serve;
use crate::config::Config;
use crate::data::{self, DataFolder, Running};
use crate::wiring::{self, Opened};
use crate::{log, memory, output};

/// What a shell gives for a program ended by Ctrl-C.
const EXIT_INTERRUPTED: i32 = 130;

/// The database's files and connections, the log, the lock.
const FILES_BESIDE_CONNECTIONS: u64 = 200;

/// With a folder of its own: on this server's the command would find the server and ask it, without a key.
const KEY_OF_ANOTHER_NODE: &str = "\
    The first key is in admin.key on the node that made the database. Another:\n  \
    waybill key create --data \"$(mktemp -d)\" --store <the same> --principal human:me --role admin\n";

const IN_THE_OPEN: &str = "\
    can be reached over a network, and the server speaks no TLS: keys and payloads cross it as they are, for everybody on the \
    way to read. Listen on 127.0.0.1 behind a reverse proxy that ends TLS (Caddy, nginx); if such a proxy on another machine \
    is all that reaches this address, say --trusted-proxy (doors.trusted_proxy = true).";

pub async fn run(flags: Serve) -> Result<()> {
    let config = Config::of_serve(&flags)?;
    let _log = log::start(&config.log, config.log_format)?;
    raise_open_files(config.doors.connections_max);
    let data = DataFolder::open(&config.data)?;
    // Before the database is touched: a busy port must not cost a first start its admin key.
    let listeners = Listeners::bind(&config).await?;
    let metrics = waybill_doors::install_metrics()?;
    let server_key = data.server_key(config.server_key_file.as_deref(), || ServerKey::generate(&OsEntropy))?;
    let opened = wiring::open(&config, &data, Some(&server_key)).await?;
    if let Some(told) = wiring::agree_on_server_key(&config, &opened.store, &server_key).await? {
        warn(&told)?;
    }
    let stopping = stop_on_signals()?;

    // Cancelled after the last socket has closed. Until then the mesh keeps the rows of its connections.
    let stopped = CancellationToken::new();
    let server = doors(&config, &opened, &server_key, metrics.clone(), &stopping, &stopped).await?;
    let figures = tokio::spawn(waybill_doors::keep_metrics(metrics, stopping.clone()));
    let sweeps = wiring::sweeps(&config, &opened.stores);
    let tended = tokio::spawn(waybill_queues::shards::tend(opened.stores.clone(), stopping.clone()));
    let [seen_every, measured_every] =
        [config.background.seen_interval_s, config.background.measure_interval_s].map(Duration::from_secs);
    let (process, store) = (opened.process.clone(), opened.store.clone());
    let seen = tokio::spawn(wiring::record_seen(process, store, seen_every, stopping.clone()));
    let measured = tokio::spawn(wiring::measure(opened.stores.clone(), measured_every, stopping.clone()));
    let capabilities = wiring::watch_capabilities(opened.store.clone(), measured_every, stopping.clone());
    let capabilities = tokio::spawn(capabilities);
    let memory = tokio::spawn(memory::keep_small(stopping.clone()));
    // Cancelled after the server has stopped, so that what the last callers wrote is still archived.
    let archived = CancellationToken::new();
    let archivist = wiring::archivist(&config, &opened.store);
    let keep = |archivist| wiring::keep_archive(archivist, opened.store.clone(), archived.clone());
    let archivist = archivist.map(|archivist| tokio::spawn(keep(archivist)));
    let running = Running { pid: std::process::id(), http: listeners.at_http, sqs: listeners.at_sqs };
    data.announce(&running)?;
    welcome(&config, &running, &opened)?;
    server.open(listeners).run().await;

    tracing::info!("stopping: answering what was accepted, then closing the database");
    stopped.cancel();
    archived.cancel();
    for runner in sweeps {
        runner.stop().await;
    }
    if let Some(archivist) = archivist {
        archivist.await.map_err(Error::internal)?;
    }
    tended.await.map_err(Error::internal)?;
    seen.await.map_err(Error::internal)?;
    measured.await.map_err(Error::internal)?;
    let outcome = capabilities.await.map_err(Error::internal)?;
    memory.await.map_err(Error::internal)?;
    figures.await.map_err(Error::internal)?;
    let stores = opened.stores;
    tokio::task::spawn_blocking(move || stores.close()).await.map_err(Error::internal)?;
    data.retract();
    outcome
}

/// Bound before anything is served, so that a port that is taken costs nothing.
struct Listeners {
    http: Listener,
    at_http: SocketAddr,
    sqs: Listener,
    at_sqs: SocketAddr,
    socket: Option<Listener>,
}

impl Listeners {
    async fn bind(config: &Config) -> Result<Self> {
        let http = Listener::bind(config.http).map_err(|error| chosen_by(error, "--http"))?;
        let sqs = Listener::bind(config.sqs_listen).map_err(|error| chosen_by(error, "--sqs"))?;
        let socket = match &config.socket {
            Some(path) => Some(Listener::bind_unix(path).await.map_err(|error| chosen_by(error, "--socket"))?),
            None => None,
        };
        let at_http = http.address().unwrap_or(config.http);
        let at_sqs = sqs.address().unwrap_or(config.sqs_listen);
        Ok(Self { http, at_http, sqs, at_sqs, socket })
    }
}

/// There are several addresses, each with its own flag.
fn chosen_by(error: Error, flag: &str) -> Error {
    error.with_cure(format!("Stop the program that holds it, or choose another with {flag}."))
}

/// Every protocol, ready to be opened.
struct Protocols {
    server: Server,
    http: Arc<Beside<Http, Mesh>>,
    sqs: Sqs,
}

impl Protocols {
    fn open(self, listeners: Listeners) -> Server {
        let Self { server, http, sqs } = self;
        server.open(listeners.http, Arc::clone(&http));
        if let Some(socket) = listeners.socket {
            server.open(socket, http);
        }
        server.open(listeners.sqs, sqs);
        server
    }
}

async fn doors(
    config: &Config,
    opened: &Opened,
    server_key: &ServerKey,
    metrics: MetricsHandle,
    stopping: &CancellationToken,
    stopped: &CancellationToken,
) -> Result<Protocols> {
    let store = opened.store.clone();
    let limiter = opened.limiter.clone();
    let commons = Commons::new(&config.doors, store.entropy().as_ref());
    let access = Access::new(store.clone(), config.access.clone(), server_key);
    let gatekeeper = gatekeeper(config, opened, access.clone()).await?;
    let answer_max = Duration::from_millis(config.doors.answer_ms);
    let mut registry = waybill_domains::registry();
    if config.mail.project_roots.is_empty() {
        registry = registry.without_tools(&waybill_mail::ops::guard::NEEDS_ROOTS);
    }
    let driver = Driver::new(registry, opened.stores.clone(), gatekeeper.clone(), answer_max);
    let sqs = Sqs::new(waybill_sqs::Opening {
        driver: driver.clone(),
        access,
        gatekeeper: gatekeeper.clone(),
        commons: commons.clone(),
        clock: Arc::clone(store.clock()),
        settings: config.sqs.clone(),
        trusted_proxy: config.doors.trusted_proxy,
    });
    let mesh = Mesh::new(waybill_mesh_door::Opening {
        driver: driver.clone(),
        store: store.clone(),
        commons: commons.clone(),
        settings: config.mesh_door.clone().within(config.doors.connections_max),
        edition: waybill_mesh_protocol::Edition::default(),
        stopped: stopped.clone(),
    })
    .await?;
    let mesh_limiter = opened.mesh_limiter.clone();
    let http = Http::new(Doors {
        driver: &driver,
        store,
        gatekeeper,
        metrics,
        more_figures: Arc::new(move |text| limiter.write_figures(text)),
        more_health: Arc::new(move |health| {
            health.insert("mesh_rate_limit".to_owned(), mesh_limiter.as_str().into());
        }),
        settings: &config.doors,
        commons: &commons,
        stopping: stopping.clone(),
    });
    let server = Server::new(commons, &config.doors, stopping.clone());
    let http = Beside { prefix: waybill_mesh_door::PREFIX, below: mesh, rest: http };
    Ok(Protocols { server, http: Arc::new(http), sqs })
}

/// Shells start programs with a soft limit of about a thousand files; a connection takes one.
fn raise_open_files(connections_max: usize) {
    let limit = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    let most = if raised.is_ok() { limit.maximum } else { limit.current };
    let wanted = connections_max as u64 + FILES_BESIDE_CONNECTIONS;
    if let Some(most) = most.filter(|most| *most < wanted) {
        tracing::warn!(limit = most, wanted, "fewer files may be open than connections are allowed (ulimit -n)");
    }
}

async fn gatekeeper(config: &Config, opened: &Opened, access: Access) -> Result<Gatekeeper> {
    let developer = if config.insecure_dev { Some(waybill_access::dev_caller(&opened.store).await?) } else { None };
    let gatekeeper = Gatekeeper::new(access, developer);
    Ok(match &config.shared_token {
        Some(token) => gatekeeper.with_shared(token, waybill_access::shared_caller(&opened.store).await?),
        None => gatekeeper,
    })
}

/// The first signal stops in order, the second at once.
pub fn stop_on_signals() -> Result<CancellationToken> {
    let stopping = CancellationToken::new();
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Error::internal)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(Error::internal)?;
    let token = stopping.clone();
    tokio::spawn(async move {
        tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
        token.cancel();
        tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
        std::process::exit(EXIT_INTERRUPTED);
    });
    Ok(stopping)
}

/// Where whoever starts it looks, and where it is kept.
fn warn(text: &str) -> Result<()> {
    tracing::warn!("{text}");
    output::note(&format!("\n  !!  {text}\n"))
}

/// What to paste next. The key itself is never printed: terminals and logs are kept.
fn welcome(config: &Config, running: &Running, opened: &Opened) -> Result<()> {
    let url = format!("http://{}", running.http);
    // Absolute, so that what is pasted means the same in whatever folder it is pasted.
    let folder = std::path::absolute(&config.data).unwrap_or_else(|_| config.data.clone());
    let data_flag = if config.has_usual_data() { String::new() } else { format!(" --data {}", quoted(&folder)) };
    output::line(&format!(
        "Waybill {} listens on {url}, for SQS clients on http://{} (data in {}).",
        env!("CARGO_PKG_VERSION"),
        running.sqs,
        config.data.display()
    ))?;
    if config.insecure_dev {
        output::note("\n  !!  --insecure-dev: every request from this machine is let in, without a key  !!\n")?;
        tracing::warn!("running with --insecure-dev: requests need no key");
    }
    if let Some(address) = config.in_the_open() {
        warn(&format!("{address} {IN_THE_OPEN}"))?;
    }
    if config.shared_token.is_some() {
        output::note("\n  !!  a shared token is set: whoever has it acts as anybody of the default tenant  !!\n")?;
        tracing::warn!("running with a shared token: its bearers act as whomever they name");
    }
    if let Some(path) = &opened.admin_key {
        output::line(&format!("The admin key is in {}; keep it.", path.display()))?;
    }
    if data::admin_key(&config.data).is_none() {
        return output::line(&how_to_get_a_key(&config.backend, &data_flag));
    }
    paste(&url, &folder.join("admin.key"), &data_flag)?;
    output::line(&format!(
        "The AWS CLI, with the latter as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY:\n  \
         aws --endpoint-url http://{} --region {} sqs create-queue --queue-name jobs\n\n\
         Every operation: {url}/docs\n",
        running.sqs, config.sqs.region
    ))
}

/// For a server whose folder holds none, so that no command can speak to it yet.
fn how_to_get_a_key(backend: &Backend, data_flag: &str) -> String {
    match backend {
        Backend::Postgres(_) => KEY_OF_ANOTHER_NODE.to_owned(),
        Backend::Sqlite(_) => format!(
            "There is no admin.key in the data folder. Another key, while this server is stopped:\n  \
             waybill key create{data_flag} --principal human:me --role admin\n"
        ),
    }
}

/// As a shell reads it back.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |char: char| char.is_alphanumeric() || "/._-+@:,=".contains(char);
    if text.chars().all(is_plain) { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

fn paste(url: &str, key_file: &Path, data_flag: &str) -> Result<()> {
    let key = format!("$(cat {})", quoted(key_file));
    output::line(&format!(
        "\nHand over a task:\n  curl -s {url}/v1/tasks -H \"Authorization: Bearer {key}\" \\\n    \
         -H 'Content-Type: application/json' -d '{{\"type\":\"echo\",\"payload\":{{\"hello\":\"world\"}}}}'\n\n\
         An MCP client:\n  {{\"mcpServers\":{{\"waybill\":{{\"type\":\"http\",\"url\":\"{url}/mcp\",\
         \"headers\":{{\"Authorization\":\"Bearer <key>\"}}}}}}}}\n\n\
         A key for an agent, and one for SQS clients:\n  waybill key create{data_flag} --principal agent:alice\n  \
         waybill key create{data_flag} --principal agent:alice --sqs\n"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_quoted_where_a_shell_would_take_it_apart() {
        for (path, shown) in [
            ("/srv/waybill-1.0", "/srv/waybill-1.0"),
            ("/srv/my data", "'/srv/my data'"),
            ("/srv/$HOME", "'/srv/$HOME'"),
            ("/srv/it's", r"'/srv/it'\''s'"),
        ] {
            assert_eq!(quoted(Path::new(path)), shown);
        }
    }
}
