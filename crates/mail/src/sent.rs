//! How a call that writes a message begins and ends, and the message as its sender is shown it again when the call is repeated under its
//! key.

use waybill_kernel::idempotency::Fingerprint;
use waybill_kernel::{Code, Error, Result};
use waybill_store::{Ctx, Stored, Tx};

use crate::acting::{self, AFTER_AGENT, Acting, Agent, Project, agent_columns, project_columns};
use crate::attaching::Whose;
use crate::inbox::{MESSAGE_COLUMNS, MessageView, SENT, message_columns};
use crate::keys::{self, Claim};
use crate::recipients::Recipient;
use crate::rules::addresses::Kind;
use crate::rules::threads;
use crate::sending::{self, Outgoing, Payload};

/// How a call that writes a message begins.
pub(crate) struct Begun<'a> {
    pub project: Project,
    pub acting: Acting,
    pub scope: keys::Scope<'a>,
    /// What was sent under its key before: then nothing is done again.
    pub again: Option<(Payload, Vec<Recipient>)>,
}

/// Whom the call acts for and what its key says. With the key is the fingerprint of everything that makes the call this call.
pub(crate) async fn begin<'a>(
    ctx: &Ctx<'_>,
    tx: &mut Tx<'_>,
    tool: &'static str,
    whose: &Whose,
    key: Option<(&'a str, Fingerprint)>,
) -> Result<Begun<'a>> {
    let project = acting::project(tx, &whose.project_key).await?;
    let acting = acting::act_as(ctx, tx, &project, &whose.agent_name, whose.token.as_deref()).await?;
    let scope = keys::Scope { project: project.id, agent: acting.agent.id, tool, key: key.map(|(key, _)| key) };
    let claim = match key {
        Some((_, fingerprint)) => keys::claim_as(ctx, tx, scope, fingerprint).await?,
        None => Claim::Fresh,
    };
    let again = match claim {
        Claim::Replay(answer) => Some(again(tx, &project, &answer).await?),
        Claim::Fresh => {
            tx.check_room(ctx, Stored::Rows, 1).await?;
            check_active(&acting.agent)?;
            None
        }
    };
    Ok(Begun { project, acting, scope, again })
}

/// A bare number names the thread that replies to that message make: nobody begins one that others will fall into.
pub(crate) async fn check_thread(tx: &mut Tx<'_>, project: &Project, thread: Option<&str>) -> Result<()> {
    const SEEDED: &str = "SELECT 1 FROM mail_messages WHERE tenant = $1 AND project = $2 AND thread = $3 LIMIT 1";
    let Some(thread) = thread.filter(|thread| threads::is_number(thread)) else { return Ok(()) };
    if tx.query_opt(SEEDED, &[project.id.into(), thread.into()]).await?.is_some() {
        return Ok(());
    }
    let message = format!("The thread {thread} does not exist: bare numbers are for replies.");
    Err(Error::new(Code::InvalidThreadId, message))
}

/// How it ends: the message is written, and its number kept under the call's key.
pub(crate) async fn deliver(
    ctx: &Ctx<'_>,
    tx: &mut Tx<'_>,
    scope: keys::Scope<'_>,
    message: &Outgoing<'_>,
) -> Result<Payload> {
    let payload = sending::deliver(ctx, tx, message).await?;
    keys::keep(tx, scope, &payload.id.to_string()).await?;
    Ok(payload)
}

/// `answer` is what was kept under the key: the number of the message.
async fn again(tx: &mut Tx<'_>, project: &Project, answer: &str) -> Result<(Payload, Vec<Recipient>)> {
    const MESSAGE: &str =
        concat!("SELECT ", message_columns!(), ", m.body FROM mail_messages m WHERE m.tenant = $1 AND m.message = $2");
    let id: i64 = answer.parse().map_err(|_| Error::internal("a key was kept without the message's number"))?;
    let row = tx.query_opt(MESSAGE, &[id.into()]).await?;
    let row = row.ok_or_else(|| Error::internal("the message of a key is gone"))?;
    let view = MessageView::read(&row, SENT, project)?;
    let payload = Payload {
        id: view.id,
        project_id: project.id,
        from: view.from,
        to: view.to,
        cc: view.cc,
        bcc: view.bcc,
        subject: view.subject,
        body_md: Some(row.text(MESSAGE_COLUMNS)?.to_owned()),
        importance: view.importance,
        ack_required: view.ack_required,
        thread_id: view.thread_id,
        reply_to: view.reply_to,
        attachments: view.attachments,
        created_ts: view.created_ts,
    };
    Ok((payload, recipients(tx, id).await?))
}

/// Who got a message.
pub(crate) async fn recipients(tx: &mut Tx<'_>, id: i64) -> Result<Vec<Recipient>> {
    const RECIPIENTS: &str = concat!(
        "SELECT ",
        agent_columns!(),
        ", ",
        project_columns!(),
        ", r.kind FROM mail_recipients r JOIN mail_agents a ON a.tenant = $1 AND a.agent = r.agent \
         JOIN mail_projects p ON p.tenant = $1 AND p.project = a.project \
         WHERE r.tenant = $1 AND r.message = $2 ORDER BY r.agent"
    );
    let rows = tx.query(RECIPIENTS, &[id.into()]).await?;
    let read = |row: &waybill_store::Row| {
        Ok(Recipient {
            kind: Kind::stored(row.text(18)?),
            agent: Agent::read(row)?,
            project: Project::read_at(row, AFTER_AGENT)?,
        })
    };
    rows.iter().map(read).collect()
}

pub(crate) fn check_active(agent: &Agent) -> Result<()> {
    match agent.retired_at {
        Some(_) => Err(Error::new(
            Code::AgentRetired,
            format!("{} is retired: it writes to nobody and takes nothing.", agent.name),
        )),
        None => Ok(()),
    }
}
