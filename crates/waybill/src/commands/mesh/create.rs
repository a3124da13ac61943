//! `waybill mesh create`: a mesh on the server, its owner's keys and membership here.

use clap::Args;
use serde_json::{Value as Json, json};
use waybill_client::{Client, Options, Repeat, Request};
use waybill_daemon::identity::{load_identity, save_identity};
use waybill_daemon::{Folder, Lock, Membership};
use waybill_kernel::{Code, Error, Result};
use waybill_mesh_protocol::{Identity, MemberName, Slug};

use crate::cli::Reach;
use crate::commands::peer::home::{Home, entropy};
use crate::commands::session::{self, SERVER_PATIENCE};
use crate::output;

#[derive(Args)]
pub struct Create {
    /// The mesh's name: lower-case letters, digits and hyphens.
    slug: Slug,
    /// What the other members call you.
    #[arg(long)]
    name: MemberName,
    /// Let the server read what is sent, so that it can search in it.
    #[arg(long)]
    plaintext: bool,
    /// What becomes of two live connections with one key: prefer_newest, prefer_oldest or allow_concurrent.
    #[arg(long, value_name = "POLICY")]
    policy: Option<String>,
    /// The server's address as the members reach it, for invites [default: the one that is spoken to now].
    #[arg(long, value_name = "URL")]
    public_url: Option<String>,
    #[command(flatten)]
    home: Home,
    #[command(flatten)]
    reach: Reach,
}

pub async fn run(flags: Create) -> Result<()> {
    let (url, key) = session::server(&flags.reach.location, flags.reach.url.clone(), flags.reach.key.clone())?
        .ok_or_else(|| {
            Error::new(Code::ServerUnreachable, "No server runs on this data folder, and none was named.")
        })?;
    let folder = Folder::open(&flags.home.path()?, flags.slug.as_str())?;
    // Nobody else makes keys here meanwhile.
    let lock = Lock::take(&folder)?;
    refuse_member(&folder)?;
    // A mesh whose owner has lost the keys can be used by nobody.
    let identity = kept_identity(&folder)?;
    let user_agent = concat!("waybill/", env!("CARGO_PKG_VERSION")).to_owned();
    let client = Client::new(Options { url: url.clone(), key: Some(key), user_agent })?;
    let mut input = json!({
        "slug": flags.slug,
        "name": flags.name,
        "keys": identity.public(),
        "plaintext": flags.plaintext,
    });
    if let Some(policy) = &flags.policy {
        input["connection_policy"] = json!(policy);
    }
    let answer = created(&client, input).await?;
    let membership = Membership {
        server: flags.public_url.clone().unwrap_or(url),
        mesh: field(&answer, "mesh_id")?,
        slug: flags.slug.to_string(),
        member: field(&answer, "member_id")?,
        name: flags.name.to_string(),
        owner: identity.public(),
        plaintext: flags.plaintext,
    };
    membership.save(&folder)?;
    drop(lock);
    told(&membership, &folder, flags.reach.json, "made, and you own it")
}

async fn created(client: &Client, input: Json) -> Result<Json> {
    let registry = waybill_domains::registry();
    let entry = registry.find("create_mesh").ok_or_else(|| Error::internal("no operation create_mesh"))?;
    let route = &entry.spec().route;
    let request =
        Request { method: route.method, path: route.path, input, repeat: Repeat::Safe, wait: SERVER_PATIENCE };
    client.call(request).await.map(|answer| answer.json)
}

/// The keys that the folder holds, else new ones, written before the server hears of them. A command whose answer was lost is run
/// again with the same keys, and finds the mesh or the membership that the first run made.
pub fn kept_identity(folder: &Folder) -> Result<Identity> {
    if let Some(identity) = load_identity(folder)? {
        return Ok(identity);
    }
    let identity = Identity::generate(entropy().as_ref());
    save_identity(folder, &identity)?;
    Ok(identity)
}

/// A second identity in one folder would end the first.
pub fn refuse_member(folder: &Folder) -> Result<()> {
    let Some(membership) = Membership::load(folder)? else { return Ok(()) };
    let message =
        format!("{} holds the membership of {} in {}.", folder.path().display(), membership.name, membership.slug);
    Err(Error::new(Code::AlreadyExists, message)
        .with_cure("Use it, choose another WAYBILL_HOME, or take it away with `waybill daemon reset`."))
}

pub fn field<T: serde::de::DeserializeOwned>(answer: &Json, name: &str) -> Result<T> {
    serde_json::from_value(answer[name].clone()).map_err(|error| {
        let message = format!("The server's answer has no {name} that can be used.");
        Error::new(Code::ServerUnreachable, message).because(error)
    })
}

/// Who one is now.
pub fn told(membership: &Membership, folder: &Folder, as_json: bool, what: &str) -> Result<()> {
    let key = load_identity(folder)?.map(|identity| identity.public_key());
    let answer = json!({
        "slug": membership.slug,
        "mesh_id": membership.mesh,
        "member_id": membership.member,
        "name": membership.name,
        "key": key,
        "server": membership.server,
        "plaintext": membership.plaintext,
        "folder": folder.path(),
    });
    if as_json {
        return output::json(&answer);
    }
    let slug = &membership.slug;
    output::line(&format!("{slug}: {what}. You are {} in it.", membership.name))?;
    output::note(&format!("Start the daemon with `waybill daemon up --mesh {slug}`."))
}
