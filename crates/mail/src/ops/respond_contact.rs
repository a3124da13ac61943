//! Answer a request for contact.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Example, OperationSpec, Profile, Result, Role, Route, Scope, Time};
use waybill_store::{Ctx, Operation, Reply, Tx};

use crate::acting;
use crate::contacts::{self, Pair, Status};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RespondContact {
    /// The project's absolute path or slug.
    pub project_key: String,
    /// Your agent's name, which was asked.
    pub to_agent: String,
    /// The agent that has asked.
    pub from_agent: String,
    /// Its project, where that is another.
    #[schemars(extend("x-rare" = true))]
    pub from_project: Option<String>,
    /// Whether it may write to you.
    pub accept: bool,
    /// How long an approval holds: 30 days unless given.
    #[schemars(range(min = 60, max = 31_536_000))]
    #[schemars(extend("x-rare" = true))]
    pub ttl_seconds: Option<i64>,
    /// Your agent's token, where another key has registered it.
    #[schemars(extend("x-rare" = true))]
    pub registration_token: Option<String>,
}

/// The answer to a request.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ContactAnswered {
    pub from: String,
    pub to: String,
    pub approved: bool,
    pub status: Status,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_ts: Option<Time>,
    /// 0 when the answer was the same before.
    pub updated: u32,
}

impl Operation for RespondContact {
    const SPEC: OperationSpec = OperationSpec {
        name: "respond_contact",
        domain: crate::NAME,
        route: Route::post("/v1/mail/contacts/respond"),
        profile: Profile::Core,
        repeatable: true,
        roles: &[Role::Agent, Role::Admin, Role::System],
        scopes: &[Scope::MailWrite],
        title: "Answer a request for contact",
        description: "Lets an agent that has asked you for contact write to you, or does not. You may change the answer later.",
        example: Example {
            arguments: r#"{"project_key": "/data/projects/backend", "to_agent": "BlueLake", "from_agent": "GreenCastle",
                "accept": true}"#,
            answer: r#"{"from": "GreenCastle", "to": "BlueLake", "approved": true, "status": "approved",
                "expires_ts": "2026-02-04T12:30:00.000000Z", "updated": 1}"#,
        },
        ..OperationSpec::WRITE
    };
    type Output = ContactAnswered;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<ContactAnswered>> {
        let project = acting::project(tx, &self.project_key).await?;
        let token = self.registration_token.as_deref();
        let to = acting::act_as(ctx, tx, &project, &self.to_agent, token).await?.agent;
        let (from_project, from) =
            contacts::other(tx, &project, self.from_project.as_deref(), &self.from_agent).await?;
        let pair = Pair { project: &from_project, from: &from, to_project: &project, to: &to };
        let (link, changed) = contacts::respond(ctx, tx, pair, self.accept, self.ttl_seconds).await?;
        Ok(Reply::Done(ContactAnswered {
            from: from.name,
            to: to.name,
            approved: link.status == Status::Approved,
            status: link.status,
            expires_ts: link.expires_at,
            updated: u32::from(changed),
        }))
    }
}
