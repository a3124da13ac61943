//! The ceiling: what HTTP, JSON and the loopback cost when nothing is stored.
//!
//! It decodes the same body and sends an answer of the same size as the product, through the same web framework.

use std::net::Ipv4Addr;
use std::path::Path;

use anyhow::{Context, Result};
use axum::http::StatusCode;
use axum::routing::post;
use axum::serve::ListenerExt;
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::net::TcpListener;

const WORKERS: usize = 2;

/// Serves until killed, after announcing its address in `<data>/server.json` as the product does.
pub fn serve(data: &Path) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let announcement = json!({ "pid": std::process::id(), "http": listener.local_addr()?.to_string() });
        let ready = data.join("server.json.new");
        std::fs::write(&ready, announcement.to_string()).context("announcing the address")?;
        std::fs::rename(&ready, data.join("server.json"))?;

        let app = Router::new()
            .route("/hello", post(hello))
            .route("/readyz", axum::routing::get(|| async { StatusCode::OK }));
        // The only way this can fail is on the loopback itself; a slow ceiling would flatter everybody else.
        let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
        axum::serve(listener, app).await?;
        Ok(())
    })
}

async fn hello(Json(body): Json<Value>) -> (StatusCode, Json<Value>) {
    let status = if body.get("type").is_some() { "queued" } else { "ignored" };
    (StatusCode::CREATED, Json(json!({ "task_id": "01936f2e-7b1c-7d3e-9f00-0123456789ab", "status": status })))
}
