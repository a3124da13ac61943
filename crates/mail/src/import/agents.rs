//! Agents of an archive. Their names are kept as they are, also such as nobody could register here.

use sha2::{Digest, Sha256};
use waybill_kernel::visible::unseen;
use waybill_kernel::{Mode, Result, Tenant, Time};
use waybill_store::{Ctx, Tx, Value, Work};

use super::{BATCH_MAX, Put, check_number, check_text, numbered, numbers};
use crate::Settings;
use crate::acting::{self, Agent, Project};
use crate::agents::{TASK_CHARS_MAX, WORD_CHARS_MAX};
use crate::archive_rows::{self, ArchiveKind};
use crate::projects::one_at_a_time;
use crate::rules::contact::Policy;
use crate::rules::names;

/// Of a name that is not ours.
const NAME_CHARS_MAX: usize = 128;
/// A character has up to four bytes.
const UTF8_MAX: usize = 4;

#[derive(Clone, Debug)]
pub struct AgentRecord {
    pub number: Option<i64>,
    pub name: String,
    pub program: String,
    pub model: String,
    pub task: String,
    pub policy: Option<String>,
    pub attachments_policy: String,
    pub reaper_exempt: bool,
    /// Who acts for it.
    pub principal: String,
    /// The digest of its token. Without one nobody has a token until it is registered again.
    pub token: Option<[u8; 32]>,
    pub created_at: Time,
    pub active_at: Time,
    pub retired_at: Option<Time>,
}

/// Somebody whom messages name and who has no profile. Retired: nobody is written to who never registered here.
pub struct Nobody<'a> {
    pub name: &'a str,
    pub principal: &'a str,
    pub at: Time,
}

impl From<Nobody<'_>> for AgentRecord {
    fn from(nobody: Nobody<'_>) -> Self {
        Self {
            number: None,
            name: nobody.name.to_owned(),
            program: "unknown".to_owned(),
            model: "unknown".to_owned(),
            task: String::new(),
            policy: None,
            attachments_policy: String::new(),
            reaper_exempt: false,
            principal: nobody.principal.to_owned(),
            token: None,
            created_at: nobody.at,
            active_at: nobody.at,
            retired_at: Some(nobody.at),
        }
    }
}

impl AgentRecord {
    /// The overseer as this server makes it: an admin acts for it, every agent may answer it, and it is never retired. Whoever
    /// takes over an archive for an agent's principal must not give that principal the overseer with it.
    fn overseer(&self, admin: &str) -> Option<Self> {
        (names::key(&self.name) == names::key(names::OVERSEER)).then(|| Self {
            policy: Some(Policy::Open.as_str().to_owned()),
            reaper_exempt: true,
            principal: admin.to_owned(),
            retired_at: None,
            ..self.clone()
        })
    }
}

/// At most [`BATCH_MAX`] of one project.
pub struct PutAgents {
    pub tenant: Tenant,
    pub project: Project,
    pub records: Vec<AgentRecord>,
    /// Who acts for the overseer, whatever its record says.
    pub admin: String,
    /// The highest number that is to come.
    pub coming: i64,
    pub archived: bool,
}

impl Work for PutAgents {
    /// In the order of the records; no agent for one that was refused.
    type Output = Vec<(Put, Option<Agent>)>;

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Self::Output> {
        const HIGHEST: &str = "SELECT max(agent) FROM mail_agents";
        assert!(self.records.len() <= BATCH_MAX, "more than {BATCH_MAX} agents at once");
        let mut free = numbers::free(tx, HIGHEST, self.coming).await?;
        let tx = &mut *tx.as_tenant(self.tenant);
        one_at_a_time(tx, self.tenant, b"agents").await?;
        let max = ctx.settings::<Settings>().agents_max;
        let mut left = max - count(tx).await?;
        let mut outcomes = Vec::with_capacity(self.records.len());
        for record in &self.records {
            if let Some(known) = acting::find_agent(tx, self.project.id, &record.name).await? {
                outcomes.push((Put::Known, Some(known)));
                continue;
            }
            let overseer = record.overseer(&self.admin);
            let record = overseer.as_ref().unwrap_or(record);
            let refused = check(record).err();
            let full = || format!("the tenant has {max} agents, as many as it may have");
            if let Some(why) = refused.or_else(|| (left <= 0).then(full)) {
                outcomes.push((Put::Refused(why), None));
                continue;
            }
            left -= 1;
            outcomes.push(self.insert(ctx, tx, record, free).await?);
            free = free.map(|free| free + 1);
        }
        Ok(outcomes)
    }
}

impl PutAgents {
    async fn insert(
        &self,
        ctx: &Ctx<'_>,
        tx: &mut Tx<'_>,
        record: &AgentRecord,
        free: Option<i64>,
    ) -> Result<(Put, Option<Agent>)> {
        let numbers = if record.number.is_some() { vec![record.number, free] } else { vec![free] };
        for number in numbers {
            if insert(ctx, tx, self.project.id, number, record).await? == 0 {
                continue;
            }
            let Some(agent) = acting::find_agent(tx, self.project.id, &record.name).await? else { continue };
            if self.archived {
                archive_rows::note(tx, ctx.now, self.project.id, ArchiveKind::Agent, agent.id).await?;
                archive_rows::changed(tx, ctx.now, self.project.id, agent.id).await?;
            }
            let own = record.number.is_none() || number == record.number;
            let put = if own { Put::Written } else { Put::Renumbered };
            return Ok((put, Some(agent)));
        }
        Ok((Put::Refused("its name was taken meanwhile".to_owned()), None))
    }
}

fn check(record: &AgentRecord) -> std::result::Result<(), String> {
    if let Some(number) = record.number {
        check_number(number)?;
    }
    let name = &record.name;
    if name.is_empty() || name.trim() != name || name.chars().count() > NAME_CHARS_MAX {
        return Err(format!("its name has 1 to {NAME_CHARS_MAX} characters, and no spaces at its ends"));
    }
    if let Some(why) = unseen(name) {
        return Err(format!("its name {why}"));
    }
    for (what, text, chars) in [
        ("program", &record.program, WORD_CHARS_MAX),
        ("model", &record.model, WORD_CHARS_MAX),
        ("task_description", &record.task, TASK_CHARS_MAX),
        ("attachments_policy", &record.attachments_policy, WORD_CHARS_MAX),
        ("principal", &record.principal, 2 * WORD_CHARS_MAX),
    ] {
        check_text(what, text, chars * UTF8_MAX)?;
    }
    Ok(())
}

async fn count(tx: &mut Tx<'_>) -> Result<i64> {
    let row = tx.query_opt("SELECT count(*) FROM mail_agents WHERE tenant = $1", &[]).await?;
    row.map_or(Ok(0), |row| row.int(0))
}

async fn insert(
    ctx: &Ctx<'_>,
    tx: &mut Tx<'_>,
    project: i64,
    number: Option<i64>,
    record: &AgentRecord,
) -> Result<u64> {
    const NUMBERED: waybill_store::Sql = numbered!(
        "mail_agents",
        "tenant, project, name, name_key, program, model, task, policy, attachments_policy, reaper_exempt, principal, token, \
         created_at, active_at, retired_at, imported_at, agent",
        "$1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17"
    );
    const DRAWN: &str = "INSERT INTO mail_agents (tenant, project, name, name_key, program, model, task, policy, \
        attachments_policy, reaper_exempt, principal, token, created_at, active_at, retired_at, imported_at) \
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16) ON CONFLICT DO NOTHING";
    let key = names::key(&record.name);
    let token = record.token.unwrap_or_else(|| nobodys(ctx));
    let policy = record.policy.as_deref().map_or(Policy::Auto, Policy::stored);
    let attachments = match record.attachments_policy.as_str() {
        policy @ ("inline" | "file") => policy,
        _ => "auto",
    };
    let mut params = vec![
        Value::from(project),
        Value::from(&record.name),
        Value::from(&key),
        Value::from(&record.program),
        Value::from(&record.model),
        Value::from(&record.task),
        policy.as_str().into(),
        attachments.into(),
        record.reaper_exempt.into(),
        Value::from(&record.principal),
        Value::from(&token[..]),
        record.created_at.into(),
        record.active_at.into(),
        record.retired_at.into(),
        ctx.now.into(),
    ];
    match number {
        None => tx.execute(DRAWN, &params).await,
        Some(number) => {
            params.push(number.into());
            let sql = tx.text(NUMBERED);
            tx.execute(sql, &params).await
        }
    }
}

/// A digest of something that nobody was told.
fn nobodys(ctx: &Ctx<'_>) -> [u8; 32] {
    let mut mixed = Sha256::new();
    for _ in 0..2 {
        mixed.update(ctx.ids.next().as_bytes());
    }
    mixed.finalize().into()
}
