//! `waybill mail contact`, `answer` and `policy`: who may write to whom.

use clap::Args;
use serde_json::json;
use waybill_kernel::Result;

use super::{Actor, call};
use crate::cli::Reach;
use crate::output;

#[derive(Args)]
pub struct Contact {
    /// The agent to ask.
    name: String,
    /// Its project, where that is another.
    #[arg(long, value_name = "PATH")]
    to_project: Option<String>,
    /// Why, for the one that is asked.
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,
    #[command(flatten)]
    actor: Actor,
    #[command(flatten)]
    reach: Reach,
}

#[derive(Args)]
pub struct Answer {
    /// The agent that has asked.
    name: String,
    /// Its project, where that is another.
    #[arg(long, value_name = "PATH")]
    from_project: Option<String>,
    /// It may not write.
    #[arg(long)]
    refuse: bool,
    #[command(flatten)]
    actor: Actor,
    #[command(flatten)]
    reach: Reach,
}

#[derive(Args)]
pub struct Policy {
    /// open, auto, contacts_only or block_all.
    policy: String,
    #[command(flatten)]
    actor: Actor,
    #[command(flatten)]
    reach: Reach,
}

pub async fn ask(flags: Contact) -> Result<()> {
    let Contact { name, to_project, reason, actor, reach } = flags;
    let input = json!({
        "project_key": actor.project.key(&reach).await?,
        "from_agent": actor.name()?,
        "registration_token": actor.token,
        "to_agent": name,
        "to_project": to_project,
        "reason": reason,
    });
    let answer = call(&reach, "mail.request_contact", input).await?;
    output::answer(reach.json, &answer, &format!("The contact is {}.", output::cell(&answer["status"])))
}

pub async fn answer(flags: Answer) -> Result<()> {
    let Answer { name, from_project, refuse, actor, reach } = flags;
    let input = json!({
        "project_key": actor.project.key(&reach).await?,
        "to_agent": actor.name()?,
        "registration_token": actor.token,
        "from_agent": name,
        "from_project": from_project,
        "accept": !refuse,
    });
    let answer = call(&reach, "mail.respond_contact", input).await?;
    output::answer(reach.json, &answer, &format!("The contact is {}.", output::cell(&answer["status"])))
}

pub async fn set_policy(flags: Policy) -> Result<()> {
    let Policy { policy, actor, reach } = flags;
    let input = json!({
        "project_key": actor.project.key(&reach).await?,
        "agent_name": actor.name()?,
        "registration_token": actor.token,
        "policy": policy,
    });
    let answer = call(&reach, "mail.set_contact_policy", input).await?;
    output::answer(reach.json, &answer, &format!("The policy is {}.", output::cell(&answer["policy"])))
}
