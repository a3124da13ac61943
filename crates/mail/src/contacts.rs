//! Contacts: one agent asks another, which approves or refuses. A request by itself opens nothing.

use std::time::Duration;

use waybill_kernel::{Code, Error, Result, Time};
use waybill_store::{Ctx, Row, Tx, Value};

use crate::Settings;
use crate::acting::{self, Agent, Project};
use crate::archive_rows;
use crate::attaching::Whose;
use crate::projects::one_at_a_time;
use crate::recipients::Recipient;
use crate::rules::addresses::{Kind, foreign};
use crate::rules::contact::Policy;
use crate::rules::message::Importance;
use crate::sending::{self, Files, Outgoing};
use crate::sent;

pub(crate) const REQUEST_TTL_S: i64 = 7 * 86_400;
pub(crate) const APPROVAL_TTL_S: i64 = 30 * 86_400;
const TTL_S_MAX: i64 = 365 * 86_400;
const TTL_S_MIN: i64 = 60;
pub(crate) const REASON_CHARS_MAX: usize = 2_000;

/// What has become of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Status {
    Pending,
    Approved,
    Blocked,
    /// It was approved, or waited, for too long.
    Expired,
}

impl Status {
    const fn as_str(self) -> &'static str {
        match self {
            Status::Pending => "pending",
            Status::Approved => "approved",
            Status::Blocked => "blocked",
            Status::Expired => "expired",
        }
    }
}

/// A contact as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    pub status: Status,
    pub reason: String,
    pub updated_at: Time,
    pub expires_at: Option<Time>,
}

impl Link {
    /// Of the columns status, reason, updated_at and expires_at, from `at` on.
    pub(crate) fn read(row: &Row, at: usize, now: Time) -> Result<Self> {
        let expires_at = row.time_opt(at + 3)?;
        let over = expires_at.is_some_and(|expires_at| expires_at <= now);
        let status = match row.text(at)? {
            _ if over => Status::Expired,
            "approved" => Status::Approved,
            "blocked" => Status::Blocked,
            _ => Status::Pending,
        };
        Ok(Self { status, reason: row.text(at + 1)?.to_owned(), updated_at: row.time(at + 2)?, expires_at })
    }
}

/// Locked until the transaction ends, so that of two who change it one comes after the other.
async fn link(ctx: &Ctx<'_>, tx: &mut Tx<'_>, from: i64, to: i64) -> Result<Option<Link>> {
    const LINK: waybill_store::Sql = waybill_store::Sql {
        sqlite: "SELECT status, reason, updated_at, expires_at FROM mail_contacts \
                 WHERE tenant = $1 AND from_agent = $2 AND to_agent = $3",
        postgres: "SELECT status, reason, updated_at, expires_at FROM mail_contacts \
                   WHERE tenant = $1 AND from_agent = $2 AND to_agent = $3 FOR UPDATE",
    };
    let sql = tx.text(LINK);
    tx.query_opt(sql, &[from.into(), to.into()]).await?.map(|row| Link::read(&row, 0, ctx.now)).transpose()
}

/// The row of a contact that may not be there yet, as it shall be.
async fn put(ctx: &Ctx<'_>, tx: &mut Tx<'_>, from: i64, to: i64, link: &Link) -> Result<()> {
    const PUT: &str = "INSERT INTO mail_contacts (tenant, from_agent, to_agent, status, reason, created_at, updated_at, \
        expires_at) VALUES ($1, $2, $3, $4, $5, $6, $6, $7) ON CONFLICT (tenant, from_agent, to_agent) DO UPDATE SET \
        status = excluded.status, reason = excluded.reason, updated_at = excluded.updated_at, expires_at = excluded.expires_at";
    let params = [
        from.into(),
        to.into(),
        link.status.as_str().into(),
        Value::from(&link.reason),
        ctx.now.into(),
        link.expires_at.into(),
    ];
    tx.execute(PUT, &params).await.map(drop)
}

/// A contact is archived with both of its agents. In the order of their numbers, in which everybody locks them.
async fn changed(ctx: &Ctx<'_>, tx: &mut Tx<'_>, pair: Pair<'_>) -> Result<()> {
    let mut both = [(pair.project.id, pair.from.id), (pair.to_project.id, pair.to.id)];
    both.sort_unstable();
    for (project, agent) in both {
        archive_rows::changed(tx, ctx.now, project, agent).await?;
    }
    Ok(())
}

pub(crate) fn ttl(seconds: Option<i64>, usual: i64) -> Result<Duration> {
    let seconds = seconds.unwrap_or(usual);
    if !(TTL_S_MIN..=TTL_S_MAX).contains(&seconds) {
        return Err(Error::invalid(format!("ttl_seconds must be between {TTL_S_MIN} and {TTL_S_MAX}.")));
    }
    Ok(Duration::from_secs(seconds.unsigned_abs()))
}

pub(crate) fn check_reason(reason: &str) -> Result<()> {
    if reason.chars().count() > REASON_CHARS_MAX {
        return Err(Error::invalid(format!("reason must have at most {REASON_CHARS_MAX} characters.")));
    }
    Ok(())
}

/// What came of a request.
pub(crate) struct Requested {
    pub link: Link,
    /// The message that told of it. None where there was one that still waits, or none was needed.
    pub intro: Option<i64>,
}

/// One agent that asks, and one that is asked.
#[derive(Clone, Copy)]
pub(crate) struct Pair<'a> {
    pub project: &'a Project,
    pub from: &'a Agent,
    pub to_project: &'a Project,
    pub to: &'a Agent,
}

impl Pair<'_> {
    fn check(&self) -> Result<()> {
        if self.from.id == self.to.id {
            return Err(Error::invalid("An agent needs no contact with itself."));
        }
        if let Some(retired) = [self.from, self.to].iter().find(|agent| agent.retired_at.is_some()) {
            return Err(Error::new(Code::AgentRetired, format!("{} is retired.", retired.name)));
        }
        Ok(())
    }
}

/// The agent on the other side of a contact. Its project is given beside its name, or said by the name.
pub(crate) async fn other(
    tx: &mut Tx<'_>,
    home: &Project,
    given: Option<&str>,
    name: &str,
) -> Result<(Project, Agent)> {
    let given = match given {
        Some(key) => Some(acting::project(tx, key).await?),
        None => None,
    };
    let (project, name) = acting::address(tx, given.as_ref().unwrap_or(home), name).await?;
    if let Some(given) = given.filter(|given| given.id != project.id) {
        let message =
            format!("The name says the project {}, and the one given beside it is {}.", project.slug, given.slug);
        return Err(Error::invalid(message).with_cure("Say the agent's project once: in its name, or beside it."));
    }
    let agent = acting::agent(tx, &project, &name).await?;
    Ok((project, agent))
}

/// Who asks whom, found by their names.
pub(crate) struct Asking {
    pub project: Project,
    pub from: Agent,
    pub to_project: Project,
    pub to: Agent,
}

impl Asking {
    /// `to_project` is the one of the agent that is asked, where that is another and its name does not say it.
    pub(crate) async fn find(
        ctx: &Ctx<'_>,
        tx: &mut Tx<'_>,
        whose: &Whose,
        to_project: Option<&str>,
        to: &str,
    ) -> Result<Self> {
        let project = acting::project(tx, &whose.project_key).await?;
        let from = acting::act_as(ctx, tx, &project, &whose.agent_name, whose.token.as_deref()).await?.agent;
        sent::check_active(&from)?;
        let (to_project, to) = other(tx, &project, to_project, to).await?;
        Ok(Self { project, from, to_project, to })
    }

    pub(crate) fn pair(&self) -> Pair<'_> {
        Pair { project: &self.project, from: &self.from, to_project: &self.to_project, to: &self.to }
    }

    /// As whoever asks is shown it.
    pub(crate) fn shown(&self, link: &Link, intro: Option<i64>) -> ContactRequested {
        ContactRequested {
            from: self.from.name.clone(),
            to: self.to.name.clone(),
            to_project: self.to_project.human_key.clone(),
            status: link.status,
            expires_ts: link.expires_at,
            intro_message_id: intro,
        }
    }
}

/// A request for contact.
#[derive(Debug, serde::Serialize, schemars::JsonSchema)]
pub struct ContactRequested {
    pub from: String,
    pub to: String,
    pub to_project: String,
    /// Approved or blocked where it was answered before.
    pub status: Status,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_ts: Option<Time>,
    /// The message that told of it; absent where one had told of it before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub intro_message_id: Option<i64>,
}

/// Asks for contact. A repeated request prolongs the one that waits; one that was approved stays so, and one that was refused
/// stays refused: whoever was asked has answered.
pub(crate) async fn request(
    ctx: &Ctx<'_>,
    tx: &mut Tx<'_>,
    pair: Pair<'_>,
    reason: &str,
    ttl: Duration,
) -> Result<Requested> {
    pair.check()?;
    check_reason(reason)?;
    if Policy::stored(&pair.to.policy) == Policy::BlockAll {
        let message = format!("{} takes no messages.", pair.to.name);
        return Err(Error::new(Code::ContactBlocked, message).with("blocked", vec![pair.to.name.clone()]));
    }
    one_at_a_time(tx, ctx.caller.tenant, &pair.from.id.to_be_bytes()).await?;
    let known = link(ctx, tx, pair.from.id, pair.to.id).await?;
    let waits = match &known {
        Some(link) if matches!(link.status, Status::Approved | Status::Blocked) => {
            return Ok(Requested { link: link.clone(), intro: None });
        }
        Some(link) => link.status == Status::Pending,
        None => {
            check_count(ctx, tx, pair.from).await?;
            false
        }
    };
    let fresh = Link {
        status: Status::Pending,
        reason: reason.to_owned(),
        updated_at: ctx.now,
        expires_at: Some(ctx.now.after(ttl)),
    };
    put(ctx, tx, pair.from.id, pair.to.id, &fresh).await?;
    changed(ctx, tx, pair).await?;
    let intro = if waits { None } else { Some(introduce(ctx, tx, pair, reason).await?) };
    Ok(Requested { link: fresh, intro })
}

async fn check_count(ctx: &Ctx<'_>, tx: &mut Tx<'_>, from: &Agent) -> Result<()> {
    const COUNT: &str = "SELECT count(*) FROM mail_contacts WHERE tenant = $1 AND from_agent = $2";
    let max = ctx.settings::<Settings>().contacts_max;
    let row = tx.query_opt(COUNT, &[from.id.into()]).await?.ok_or_else(|| Error::internal("a count has no row"))?;
    if row.int(0)? < max {
        return Ok(());
    }
    let message = format!("{} has asked for {max} contacts, which is as many as it may.", from.name);
    Err(Error::new(Code::TooManyContacts, message).with("limit", max))
}

/// The message that tells of a request.
async fn introduce(ctx: &Ctx<'_>, tx: &mut Tx<'_>, pair: Pair<'_>, reason: &str) -> Result<i64> {
    let at_home = pair.project.id == pair.to_project.id;
    let name = if at_home { pair.from.name.clone() } else { foreign(&pair.project.slug, &pair.from.name) };
    let why = if reason.is_empty() { String::new() } else { format!("\n\n> {}", reason.replace('\n', "\n> ")) };
    let body = format!("{name} asks for contact.{why}\n\nAnswer with `respond_contact`.");
    let recipient = Recipient { kind: Kind::To, agent: pair.to.clone(), project: pair.to_project.clone() };
    let message = Outgoing {
        project: pair.project,
        sender: pair.from,
        recipients: std::slice::from_ref(&recipient),
        subject: &format!("Contact request from {name}"),
        body: &body,
        importance: Importance::Normal,
        ack_required: true,
        thread: None,
        reply_to: None,
        files: &Files::NONE,
        intro: true,
    };
    Ok(sending::deliver(ctx, tx, &message).await?.id)
}

/// Approves or refuses. True when that changed anything: the same answer again leaves everything as it was, unless another time
/// is named.
pub(crate) async fn respond(
    ctx: &Ctx<'_>,
    tx: &mut Tx<'_>,
    pair: Pair<'_>,
    accept: bool,
    ttl_seconds: Option<i64>,
) -> Result<(Link, bool)> {
    let ttl = ttl(ttl_seconds, APPROVAL_TTL_S)?;
    if pair.from.id == pair.to.id {
        return Err(Error::invalid("An agent needs no contact with itself."));
    }
    let status = if accept { Status::Approved } else { Status::Blocked };
    one_at_a_time(tx, ctx.caller.tenant, &pair.from.id.to_be_bytes()).await?;
    let known = link(ctx, tx, pair.from.id, pair.to.id).await?;
    if let Some(known) = &known
        && known.status == status
        && ttl_seconds.is_none()
    {
        return Ok((known.clone(), false));
    }
    let Some(known) = known else {
        let message = format!("{} has not asked {} for contact.", pair.from.name, pair.to.name);
        return Err(Error::new(Code::NotFound, message).with_cure("Have it ask with request_contact first."));
    };
    let reason = known.reason;
    // A refusal stays.
    let expires_at = accept.then(|| ctx.now.after(ttl));
    let fresh = Link { status, reason, updated_at: ctx.now, expires_at };
    put(ctx, tx, pair.from.id, pair.to.id, &fresh).await?;
    changed(ctx, tx, pair).await?;
    Ok((fresh, true))
}
