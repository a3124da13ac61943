//! One request of an MCP client: who is asking, which tool, what came of it.
//!
//! # The outside system
//! The SDK's `ServerHandler` has a default for every method. Some defaults answer an empty list where the capability was
//! never declared (prompts, completion, resources of a domain that has none); a client that trusts discovery takes that for
//! a broken promise, so they are refused here by name. `ping` and the negotiation of revisions are right as they are.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, CompleteRequestMethod, CompleteRequestParams,
    CompleteResult, ContentBlock, DiscoverResult, ErrorCode, Implementation, InitializeRequestParams, InitializeResult,
    ListPromptsRequestMethod, ListPromptsResult, ListResourceTemplatesRequestMethod, ListResourceTemplatesResult,
    ListResourcesRequestMethod, ListResourcesResult, ListToolsResult, PaginatedRequestParams,
    ReadResourceRequestMethod, ReadResourceRequestParams, ReadResourceResponse, ReadResourceResult, ServerCapabilities,
    ServerConfig,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler};
use waybill_kernel::{Caller, Code, Error, Result};
use waybill_store::{Answer, Entry, Mcp};

use super::McpSettings;
use super::body::{Call, Output};
use super::resources::Shelf;
use super::tools::{Missing, Namer, Toolbox};
use super::typed::{typed, without};
use crate::driver::Driver;

/// Made once per endpoint, cloned for every request.
#[derive(Clone)]
pub struct Handler(Arc<Endpoint>);

struct Endpoint {
    driver: Driver,
    tools: Toolbox,
    resources: Shelf,
    /// What a client puts before its model, next to the list of tools; by domain.
    instructions: Vec<(&'static str, String)>,
    /// How each domain wants to be met.
    manners: BTreeMap<&'static str, Mcp>,
}

impl Handler {
    pub(super) fn new(driver: Driver, domain: Option<&'static str>, settings: &McpSettings) -> Self {
        let registry = driver.registry();
        let namer = Namer::new(registry, domain, settings.tool_names);
        let served = registry.domains().filter(|known| domain.is_none_or(|domain| known.name == domain));
        let instructions = served.filter_map(|known| {
            Some((
                known.name,
                with_names(known.mcp?.instructions, |name| {
                    let of_domain =
                        |entry: &&Arc<dyn Entry>| entry.spec().domain == known.name && entry.spec().name == name;
                    registry.entries().find(of_domain).map(|entry| namer.name(entry.spec()))
                }),
            ))
        });
        let (tools, resources) = (Toolbox::new(registry, domain, settings), Shelf::new(registry, domain));
        let instructions = instructions.collect();
        let manners = registry.domains().filter_map(|known| Some((known.name, known.mcp?))).collect();
        Self(Arc::new(Endpoint { driver, tools, resources, instructions, manners }))
    }

    fn manner(&self, entry: &dyn Entry) -> (&'static [&'static str], bool) {
        self.0.manners.get(entry.spec().domain).map_or((&[][..], false), |mcp| (mcp.ignored, mcp.typed_errors))
    }

    /// Of the domains in which the caller may run something, or of all.
    fn instructions(&self, caller: Option<&Caller>) -> String {
        let is_for = |domain: &str| caller.is_none_or(|caller| self.0.tools.has_for(caller, domain));
        let texts = self.0.instructions.iter().filter(|(domain, _)| is_for(domain)).map(|(_, text)| text.as_str());
        texts.collect::<Vec<_>>().join("\n\n")
    }

    /// Makes a call for a client that may leave while it is under way.
    async fn make<'a>(
        &self,
        context: &RequestContext<RoleServer>,
        call: &Call,
        entry: &dyn Entry,
        input: impl FnOnce() -> Result<Cow<'a, str>>,
    ) -> std::result::Result<Result<Answer>, ErrorData> {
        let (driver, caller) = (&self.0.driver, caller(context)?);
        let operation = driver.registry().id(entry.spec());
        call.tell(operation.clone());
        let made = async {
            let admitted = driver.admit(entry.spec(), &caller)?;
            admitted.call(entry, &input()?).await
        };
        let outcome = tokio::select! {
            outcome = call.during(made) => outcome,
            // The client has gone and nobody will read an answer: stop waiting on its behalf.
            () = context.ct.cancelled() => Err(Error::new(Code::Unavailable, Code::Unavailable.entry().title)),
        };
        if let Err(error) = &outcome {
            call.during(async { log_cause(&operation, error) }).await;
        }
        Ok(outcome)
    }
}

/// A text with the names of tools in the place of `{operation}`. A name that is none stays as it is, for a test to find.
fn with_names(text: &str, name: impl Fn(&str) -> Option<String>) -> String {
    let mut parts = text.split('{');
    let mut written = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once('}').and_then(|(operation, rest)| Some((name(operation)?, rest))) {
            Some((name, rest)) => written.extend([name.as_str(), rest]),
            None => written.extend(["{", part]),
        }
    }
    written
}

/// A list fits one page, so no cursor has ever been given out.
fn refuse_cursor(request: Option<PaginatedRequestParams>) -> std::result::Result<(), ErrorData> {
    match request.and_then(|request| request.cursor) {
        Some(_) => Err(ErrorData::invalid_params(Code::InvalidCursor.entry().title, None)),
        None => Ok(()),
    }
}

impl ServerHandler for Handler {
    fn get_info(&self) -> ServerConfig {
        let tools = ServerCapabilities::builder().enable_tools();
        let can = if self.0.resources.is_empty() { tools.build() } else { tools.enable_resources().build() };
        ServerConfig::new(can)
            .with_server_info(Implementation::new("waybill", env!("CARGO_PKG_VERSION")))
            .with_instructions(self.instructions(None))
    }

    async fn initialize(
        &self,
        request: InitializeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> std::result::Result<InitializeResult, ErrorData> {
        let caller = caller(&context)?;
        context.peer.set_peer_info(request.clone());
        let negotiated = self.negotiate_initialize(&request)?;
        Ok(negotiated.with_instructions(self.instructions(Some(&caller))))
    }

    async fn discover(&self, context: RequestContext<RoleServer>) -> std::result::Result<DiscoverResult, ErrorData> {
        let caller = caller(&context)?;
        let info = self.get_info().with_instructions(self.instructions(Some(&caller)));
        Ok(DiscoverResult::from_server_info(self.supported_protocol_versions().into_owned(), info))
    }

    async fn list_tools(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> std::result::Result<ListToolsResult, ErrorData> {
        refuse_cursor(request)?;
        let profile = call(&context)?.profile();
        Ok(ListToolsResult::with_all_items(self.0.tools.shown_to(&*caller(&context)?, profile)))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> std::result::Result<CallToolResponse, ErrorData> {
        let call = call(&context)?;
        let entry = match self.0.tools.find(&request.name, call.profile()) {
            Ok(entry) => entry,
            Err(missing) => return Err(ErrorData::invalid_params(no_tool(&request.name, &missing), None)),
        };
        let (ignored, is_typed) = self.manner(entry);
        let arguments = || Ok(without(call.arguments(), ignored));
        match self.make(&context, call, entry, arguments).await? {
            Ok(answer) => {
                call.give(Output::Tool(answer));
                Ok(CallToolResult::success(Vec::new()).into())
            }
            Err(error) => Ok(failure(&error, is_typed).into()),
        }
    }

    async fn list_resources(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> std::result::Result<ListResourcesResult, ErrorData> {
        if self.0.resources.is_empty() {
            return Err(ErrorData::method_not_found::<ListResourcesRequestMethod>());
        }
        refuse_cursor(request)?;
        Ok(ListResourcesResult::with_all_items(self.0.resources.listed_for(&*caller(&context)?)))
    }

    async fn list_resource_templates(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> std::result::Result<ListResourceTemplatesResult, ErrorData> {
        if self.0.resources.is_empty() {
            return Err(ErrorData::method_not_found::<ListResourceTemplatesRequestMethod>());
        }
        refuse_cursor(request)?;
        Ok(ListResourceTemplatesResult::with_all_items(self.0.resources.templates_for(&*caller(&context)?)))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> std::result::Result<ReadResourceResponse, ErrorData> {
        if self.0.resources.is_empty() {
            return Err(ErrorData::method_not_found::<ReadResourceRequestMethod>());
        }
        let call = call(&context)?;
        let Some(found) = self.0.resources.find(&request.uri) else {
            let message = "There is no resource at this address. resources/list and resources/templates/list name those \
                           of this endpoint.";
            return Err(ErrorData::resource_not_found(message, None));
        };
        match self.make(&context, call, found.entry(), || found.input().map(Cow::Owned)).await? {
            Ok(answer) => {
                call.give(Output::Resource(request.uri.clone(), answer));
                Ok(ReadResourceResult::new(Vec::new()).into())
            }
            Err(error) => Err(refusal(&found.explained(error), self.manner(found.entry()).1)),
        }
    }

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

/// What our own layers have put into the HTTP request.
fn extension<T: Send + Sync + 'static>(context: &RequestContext<RoleServer>) -> Option<&T> {
    context.extensions.get::<http::request::Parts>()?.extensions.get::<T>()
}

/// The caller our own layer has authenticated for this very request. Its absence is a mistake in the wiring, and the
/// answer is a refusal.
fn caller(context: &RequestContext<RoleServer>) -> std::result::Result<Arc<Caller>, ErrorData> {
    extension::<Arc<Caller>>(context).cloned().ok_or_else(|| {
        tracing::error!(
            "an MCP request came without a caller: the endpoint is mounted outside the authentication layer"
        );
        ErrorData::internal_error(Code::Internal.entry().title, None)
    })
}

/// What has come past the library with this request.
fn call(context: &RequestContext<RoleServer>) -> std::result::Result<&Call, ErrorData> {
    extension::<Call>(context).ok_or_else(|| {
        tracing::error!("an MCP request came without its arguments: the endpoint is mounted outside their layer");
        ErrorData::internal_error(Code::Internal.entry().title, None)
    })
}

fn no_tool(name: &str, missing: &Missing) -> String {
    match missing {
        Missing::Unknown => format!("Unknown tool: {name}. tools/list names the tools of this endpoint."),
        Missing::Outside(profile) => format!(
            "{name} is not in the profile {} of this endpoint. Connect with ?profile=full in the URL to have every tool.",
            profile.as_str()
        ),
    }
}

/// What only the log may see, once, with the levels of REST.
fn log_cause(operation: &str, error: &Error) {
    let (Some(cause), entry) = (error.cause(), error.code().entry()) else { return };
    if entry.http >= 500 {
        tracing::error!(code = entry.code, operation, cause, "a tool call failed");
    } else {
        tracing::debug!(code = entry.code, operation, cause, "a tool call was refused");
    }
}

/// A read that failed: the object REST sends, beside the two sentences a person needs.
fn refusal(error: &Error, is_typed: bool) -> ErrorData {
    let text = format!("{} {}", error.message(), error.cure());
    let data = Some(object(error, is_typed));
    match error.code() {
        // What MCP calls it; the library knows which revision has which number for it.
        Code::NotFound => ErrorData::resource_not_found(text, data),
        code => ErrorData::new(ErrorCode(code.entry().mcp), text, data),
    }
}

/// The object REST sends, and as text the two sentences a model needs.
fn failure(error: &Error, is_typed: bool) -> CallToolResult {
    let text = format!("{} {}", error.message(), error.cure());
    let mut result = CallToolResult::error(vec![ContentBlock::text(text)]);
    result.structured_content = Some(object(error, is_typed));
    result
}

fn object(error: &Error, is_typed: bool) -> serde_json::Value {
    if is_typed { typed(error) } else { error.to_json() }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn wire(result: CallToolResult) -> Value {
        serde_json::to_value(result).unwrap()
    }

    #[test]
    fn a_failure_is_the_object_of_rest_with_its_cure_and_without_its_cause() {
        let error = Error::new(Code::Forbidden, "create_task needs another role than this key has.")
            .with("required_role", "agent")
            .because("secret");
        let result = wire(failure(&error, false));
        assert_eq!(result["isError"], true);
        assert_eq!(result["structuredContent"], error.to_json());
        assert_eq!(
            result["content"][0]["text"],
            "create_task needs another role than this key has. Use a key with the role and scope the message names."
        );
        assert!(!result.to_string().contains("secret"));
        let result = wire(failure(&error, true));
        assert_eq!(result["structuredContent"], typed(&error));
        assert!(!result.to_string().contains("secret"));
    }

    #[test]
    fn a_failed_read_is_a_protocol_error_with_the_object_of_rest() {
        let error = Error::not_found("task").because("secret");
        let refused = serde_json::to_value(refusal(&error, false)).unwrap();
        assert_eq!((&refused["code"], &refused["data"]), (&Value::from(-32002), &error.to_json()));
        let error = Error::new(Code::Forbidden, "No.");
        assert_eq!(refusal(&error, true).code.0, Code::Forbidden.entry().mcp);
        assert!(!refused.to_string().contains("secret"));
    }

    #[test]
    fn instructions_have_the_names_of_the_list() {
        let name = |operation: &str| (operation == "send").then(|| "mail.send".to_owned());
        assert_eq!(with_names("1. `{send}` sends, `{send}`.", name), "1. `mail.send` sends, `mail.send`.");
        assert_eq!(with_names("no {other}, {", name), "no {other}, {");
        assert_eq!(with_names("", name), "");
    }
}
