//! `waybill mesh invite`: the server writes the invite down, the owner signs it.

use clap::Args;
use serde_json::{Value as Json, json};
use waybill_kernel::{Error, Result};
use waybill_mesh_protocol::Invite as Signed;

use super::create::field;
use crate::commands::peer::home::Of;
use crate::output;

#[derive(Args)]
pub struct Invite {
    #[command(flatten)]
    of: Of,
    /// How many may join with it.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    uses: u32,
    /// How long it is good for [default: a day].
    #[arg(long, value_name = "SECONDS")]
    expires_in: Option<u64>,
    /// The server's address as the new member reaches it [default: the one that this member uses].
    #[arg(long, value_name = "URL")]
    public_url: Option<String>,
}

pub async fn run(flags: Invite) -> Result<()> {
    let member = flags.of.at().member()?;
    let mut input = json!({ "uses": flags.uses });
    if let Some(seconds) = flags.expires_in {
        input["expires_in_s"] = json!(seconds);
    }
    let issued: Json = member.broker()?.post("mesh/v1/invites", &input).await?;
    let identity = member.keyring()?.identity();
    let invite = Signed {
        server: flags.public_url.unwrap_or_else(|| member.membership.server.clone()),
        mesh: member.membership.mesh,
        slug: member.membership.slug.parse()?,
        invite_id: field(&issued, "invite_id")?,
        // Its own keys, and not those the server names: whoever joins pins them.
        owner: identity.public(),
        issuer: identity.public_key(),
        uses: field(&issued, "uses")?,
        expires_at: field(&issued, "expires_at")?,
        plaintext: member.membership.plaintext,
    };
    let text = invite.sign(&identity)?;
    if flags.of.json {
        return output::json(&json!({
            "invite": text,
            "invite_id": invite.invite_id,
            "uses": invite.uses,
            "expires_at": invite.expires_at,
            "server": invite.server,
        }));
    }
    output::line(&text)?;
    let expires_at = serde_json::to_value(invite.expires_at).map_err(Error::internal)?;
    let times = if invite.uses == 1 { "once".to_owned() } else { format!("{} times", invite.uses) };
    output::note(&format!(
        "Good {times}, until {}: `waybill mesh join <invite> --name <name>`.",
        output::cell(&expires_at)
    ))
}
