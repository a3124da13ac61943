//! Whoami: what a key is good for, so that a program can say early what it will not be able to do later.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Example, OperationSpec, Principal, Result, Role, Route, Scope};
use waybill_store::{Ctx, Operation, Reply, Tx};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Whoami {}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Identity {
    /// Who the key acts as.
    pub principal: Principal,
    pub roles: Vec<Role>,
    pub scopes: Vec<Scope>,
}

impl Operation for Whoami {
    const SPEC: OperationSpec = OperationSpec {
        name: "whoami",
        domain: "admin",
        route: Route::get("/v1/whoami"),
        tool: false,
        roles: &[Role::Agent, Role::Worker, Role::Admin, Role::System],
        scopes: Scope::ALL,
        title: "Read what your key is good for",
        description: "Shows the principal, the roles and the scopes of the key that the request carries.",
        example: Example {
            arguments: "{}",
            answer: r#"{"principal": "worker:builder-1", "roles": ["worker"], "scopes": ["tasks:lease", "receipts:read"]}"#,
        },
        ..OperationSpec::READ
    };
    type Output = Identity;

    async fn run(&self, ctx: &Ctx<'_>, _: &mut Tx<'_>) -> Result<Reply<Identity>> {
        let caller = ctx.caller;
        Ok(Reply::Done(Identity {
            principal: caller.principal.clone(),
            roles: caller.roles.iter().collect(),
            scopes: caller.scopes.iter().collect(),
        }))
    }
}
