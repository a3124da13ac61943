//! The MCP door: the registry's operations as tools an agent can find, read and call.
//!
//! # The outside system
//! MCP (Model Context Protocol) is JSON-RPC 2.0 between an agent's program and a server. Over "streamable HTTP" each
//! message of the client is one POST to one URL, and the answer is JSON or a short event stream. Two lines are alive:
//!
//! | revision | opening | later requests |
//! |---|---|---|
//! | 2024-11-05 … 2025-11-25 | `initialize` agrees on a revision, `notifications/initialized` ends the handshake | revision in the `MCP-Protocol-Version` header; a server *may* keep a session |
//! | 2026-07-28 | none needed; `server/discover` describes the server | revision and client in each request's `_meta`, repeated in `Mcp-Method` and `Mcp-Name` headers |
//!
//! A server declares capabilities (ours: tools, and resources where a domain has some). `tools/list` gives each tool a name, a text and
//! the JSON Schema of its input; `tools/call` runs one. A call can fail in two ways, and the difference matters to the
//! agent: a *protocol error* (JSON-RPC `error`: no such tool, no such method) is mostly hidden from the model, a *tool
//! error* (a result with `isError`) is shown to it, so that it can correct itself. A browser page must not reach a server
//! on loopback by a name that resolves to it (DNS rebinding): `Host` and `Origin` are checked.
//!
//! # What we do
//! * No sessions. Every request stands alone, so any node can answer it, and the credential is checked on every one of
//!   them by the same layer that guards REST. GET and DELETE, which exist for sessions, are 405.
//! * `/mcp/<domain>` serves one domain, `/mcp` all of them; a domain says itself how its tools are called at either.
//! * [`tools`]: registry → tool list, once per endpoint; a caller is shown what its role and scopes allow, of the profile
//!   that it names in the URL (`?profile=minimal`) or that the operator has set.
//! * [`resources`]: reads of the registry by address. They go the way of a tool call.
//! * [`handler`]: decode → driver → encode. A failure is the object REST sends, as a tool error.
//! * [`body`]: the arguments of a call and the output of its operation go past the library, as text. It would build trees of
//!   them, which take up to thirty times their length, and read numbers beyond 2^53 as others.
//!
//! # What answers before us
//! [`body`] reads the body under the same bounds as REST and refuses what is not JSON, too deep, or names a thing twice. The
//! transport's own refusals are plain text, as the protocol leaves them open: 406 (`Accept` must name both
//! `application/json` and `text/event-stream`), 415 (wrong content type, or not one JSON-RPC message; batches were
//! dropped from the protocol), 403 (host or origin), 400 (unknown revision).

mod body;
mod handler;
mod resources;
mod schema;
mod tools;
mod typed;

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::middleware::from_fn_with_state;
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use serde::Deserialize;
use waybill_kernel::{OperationSpec, Profile};
use waybill_store::Registry;

use crate::Settings;
use crate::body::Bodies;
use crate::driver::Driver;
use handler::Handler;

/// In a list of hosts or origins: do not check.
const ANY: &str = "*";

const LOOPBACK_HOSTS: [&str; 3] = ["localhost", "127.0.0.1", "::1"];
const LOOPBACK_ORIGINS: [&str; 3] = ["http://localhost:*", "http://127.0.0.1:*", "http://[::1]:*"];

/// How tools are called on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ToolNames {
    /// `asyncgate.create_task`, as the protocol this door implements names them, and `mail.send_message`.
    #[default]
    Prefixed,
    /// `create_task` and `mail_send_message`, for clients that refuse a dot.
    Plain,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct McpSettings {
    pub tool_names: ToolNames,
    /// By domain: the profile of clients that name none in the URL.
    pub profiles: BTreeMap<String, Profile>,
    /// Names a client may call this server by: `host` (any port) or `host:port`. `"*"` turns the check off; an empty
    /// list does not, it means the loopback names.
    pub allowed_hosts: Vec<String>,
    /// Pages that may call this server: `scheme://host:port`, the port may be `*`. A request without `Origin` does not
    /// come from a page and passes. Empty: no page may. `"*"`: any page may.
    pub allowed_origins: Vec<String>,
}

impl Default for McpSettings {
    fn default() -> Self {
        Self {
            tool_names: ToolNames::default(),
            profiles: BTreeMap::new(),
            allowed_hosts: LOOPBACK_HOSTS.map(str::to_owned).to_vec(),
            allowed_origins: LOOPBACK_ORIGINS.map(str::to_owned).to_vec(),
        }
    }
}

/// A tower service for one path; cheap to clone.
pub type Service = StreamableHttpService<Handler, NeverSessionManager>;

/// All endpoints: the tools of every domain, and of each that has some.
pub(crate) fn router(driver: &Driver, bodies: &Bodies, settings: &Settings) -> Router {
    let all = Router::new().route_service("/mcp", service(driver.clone(), None, settings));
    let domains = driver.registry().domains().filter(|domain| domain.mcp.is_some());
    let each = domains.fold(all, |router, domain| {
        let service = service(driver.clone(), Some(domain.name), settings);
        router.route_service(&format!("/mcp/{}", domain.name), service)
    });
    each.layer(from_fn_with_state(bodies.clone(), body::pass))
}

/// What an operation is called at `/mcp`, unless the operator has set otherwise.
pub(crate) fn tool_name(registry: &Registry, spec: &OperationSpec) -> String {
    tools::Namer::new(registry, None, ToolNames::default()).name(spec)
}

/// The tools of one domain, or of all of them, to be mounted with `Router::route_service`.
///
/// # Contract
/// A layer outside has put an `Arc<Caller>` into the extensions of every request.
///
/// The beginning of a stop changes nothing here: the transport would answer 500 to every call under way, committed or
/// not. Calls end by themselves (the store ends their waits) or with their connection, when the drain's time is over.
pub fn service(driver: Driver, domain: Option<&'static str>, settings: &Settings) -> Service {
    let handler = Handler::new(driver, domain, &settings.mcp);
    // The factory is called for every request: what it clones are counters.
    StreamableHttpService::new(
        move || Ok(handler.clone()),
        Arc::new(NeverSessionManager::default()),
        transport(settings),
    )
}

fn transport(settings: &Settings) -> StreamableHttpServerConfig {
    let config = StreamableHttpServerConfig::default()
        .with_legacy_session_mode(false)
        // One answer per request and no notifications before it: a stream would only cost more.
        .with_json_response(true)
        .with_max_request_body_bytes(settings.body_bytes_max);
    with_origins(with_hosts(config, &settings.mcp.allowed_hosts), &settings.mcp.allowed_origins)
}

fn with_hosts(config: StreamableHttpServerConfig, hosts: &[String]) -> StreamableHttpServerConfig {
    if hosts.iter().any(|host| host == ANY) {
        return config.disable_allowed_hosts();
    }
    if hosts.is_empty() {
        // The transport reads an empty list as "any host". A list emptied by mistake must not open the door.
        return config.with_allowed_hosts(LOOPBACK_HOSTS);
    }
    config.with_allowed_hosts(hosts)
}

fn with_origins(config: StreamableHttpServerConfig, origins: &[String]) -> StreamableHttpServerConfig {
    if origins.iter().any(|origin| origin == ANY) {
        return config.disable_allowed_origins();
    }
    // Without enforcement an empty list would mean "any page".
    config.with_allowed_origins(origins).enforce_origin_validation()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(json: serde_json::Value) -> Result<McpSettings, serde_json::Error> {
        serde_json::from_value(json)
    }

    #[test]
    fn settings_have_loopback_defaults_and_refuse_unknown_names() {
        let defaults = settings(serde_json::json!({})).unwrap();
        assert_eq!(defaults.tool_names, ToolNames::Prefixed);
        assert_eq!(defaults.allowed_hosts, LOOPBACK_HOSTS);
        assert_eq!(settings(serde_json::json!({ "tool_names": "plain" })).unwrap().tool_names, ToolNames::Plain);
        assert!(settings(serde_json::json!({ "tool_names": "Dotted" })).is_err());
        assert!(settings(serde_json::json!({ "allowed_host": [] })).is_err());
        let mail = settings(serde_json::json!({ "profiles": { "mail": "minimal" } })).unwrap();
        assert_eq!(mail.profiles.get("mail"), Some(&Profile::Minimal));
        assert!(settings(serde_json::json!({ "profiles": { "mail": "tiny" } })).is_err());
    }

    #[test]
    fn only_a_star_turns_the_host_check_off() {
        let hosts = |hosts: &[&str]| {
            let hosts: Vec<_> = hosts.iter().map(|host| (*host).to_owned()).collect();
            with_hosts(StreamableHttpServerConfig::default(), &hosts).allowed_hosts
        };
        assert_eq!(hosts(&[]), LOOPBACK_HOSTS);
        assert_eq!(hosts(&["waybill.example:443"]), ["waybill.example:443"]);
        assert!(hosts(&["*", "waybill.example"]).is_empty());
    }

    #[test]
    fn no_request_is_kept_in_memory_between_two() {
        let config = transport(&Settings::default());
        assert!(!config.legacy_session_mode);
        assert!(config.json_response);
        assert_eq!(config.allowed_origins, LOOPBACK_ORIGINS);
    }
}
