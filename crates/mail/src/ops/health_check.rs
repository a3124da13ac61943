//! Health: a write that is kept, and read back.

use schemars::JsonSchema;
use serde::Deserialize;
use serde::Serialize;
use waybill_kernel::{Error, Example, OperationSpec, Profile, Result, Role, Route, Scope, Time};
use waybill_store::{Ctx, Operation, Reply, Tx};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HealthCheck {}

/// How mail is.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Health {
    /// The answer comes after a write that was kept, so there is no other.
    pub status: &'static str,
    /// Likewise: a server that cannot write answers with an error, never with a colour.
    pub health_level: &'static str,
    pub probed_at: Time,
    pub projects: i64,
}

impl Operation for HealthCheck {
    const SPEC: OperationSpec = OperationSpec {
        name: "health_check",
        domain: crate::NAME,
        route: Route::post("/v1/mail/health"),
        profile: Profile::Core,
        repeatable: true,
        roles: &[Role::Agent, Role::Admin, Role::System],
        scopes: &[Scope::MailRead, Scope::MailWrite],
        title: "Check mail",
        description: "Writes something and reads it back: an answer means that mail works.",
        example: Example {
            arguments: "{}",
            answer: r#"{"status": "ok", "health_level": "green", "probed_at": "2026-01-05T12:30:00.000000Z",
                "projects": 3}"#,
        },
        ..OperationSpec::WRITE
    };
    type Output = Health;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Health>> {
        const PROBE: &str = "INSERT INTO mail_probes (tenant, probed_at) VALUES ($1, $2) \
                             ON CONFLICT (tenant) DO UPDATE SET probed_at = excluded.probed_at";
        const PROBED: &str = "SELECT probed_at FROM mail_probes WHERE tenant = $1";
        const PROJECTS: &str = "SELECT count(*) FROM mail_projects WHERE tenant = $1";
        tx.execute(PROBE, &[ctx.now.into()]).await?;
        let looks = [(PROBED, Vec::new()), (PROJECTS, Vec::new())];
        let rows = tx.query_all(&looks).await?;
        let number = |at: usize| rows[at].first().ok_or_else(|| Error::internal("a look has no row"))?.int(0);
        if number(0)? != ctx.now.micros() {
            return Err(Error::internal("a probe read back another value than it wrote"));
        }
        Ok(Reply::Done(Health { status: "ok", health_level: "green", probed_at: ctx.now, projects: number(1)? }))
    }
}
