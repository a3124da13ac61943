//! `waybill serve`: from the configuration to a listening server, and back down without losing an answer.

use std::path::Path;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;
use waybill_access::Access;
use waybill_doors::{Doors, Gatekeeper, Listener};
use waybill_kernel::{Code, Error, Result};

use crate::cli::Serve;
use crate::config::{Config, LogFormat};
use crate::data::{self, DataFolder, Running};
use crate::output;
use crate::wiring::{self, Opened};

/// What a shell gives for a program ended by Ctrl-C.
const EXIT_INTERRUPTED: i32 = 130;

/// The MCP library tells two lines per request and every client's mistake, and from `debug` on the arguments of every
/// tool call; the migrations' library tells each step of a first start.
const QUIET: &str = "rmcp=warn,rmcp::service=error,refinery_core=warn";

pub async fn run(flags: Serve) -> Result<()> {
    let config = Config::of_serve(&flags)?;
    start_log(&config)?;
    let data = DataFolder::open(&config.data)?;
    // Before the database is touched: a busy port must not cost a first start its admin key.
    let listener = Listener::bind(config.http).await?;
    let metrics = waybill_doors::install_metrics()?;
    let opened = wiring::open(&config, &data).await?;
    let stopping = stop_on_signals()?;

    let router = waybill_doors::router(Doors {
        registry: wiring::registry(),
        store: opened.store.clone(),
        gatekeeper: gatekeeper(&config, &opened).await?,
        metrics: metrics.clone(),
        settings: config.doors.clone(),
        stopping: stopping.clone(),
    });
    let figures = tokio::spawn(waybill_doors::keep_metrics(metrics, stopping.clone()));
    let sweeps = wiring::sweeps(&config, &opened);
    let [seen_every, measured_every] = [config.background.seen_interval_s, config.background.measure_interval_s]
        .map(|s| Duration::from_secs(s.max(1)));
    let (process, store) = (opened.process.clone(), opened.store.clone());
    let seen = tokio::spawn(wiring::record_seen(process, store, seen_every, stopping.clone()));
    let measured = tokio::spawn(wiring::measure(opened.store.clone(), measured_every, stopping.clone()));
    let running = Running { pid: std::process::id(), http: listener.address, sqs: config.sqs };
    data.announce(&running)?;
    welcome(&config, &running, &opened)?;
    waybill_doors::serve(listener, router, &config.doors, stopping).await;

    tracing::info!("stopping: answering what was accepted, then closing the database");
    sweeps.stop().await;
    seen.await.map_err(Error::internal)?;
    measured.await.map_err(Error::internal)?;
    figures.await.map_err(Error::internal)?;
    let store = opened.store;
    tokio::task::spawn_blocking(move || store.close()).await.map_err(Error::internal)?;
    data.retract();
    Ok(())
}

async fn gatekeeper(config: &Config, opened: &Opened) -> Result<Gatekeeper> {
    let access = Access::new(opened.store.clone(), config.access.clone());
    let developer = if config.insecure_dev { Some(waybill_access::dev_caller(&opened.store).await?) } else { None };
    Ok(Gatekeeper::new(access, developer))
}

fn start_log(config: &Config) -> Result<()> {
    // Before what was asked for, so that naming them goes above it.
    let filter = EnvFilter::try_new(format!("{QUIET},{}", config.log))
        .map_err(|error| Error::new(Code::ConfigInvalid, format!("--log {:?}: {error}.", config.log)))?;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match config.log_format {
        LogFormat::Text => log.with_ansi(false).init(),
        LogFormat::Json => log.json().init(),
    }
    Ok(())
}

/// The first signal stops in order, the second at once.
fn stop_on_signals() -> Result<CancellationToken> {
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

/// What to paste next. The key itself is never printed: terminals and logs are kept.
fn welcome(config: &Config, running: &Running, opened: &Opened) -> Result<()> {
    let url = format!("http://{}", running.http);
    let key_file = config.data.join("admin.key");
    output::line(&format!(
        "Waybill {} listens on {url} (data in {}).",
        env!("CARGO_PKG_VERSION"),
        config.data.display()
    ))?;
    if config.insecure_dev {
        output::note("\n  !!  --insecure-dev: every request from this machine is let in, without a key  !!\n")?;
        tracing::warn!("running with --insecure-dev: requests need no key");
    }
    if let Some(path) = &opened.admin_key {
        output::line(&format!("The admin key is in {}; keep it.", path.display()))?;
    }
    if data::admin_key(&config.data).is_none() {
        let how = "waybill key create --store <the same> --principal human:me --role admin";
        return output::line(&format!(
            "The first key is in admin.key on the node that made the database. Another: {how}"
        ));
    }
    paste(&url, &key_file)
}

fn paste(url: &str, key_file: &Path) -> Result<()> {
    let key = format!("$(cat {})", key_file.display());
    output::line(&format!(
        "\nHand over a task:\n  curl -s {url}/v1/tasks -H \"Authorization: Bearer {key}\" \\\n    \
         -H 'Content-Type: application/json' -d '{{\"type\":\"echo\",\"payload\":{{\"hello\":\"world\"}}}}'\n\n\
         An MCP client:\n  {{\"mcpServers\":{{\"waybill\":{{\"type\":\"http\",\"url\":\"{url}/mcp\",\
         \"headers\":{{\"Authorization\":\"Bearer <key>\"}}}}}}}}\n\n\
         A key for an agent:\n  waybill key create --principal agent:alice\n\n\
         Every operation: {url}/docs\n"
    ))
}
