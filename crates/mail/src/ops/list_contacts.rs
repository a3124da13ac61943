//! Whom an agent has asked for contact, and who has asked it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Example, OperationSpec, Profile, Result, Role, Route, Scope, Time};
use waybill_store::{Ctx, Operation, Reply, Row, Tx};

use crate::acting;
use crate::contacts::{Link, Status};
use crate::rules::message::page;

const LIMIT_USUAL: i64 = 100;
const LIMIT_MAX: i64 = 500;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListContacts {
    /// The project's absolute path or slug.
    pub project_key: String,
    /// Your agent's name.
    pub agent_name: String,
    /// Contacts at most, in each direction: 100 unless given, at most 500.
    #[schemars(range(min = 1))]
    pub limit: Option<i64>,
    /// The agent's token, where another key has registered it.
    #[schemars(extend("x-rare" = true))]
    pub registration_token: Option<String>,
}

/// Contacts of an agent.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Contacts {
    /// Those it has asked.
    pub outgoing: Vec<ContactView>,
    /// Those that have asked it.
    pub incoming: Vec<ContactView>,
}

/// A contact.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct ContactView {
    /// The other one.
    pub agent: String,
    /// Its project.
    pub project: String,
    pub status: Status,
    pub reason: String,
    pub updated_ts: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_ts: Option<Time>,
}

impl Operation for ListContacts {
    const SPEC: OperationSpec = OperationSpec {
        name: "list_contacts",
        domain: crate::NAME,
        route: Route::get("/v1/mail/contacts"),
        profile: Profile::Full,
        roles: &[Role::Agent, Role::Admin, Role::System],
        scopes: &[Scope::MailRead],
        title: "List contacts",
        description: "Whom your agent has asked for contact and who has asked it, and what has come of it.",
        example: Example {
            arguments: r#"{"project_key": "/data/projects/backend", "agent_name": "BlueLake"}"#,
            answer: r#"{"outgoing": [], "incoming": [{"agent": "GreenCastle", "project": "/data/projects/backend",
                "status": "pending", "reason": "We both touch the login page.",
                "updated_ts": "2026-01-05T12:30:00.000000Z", "expires_ts": "2026-01-12T12:30:00.000000Z"}]}"#,
        },
        ..OperationSpec::READ
    };
    type Output = Contacts;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Contacts>> {
        macro_rules! side {
            ($own:literal, $other:literal) => {
                concat!(
                    "SELECT c.status, c.reason, c.updated_at, c.expires_at, a.name, p.human_key FROM mail_contacts c \
                     JOIN mail_agents a ON a.tenant = $1 AND a.agent = c.",
                    $other,
                    " JOIN mail_projects p ON p.tenant = $1 AND p.project = a.project WHERE c.tenant = $1 AND c.",
                    $own,
                    " = $2 ORDER BY c.",
                    $other,
                    " LIMIT $3"
                )
            };
        }
        const OUTGOING: &str = side!("from_agent", "to_agent");
        const INCOMING: &str = side!("to_agent", "from_agent");
        let limit = page(self.limit, LIMIT_USUAL, LIMIT_MAX)?;
        let project = acting::project(tx, &self.project_key).await?;
        let token = self.registration_token.as_deref();
        let agent = acting::act_as(ctx, tx, &project, &self.agent_name, token).await?.agent;
        let params = || vec![agent.id.into(), limit.into()];
        let rows = tx.query_all(&[(OUTGOING, params()), (INCOMING, params())]).await?;
        let view = |row: &Row| {
            let link = Link::read(row, 0, ctx.now)?;
            Ok(ContactView {
                agent: row.text(4)?.to_owned(),
                project: row.text(5)?.to_owned(),
                status: link.status,
                reason: link.reason,
                updated_ts: link.updated_at,
                expires_ts: link.expires_at,
            })
        };
        let list = |at: usize| rows[at].iter().map(view).collect::<Result<Vec<_>>>();
        Ok(Reply::Done(Contacts { outgoing: list(0)?, incoming: list(1)? }))
    }
}
