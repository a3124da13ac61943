//! One request of an MCP client: who is asking, which tool, what came of it.
//!
//! # The outside system
//! The SDK's `ServerHandler` has a default for every method. Some defaults answer an empty list where the capability was
//! never declared (prompts, resources, completion); a client that trusts discovery takes that for a broken promise, so
//! they are refused here by name. `ping` and the handshake's defaults are right.

use std::sync::Arc;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, CompleteRequestMethod, CompleteRequestParams,
    CompleteResult, ContentBlock, Implementation, ListPromptsRequestMethod, ListPromptsResult,
    ListResourceTemplatesRequestMethod, ListResourceTemplatesResult, ListResourcesRequestMethod, ListResourcesResult,
    ListToolsResult, PaginatedRequestParams, ServerCapabilities, ServerConfig,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler};
use waybill_kernel::{Caller, Code, Error};

use super::ToolNames;
use super::body::Call;
use super::tools::{self, Toolbox};
use crate::driver::Driver;

/// Made once per endpoint, cloned for every request.
#[derive(Clone)]
pub struct Handler {
    driver: Driver,
    tools: Arc<Toolbox>,
    instructions: Arc<str>,
}

impl Handler {
    pub(super) fn new(driver: Driver, domain: Option<&'static str>, names: ToolNames) -> Self {
        let tools = Arc::new(Toolbox::new(driver.registry(), domain, names));
        Self { driver, tools, instructions: instructions(names).into() }
    }
}

/// What a client puts before its model, next to the tool list.
fn instructions(names: ToolNames) -> String {
    let [create, get, list, cancel] =
        ["create_task", "get_task", "list_tasks", "cancel_task"].map(|operation| tools::name(operation, names));
    format!(
        "Waybill hands work to others and keeps it safe. A task is a piece of work that a worker takes and answers \
         later, maybe long after this conversation; whatever crashes in between, it ends exactly once, as succeeded, \
         failed or canceled.\n\
         1. `{create}` hands work over and returns a task_id at once. Give it an idempotency_key that follows from the \
         work (such as \"invoice-4711-check\"): when you do not know whether a call arrived, send it again with the \
         same key, and you get the task that exists instead of a second one.\n\
         2. `{get}` with wait_seconds returns as soon as the task has ended or the time is up. While the task is \
         still open, call it again; no pause between calls is needed.\n\
         3. `{list}` finds your tasks again. `{cancel}` ends one that nobody needs any more.\n\
         A failed call says what happened (error, message) and what to do about it (help)."
    )
}

impl ServerHandler for Handler {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("waybill", env!("CARGO_PKG_VERSION")))
            .with_instructions(self.instructions.as_ref())
    }

    async fn list_tools(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> std::result::Result<ListToolsResult, ErrorData> {
        // The list fits one page, so no cursor has ever been given out.
        if request.is_some_and(|request| request.cursor.is_some()) {
            return Err(ErrorData::invalid_params(Code::InvalidCursor.entry().title, None));
        }
        let caller = caller(&context)?;
        Ok(ListToolsResult::with_all_items(self.tools.shown_to(&caller)))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> std::result::Result<CallToolResponse, ErrorData> {
        let caller = caller(&context)?;
        let Some(entry) = self.tools.find(&request.name) else {
            let message = format!("Unknown tool: {}. tools/list names the tools of this endpoint.", request.name);
            return Err(ErrorData::invalid_params(message, None));
        };
        let Some(call) = extension::<Call>(&context) else {
            tracing::error!("an MCP request came without its arguments: the endpoint is mounted outside their layer");
            return Err(ErrorData::internal_error(Code::Internal.entry().title, None));
        };
        let operation = entry.spec().name;
        call.tell(operation);
        let made = async { self.driver.admit(entry.spec(), &caller)?.call(entry, call.arguments()).await };
        let outcome = tokio::select! {
            outcome = made => outcome,
            // The client has gone and nobody will read an answer: stop waiting on its behalf.
            () = context.ct.cancelled() => Err(Error::new(Code::Unavailable, Code::Unavailable.entry().title)),
        };
        match outcome {
            Ok(output) => {
                call.give(output);
                Ok(CallToolResult::success(Vec::new()).into())
            }
            Err(error) => {
                log_cause(operation, &error);
                Ok(failure(&error).into())
            }
        }
    }

    async fn list_prompts(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> std::result::Result<ListPromptsResult, ErrorData> {
        Err(ErrorData::method_not_found::<ListPromptsRequestMethod>())
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> std::result::Result<ListResourcesResult, ErrorData> {
        Err(ErrorData::method_not_found::<ListResourcesRequestMethod>())
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> std::result::Result<ListResourceTemplatesResult, ErrorData> {
        Err(ErrorData::method_not_found::<ListResourceTemplatesRequestMethod>())
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

/// What only the log may see, once, with the levels of REST.
fn log_cause(operation: &str, error: &Error) {
    let (Some(cause), entry) = (error.cause(), error.code().entry()) else { return };
    if entry.http >= 500 {
        tracing::error!(code = entry.code, operation, cause, "a tool call failed");
    } else {
        tracing::debug!(code = entry.code, operation, cause, "a tool call was refused");
    }
}

/// The object REST sends, and as text the two sentences a model needs.
fn failure(error: &Error) -> CallToolResult {
    let text = format!("{} {}", error.message(), error.cure());
    let mut result = CallToolResult::error(vec![ContentBlock::text(text)]);
    result.structured_content = Some(error.to_json());
    result
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
        let result = wire(failure(&error));
        assert_eq!(result["isError"], true);
        assert_eq!(result["structuredContent"], error.to_json());
        assert_eq!(
            result["content"][0]["text"],
            "create_task needs another role than this key has. Use a key with the role and scope the message names."
        );
        assert!(!result.to_string().contains("secret"));
    }

    #[test]
    fn instructions_use_the_names_of_the_list() {
        assert!(instructions(ToolNames::Prefixed).contains("`asyncgate.create_task`"));
        assert!(instructions(ToolNames::Plain).contains("`create_task`"));
    }
}
