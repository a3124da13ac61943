//! `waybill mesh members`, `member revoke`, `rename`, `leave`.

use clap::{Args, Subcommand};
use serde_json::{Value as Json, json};
use waybill_daemon::Membership;
use waybill_kernel::Result;
use waybill_mesh_protocol::{MemberName, PublicKey};

use crate::commands::peer::home::At;
use crate::output;

const MEMBERS: &[&str] = &["name", "key", "is_owner", "online", "connections", "status", "summary", "joined_at"];
/// Asked for at a time.
const PAGE: u32 = 1_000;
/// Beyond any mesh there may be.
const PAGES_MAX: usize = 1_000;

#[derive(Subcommand)]
pub enum Member {
    /// End a membership: its daemon is disconnected at once, and what it sends is refused.
    Revoke {
        /// The member's public key, as `waybill mesh members` shows it.
        key: PublicKey,
        #[command(flatten)]
        at: At,
    },
}

#[derive(Args)]
pub struct Rename {
    /// The new name.
    name: MemberName,
    /// Whose, as the owner [default: your own].
    #[arg(long, value_name = "KEY")]
    key: Option<PublicKey>,
    #[command(flatten)]
    at: At,
}

pub async fn run(command: Member) -> Result<()> {
    let Member::Revoke { key, at } = command;
    let answer: Json = at.member()?.broker()?.post(&format!("mesh/v1/members/{key}/revoke"), &json!({})).await?;
    let done = if answer["revoked"] == true { "Revoked." } else { "It was no member any more; nothing was changed." };
    output::answer(at.json, &answer, done)
}

pub async fn list(at: &At) -> Result<()> {
    let broker = at.member()?.broker()?;
    let mut rows = Vec::new();
    let mut after = String::new();
    for _ in 0..PAGES_MAX {
        let mut page: Json = broker.get(&format!("mesh/v1/members?limit={PAGE}{after}")).await?;
        rows.extend(page["members"].as_array_mut().map(std::mem::take).unwrap_or_default());
        match page["next_after"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    if at.json {
        return output::json(&json!({ "members": rows }));
    }
    for row in &mut rows {
        row["key"] = row["keys"]["ed25519"].clone();
    }
    output::table(MEMBERS, &rows)
}

pub async fn rename(flags: Rename) -> Result<()> {
    let member = flags.at.member()?;
    let mut input = json!({ "name": flags.name });
    if let Some(key) = flags.key {
        input["key"] = json!(key);
    }
    let answer: Json = member.broker()?.post("mesh/v1/rename", &input).await?;
    if flags.key.is_none() {
        Membership { name: flags.name.to_string(), ..member.membership }.save(&member.folder)?;
    }
    output::answer(flags.at.json, &answer, &format!("The name is {} from now on.", flags.name))
}

pub async fn leave(at: &At) -> Result<()> {
    let member = at.member()?;
    let answer: Json = member.broker()?.post("mesh/v1/leave", &json!({})).await?;
    output::answer(at.json, &answer, "You have left. `waybill daemon reset` takes away what is kept here.")
}
