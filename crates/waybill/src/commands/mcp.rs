//! `waybill mcp`: a running server's tools for clients that only start programs and talk to them over stdin and stdout.
//!
//! # The outside system
//! Over stdio MCP is one JSON-RPC message per line. The client owns the process: it writes requests to stdin, reads
//! answers from stdout, and closes stdin when it is done. Anything else on stdout breaks it, so whatever is to be said to
//! a person goes to stderr. A client of the older revisions opens with `initialize`, one of 2026-07-28 with
//! `server/discover`; the SDK tells them apart by the first message.
//!
//! # What we do
//! The process has no rules and no state: what is asked about tools and resources goes to `{url}/mcp` with the caller's key, and
//! the answers come back unchanged. The credential is the process's (its environment), never a tool's argument. Towards the
//! server we speak the stateless revision only, so a server may be restarted or replaced between two calls.
//!
//! # What may fail
//! At the start: no server at the URL, no key, or one it does not know; the process ends with the catalogue's exit code.
//! Later: the same as a tool error, which the model can read. A call whose answer was lost is `unavailable`, not failed:
//! sent again with the same idempotency key it finds the truth.

use std::error::Error as StdError;
use std::time::Duration;

use clap::Args;
use clap::builder::PossibleValuesParser;
use reqwest::Url;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, CompleteRequestMethod, CompleteRequestParams,
    CompleteResult, ContentBlock, ErrorCode, Implementation, ListPromptsRequestMethod, ListPromptsResult,
    ListResourceTemplatesResult, ListResourcesResult, ListToolsResult, PaginatedRequestParams, ProtocolVersion,
    ReadResourceRequestParams, ReadResourceResponse, ServerCapabilities, ServerConfig,
};
use rmcp::service::{ClientInitializeError, Peer, RequestContext, RunningService, ServerInitializeError};
use rmcp::transport::streamable_http_client::{StreamableHttpClientTransportConfig, StreamableHttpError};
use rmcp::transport::{DynamicTransportError, StreamableHttpClientTransport, stdio};
use rmcp::{
    ClientLifecycleMode, ClientServiceExt, ErrorData, RoleClient, RoleServer, ServerHandler, ServiceError, ServiceExt,
};
use waybill_kernel::{Code, Error, Profile, Result};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Well above the longest wait a tool offers: it only ends calls to a server that has stopped answering.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(120);
/// Calls in flight. The SDK's 16 would let a handful of waiting `get_task` calls hold up a `create_task`.
const CALLS_MAX: usize = 128;

/// Which of the server's tools.
#[derive(Args, Default)]
pub struct Wanted {
    /// The tools of one domain, as in mail or tasks, under their own names [default: those of all].
    #[arg(long, value_name = "DOMAIN", value_parser = PossibleValuesParser::new(domains()))]
    pub domain: Option<String>,
    /// How many of its tools [default: what the server is set to].
    #[arg(long, value_name = "PROFILE", value_parser = PossibleValuesParser::new(Profile::ALL.map(Profile::as_str)))]
    pub profile: Option<String>,
}

fn domains() -> Vec<&'static str> {
    waybill_domains::ALL.iter().filter(|domain| domain.mcp.is_some()).map(|domain| domain.name).collect()
}

/// Serves stdin and stdout until stdin ends.
///
/// The folder's admin key is never used: whatever a model asks for would be done as an admin.
pub async fn run(url: &str, key: Option<String>, wanted: &Wanted) -> Result<()> {
    let endpoint = endpoint(url, wanted)?;
    let has_key = key.is_some();
    let client = connect(&endpoint, key).await.map_err(|error| match error.code() {
        Code::Unauthorized if !has_key => asked_for_a_key(),
        _ => error,
    })?;
    let bridge = Bridge::new(&client, &endpoint);
    let server = match Box::pin(bridge.serve(stdio())).await {
        Ok(server) => server,
        // Started and closed again without a word: some clients probe a command that way.
        Err(ServerInitializeError::ConnectionClosed(_)) => return Ok(()),
        Err(error) => {
            return Err(Error::invalid("What came on stdin is not the opening of an MCP client.").because(error));
        }
    };
    server.waiting().await.map_err(Error::internal)?;
    client.cancel().await.map_err(Error::internal)?;
    Ok(())
}

fn endpoint(url: &str, wanted: &Wanted) -> Result<Url> {
    let invalid = || Error::invalid(format!("{url:?} is not a server's URL: write it as http://127.0.0.1:7700."));
    let mut endpoint = Url::parse(url.trim()).map_err(|_| invalid())?;
    if !matches!(endpoint.scheme(), "http" | "https") {
        return Err(invalid());
    }
    let domain = wanted.domain.as_deref().map(|domain| format!("/{domain}")).unwrap_or_default();
    let path = format!("{}/mcp{domain}", endpoint.path().trim_end_matches('/'));
    endpoint.set_path(&path);
    if let Some(profile) = &wanted.profile {
        endpoint.set_query(Some(&format!("profile={profile}")));
    }
    Ok(endpoint)
}

async fn connect(endpoint: &Url, key: Option<String>) -> Result<RunningService<RoleClient, ()>> {
    let http = waybill_guard::client()
        .user_agent(concat!("waybill/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(CONNECT_TIMEOUT)
        .timeout(REQUEST_TIMEOUT)
        // A proxy set for the web has no business between this process and its server: it would be shown the key.
        .no_proxy()
        // The key is for the server that was named and for no other.
        .redirect(reqwest::redirect::Policy::none())
        .build()
        .map_err(Error::internal)?;
    let mut config =
        StreamableHttpClientTransportConfig::with_uri(endpoint.as_str()).max_concurrent_requests(CALLS_MAX);
    // Keys are often read from a file, and files end with a newline.
    if let Some(key) = key.as_deref().map(str::trim).filter(|key| !key.is_empty()) {
        config = config.auth_header(key);
    }
    let lifecycle = ClientLifecycleMode::Discover { preferred_versions: vec![ProtocolVersion::V_2026_07_28] };
    let transport = StreamableHttpClientTransport::with_client(http, config);
    ().serve_with_lifecycle(transport, lifecycle).await.map_err(|error| refusal(&error, endpoint))
}

/// Why there is no connection, in the words of the catalogue.
fn refusal(error: &ClientInitializeError, endpoint: &Url) -> Error {
    if error.is_authorization_required() {
        return unauthorized();
    }
    let known = match error {
        ClientInitializeError::TransportError { error, .. } => transport_error(error, endpoint),
        _ => None,
    };
    match known {
        // Whatever else came back, nothing has been asked of it yet that could be lost.
        Some(known) if matches!(known.code(), Code::Unauthorized | Code::Forbidden | Code::ServerUnreachable) => known,
        _ => Error::new(Code::ServerUnreachable, format!("What answers at {endpoint} is not a Waybill server."))
            .because(error),
    }
}

fn asked_for_a_key() -> Error {
    let message = "An MCP client acts under a key of its own: set WAYBILL_KEY, or say --key; \
                   `waybill key create --principal agent:NAME` makes one.";
    Error::new(Code::Unauthorized, message)
}

fn unauthorized() -> Error {
    Error::new(Code::Unauthorized, "The server does not accept the key, or none was given.")
}

/// What the HTTP client has to say, if it is HTTP that failed.
fn transport_error(error: &DynamicTransportError, endpoint: &Url) -> Option<Error> {
    type Fault = StreamableHttpError<reqwest::Error>;
    let fault = chain(error.error.as_ref()).find_map(|error| error.downcast_ref::<Fault>())?;
    let known = match fault {
        // The URL has been read before, so the only part of a request that can fail to build is the key.
        Fault::Client(error) if error.is_builder() => unauthorized(),
        Fault::Client(error) if error.is_connect() => Error::new(
            Code::ServerUnreachable,
            format!("No Waybill server answers at {endpoint}: {}.", chain(error).last().unwrap_or(error)),
        ),
        Fault::AuthRequired(_) => unauthorized(),
        Fault::HttpStatus(error) => refused(error.status),
        Fault::UnexpectedServerResponse(text) => refused(status(text)?),
        _ => Error::new(Code::Unavailable, format!("The connection to {endpoint} was lost before an answer came.")),
    };
    Some(known.because(fault))
}

fn chain<'a>(error: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |error| (*error).source())
}

/// The SDK keeps no more of a refusal than `HTTP 403 Forbidden: …`.
fn status(text: &str) -> Option<u16> {
    text.strip_prefix("HTTP ")?.split_whitespace().next()?.parse().ok()
}

/// An HTTP status as the catalogue's first entry that has it. Of the 503s that is `unavailable`, the one that promises
/// nothing.
fn refused(status: u16) -> Error {
    if status == Code::Unauthorized.entry().http {
        return unauthorized();
    }
    let code = Code::ALL.iter().copied().find(|code| code.entry().http == status).unwrap_or(Code::Unavailable);
    Error::new(code, code.entry().title)
}

struct Bridge {
    upstream: Peer<RoleClient>,
    endpoint: Url,
    info: ServerConfig,
}

impl Bridge {
    fn new(client: &RunningService<RoleClient, ()>, endpoint: &Url) -> Self {
        let server = client.peer().peer_info();
        // What the server does not have is not promised in its name.
        let has_resources = server.as_ref().is_some_and(|server| server.capabilities.resources.is_some());
        let tools = ServerCapabilities::builder().enable_tools();
        let can = if has_resources { tools.enable_resources().build() } else { tools.build() };
        let mut info =
            ServerConfig::new(can).with_server_info(Implementation::new("waybill", env!("CARGO_PKG_VERSION")));
        info.instructions = server.and_then(|server| server.instructions.clone());
        Self { upstream: client.peer().clone(), endpoint: endpoint.clone(), info }
    }

    /// One request, passed on for a client that may leave meanwhile. The inner error is for the model or the person.
    async fn pass<T>(
        &self,
        context: &RequestContext<RoleServer>,
        asked: impl Future<Output = std::result::Result<T, ServiceError>>,
    ) -> std::result::Result<Result<T>, ErrorData> {
        let answer = tokio::select! {
            answer = asked => answer,
            () = context.ct.cancelled() => Err(ServiceError::Cancelled { reason: None }),
        };
        match answer {
            Ok(answer) => Ok(Ok(answer)),
            // The server's own word, such as "unknown tool".
            Err(ServiceError::McpError(error)) => Err(error),
            Err(ServiceError::TransportSend(error)) => {
                Ok(Err(transport_error(&error, &self.endpoint).unwrap_or_else(lost)))
            }
            Err(_) => Ok(Err(lost())),
        }
    }
}

/// `_meta` belongs to one hop: the client towards the server writes its own.
fn page(request: Option<PaginatedRequestParams>) -> Option<PaginatedRequestParams> {
    request.map(|mut request| {
        request.meta = None;
        request
    })
}

/// Where a failure has no other form than a protocol error.
fn refused_by(error: &Error) -> ErrorData {
    ErrorData::new(ErrorCode(error.code().entry().mcp), advice(error), Some(error.to_json()))
}

fn lost() -> Error {
    Error::new(Code::Unavailable, Code::Unavailable.entry().title)
}

fn advice(error: &Error) -> String {
    if let Some(cause) = error.cause() {
        tracing::warn!(error.code = %error.code(), cause, "a call to the server failed");
    }
    format!("{} {}", error.message(), error.cure())
}

impl ServerHandler for Bridge {
    fn get_info(&self) -> ServerConfig {
        self.info.clone()
    }

    async fn list_tools(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> std::result::Result<ListToolsResult, ErrorData> {
        let listed = self.pass(&context, self.upstream.list_tools(page(request))).await?;
        let mut tools = listed.map_err(|error| refused_by(&error))?;
        // Fields of the stateless revision: the SDK adds them again for a client that knows them.
        (tools.ttl_ms, tools.cache_scope) = (None, None);
        Ok(tools)
    }

    async fn call_tool(
        &self,
        mut request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> std::result::Result<CallToolResponse, ErrorData> {
        request.meta = None;
        match self.pass(&context, self.upstream.call_tool_once(request)).await? {
            Ok(answer) => Ok(answer),
            Err(error) => {
                let mut result = CallToolResult::error(vec![ContentBlock::text(advice(&error))]);
                result.structured_content = Some(error.to_json());
                Ok(result.into())
            }
        }
    }

    async fn list_resources(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> std::result::Result<ListResourcesResult, ErrorData> {
        let listed = self.pass(&context, self.upstream.list_resources(page(request))).await?;
        let mut resources = listed.map_err(|error| refused_by(&error))?;
        (resources.ttl_ms, resources.cache_scope) = (None, None);
        Ok(resources)
    }

    async fn list_resource_templates(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> std::result::Result<ListResourceTemplatesResult, ErrorData> {
        let listed = self.pass(&context, self.upstream.list_resource_templates(page(request))).await?;
        let mut templates = listed.map_err(|error| refused_by(&error))?;
        (templates.ttl_ms, templates.cache_scope) = (None, None);
        Ok(templates)
    }

    async fn read_resource(
        &self,
        mut request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> std::result::Result<ReadResourceResponse, ErrorData> {
        request.meta = None;
        let read = self.pass(&context, self.upstream.read_resource_once(request)).await?;
        let mut answer = read.map_err(|error| refused_by(&error))?;
        if let ReadResourceResponse::Complete(contents) = &mut answer {
            (contents.ttl_ms, contents.cache_scope) = (None, None);
        }
        Ok(answer)
    }

    // The SDK would answer these with empty lists though the capability is not declared.

    async fn list_prompts(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> std::result::Result<ListPromptsResult, ErrorData> {
        Err(ErrorData::method_not_found::<ListPromptsRequestMethod>())
    }

    async fn complete(
        &self,
        _: CompleteRequestParams,
        _: RequestContext<RoleServer>,
    ) -> std::result::Result<CompleteResult, ErrorData> {
        Err(ErrorData::method_not_found::<CompleteRequestMethod>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_endpoint_is_the_servers_url_and_nothing_that_is_no_url() {
        for url in ["http://127.0.0.1:7700", "http://127.0.0.1:7700/", " http://127.0.0.1:7700\n"] {
            assert_eq!(endpoint(url, &Wanted::default()).unwrap().as_str(), "http://127.0.0.1:7700/mcp", "{url:?}");
        }
        let tasks = Wanted { domain: Some("tasks".to_owned()), profile: Some("minimal".to_owned()) };
        let of_tasks = endpoint("https://host/waybill", &tasks).unwrap();
        assert_eq!(of_tasks.as_str(), "https://host/waybill/mcp/tasks?profile=minimal");
        for url in ["", "127.0.0.1:7700", "localhost:7700", "file:///tmp", "http://"] {
            assert_eq!(endpoint(url, &Wanted::default()).unwrap_err().code(), Code::InvalidRequest, "{url:?}");
        }
    }

    #[test]
    fn a_status_becomes_the_error_the_server_meant() {
        assert_eq!(status("HTTP 413 Payload Too Large: too much"), Some(413));
        assert_eq!(status("could not parse"), None);
        for (status, code) in [
            (401, Code::Unauthorized),
            (403, Code::Forbidden),
            (413, Code::PayloadTooLarge),
            (429, Code::RateLimitExceeded),
            (503, Code::Unavailable),
            (502, Code::Unavailable),
        ] {
            assert_eq!(refused(status).code(), code, "{status}");
        }
    }
}
