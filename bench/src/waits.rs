//! Callers that wait: what each costs while nothing comes.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::http;
use crate::process::{Server, cpu_seconds, memory};
use crate::{product, queues};

/// Over several keys and tenants: a key may have a quarter of the places, a tenant half.
pub const WAITS: usize = 5_000;
/// The longest that SQS lets anybody wait.
const WAIT_S: u64 = 20;
/// Connections made before the listener has to have taken them: one for which it has no place is tried again a second later.
const AT_ONCE: usize = 250;
const TENANTS: usize = 2;
const KEYS_PER_TENANT: usize = 2;
/// For the last of them to have come to its wait.
const SETTLE: Duration = Duration::from_secs(2);
/// While they wait and nothing happens.
const WATCH: Duration = Duration::from_secs(4);

/// What they wait for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Awaited {
    /// By lease_next.
    Task,
    /// By ReceiveMessage, signed.
    Message,
}

impl Awaited {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Task => "a task",
            Self::Message => "a message",
        }
    }
}

pub struct Waits {
    pub what: Awaited,
    /// Above what the server had before.
    pub bytes: u64,
    /// Of one core.
    pub cpu: f64,
}

/// Somebody with a key of its own, and what it asks.
struct Caller {
    to: SocketAddr,
    request: Vec<u8>,
}

pub async fn measure(waybill: &Path, data: &Path, what: Awaited) -> Result<Waits> {
    let server = Server::waybill(waybill, data, None).await?;
    let mut callers = Vec::new();
    for tenant in 0..TENANTS {
        let name = format!("{}-{tenant}", if what == Awaited::Task { "waiting" } else { "polling" });
        product::make_tenant(&server, &name).await?;
        for key in 0..KEYS_PER_TENANT {
            callers.push(match what {
                Awaited::Task => task_caller(&server, &name, key).await?,
                Awaited::Message => message_caller(&server, &name, key).await?,
            });
        }
    }
    tokio::time::sleep(SETTLE).await;
    let idle = memory(server.pid())?.resident;
    let began = Instant::now();
    let waiting = wait(&callers).await?;
    tokio::time::sleep(SETTLE).await;
    let before = cpu_seconds(server.pid()).context("no processor time")?;
    tokio::time::sleep(WATCH).await;
    let after = cpu_seconds(server.pid()).context("no processor time")?;
    let now = memory(server.pid())?.resident;
    for stream in &waiting {
        let mut bytes = [0; 1024];
        match stream.try_read(&mut bytes) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
            // Not the server's fault when the machine took too long to have them all ask.
            Ok(read) => bail!(
                "somebody does not wait any more, {:.1} s after the first asked for {WAIT_S}: {}",
                began.elapsed().as_secs_f64(),
                String::from_utf8_lossy(&bytes[..read])
            ),
        }
    }
    drop(waiting);
    server.stop().await?;
    Ok(Waits { what, bytes: now.saturating_sub(idle), cpu: (after - before) / WATCH.as_secs_f64() })
}

async fn task_caller(server: &Server, tenant: &str, key: usize) -> Result<Caller> {
    let input = json!({ "principal": format!("worker:w{key}"), "tenant": tenant });
    let made = product::make_key(server, &input).await?;
    let key = made["key"].as_str().context("no key")?.to_owned();
    // The first use of a key costs as much as a hundred others.
    let first = http::post(server.http, "/v1/leases/claim", Some(&key), r#"{"max_tasks":1}"#).await?;
    if first.status != 200 {
        bail!("a claim was answered {}: {}", first.status, first.body.trim());
    }
    let (to, body) = (server.http, format!(r#"{{"max_tasks":1,"wait_seconds":{WAIT_S}}}"#));
    let head = http::head(to, "POST", "/v1/leases/claim", Some(&key), body.len(), "");
    Ok(Caller { to, request: format!("{head}{body}").into_bytes() })
}

async fn message_caller(server: &Server, tenant: &str, key: usize) -> Result<Caller> {
    let input = json!({ "principal": format!("agent:w{key}"), "tenant": tenant, "sqs": true });
    let counter = queues::opened_by(server, &input, "bench", &Value::Null).await?;
    counter.ask(&counter.receive(10, 0)?).await?;
    Ok(Caller { to: counter.addr, request: counter.receive(10, WAIT_S)? })
}

async fn wait(callers: &[Caller]) -> Result<Vec<TcpStream>> {
    let mut waiting = Vec::with_capacity(WAITS);
    for first in (0..WAITS).step_by(AT_ONCE) {
        let mut coming = JoinSet::new();
        for n in first..WAITS.min(first + AT_ONCE) {
            let Caller { to, request } = &callers[n % callers.len()];
            let (to, request) = (*to, request.clone());
            coming.spawn(async move {
                let mut stream = connect(to, n).await?;
                stream.write_all(&request).await?;
                anyhow::Ok(stream)
            });
        }
        while let Some(come) = coming.join_next().await {
            waiting.push(come??);
        }
        // A listener takes connections in their order, so whoever is answered, with whatever, comes after all of them.
        if let Some(Caller { to, .. }) = callers.first() {
            http::get(*to, "/healthz", None).await?;
        }
    }
    Ok(waiting)
}

/// From many addresses: one may have a quarter of the connections.
async fn connect(to: SocketAddr, n: usize) -> Result<TcpStream> {
    let socket = tokio::net::TcpSocket::new_v4()?;
    socket.bind((std::net::Ipv4Addr::new(127, 0, 1, (n % 100) as u8 + 1), 0).into())?;
    Ok(socket.connect(to).await?)
}
