//! `waybill mesh …`: meshes and their members. What an operator does goes through the server's own operations; what a member does
//! is signed with the member's key and needs no API key.

pub mod create;
mod invite;
pub mod join;
mod members;
mod queues;
mod topics;

use clap::{Args, Subcommand};
use serde_json::{Value as Json, json};
use waybill_kernel::{Code, Error, Result};

use super::peer::home::{Home, Of};
use super::session::{Session, call, call_all};
use crate::cli::Reach;
use crate::output;

#[derive(Subcommand)]
pub enum Mesh {
    /// Make a mesh on a running server, and its owner here.
    Create(create::Create),
    /// Become a member of a mesh, with an invite of its owner.
    Join(join::Join),
    /// Make an invite, as the owner of a mesh.
    Invite(invite::Invite),
    /// List the members of a mesh.
    Members(Of),
    /// Members one by one.
    Member {
        #[command(subcommand)]
        command: members::Member,
    },
    /// Have another name in a mesh.
    Rename(members::Rename),
    /// Topics: make, list, subscribe, unsubscribe.
    Topics {
        #[command(subcommand)]
        command: topics::Topics,
    },
    /// Queues of the server that members may send to: allow, disallow, list. For the owner of a mesh in plain text.
    Queues {
        #[command(subcommand)]
        command: queues::Queues,
    },
    /// Leave a mesh for good. The owner cannot.
    Leave(Of),
    /// List the memberships that are kept here, or the meshes of a server.
    List(List),
    /// Check that what the server stores of a mesh fits together; exit code 8 when it does not.
    Check {
        slug: String,
        #[command(flatten)]
        reach: Reach,
    },
    /// Revoke a member as the server's operator, without the owner's keys.
    Revoke {
        slug: String,
        /// The member's name, or its public key.
        member: String,
        #[command(flatten)]
        reach: Reach,
    },
    /// Close a mesh as the server's operator: its owner and then all its members are revoked.
    Close(Close),
    /// Say what becomes of two live connections with one key: prefer_newest, prefer_oldest or allow_concurrent.
    Policy {
        slug: String,
        policy: String,
        #[command(flatten)]
        reach: Reach,
    },
}

#[derive(Args)]
pub struct Close {
    slug: String,
    /// It cannot be undone.
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    reach: Reach,
}

#[derive(Args)]
pub struct List {
    /// Those of the server, as its operator sees them.
    #[arg(long)]
    server: bool,
    #[command(flatten)]
    home: Home,
    #[command(flatten)]
    reach: Reach,
}

const MESHES: &[&str] =
    &["slug", "owner_name", "members", "topics", "plaintext", "connection_policy", "created_at", "mesh_id"];
const MEMBERSHIPS: &[&str] = &["slug", "name", "server", "owner", "plaintext", "mesh_id"];
const FINDINGS: &[&str] = &["kind", "id"];

pub async fn run(command: Mesh) -> Result<()> {
    match command {
        Mesh::Create(flags) => create::run(flags).await,
        Mesh::Join(flags) => join::run(flags).await,
        Mesh::Invite(flags) => invite::run(flags).await,
        Mesh::Members(of) => members::list(&of.at()).await,
        Mesh::Member { command } => members::run(command).await,
        Mesh::Rename(flags) => members::rename(flags).await,
        Mesh::Topics { command } => topics::run(command).await,
        Mesh::Queues { command } => queues::run(command).await,
        Mesh::Leave(of) => members::leave(&of.at()).await,
        Mesh::List(flags) => list(flags).await,
        Mesh::Check { slug, reach } => check(&slug, &reach).await,
        Mesh::Revoke { slug, member, reach } => {
            let answer = call(&reach, "revoke_mesh_member", json!({ "mesh": slug, "member": member })).await?;
            let done =
                if answer["revoked"] == true { "Revoked." } else { "It was no member any more; nothing was changed." };
            output::answer(reach.json, &answer, done)
        }
        Mesh::Close(flags) => close(&flags).await,
        Mesh::Policy { slug, policy, reach } => {
            let input = json!({ "mesh": slug, "connection_policy": policy });
            let answer = call(&reach, "set_mesh_policy", input).await?;
            output::answer(reach.json, &answer, &format!("{slug}: {policy} from now on."))
        }
    }
}

async fn list(flags: List) -> Result<()> {
    if flags.server {
        let meshes = call_all(&flags.reach, "list_meshes", "meshes").await?;
        return output::list(flags.reach.json, &json!({ "meshes": meshes }), "meshes", MESHES);
    }
    let memberships = flags.home.memberships()?;
    let rows: Vec<Json> = memberships
        .iter()
        .map(|membership| {
            json!({
                "slug": membership.slug,
                "name": membership.name,
                "server": membership.server,
                "owner": membership.owner.ed25519,
                "plaintext": membership.plaintext,
                "mesh_id": membership.mesh,
                "member_id": membership.member,
            })
        })
        .collect();
    output::list(flags.reach.json, &json!({ "memberships": rows }), "memberships", MEMBERSHIPS)
}

/// In as many calls as it takes.
async fn close(flags: &Close) -> Result<()> {
    let Close { slug, yes, reach } = flags;
    if !yes {
        return Err(Error::invalid(format!("All members of {slug} would be revoked, which cannot be undone."))
            .with_cure("Say --yes."));
    }
    let session = Session::open(reach).await?;
    let ended = async {
        let mut revoked = 0;
        loop {
            let answer = session.call("close_mesh", json!({ "mesh": slug })).await?;
            revoked += answer["revoked"].as_i64().unwrap_or(0);
            if answer["remaining"].as_i64().unwrap_or(0) == 0 {
                return Ok::<i64, Error>(revoked);
            }
        }
    };
    let ended = ended.await;
    session.close().await;
    let revoked = ended?;
    let answer = json!({ "mesh": slug, "revoked": revoked });
    output::answer(reach.json, &answer, &format!("{slug}: closed; members revoked: {revoked}."))
}

/// What was found is printed before the exit code says that something was.
async fn check(slug: &str, reach: &Reach) -> Result<()> {
    let session = Session::open(reach).await?;
    let looked = look_through(&session, slug).await;
    session.close().await;
    let (looked_at, findings) = looked?;
    if reach.json {
        output::json(&json!({ "mesh": slug, "looked_at": looked_at, "findings": findings }))?;
    } else if findings.is_empty() {
        output::line(&format!("{slug}: {looked_at} rows, and everything fits together."))?;
    } else {
        output::table(FINDINGS, &findings)?;
    }
    if findings.is_empty() {
        return Ok(());
    }
    let message = format!("{} things in {slug} do not fit together.", findings.len());
    Err(Error::new(Code::ChainBroken, message)
        .with_cure("Keep the database as it is, compare it with a backup, and report the findings."))
}

/// All of it, in as many calls as it takes.
async fn look_through(session: &Session, slug: &str) -> Result<(i64, Vec<Json>)> {
    let (mut looked_at, mut findings) = (0, Vec::new());
    let mut input = json!({ "mesh": slug });
    loop {
        let mut page = session.call("check_mesh", input.clone()).await?;
        looked_at += page["looked_at"].as_i64().unwrap_or(0);
        findings.extend(page["findings"].as_array_mut().map(std::mem::take).unwrap_or_default());
        match page["next_cursor"].take() {
            Json::Null => return Ok((looked_at, findings)),
            cursor => input["cursor"] = cursor,
        }
    }
}
