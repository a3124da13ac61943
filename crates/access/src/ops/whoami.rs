//! Whoami: what a key is good for, so that a program can say early what it will not be able to do later.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Door, Example, Method, Mode, OperationSpec, Principal, Result, Role, Scope};
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
        door: Door::Admin,
        method: Method::Get,
        path: "/v1/whoami",
        tool: false,
        mode: Mode::Read,
        destructive: false,
        repeatable: true,
        relieves: false,
        roles: &[Role::Agent, Role::Worker, Role::Admin, Role::System],
        scopes: Scope::ALL,
        status: 200,
        title: "Read what your key is good for",
        description: "Shows the principal, the roles and the scopes of the key that the request carries.",
        example: Example {
            arguments: "{}",
            answer: r#"{"principal": "worker:builder-1", "roles": ["worker"], "scopes": ["tasks:lease", "receipts:read"]}"#,
        },
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
