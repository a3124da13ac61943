//! Who an agent is.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Error, Example, OperationSpec, Profile, Result, Role, Route, Scope};
use waybill_store::{Answered, Ctx, Flow, Operation, Procedure, Reply, Tx};

use crate::acting;
use crate::agents::AgentView;
use crate::archive_health::{ArchiveHealth, CommitView, CommitsOf};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Whois {
    /// The project's absolute path or slug.
    pub project_key: String,
    pub agent_name: String,
    /// With the newest commits of the archive that are about it, where this server writes the archive.
    #[schemars(extend("x-rare" = true))]
    pub include_recent_commits: Option<bool>,
    /// How many of them: 5 unless given, at most 50.
    #[schemars(range(min = 1))]
    #[schemars(extend("x-rare" = true))]
    pub commit_limit: Option<i64>,
}

// The operation with a look at the archive after it. No doc comment: it would be what tools say of their input.
#[derive(Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(transparent)]
pub struct WithCommits(Whois);

/// Who an agent is.
#[derive(Debug, Serialize, JsonSchema)]
pub struct WhoisView {
    #[serde(flatten)]
    pub agent: AgentView,
    /// Absent unless asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recent_commits: Option<Vec<CommitView>>,
    /// The caller may read the agent's mail.
    #[serde(skip)]
    pub reads_mail: bool,
}

impl Procedure for WithCommits {
    const SPEC: OperationSpec = <Whois as Operation>::SPEC;
    type Output = WhoisView;

    async fn call(self, flow: &Flow<'_>) -> Answered<WhoisView> {
        let (asked, limit) = (self.0.include_recent_commits == Some(true), self.0.commit_limit);
        let (reply, turn) = flow.home().run_in_turn(self.0, flow.caller.clone()).await?;
        let (Reply::Done(mut found) | Reply::Replay(mut found) | Reply::Empty { answer: mut found, .. }) = reply;
        if asked {
            let limit = usize::try_from(limit.unwrap_or(COMMITS).clamp(1, COMMITS_MAX)).unwrap_or(1);
            let of = CommitsOf {
                store: flow.home().clone(),
                tenant: flow.caller.tenant,
                project: found.agent.project_id,
                agent: found.agent.name.clone(),
                with_mail: found.reads_mail,
                limit,
            };
            let history = flow.home().settings().find::<ArchiveHealth>().and_then(ArchiveHealth::history);
            found.recent_commits = match history {
                Some(history) => Some(history(of).await?),
                None => Some(Vec::new()),
            };
        }
        Ok((Reply::Done(found), turn))
    }
}

const COMMITS: i64 = 5;
const COMMITS_MAX: i64 = 50;

impl Operation for Whois {
    const SPEC: OperationSpec = OperationSpec {
        name: "whois",
        domain: crate::NAME,
        route: Route::get("/v1/mail/agents/{agent_name}"),
        profile: Profile::Core,
        roles: &[Role::Agent, Role::Admin, Role::System],
        scopes: &[Scope::MailRead],
        title: "Show an agent",
        description: "What an agent says about itself: its program, model and task, and when it was last active.",
        example: Example {
            arguments: r#"{"project_key": "/data/projects/backend", "agent_name": "BlueLake"}"#,
            answer: r#"{"id": 8, "name": "BlueLake", "program": "codex", "model": "gpt", "task_description": "",
                "inception_ts": "2026-01-05T12:30:00.000000Z", "last_active_ts": "2026-01-05T12:30:00.000000Z",
                "project_id": 1, "contact_policy": "auto", "attachments_policy": "auto"}"#,
        },
        ..OperationSpec::READ
    };
    type Output = WhoisView;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<WhoisView>> {
        if self.commit_limit.is_some_and(|limit| limit < 1) {
            return Err(Error::invalid("commit_limit must be at least 1."));
        }
        let project = acting::project(tx, &self.project_key).await?;
        let agent = acting::agent(tx, &project, &self.agent_name).await?;
        // A message is for its parties, and the subject of a commit is that of a message.
        let reads_mail = acting::is_own(ctx, &agent);
        Ok(Reply::Done(WhoisView { agent: AgentView::from(&agent), recent_commits: None, reads_mail }))
    }
}
