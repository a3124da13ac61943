//! Registering agents, and how they are shown.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use waybill_kernel::visible::unseen;
use waybill_kernel::{Code, Error, Result, Time, hex};
use waybill_store::{Ctx, Tx, Value};

use crate::Settings;
use crate::acting::{self, Agent, Project};
use crate::archive_rows::{self, ArchiveKind};
use crate::projects::one_at_a_time;
use crate::rules::contact::Policy;
use crate::rules::names;

pub(crate) const WORD_CHARS_MAX: usize = 128;
pub(crate) const TASK_CHARS_MAX: usize = 4_096;
/// Draws before it is given up: half of them are numbered, of which a project can have a billion.
const DRAWS_MAX: usize = 2 * names::PLAIN_DRAWS;

/// How files of the agent's messages are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum AttachmentsPolicy {
    #[default]
    Auto,
    Inline,
    File,
}

impl AttachmentsPolicy {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            AttachmentsPolicy::Auto => "auto",
            AttachmentsPolicy::Inline => "inline",
            AttachmentsPolicy::File => "file",
        }
    }
}

/// An agent of a project.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct AgentView {
    pub id: i64,
    pub name: String,
    pub program: String,
    pub model: String,
    pub task_description: String,
    pub inception_ts: Time,
    pub last_active_ts: Time,
    pub project_id: i64,
    pub contact_policy: &'static str,
    pub attachments_policy: String,
    /// Since when nobody may write to it; absent while one may.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retired_ts: Option<Time>,
}

impl From<&Agent> for AgentView {
    fn from(agent: &Agent) -> Self {
        Self {
            id: agent.id,
            name: agent.name.clone(),
            program: agent.program.clone(),
            model: agent.model.clone(),
            task_description: agent.task.clone(),
            inception_ts: agent.created_at,
            last_active_ts: agent.active_at,
            project_id: agent.project,
            contact_policy: Policy::stored(&agent.policy).as_str(),
            attachments_policy: agent.attachments_policy.clone(),
            retired_ts: agent.retired_at,
        }
    }
}

/// An agent as it was registered.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct Registered {
    #[serde(flatten)]
    pub agent: AgentView,
    /// Shown when the agent is new, or when `new_token` was asked for. Whoever has it acts for the agent: you, with the key
    /// that registered it, need it only to prove it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub registration_token: Option<String>,
}

/// An agent that a call is about.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Named {
    /// The project's absolute path or slug.
    pub project_key: String,
    pub agent_name: String,
    /// The agent's token, where another key has registered it.
    #[schemars(extend("x-rare" = true))]
    pub registration_token: Option<String>,
}

/// Takes an agent out of use, or brings it back. One that is so already is left as it is.
pub(crate) async fn retire(ctx: &Ctx<'_>, tx: &mut Tx<'_>, named: &Named, is_retired: bool) -> Result<AgentView> {
    const UPDATE: &str = "UPDATE mail_agents SET retired_at = $3, active_at = $4 WHERE tenant = $1 AND agent = $2";
    let project = acting::project(tx, &named.project_key).await?;
    let token = named.registration_token.as_deref();
    let agent = acting::act_as(ctx, tx, &project, &named.agent_name, token).await?.agent;
    let mut agent = acting::locked(tx, &agent).await?;
    if agent.retired_at.is_some() != is_retired {
        agent.retired_at = is_retired.then_some(ctx.now);
        if !is_retired {
            // Who is brought back counts as active, or it would be retired again for what it did not do meanwhile.
            agent.active_at = agent.active_at.max(ctx.now);
        }
        tx.execute(UPDATE, &[agent.id.into(), agent.retired_at.into(), agent.active_at.into()]).await?;
        archive_rows::note(tx, ctx.now, project.id, ArchiveKind::Agent, agent.id).await?;
    }
    Ok(AgentView::from(&agent))
}

/// What an agent says about itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Profile<'a> {
    pub program: &'a str,
    pub model: &'a str,
    /// None leaves what it was.
    pub task: Option<&'a str>,
    pub attachments_policy: Option<AttachmentsPolicy>,
    pub reaper_exempt: Option<bool>,
}

impl Profile<'_> {
    pub(crate) fn check(&self) -> Result<()> {
        for (field, text, code) in
            [("program", self.program, Code::EmptyProgram), ("model", self.model, Code::EmptyModel)]
        {
            if text.trim().is_empty() {
                return Err(Error::new(code, code.entry().title));
            }
            if text.chars().count() > WORD_CHARS_MAX {
                return Err(Error::invalid(format!("{field} must have 1 to {WORD_CHARS_MAX} characters.")));
            }
            if let Some(why) = unseen(text.trim()) {
                return Err(Error::invalid(format!("{field} {why}.")));
            }
        }
        if self.task.is_some_and(|task| task.chars().count() > TASK_CHARS_MAX) {
            return Err(Error::invalid(format!("task_description must have at most {TASK_CHARS_MAX} characters.")));
        }
        Ok(())
    }
}

/// The agent of this name as the profile says, made if there is none; without a name a new one.
pub(crate) async fn register(
    ctx: &Ctx<'_>,
    tx: &mut Tx<'_>,
    project: &Project,
    name: Option<&str>,
    profile: &Profile<'_>,
    token: Option<&str>,
    new_token: bool,
) -> Result<Registered> {
    profile.check()?;
    let minted = mint(ctx);
    let Some(name) = name.map(str::trim).filter(|name| !name.is_empty()) else {
        return create_unnamed(ctx, tx, project, profile, &minted).await;
    };
    if let Some(agent) = acting::find_agent(tx, project.id, name).await? {
        return update(ctx, tx, &agent, profile, token, new_token.then_some(&minted)).await;
    }
    let name = names::check(name)?;
    match insert(ctx, tx, project, &name, profile, &minted).await? {
        Some(registered) => Ok(registered),
        // Somebody else has registered it meanwhile.
        None => {
            let agent = acting::agent(tx, project, &name).await?;
            update(ctx, tx, &agent, profile, token, new_token.then_some(&minted)).await
        }
    }
}

/// A new agent of this name; an error if the name is taken, and nothing is changed then.
pub(crate) async fn create(
    ctx: &Ctx<'_>,
    tx: &mut Tx<'_>,
    project: &Project,
    name: Option<&str>,
    profile: &Profile<'_>,
) -> Result<Registered> {
    profile.check()?;
    let minted = mint(ctx);
    let Some(name) = name.map(str::trim).filter(|name| !name.is_empty()) else {
        return create_unnamed(ctx, tx, project, profile, &minted).await;
    };
    let name = names::check(name)?;
    match insert(ctx, tx, project, &name, profile, &minted).await? {
        Some(registered) => Ok(registered),
        None => Err(Error::new(Code::AgentNameTaken, format!("The project {} has an agent {name}.", project.slug))),
    }
}

/// Whom people write as. Made with the first message, for whichever admin writes it; everybody may answer, also where it was
/// retired or given another policy since, or came with an archive.
pub(crate) async fn overseer(ctx: &Ctx<'_>, tx: &mut Tx<'_>, project: &Project) -> Result<Agent> {
    const OPEN: &str = "UPDATE mail_agents SET policy = $3, reaper_exempt = 1, retired_at = NULL \
                        WHERE tenant = $1 AND agent = $2";
    const PERSON: Profile<'_> =
        Profile { program: "person", model: "none", task: None, attachments_policy: None, reaper_exempt: Some(true) };
    let (agent, is_new) = match acting::find_agent(tx, project.id, names::OVERSEER).await? {
        Some(agent) => (agent, false),
        None => {
            let made = insert(ctx, tx, project, names::OVERSEER, &PERSON, &mint(ctx)).await?;
            (acting::agent(tx, project, names::OVERSEER).await?, made.is_some())
        }
    };
    let policy = Policy::Open.as_str();
    if agent.policy == policy && agent.reaper_exempt && agent.retired_at.is_none() {
        return Ok(agent);
    }
    tx.execute(OPEN, &[agent.id.into(), policy.into()]).await?;
    // The archive is told of a new one already.
    if !is_new {
        archive_rows::note(tx, ctx.now, project.id, ArchiveKind::Agent, agent.id).await?;
    }
    Ok(Agent { policy: policy.to_owned(), reaper_exempt: true, retired_at: None, ..agent })
}

/// Random names are drawn until one is free: a project with many agents meets taken ones often.
async fn create_unnamed(
    ctx: &Ctx<'_>,
    tx: &mut Tx<'_>,
    project: &Project,
    profile: &Profile<'_>,
    minted: &str,
) -> Result<Registered> {
    for draw in 0..DRAWS_MAX {
        // Of an id's two halves the second is random.
        let (_, random) = ctx.ids.next().as_u64_pair();
        let name = names::draw(random, draw >= names::PLAIN_DRAWS);
        if let Some(registered) = insert(ctx, tx, project, &name, profile, minted).await? {
            return Ok(registered);
        }
    }
    Err(Error::new(Code::Overloaded, "No free name was found for the agent; give it one."))
}

/// None when the name is taken.
async fn insert(
    ctx: &Ctx<'_>,
    tx: &mut Tx<'_>,
    project: &Project,
    name: &str,
    profile: &Profile<'_>,
    minted: &str,
) -> Result<Option<Registered>> {
    const INSERT: &str = "INSERT INTO mail_agents (tenant, project, name, name_key, program, model, task, policy, \
        attachments_policy, reaper_exempt, principal, token, created_at, active_at) \
        SELECT $1, $2, $3, $4, $5, $6, $7, 'auto', $8, $9, $10, $11, $12, $12 \
        WHERE (SELECT count(*) FROM mail_agents WHERE tenant = $1) < $13 \
        ON CONFLICT (tenant, project, name_key) DO NOTHING";
    let max = ctx.settings::<Settings>().agents_max;
    one_at_a_time(tx, ctx.caller.tenant, b"agents").await?;
    let (key, digest) = (names::key(name), acting::token_digest(minted));
    let principal = ctx.caller.principal.to_string();
    let params = [
        project.id.into(),
        name.into(),
        Value::from(&key),
        profile.program.trim().into(),
        profile.model.trim().into(),
        profile.task.unwrap_or_default().into(),
        profile.attachments_policy.unwrap_or_default().as_str().into(),
        profile.reaper_exempt.unwrap_or_default().into(),
        Value::from(&principal),
        Value::from(&digest[..]),
        ctx.now.into(),
        max.into(),
    ];
    let inserted = tx.execute(INSERT, &params).await? == 1;
    let found = acting::find_agent(tx, project.id, name).await?;
    match found {
        Some(agent) if inserted => {
            archive_rows::note(tx, ctx.now, project.id, ArchiveKind::Agent, agent.id).await?;
            Ok(Some(Registered { agent: AgentView::from(&agent), registration_token: Some(minted.to_owned()) }))
        }
        Some(_) => Ok(None),
        None => {
            let message = format!("The tenant has {max} agents, which is as many as it may have.");
            Err(Error::new(Code::TooManyAgents, message).with("limit", max))
        }
    }
}

/// Who registers an agent again goes on as that agent, so it must be one that the caller may act for.
async fn update(
    ctx: &Ctx<'_>,
    tx: &mut Tx<'_>,
    agent: &Agent,
    profile: &Profile<'_>,
    token: Option<&str>,
    minted: Option<&String>,
) -> Result<Registered> {
    const UPDATE: &str = "UPDATE mail_agents SET program = $3, model = $4, task = coalesce($5, task), \
        attachments_policy = coalesce($6, attachments_policy), reaper_exempt = coalesce($7, reaper_exempt), \
        active_at = CASE WHEN active_at < $8 THEN $8 ELSE active_at END, retired_at = NULL, token = coalesce($9, token) \
        WHERE tenant = $1 AND agent = $2";
    const BY_ID: &str =
        concat!("SELECT ", acting::agent_columns!(), " FROM mail_agents a WHERE a.tenant = $1 AND a.agent = $2");
    acting::may_act(ctx, agent, token)?;
    let digest = minted.map(|minted| acting::token_digest(minted));
    let params = [
        agent.id.into(),
        profile.program.trim().into(),
        profile.model.trim().into(),
        profile.task.into(),
        profile.attachments_policy.map(AttachmentsPolicy::as_str).into(),
        Value::Int(profile.reaper_exempt.map(i64::from)),
        ctx.now.into(),
        Value::Bytes(digest.as_ref().map(|digest| &digest[..])),
    ];
    if tx.execute(UPDATE, &params).await? != 1 {
        return Err(Error::internal("an agent was gone when it was registered again"));
    }
    archive_rows::note(tx, ctx.now, agent.project, ArchiveKind::Agent, agent.id).await?;
    let row = tx.query_opt(BY_ID, &[agent.id.into()]).await?;
    let row = row.ok_or_else(|| Error::internal("an agent was gone after it was registered again"))?;
    Ok(Registered { agent: AgentView::from(&Agent::read(&row)?), registration_token: minted.cloned() })
}

/// Two random ids, mixed: as hard to guess as one of them.
fn mint(ctx: &Ctx<'_>) -> String {
    let mut mixed = Sha256::new();
    for _ in 0..2 {
        mixed.update(ctx.ids.next().as_bytes());
    }
    hex::encode(&mixed.finalize())
}
