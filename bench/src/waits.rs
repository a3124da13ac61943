//! Callers that wait: what each costs while nothing comes.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::http;
use crate::process::{Server, cpu_seconds, memory};
use crate::product;

/// Over several keys and tenants: a key may have a quarter of the places, a tenant half.
pub const WAITS: usize = 5_000;
/// Connections made at a time.
const AT_ONCE: usize = 250;
const TENANTS: usize = 2;
const KEYS_PER_TENANT: usize = 2;
/// For the last of them to have come to its wait.
const SETTLE: Duration = Duration::from_secs(2);
/// While they wait and nothing happens.
const WATCH: Duration = Duration::from_secs(4);

pub struct Waits {
    /// Above what the server had before.
    pub bytes: u64,
    /// Of one core.
    pub cpu: f64,
}

pub async fn measure(waybill: &Path, data: &Path) -> Result<Waits> {
    let server = Server::waybill(waybill, data, None).await?;
    let mut keys = Vec::new();
    for tenant in 0..TENANTS {
        let name = format!("waiting-{tenant}");
        product::make_tenant(&server, &name).await?;
        for key in 0..KEYS_PER_TENANT {
            let input = json!({ "principal": format!("worker:w{key}"), "tenant": name });
            let made = product::make_key(&server, &input).await?;
            let key = made["key"].as_str().context("no key")?.to_owned();
            // The first use of a key costs as much as a hundred others.
            let body = r#"{"max_tasks":1}"#;
            let first = http::post(server.http, "/v1/leases/claim", Some(&key), body).await?;
            if first.status != 200 {
                bail!("a claim was answered {}: {}", first.status, first.body.trim());
            }
            keys.push(key);
        }
    }
    tokio::time::sleep(SETTLE).await;
    let idle = memory(server.pid())?.resident;
    let waiting = wait(&server, &keys).await?;
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
            Ok(read) => bail!("somebody does not wait any more: {}", String::from_utf8_lossy(&bytes[..read])),
        }
    }
    drop(waiting);
    server.stop().await?;
    Ok(Waits { bytes: now.saturating_sub(idle), cpu: (after - before) / WATCH.as_secs_f64() })
}

async fn wait(server: &Server, keys: &[String]) -> Result<Vec<TcpStream>> {
    let body = r#"{"max_tasks":1,"wait_seconds":20}"#;
    let mut waiting = Vec::with_capacity(WAITS);
    // Some at a time: a handshake for which the listener has no place is tried again a second later.
    for first in (0..WAITS).step_by(AT_ONCE) {
        let mut coming = JoinSet::new();
        for n in first..WAITS.min(first + AT_ONCE) {
            let (to, key) = (server.http, &keys[n % keys.len()]);
            let request = format!("{}{body}", http::head(to, "POST", "/v1/leases/claim", Some(key), body.len(), ""));
            coming.spawn(async move {
                let mut stream = connect(to, n).await?;
                stream.write_all(request.as_bytes()).await?;
                anyhow::Ok(stream)
            });
        }
        while let Some(come) = coming.join_next().await {
            waiting.push(come??);
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
