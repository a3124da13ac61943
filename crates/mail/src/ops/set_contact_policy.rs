//! Who may write to an agent.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Example, OperationSpec, Profile, Result, Role, Route, Scope};
use waybill_store::{Ctx, Operation, Reply, Tx};

use crate::rules::contact::Policy;
use crate::{acting, archive_rows};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SetContactPolicy {
    /// The project's absolute path or slug.
    pub project_key: String,
    /// Your agent's name.
    pub agent_name: String,
    /// open, auto, contacts_only or block_all.
    pub policy: String,
    /// The agent's token, where another key has registered it.
    #[schemars(extend("x-rare" = true))]
    pub registration_token: Option<String>,
}

/// The policy that an agent has now.
#[derive(Debug, Serialize, JsonSchema)]
pub struct PolicySet {
    pub agent: String,
    pub policy: &'static str,
}

impl Operation for SetContactPolicy {
    const SPEC: OperationSpec = OperationSpec {
        name: "set_contact_policy",
        domain: crate::NAME,
        route: Route::post("/v1/mail/contacts/policy"),
        profile: Profile::Core,
        repeatable: true,
        roles: &[Role::Agent, Role::Admin, Role::System],
        scopes: &[Scope::MailWrite],
        title: "Set who may write to an agent",
        description: "open: everybody of the project. auto: whoever shares a thread or files with you, or has been in contact \
                      within a day, and whoever you approved. contacts_only: whoever you approved. block_all: nobody.",
        example: Example {
            arguments: r#"{"project_key": "/data/projects/backend", "agent_name": "BlueLake", "policy": "contacts_only"}"#,
            answer: r#"{"agent": "BlueLake", "policy": "contacts_only"}"#,
        },
        ..OperationSpec::WRITE
    };
    type Output = PolicySet;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<PolicySet>> {
        const UPDATE: &str = "UPDATE mail_agents SET policy = $3 WHERE tenant = $1 AND agent = $2 AND policy <> $3";
        let policy = Policy::new(&self.policy)?;
        let project = acting::project(tx, &self.project_key).await?;
        let token = self.registration_token.as_deref();
        let agent = acting::act_as(ctx, tx, &project, &self.agent_name, token).await?.agent;
        if tx.execute(UPDATE, &[agent.id.into(), policy.as_str().into()]).await? == 1 {
            archive_rows::changed(tx, ctx.now, project.id, agent.id).await?;
        }
        Ok(Reply::Done(PolicySet { agent: agent.name, policy: policy.as_str() }))
    }
}
