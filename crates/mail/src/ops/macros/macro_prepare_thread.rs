//! Join a thread: the agent, what the thread has come to, and what has come for the agent.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Code, Error, Example, Json, OperationSpec, Result, Role, Route, Scope};
use waybill_store::{Ctx, Operation, Reply, Tx};

use crate::acting::{self, Agent, Project};
use crate::agents::{self, AgentView, Profile, Registered, TASK_CHARS_MAX, WORD_CHARS_MAX};
use crate::inbox::MessageView;
use crate::ops::find::summarize_thread::{SummarizeThread, Summarized};
use crate::pages::{self, LIMIT_MAX, List, Page};
use crate::projects::ProjectView;
use crate::rules::message::page;
use crate::rules::threads;

const INBOX_USUAL: i64 = 10;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MacroPrepareThread {
    /// The project's absolute path or slug.
    pub project_key: String,
    pub thread_id: String,
    /// The program that the agent runs in.
    #[schemars(length(max = WORD_CHARS_MAX))]
    pub program: String,
    /// The model that it runs on.
    #[schemars(length(max = WORD_CHARS_MAX))]
    pub model: String,
    /// The name of an agent of yours to go on as, or of a new one. Left out, a new agent gets a name.
    pub agent_name: Option<String>,
    /// What it is working on.
    #[schemars(length(max = TASK_CHARS_MAX))]
    pub task_description: Option<String>,
    /// With the first messages of the thread: true unless given.
    #[schemars(extend("x-rare" = true))]
    pub include_examples: Option<bool>,
    /// Messages at most: 10 unless given.
    #[schemars(range(min = 1))]
    pub inbox_limit: Option<i64>,
    /// With the text of each message.
    #[serde(default)]
    pub include_inbox_bodies: bool,
    /// With false an agent that is not there is not made, and one that is stays as it is: true unless given.
    #[schemars(extend("x-rare" = true))]
    pub register_if_missing: Option<bool>,
    /// The agent's token, where another key has registered it.
    #[schemars(extend("x-rare" = true))]
    pub registration_token: Option<String>,
    /// Accepted and without effect: summaries are made by rules.
    #[schemars(extend("deprecated" = true))]
    pub llm_mode: Option<bool>,
    /// Accepted and without effect.
    #[schemars(extend("deprecated" = true))]
    pub llm_model: Option<String>,
    /// Accepted and without effect: a key says who is calling.
    #[schemars(extend("deprecated" = true))]
    pub registration_proof: Option<Json>,
}

/// Everything to join a thread with.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Prepared {
    pub project: ProjectView,
    pub agent: Registered,
    /// Absent where no agent of yours has a part in the thread yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread: Option<Summarized>,
    /// The newest first; none of them is marked as read.
    pub inbox: Vec<MessageView>,
    /// There are more: a page ends at its limit, or at 2 MiB.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub inbox_has_more: bool,
}

impl Operation for MacroPrepareThread {
    const SPEC: OperationSpec = OperationSpec {
        name: "macro_prepare_thread",
        domain: crate::NAME,
        route: Route::post("/v1/mail/threads/prepare"),
        profile: waybill_kernel::Profile::Full,
        roles: &[Role::Agent, Role::Admin, Role::System],
        scopes: &[Scope::MailWrite],
        title: "Join a thread",
        description: "One call to join a thread: registers your agent, sums the thread up, and gives the newest messages.",
        example: Example {
            arguments: r#"{"project_key": "/data/projects/backend", "thread_id": "FEAT-123", "program": "codex",
                "model": "gpt", "agent_name": "BlueLake"}"#,
            answer: r#"{"project": {"id": 1, "slug": "data-projects-backend", "human_key": "/data/projects/backend",
                "created_at": "2026-01-05T12:30:00.000000Z"}, "agent": {"id": 8, "name": "BlueLake", "program": "codex",
                "model": "gpt", "task_description": "", "inception_ts": "2026-01-05T12:30:00.000000Z",
                "last_active_ts": "2026-01-05T12:30:00.000000Z", "project_id": 1, "contact_policy": "auto",
                "attachments_policy": "auto"}, "inbox": []}"#,
        },
        ..OperationSpec::WRITE
    };
    type Output = Prepared;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Prepared>> {
        let limit = page(self.inbox_limit, INBOX_USUAL, LIMIT_MAX)?;
        threads::check(&self.thread_id)?;
        let project = acting::project(tx, &self.project_key).await?;
        let registered = self.agent(ctx, tx, &project).await?;
        let agent = acting::agent(tx, &project, &registered.agent.name).await?;
        let thread = self.summary(ctx, tx, &agent).await?;
        let page = Page { list: List::All, after: None, before: None, limit, bodies: self.include_inbox_bodies };
        let shown = pages::read(tx, &project, &agent, page).await?;
        Ok(Reply::Done(Prepared {
            project: project.into(),
            agent: registered,
            thread,
            inbox: shown.messages,
            inbox_has_more: shown.has_more,
        }))
    }
}

impl MacroPrepareThread {
    async fn agent(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, project: &Project) -> Result<Registered> {
        let (name, token) = (self.agent_name.as_deref(), self.registration_token.as_deref());
        if self.register_if_missing == Some(false) {
            let name = name.ok_or_else(|| Error::invalid("agent_name must be given where none is registered."))?;
            let agent = acting::act_as(ctx, tx, project, name, token).await?.agent;
            return Ok(Registered { agent: AgentView::from(&agent), registration_token: None });
        }
        let profile = Profile {
            program: &self.program,
            model: &self.model,
            task: self.task_description.as_deref(),
            attachments_policy: None,
            reaper_exempt: None,
        };
        agents::register(ctx, tx, project, name, &profile, token, false).await
    }

    /// From what all agents of the caller have; another principal's agent, whose token was shown, brings its own.
    async fn summary(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, agent: &Agent) -> Result<Option<Summarized>> {
        let summarize = SummarizeThread {
            project_key: self.project_key.clone(),
            thread_id: self.thread_id.clone(),
            include_examples: Some(self.include_examples.unwrap_or(true)),
            agent_name: (!acting::is_own(ctx, agent)).then(|| agent.name.clone()),
            registration_token: self.registration_token.clone(),
            ..SummarizeThread::default()
        };
        match summarize.run(ctx, tx).await {
            Ok(Reply::Done(summarized)) => Ok(Some(summarized)),
            Ok(_) => Err(Error::internal("a summary neither waits nor is replayed")),
            Err(error) if error.code() == Code::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}
