//! `waybill mesh join`: keys that are made here, proven to the server with an invite of the owner.

use clap::Args;
use serde_json::{Value as Json, json};
use waybill_client::{Client, Options, Repeat, Request};
use waybill_daemon::{Folder, Lock, Membership};
use waybill_kernel::{Clock, Code, Error, Method, Result};
use waybill_mesh_protocol::join::{JoinChallenge, JoinProof, Joining};
use waybill_mesh_protocol::{Identity, Invite, MemberKeys, MemberName};

use super::create::{field, kept_identity, refuse_member, told};
use crate::commands::peer::home::{Home, entropy};
use crate::commands::session::SERVER_PATIENCE;

#[derive(Args)]
pub struct Join {
    /// As `waybill mesh invite` has printed it; `-` to read it from stdin.
    invite: String,
    /// What the other members call you.
    #[arg(long)]
    name: MemberName,
    /// Leave the mesh after so many seconds.
    #[arg(long, value_name = "SECONDS")]
    ttl: Option<u64>,
    #[command(flatten)]
    home: Home,
    /// Print JSON instead of text.
    #[arg(long)]
    json: bool,
}

pub async fn run(flags: Join) -> Result<()> {
    let text = match flags.invite.as_str() {
        "-" => std::io::read_to_string(std::io::stdin().lock()).map_err(Error::internal)?,
        text => text.to_owned(),
    };
    let text = text.trim();
    let invite = Invite::parse_and_verify(text, Clock::system().now())?;
    let folder = Folder::open(&flags.home.path()?, invite.slug.as_str())?;
    let lock = Lock::take(&folder)?;
    refuse_member(&folder)?;
    // An answer that was lost may have used the invite up; the same keys are a member then.
    let identity = kept_identity(&folder)?;
    let membership = enroll(text, &identity, &flags.name, flags.ttl).await?;
    membership.save(&folder)?;
    drop(lock);
    told(&membership, &folder, flags.json, "joined")
}

/// Has the server know these keys as a member. What is kept of it is the caller's to decide.
pub async fn enroll(text: &str, identity: &Identity, name: &MemberName, ttl_s: Option<u64>) -> Result<Membership> {
    let invite = Invite::parse_and_verify(text, Clock::system().now())?;
    let user_agent = concat!("waybill/", env!("CARGO_PKG_VERSION")).to_owned();
    let client = Client::new(Options { url: invite.server.clone(), key: None, user_agent })?;
    let challenge = post(&client, "/mesh/v1/join/challenge", json!({ "mesh": invite.mesh })).await?;
    let challenge: JoinChallenge =
        serde_json::from_value(challenge).map_err(|error| stranger(&client).because(error))?;
    let joining = Joining { mesh: invite.mesh, invite: invite.invite_id, name };
    let proof = JoinProof::make(identity, &challenge, joining, entropy().as_ref())?;
    let mut input = json!({
        "invite": text,
        "name": name,
        "keys": identity.public(),
        "nonce": challenge.nonce,
        "proof": proof,
    });
    if let Some(seconds) = ttl_s {
        input["ttl_s"] = json!(seconds);
    }
    let joined = post(&client, "/mesh/v1/join", input).await?;
    let owner: MemberKeys = field(&joined, "owner")?;
    // The server names the owner's present keys. Others than those the invite has pinned are believed only where they are signed
    // for, which the daemon checks; what is kept as the owner is what the invite says.
    owner.verify()?;
    Ok(Membership {
        server: invite.server.clone(),
        mesh: invite.mesh,
        slug: invite.slug.to_string(),
        member: field(&joined, "member_id")?,
        name: field(&joined, "name")?,
        owner: invite.owner,
        plaintext: invite.plaintext,
    })
}

async fn post(client: &Client, path: &str, input: Json) -> Result<Json> {
    let request = Request { method: Method::Post, path, input, repeat: Repeat::Never, wait: SERVER_PATIENCE };
    client.call(request).await.map(|answer| answer.json)
}

fn stranger(client: &Client) -> Error {
    Error::new(Code::ServerUnreachable, format!("What answers at {} knows no meshes.", client.base()))
}
