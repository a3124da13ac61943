//! A server nobody talks to: how fast it is ready again, and how much memory it holds.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::burst::{self, Burst};
use crate::http;
use crate::mesh;
use crate::process::{Memory, Server, memory};
use crate::waits::{self, Awaited, Waits};

const TASKS: usize = 100;
const STARTS: usize = 10;
const REST: Duration = Duration::from_secs(2);

#[derive(Default)]
pub struct Idle {
    /// Sorted, in milliseconds; empty when not asked for.
    pub startup_ms: Vec<f64>,
    pub memory: Option<Memory>,
    /// Of tasks, and of messages.
    pub waits: Vec<Waits>,
    pub burst: Option<Burst>,
    pub mesh: Option<mesh::Load>,
}

/// What is asked for of it.
#[derive(Clone, Copy)]
pub struct Wanted {
    pub startup: bool,
    pub memory: bool,
    pub burst: bool,
    pub mesh: Option<mesh::Size>,
}

/// Makes a small database, stops its server cleanly, and looks at the next starts.
pub async fn measure(waybill: &Path, data: &Path, wanted: Wanted) -> Result<Idle> {
    let mut idle = Idle::default();
    if wanted.startup || wanted.memory || wanted.burst {
        fill(waybill, data).await.context("making a small database")?;
    }
    if wanted.startup {
        for _ in 0..STARTS {
            let server = Server::waybill(waybill, data, None).await?;
            idle.startup_ms.push(server.ready_after.as_secs_f64() * 1e3);
            server.stop().await?;
        }
        idle.startup_ms.sort_by(f64::total_cmp);
    }
    if wanted.memory {
        let server = Server::waybill(waybill, data, None).await?;
        tokio::time::sleep(REST).await;
        idle.memory = Some(memory(server.pid())?);
        server.stop().await?;
        for what in [Awaited::Task, Awaited::Message] {
            idle.waits.push(waits::measure(waybill, data, what).await.context("keeping callers waiting")?);
        }
    }
    if wanted.burst {
        idle.burst = Some(burst::measure(waybill, data).await.context("sending large messages at once")?);
    }
    if let Some(size) = wanted.mesh {
        let beside = data.parent().context("no folder")?;
        idle.mesh = Some(mesh::measure(waybill, beside, size).await);
    }
    Ok(idle)
}

async fn fill(waybill: &Path, data: &Path) -> Result<()> {
    let server = Server::waybill(waybill, data, None).await?;
    for n in 0..TASKS {
        let body = format!(r#"{{"type":"echo","payload":{{"n":{n}}},"idempotency_key":"small-{n}"}}"#);
        let answer = http::post(server.http, "/v1/tasks", server.key.as_deref(), &body).await?;
        if answer.status != 201 {
            bail!("create_task answered {}: {}", answer.status, answer.body.trim());
        }
    }
    server.stop().await
}
