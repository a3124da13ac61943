//! Ask an agent for contact.

use schemars::JsonSchema;
use serde::Deserialize;
use waybill_kernel::{Example, OperationSpec, Profile, Result, Role, Route, Scope};
use waybill_store::{Ctx, Operation, Reply, Tx};

use crate::attaching::Whose;
use crate::contacts::{self, Asking, ContactRequested, REASON_CHARS_MAX, REQUEST_TTL_S};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RequestContact {
    /// The project's absolute path or slug.
    pub project_key: String,
    /// Your agent's name.
    pub from_agent: String,
    /// The agent that is asked.
    pub to_agent: String,
    /// Its project, where that is another.
    #[schemars(extend("x-rare" = true))]
    pub to_project: Option<String>,
    /// Why, for the one that is asked.
    #[serde(default)]
    #[schemars(length(max = REASON_CHARS_MAX))]
    pub reason: String,
    /// How long the request waits: 7 days unless given.
    #[schemars(range(min = 60, max = 31_536_000))]
    #[schemars(extend("x-rare" = true))]
    pub ttl_seconds: Option<i64>,
    /// Your agent's token, where another key has registered it.
    #[schemars(extend("x-rare" = true))]
    pub registration_token: Option<String>,
    /// Accepted and without effect, as the three that follow: nobody is registered by being asked.
    #[schemars(extend("deprecated" = true))]
    pub register_if_missing: Option<bool>,
    #[schemars(extend("deprecated" = true))]
    pub program: Option<String>,
    #[schemars(extend("deprecated" = true))]
    pub model: Option<String>,
    #[schemars(extend("deprecated" = true))]
    pub task_description: Option<String>,
}

impl Operation for RequestContact {
    const SPEC: OperationSpec = OperationSpec {
        name: "request_contact",
        domain: crate::NAME,
        route: Route::post("/v1/mail/contacts/request"),
        profile: Profile::Core,
        roles: &[Role::Agent, Role::Admin, Role::System],
        scopes: &[Scope::MailWrite],
        title: "Ask for contact",
        description: "Asks an agent that does not let you write to it, and tells it so by a message. It answers with \
                      respond_contact; until then nothing is open. Repeated, the request that waits is prolonged.",
        example: Example {
            arguments: r#"{"project_key": "/data/projects/backend", "from_agent": "GreenCastle", "to_agent": "BlueLake",
                "reason": "We both touch the login page."}"#,
            answer: r#"{"from": "GreenCastle", "to": "BlueLake", "to_project": "/data/projects/backend",
                "status": "pending", "expires_ts": "2026-01-12T12:30:00.000000Z", "intro_message_id": 44}"#,
        },
        stores: true,
        ..OperationSpec::WRITE
    };
    type Output = ContactRequested;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<ContactRequested>> {
        let ttl = contacts::ttl(self.ttl_seconds, REQUEST_TTL_S)?;
        let whose = Whose::new(&self.project_key, &self.from_agent, self.registration_token.as_deref());
        let asking = Asking::find(ctx, tx, &whose, self.to_project.as_deref(), &self.to_agent).await?;
        let requested = contacts::request(ctx, tx, asking.pair(), &self.reason, ttl).await?;
        Ok(Reply::Done(asking.shown(&requested.link, requested.intro)))
    }
}
