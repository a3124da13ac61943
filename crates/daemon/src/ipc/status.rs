//! How the daemon is, and what it can do.

use serde_json::{Value, json};
use waybill_kernel::Result;
use waybill_mesh_protocol::envelope::ENVELOPE_VERSION;

use super::Local;
use super::reply::Reply;
use crate::metrics as figures;
use crate::outbox::Pressure;

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Of these endpoints: raised when one of them changes in a way that callers notice.
const IPC_API: u32 = 1;
const IPC_FEATURES: &[&str] = &[
    "send",
    "topics",
    "inbox",
    "inbox_search",
    "peers",
    "profile",
    "files",
    "events",
    "idempotency_key",
    "capabilities",
];

pub async fn health(local: &Local) -> Result<Reply> {
    let depth = local.outbox.open_figures().await?;
    let link = local.link_status.borrow().clone();
    let pressure = local.outbox.pressure();
    Reply::ok(&json!({
        "connected": link.connected,
        "lag_ms": link.lag_ms,
        "queue_depth": depth.pending + depth.inflight,
        "inflight": depth.inflight,
        "dead": depth.dead,
        "mesh": local.membership.slug,
        "member_pubkey": local.keyring.public_key(),
        "uptime_s": local.clock.now().since(local.started).as_secs(),
        "schema_version": local.schema_version,
        "daemon_version": VERSION,
        "broker_version": link.broker_version,
        "outbox_pressure": pressure,
        "outbox_pct": local.outbox.used_percent(),
        "degraded": pressure == Pressure::Full,
    }))
}

pub async fn metrics(local: &Local) -> Result<Reply> {
    let depth = local.outbox.figures().await?;
    let now = local.clock.now();
    figures::outbox(&depth, depth.oldest_at.map(|at| now.since(at)).unwrap_or_default());
    figures::disk("outbox", local.outbox.used_percent());
    let (used, budget) = local.inbox.bytes().await?;
    figures::disk("inbox", used.saturating_mul(100) / budget.max(1));
    figures::connected(local.link_status.borrow().connected);
    Ok(Reply::text("text/plain; version=0.0.4", local.recorder.render()))
}

fn broker(local: &Local) -> Value {
    let link = local.link_status.borrow();
    json!({ "version": link.broker_version, "connected": link.connected, "features": link.features })
}

pub fn version(local: &Local) -> Result<Reply> {
    Reply::ok(&json!({
        "daemon_version": VERSION,
        "ipc_api": IPC_API,
        "ipc_features": IPC_FEATURES,
        "schema_version": local.schema_version,
        "broker": broker(local),
    }))
}

/// Whether this daemon and its broker can work together, and by what that is judged.
pub fn compat(local: &Local) -> Result<Reply> {
    let link = local.link_status.borrow().clone();
    // Whoever is connected has negotiated; before that nobody knows.
    let compatible = match (link.connected || link.features.is_some(), link.ended) {
        (_, Some(_)) => Some(false),
        (true, None) => Some(true),
        (false, None) => None,
    };
    Reply::ok(&json!({
        "daemon_version": VERSION,
        "ipc_api": { "min": IPC_API, "max": IPC_API },
        "ipc_features": IPC_FEATURES,
        "envelope_version": ENVELOPE_VERSION,
        "requires": local.link.parts().edition.request().require,
        "broker": broker(local),
        "compatible": compatible,
        "ended": link.ended.map(|code| code.entry().code),
    }))
}

/// Costs nothing but the call: for those who ask often.
pub fn heartbeat(local: &Local) -> Result<Reply> {
    let connected = local.link_status.borrow().connected;
    Reply::ok(&json!({ "ok": true, "connected": connected, "time": local.clock.now() }))
}
