//! Config: what a client must know of the server it talks to.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Example, OperationSpec, Result, Role, Route, Scope};
use waybill_store::{Ctx, Operation, Reply, Tx};

use crate::Settings;

pub(crate) const PRODUCT: &str = "waybill";
/// The version of the protocol, which is the one its clients ask about.
pub(crate) const VERSION: &str = "0.3.0";
pub(crate) const SPECIFICATION: &str = "asyncgate/0.3.0";

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GetConfig {}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Config {
    /// standalone: receipts live in this server's own database.
    pub receipt_mode: &'static str,
    /// Null where receipts live here.
    pub memorygate_url: Option<String>,
    pub instance_id: String,
    pub capabilities: &'static [&'static str],
    pub version: &'static str,
    /// The protocol this is a server of.
    pub spec: &'static str,
}

impl Operation for GetConfig {
    const SPEC: OperationSpec = OperationSpec {
        name: "get_config",
        domain: "tasks",
        route: Route::get("/v1/config"),
        roles: &[Role::Agent, Role::Worker, Role::Admin, Role::System],
        scopes: Scope::ALL,
        title: "Read the server's configuration",
        description: "Read which protocol version and capabilities the server has and where its receipts live.",
        example: Example {
            arguments: r#"{}"#,
            answer: r#"{"receipt_mode": "standalone", "memorygate_url": null, "instance_id": "waybill-1",
                "capabilities": ["lease_based_execution", "receipt_emission"], "version": "0.3.0",
                "spec": "asyncgate/0.3.0"}"#,
        },
        ..OperationSpec::READ
    };
    type Output = Config;

    async fn run(&self, ctx: &Ctx<'_>, _: &mut Tx<'_>) -> Result<Reply<Config>> {
        Ok(Reply::Done(Config {
            receipt_mode: "standalone",
            memorygate_url: None,
            instance_id: ctx.settings::<Settings>().instance_id.clone(),
            capabilities: &["lease_based_execution", "receipt_emission"],
            version: VERSION,
            spec: SPECIFICATION,
        }))
    }
}
