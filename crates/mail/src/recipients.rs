//! From the names a message is written to, to the agents that get it; and who of them lets the sender write.

use std::collections::HashMap;

use waybill_kernel::{Code, Error, Result, Time};
use waybill_store::{Ctx, STATEMENTS_MAX, Statement, Tx, Value};

use crate::Settings;
use crate::acting::{self, AFTER_AGENT, Agent, Project, agent_columns, project_columns};
use crate::files_and_search::SharedFiles;
use crate::rules::addresses::{Address, Kind, foreign, gather};
use crate::rules::contact::{Facts, Policy, Verdict, judge};
use crate::rules::names::{MEANT_BYTES_MAX, NAME_CHARS_MAX};
use crate::rules::threads;

/// So many messages of a thread are looked at for who takes part in it.
const THREAD_LOOK_MAX: i64 = 500;

/// Of the names that nobody has, so many are compared with those that there are: each takes a look at the project's names.
const SUGGESTED_FOR_MAX: usize = 10;

/// Somebody who gets the message.
#[derive(Clone, Debug)]
pub struct Recipient {
    pub kind: Kind,
    pub agent: Agent,
    /// The recipient's.
    pub project: Project,
}

impl Recipient {
    /// As others read it: by the name alone within the sender's project.
    pub fn shown(&self, from: &Project) -> String {
        if self.project.id == from.id { self.agent.name.clone() } else { foreign(&self.project.slug, &self.agent.name) }
    }
}

/// An agent and its project, as one that is written to.
pub(crate) async fn by_number(tx: &mut Tx<'_>, agent: i64) -> Result<Recipient> {
    const AGENT: &str = concat!(
        "SELECT ",
        agent_columns!(),
        ", ",
        project_columns!(),
        " FROM mail_agents a JOIN mail_projects p ON p.tenant = $1 AND p.project = a.project \
         WHERE a.tenant = $1 AND a.agent = $2"
    );
    let row = tx.query_opt(AGENT, &[agent.into()]).await?;
    let row = row.ok_or_else(|| Error::internal("an agent that a message names is gone"))?;
    Ok(Recipient { kind: Kind::To, agent: Agent::read(&row)?, project: Project::read_at(&row, AFTER_AGENT)? })
}

/// The agents behind the lists, each once. All that are missing are told at once, and nobody is registered by being written to.
pub async fn resolve(
    ctx: &Ctx<'_>,
    tx: &mut Tx<'_>,
    from: &Project,
    [to, cc, bcc]: [&[String]; 3],
) -> Result<Vec<Recipient>> {
    let max = ctx.settings::<Settings>().recipients_max;
    // Before anything is made of them: the lists may be as long as a request.
    if to.len() + cc.len() + bcc.len() > 2 * max {
        return Err(too_many(max));
    }
    let addresses = gather(to, cc, bcc);
    if addresses.is_empty() {
        return Err(Error::invalid("The message is for nobody: name at least one agent in to, cc or bcc."));
    }
    let mut recipients: Vec<Recipient> = Vec::with_capacity(addresses.len());
    let mut missing = Missing::default();
    let mut projects: HashMap<String, Option<Project>> = HashMap::new();
    for address in addresses {
        let project = match &address.project {
            None => Some(from.clone()),
            Some(key) => match projects.get(key) {
                Some(known) => known.clone(),
                None => {
                    let found = acting::find_project(tx, key).await?;
                    projects.insert(key.clone(), found.clone());
                    found
                }
            },
        };
        let Some(project) = project else {
            missing.add(&address, Vec::new());
            continue;
        };
        let found = match address.name.len() <= MEANT_BYTES_MAX {
            true => acting::find_agent(tx, project.id, &address.name).await?,
            false => None,
        };
        match found {
            Some(agent) if agent.retired_at.is_some() => missing.retired.push(agent),
            // Two addresses may lead to one agent: by the path and by the slug of its project.
            Some(agent) if recipients.iter().any(|known| known.agent.id == agent.id) => {}
            Some(agent) => recipients.push(Recipient { kind: address.kind, agent, project }),
            None if missing.names.len() < SUGGESTED_FOR_MAX => {
                let near = acting::names_like(tx, project.id, &address.name).await?;
                missing.add(&address, near);
            }
            None => missing.add(&address, Vec::new()),
        }
    }
    missing.check()?;
    if recipients.len() > max { Err(too_many(max)) } else { Ok(recipients) }
}

fn too_many(max: usize) -> Error {
    Error::invalid(format!("A message has at most {max} recipients.")).with("limit", max)
}

/// Those who do not get it because they are not there.
#[derive(Default)]
struct Missing {
    names: Vec<String>,
    suggestions: serde_json::Map<String, serde_json::Value>,
    retired: Vec<Agent>,
}

impl Missing {
    fn add(&mut self, address: &Address, near: Vec<String>) {
        // An answer does not grow with what was sent.
        let shown = |text: &str| text.chars().take(NAME_CHARS_MAX).collect::<String>();
        let name = shown(&address.name);
        self.names.push(match &address.project {
            Some(project) => foreign(&shown(project), &name),
            None => name.clone(),
        });
        if !near.is_empty() {
            self.suggestions.insert(name, near.into());
        }
    }

    fn check(self) -> Result<()> {
        if self.names.is_empty() && self.retired.is_empty() {
            return Ok(());
        }
        let mut said = Vec::new();
        if !self.names.is_empty() {
            said.push(format!("There is no agent {}", self.names.join(", ")));
        }
        if !self.retired.is_empty() {
            let shown = |agent: &Agent| format!("{} (last active {})", agent.name, agent.active_at);
            said.push(format!("Retired: {}", self.retired.iter().map(shown).collect::<Vec<_>>().join(", ")));
        }
        let retired: Vec<String> = self.retired.into_iter().map(|agent| agent.name).collect();
        let error = Error::new(Code::RecipientNotFound, format!("{}.", said.join(". ")));
        let gone = "Correct the names, and leave out those who are retired: each is back when it registers again. Nobody was written to.";
        let error = if retired.is_empty() { error } else { error.with_cure(gone) };
        Err(error.with("missing", self.names).with("retired", retired).with("suggestions", self.suggestions))
    }
}

/// Who of the recipients does not let the sender write.
#[derive(Debug, Default)]
pub struct Walls {
    /// They take no messages.
    pub blocked: Vec<Recipient>,
    /// They want to be asked first.
    pub required: Vec<Recipient>,
}

/// A failing look-up is an error and no permission.
pub async fn walls(
    ctx: &Ctx<'_>,
    tx: &mut Tx<'_>,
    from: &Project,
    sender: &Agent,
    thread: Option<&str>,
    recipients: &[Recipient],
) -> Result<Walls> {
    let mut walls = Walls::default();
    let mut open = Vec::new();
    let mut files = SharedFiles::of(ctx.now, from.id, sender.id);
    for recipient in recipients {
        let policy = Policy::stored(&recipient.agent.policy);
        // What the policy and the names alone decide needs no look.
        let is_self = recipient.agent.id == sender.id;
        let at_home = recipient.project.id == from.id;
        match judge(policy, Facts { is_self, ..Facts::default() }) {
            Verdict::Allowed if at_home || is_self => {}
            Verdict::Blocked => walls.blocked.push(recipient.clone()),
            Verdict::Allowed | Verdict::Required => open.push((policy, at_home, recipient)),
        }
    }
    for chunk in open.chunks(STATEMENTS_MAX) {
        let looks: Vec<_> =
            chunk.iter().map(|(_, _, recipient)| ties(ctx, sender, &recipient.agent)).collect::<Vec<Statement<'_>>>();
        let found = tx.query_all(&looks).await?;
        for ((policy, at_home, recipient), rows) in chunk.iter().zip(&found) {
            let [row] = rows.as_slice() else { return Err(Error::internal("ties of two agents are one row")) };
            let approved = row.bool(2)? || row.bool(3)?;
            let mut acquainted = *at_home && (row.bool(0)? || row.bool(1)?);
            if *policy == Policy::Auto && *at_home && !acquainted && !approved {
                acquainted = share_thread(tx, from, thread, sender, &recipient.agent).await?
                    || files.with(tx, recipient.agent.id).await?;
            }
            // Between projects only an approved contact counts.
            let policy = if *at_home { *policy } else { Policy::ContactsOnly };
            if judge(policy, Facts { is_self: false, acquainted, approved }) != Verdict::Allowed {
                walls.required.push((*recipient).clone());
            }
        }
    }
    Ok(walls)
}

/// Whether they have written to each other lately, and whether a contact was approved: each in both directions.
fn ties<'a>(ctx: &Ctx<'_>, sender: &Agent, recipient: &Agent) -> Statement<'a> {
    const TIES: &str = "SELECT \
        EXISTS (SELECT 1 FROM mail_recipients r WHERE r.tenant = $1 AND r.sender = $2 AND r.agent = $3 AND r.intro = 0 \
            AND r.created_at > $4), \
        EXISTS (SELECT 1 FROM mail_recipients s WHERE s.tenant = $1 AND s.sender = $3 AND s.agent = $2 AND s.intro = 0 \
            AND s.created_at > $4), \
        EXISTS (SELECT 1 FROM mail_contacts c WHERE c.tenant = $1 AND c.from_agent = $2 AND c.to_agent = $3 \
            AND c.status = 'approved' AND (c.expires_at IS NULL OR c.expires_at > $5)), \
        EXISTS (SELECT 1 FROM mail_contacts d WHERE d.tenant = $1 AND d.from_agent = $3 AND d.to_agent = $2 \
            AND d.status = 'approved' AND (d.expires_at IS NULL OR d.expires_at > $5))";
    let lately = ctx.settings::<Settings>().contact_auto_ttl().as_micros() as i64;
    let since = Time::from_micros(ctx.now.micros().saturating_sub(lately));
    (TIES, vec![sender.id.into(), recipient.id.into(), Value::from(since), ctx.now.into()])
}

/// Whether both take part in the thread. A request for contact makes nobody a part of it, and neither does a message that the
/// sender's own agents wrote to each other: whoever knows the name of a thread could write that. Where somebody is a hidden
/// recipient, the sender must not learn it from what is let through.
async fn share_thread(
    tx: &mut Tx<'_>,
    from: &Project,
    thread: Option<&str>,
    sender: &Agent,
    other: &Agent,
) -> Result<bool> {
    // The newest messages of the thread, and the one that it began from if it is named by a number.
    const PARTIES: &str = "WITH said (message, sender) AS ( \
            SELECT message, sender FROM (SELECT message, sender, intro FROM mail_messages \
                WHERE tenant = $1 AND project = $2 AND thread = $3 ORDER BY message DESC LIMIT $7) AS newest \
                WHERE intro = 0 \
            UNION ALL SELECT message, sender FROM mail_messages \
                WHERE tenant = $1 AND project = $2 AND message = $4 AND intro = 0) \
        SELECT EXISTS (SELECT 1 FROM said s WHERE (s.sender = $5 OR EXISTS (SELECT 1 FROM mail_recipients r \
                WHERE r.tenant = $1 AND r.message = s.message AND r.agent = $5)) \
            AND ($8 = 1 \
                OR EXISTS (SELECT 1 FROM mail_agents w \
                    WHERE w.tenant = $1 AND w.agent = s.sender AND w.principal <> $9) \
                OR EXISTS (SELECT 1 FROM mail_recipients q JOIN mail_agents o ON o.tenant = $1 AND o.agent = q.agent \
                    WHERE q.tenant = $1 AND q.message = s.message AND o.principal <> $9))), \
        EXISTS (SELECT 1 FROM said t WHERE t.sender = $6 OR EXISTS (SELECT 1 FROM mail_recipients u \
                WHERE u.tenant = $1 AND u.message = t.message AND u.agent = $6 AND u.kind <> 'bcc'))";
    let Some(thread) = thread else { return Ok(false) };
    let seed = threads::seeded_by(thread);
    let params = [
        from.id.into(),
        thread.into(),
        Value::Int(seed),
        sender.id.into(),
        other.id.into(),
        THREAD_LOOK_MAX.into(),
        (sender.principal == other.principal).into(),
        Value::from(&sender.principal),
    ];
    let row = tx.query_opt(PARTIES, &params).await?.ok_or_else(|| Error::internal("a look has no row"))?;
    Ok(row.bool(0)? && row.bool(1)?)
}

impl Walls {
    pub fn is_empty(&self) -> bool {
        self.blocked.is_empty() && self.required.is_empty()
    }

    /// Nobody gets the message: who is in the way, and what to do about it.
    pub fn refusal(&self, from: &Project, sender: &Agent) -> Error {
        let names = |of: &[Recipient]| of.iter().map(|one| one.shown(from)).collect::<Vec<_>>();
        let (blocked, required) = (names(&self.blocked), names(&self.required));
        if !blocked.is_empty() {
            let message = format!("{} takes no messages.", blocked.join(", "));
            return Error::new(Code::ContactBlocked, message)
                .with("blocked", blocked)
                .with("contact_required", required);
        }
        let calls: Vec<_> = self.required.iter().map(|one| request(from, sender, one)).collect();
        let message = format!("{} must be asked for contact first.", required.join(", "));
        Error::new(Code::ContactRequired, message).with("blocked", required).with("suggested_calls", calls)
    }
}

fn request(from: &Project, sender: &Agent, recipient: &Recipient) -> serde_json::Value {
    let mut arguments = serde_json::json!({
        "project_key": from.human_key, "from_agent": sender.name, "to_agent": recipient.agent.name,
    });
    if recipient.project.id != from.id {
        arguments["to_project"] = recipient.project.human_key.clone().into();
    }
    serde_json::json!({ "tool": "request_contact", "arguments": arguments })
}
