//! Whose project and which agent a call is about, and whether the caller may act for it.
//!
//! An agent belongs to the principal that registered it. Others of the tenant act for it with its registration token, and admins
//! without: an agent that anybody could write as would prove nothing.

use sha2::{Digest, Sha256};
use waybill_kernel::principal::forbidden;
use waybill_kernel::{Code, Error, Result, Role, Time};
use waybill_store::{Ctx, Row, Sql, Tx, Value};

use crate::archive_rows;
use crate::rules::addresses::{Address, Kind};
use crate::rules::names::{self, suggestions};
use crate::rules::projects;

/// So many names are compared with one that nobody has: an answer of bounded cost, and the likely ones are the active.
const SUGGESTED_FROM_MAX: i64 = 250;

/// A project as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Project {
    pub id: i64,
    pub slug: String,
    pub human_key: String,
    pub created_at: Time,
}

/// An agent as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agent {
    pub id: i64,
    pub project: i64,
    pub name: String,
    pub program: String,
    pub model: String,
    pub task: String,
    /// Text, since a later version may have others: [`crate::rules::contact::Policy::stored`] reads it.
    pub policy: String,
    pub attachments_policy: String,
    pub reaper_exempt: bool,
    pub principal: String,
    pub token: [u8; 32],
    pub created_at: Time,
    pub active_at: Time,
    pub retired_at: Option<Time>,
}

/// An agent that the caller acts for.
#[derive(Clone, Debug)]
pub struct Acting {
    pub agent: Agent,
    /// The caller has shown the agent's own token.
    pub verified: bool,
}

/// The columns that [`Project::read`] reads, in its order, of a table with the alias `p`.
macro_rules! project_columns {
    () => {
        "p.project, p.slug, p.human_key, p.created_at"
    };
}
pub(crate) use project_columns;

/// The columns that [`Agent::read`] reads, in its order, of a table with the alias `a`.
macro_rules! agent_columns {
    () => {
        "a.agent, a.project, a.name, a.program, a.model, a.task, a.policy, a.attachments_policy, a.reaper_exempt, \
         a.principal, a.token, a.created_at, a.active_at, a.retired_at"
    };
}
pub(crate) use agent_columns;

/// Where the columns of a project begin after those of an agent.
pub(crate) const AFTER_AGENT: usize = 14;

impl Project {
    pub(crate) fn read(row: &Row) -> Result<Self> {
        Self::read_at(row, 0)
    }

    pub(crate) fn read_at(row: &Row, at: usize) -> Result<Self> {
        Ok(Self {
            id: row.int(at)?,
            slug: row.text(at + 1)?.to_owned(),
            human_key: row.text(at + 2)?.to_owned(),
            created_at: row.time(at + 3)?,
        })
    }
}

impl Agent {
    pub(crate) fn read(row: &Row) -> Result<Self> {
        let token = row.bytes(10)?.try_into().map_err(|_| Error::internal("a token's digest is not 32 bytes long"))?;
        Ok(Self {
            id: row.int(0)?,
            project: row.int(1)?,
            name: row.text(2)?.to_owned(),
            program: row.text(3)?.to_owned(),
            model: row.text(4)?.to_owned(),
            task: row.text(5)?.to_owned(),
            policy: row.text(6)?.to_owned(),
            attachments_policy: row.text(7)?.to_owned(),
            reaper_exempt: row.bool(8)?,
            principal: row.text(9)?.to_owned(),
            token,
            created_at: row.time(11)?,
            active_at: row.time(12)?,
            retired_at: row.time_opt(13)?,
        })
    }
}

/// By its absolute path or by its slug. One that does not exist is told with those that look like it.
pub async fn project(tx: &mut Tx<'_>, key: &str) -> Result<Project> {
    match find_project(tx, key).await? {
        Some(project) => Ok(project),
        None => Err(no_project(tx, key).await?),
    }
}

pub async fn find_project(tx: &mut Tx<'_>, key: &str) -> Result<Option<Project>> {
    const BY_KEY: &str =
        concat!("SELECT ", project_columns!(), " FROM mail_projects p WHERE p.tenant = $1 AND p.digest = $2");
    const BY_SLUG: &str =
        concat!("SELECT ", project_columns!(), " FROM mail_projects p WHERE p.tenant = $1 AND p.slug = $2");
    let key = key.trim();
    let row = if projects::is_absolute(key) {
        let digest = projects::digest(&projects::human_key(key));
        tx.query_opt(BY_KEY, &[Value::from(&digest[..])]).await?
    } else if key.len() <= projects::SLUG_BYTES_MAX {
        tx.query_opt(BY_SLUG, &[Value::from(key)]).await?
    } else {
        None
    };
    row.as_ref().map(Project::read).transpose()
}

/// By its name without regard to case. One that does not exist is told with those that look like it.
pub async fn agent(tx: &mut Tx<'_>, project: &Project, name: &str) -> Result<Agent> {
    match find_agent(tx, project.id, name).await? {
        Some(agent) => Ok(agent),
        None => Err(no_agent(tx, project, name).await?),
    }
}

pub async fn find_agent(tx: &mut Tx<'_>, project: i64, name: &str) -> Result<Option<Agent>> {
    const BY_NAME: &str = concat!(
        "SELECT ",
        agent_columns!(),
        " FROM mail_agents a WHERE a.tenant = $1 AND a.project = $2 AND a.name_key = $3"
    );
    let key = names::key(name);
    let row = tx.query_opt(BY_NAME, &[Value::from(project), Value::from(&key)]).await?;
    row.as_ref().map(Agent::read).transpose()
}

/// Where an agent is looked for, and its name there. Names are taken as they are shown: that of an agent of another project than
/// `home` says its project.
pub(crate) async fn address(tx: &mut Tx<'_>, home: &Project, text: &str) -> Result<(Project, String)> {
    let address = Address::new(Kind::To, text);
    let there = match &address.project {
        Some(key) => project(tx, key).await?,
        None => home.clone(),
    };
    Ok((there, address.name))
}

/// The agent that a name means, as [`address`] takes it. None where there is no such project, or no such agent in it.
pub(crate) async fn find_addressed(tx: &mut Tx<'_>, home: &Project, text: &str) -> Result<Option<Agent>> {
    let address = Address::new(Kind::To, text);
    let there = match &address.project {
        Some(key) => find_project(tx, key).await?,
        None => Some(home.clone()),
    };
    match there {
        Some(there) => find_agent(tx, there.id, &address.name).await,
        None => Ok(None),
    }
}

/// The agent of this name, if the caller may act for it: as the principal that registered it, with its registration token, or
/// as an admin. A wrong token is refused whoever shows it.
pub async fn act_as(
    ctx: &Ctx<'_>,
    tx: &mut Tx<'_>,
    project: &Project,
    name: &str,
    token: Option<&str>,
) -> Result<Acting> {
    let agent = agent(tx, project, name).await?;
    let verified = may_act(ctx, &agent, token)?;
    Ok(Acting { agent, verified })
}

/// As [`act_as`], where an agent may be named and need not be.
pub(crate) async fn one_of(
    ctx: &Ctx<'_>,
    tx: &mut Tx<'_>,
    project: &Project,
    name: Option<&str>,
    token: Option<&str>,
) -> Result<Option<Agent>> {
    match name {
        Some(name) => Ok(Some(act_as(ctx, tx, project, name, token).await?.agent)),
        None => Ok(None),
    }
}

/// As [`act_as`], for an agent that was found already. True when the token was shown.
pub fn may_act(ctx: &Ctx<'_>, agent: &Agent, token: Option<&str>) -> Result<bool> {
    match token {
        Some(token) if token_digest(token) == agent.token => return Ok(true),
        Some(_) => {
            let message = format!("The token is not the one of {}.", agent.name);
            return Err(Error::new(Code::SenderTokenMismatch, message));
        }
        None => {}
    }
    if is_own(ctx, agent) {
        return Ok(false);
    }
    let message = format!(
        "{} was registered by another principal. Show its registration token, or register an agent of your own.",
        agent.name
    );
    Err(forbidden(message, &[Role::Admin], &ctx.caller.roles))
}

/// Whether the caller needs no token to act for it.
pub(crate) fn is_own(ctx: &Ctx<'_>, agent: &Agent) -> bool {
    agent.principal == ctx.caller.principal.to_string() || ctx.caller.sees_all_owners()
}

pub fn token_digest(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

/// The agent as it is now, and as it stays until the transaction ends.
pub(crate) async fn locked(tx: &mut Tx<'_>, agent: &Agent) -> Result<Agent> {
    const LOCKED: Sql = Sql {
        sqlite: concat!("SELECT ", agent_columns!(), " FROM mail_agents a WHERE a.tenant = $1 AND a.agent = $2"),
        postgres: concat!(
            "SELECT ",
            agent_columns!(),
            " FROM mail_agents a WHERE a.tenant = $1 AND a.agent = $2 FOR NO KEY UPDATE"
        ),
    };
    let sql = tx.text(LOCKED);
    let row = tx.query_opt(sql, &[agent.id.into()]).await?;
    Agent::read(&row.ok_or_else(|| Error::internal("an agent is gone"))?)
}

/// The agent has done something. Within a minute it is not written again: it would cost every call a row.
pub async fn touch(ctx: &Ctx<'_>, tx: &mut Tx<'_>, agent: &Agent) -> Result<()> {
    const TOUCH: &str = "UPDATE mail_agents SET active_at = $3 WHERE tenant = $1 AND agent = $2 AND active_at < $3";
    const MINUTE_US: i64 = 60_000_000;
    if ctx.now.micros() - agent.active_at.micros() < MINUTE_US {
        return Ok(());
    }
    tx.execute(TOUCH, &[agent.id.into(), ctx.now.into()]).await?;
    archive_rows::changed(tx, ctx.now, agent.project, agent.id).await
}

async fn no_project(tx: &mut Tx<'_>, key: &str) -> Result<Error> {
    const SLUGS: &str = "SELECT slug FROM mail_projects WHERE tenant = $1 ORDER BY slug LIMIT $2";
    let rows = tx.query(SLUGS, &[SUGGESTED_FROM_MAX.into()]).await?;
    let known = rows.iter().map(|row| row.text(0).map(str::to_owned)).collect::<Result<Vec<_>>>()?;
    let near = suggestions(&projects::slug(key), &known);
    let error = Error::new(Code::NotFound, format!("No such project{}", did_you_mean(&near)))
        .with("suggestions", near)
        .with_cure("Name a project by its absolute path or its slug, or create it with ensure_project.");
    Ok(error)
}

async fn no_agent(tx: &mut Tx<'_>, project: &Project, name: &str) -> Result<Error> {
    let near = names_like(tx, project.id, name).await?;
    let error =
        Error::new(Code::NotFound, format!("No such agent in the project {}{}", project.slug, did_you_mean(&near)))
            .with("suggestions", near)
            .with_cure("List the agents of the project with list_agents, or register one with register_agent.");
    Ok(error)
}

/// Names of the project that look like this one.
pub async fn names_like(tx: &mut Tx<'_>, project: i64, name: &str) -> Result<Vec<String>> {
    const NAMES: &str = "SELECT name FROM mail_agents WHERE tenant = $1 AND project = $2 \
                         ORDER BY active_at DESC, agent DESC LIMIT $3";
    let rows = tx.query(NAMES, &[project.into(), SUGGESTED_FROM_MAX.into()]).await?;
    let known = rows.iter().map(|row| row.text(0).map(str::to_owned)).collect::<Result<Vec<_>>>()?;
    Ok(suggestions(name, &known))
}

/// The end of a sentence.
pub fn did_you_mean(near: &[String]) -> String {
    if near.is_empty() { ".".to_owned() } else { format!("; did you mean {}?", near.join(", ")) }
}
