//! `waybill daemon recover|accept-host|remint|backup|restore|uninstall|reset`: what is done to a daemon's folder from outside.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use serde_json::{Value as Json, json};
use waybill_daemon::backup::{self, Summary};
use waybill_daemon::directory::Directory;
use waybill_daemon::identity::{load_identity, save_identity};
use waybill_daemon::rotation::KEYPAIR_NEXT;
use waybill_daemon::{Folder, Lock, Membership, folder, host, inbox};
use waybill_kernel::{Clock, Code, Error, Result};
use waybill_mesh_protocol::names::MEMBER_NAME_CHARS_MAX;
use waybill_mesh_protocol::{Base64, Identity, Invite, MemberName};
use waybill_store::safety;
use zeroize::Zeroizing;

use super::{control, service, up};
use crate::commands::mesh::join;
use crate::commands::peer::home::{At, Home, Member, entropy, unusable};
use crate::commands::peer::socket::Socket;
use crate::output;

/// A backup holds keys and settings, never messages.
const BACKUP_BYTES_MAX: u64 = 80 << 20;
/// What belongs to the member itself, beside its outbox and inbox.
const OF_MEMBER: &[&str] = &[folder::KEYPAIR, KEYPAIR_NEXT, folder::KEYPAIR_ARCHIVE, folder::MEMBERSHIP];
/// The keys of the member that a copy is to become, until it is one.
const KEYPAIR_REMINT: &str = "keypair-remint.json";
/// Where a passphrase is looked for that is in no file.
const PASSPHRASE: &str = "WAYBILL_PASSPHRASE";

#[derive(Args)]
pub struct Remint {
    /// With which the new member joins.
    #[arg(long, env = "WAYBILL_INVITE", value_name = "INVITE", hide_env_values = true)]
    invite: String,
    /// What the other members call it [default: the name that the folder's member has, and the host's behind it].
    #[arg(long)]
    name: Option<MemberName>,
    #[command(flatten)]
    at: At,
}

/// How a passphrase comes: never as an argument, which everybody on the host can read.
#[derive(Args)]
pub struct Phrase {
    /// The first line of this file; `-` for stdin [default: what WAYBILL_PASSPHRASE says].
    #[arg(long, value_name = "FILE")]
    passphrase_file: Option<PathBuf>,
}

#[derive(Args)]
pub struct Backup {
    /// The file to make; it must not exist yet.
    file: PathBuf,
    #[command(flatten)]
    phrase: Phrase,
    #[command(flatten)]
    at: At,
}

#[derive(Args)]
pub struct Restore {
    /// As `waybill daemon backup` has made it.
    file: PathBuf,
    #[command(flatten)]
    phrase: Phrase,
    #[command(flatten)]
    home: Home,
    /// Print JSON instead of text.
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub struct Remove {
    /// Do it: keys, messages that were not sent and settings are gone afterwards.
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    at: At,
}

impl Phrase {
    fn read(&self) -> Result<Zeroizing<String>> {
        let text = match &self.passphrase_file {
            // The error would hold what the variable says.
            None => std::env::var(PASSPHRASE).map_err(|_| {
                Error::invalid("There is no passphrase.")
                    .with_cure(format!("Say --passphrase-file FILE, or set {PASSPHRASE}."))
            })?,
            Some(path) if path.as_os_str() == "-" => {
                std::io::read_to_string(std::io::stdin().lock()).map_err(|error| unusable(path, &error))?
            }
            Some(path) => std::fs::read_to_string(path).map_err(|error| unusable(path, &error))?,
        };
        let text = Zeroizing::new(text);
        let phrase = Zeroizing::new(text.lines().next().unwrap_or_default().to_owned());
        backup::check_passphrase(&phrase)?;
        Ok(phrase)
    }
}

pub async fn recover(at: &At) -> Result<()> {
    let member = at.member()?;
    let recovered = waybill_daemon::recover::recover(&member.folder, &Arc::new(Clock::system()), &entropy()).await?;
    if at.json {
        output::json(&serde_json::to_value(&recovered).map_err(Error::internal)?)?;
    } else if !recovered.damaged {
        output::line("outbox.db is sound; nothing was done.")?;
    } else {
        output::line(&format!("outbox.db was damaged: {}", recovered.finding.as_deref().unwrap_or("unknown")))?;
        for (status, count) in &recovered.messages {
            output::line(&format!("{status}: {count} messages"))?;
        }
        let kept = recovered.kept_in.as_deref().unwrap_or_else(|| Path::new("-"));
        output::line(&format!("The damaged files are kept in {}.", kept.display()))?;
    }
    if recovered.complete {
        return Ok(());
    }
    let damage = recovered.damage.unwrap_or_default();
    Err(Error::new(
        Code::ChecksFailed,
        format!("The outbox can be used again, and some messages could not be read: {damage}."),
    )
    .with_cure(
        "Compare with what your programs have sent; the damaged file is kept for those who can read more of it.",
    ))
}

pub fn accept_host(at: &At) -> Result<()> {
    let member = at.member()?;
    let _lock = Lock::take(&member.folder)?;
    host::accept(&member.folder, &host::Host::read(Path::new("/")))?;
    let told = format!(
        "{}: this host is the one it belongs to. See that no daemon runs where it came from.",
        member.membership.slug
    );
    if at.json { output::json(&json!({ "ok": true, "mesh": member.membership.slug })) } else { output::line(&told) }
}

/// What the old member has not sent stays with it: the host the folder came from sends it under the same ids.
pub async fn remint(flags: Remint) -> Result<()> {
    let Member { folder, membership } = flags.at.member()?;
    let _lock = Lock::take(&folder)?;
    let name = match flags.name {
        Some(name) => name,
        None => another_name(&membership.name, up::host_name()?.as_str())?,
    };
    // Before it is used up.
    let invite = Invite::parse(flags.invite.trim())?;
    if invite.mesh != membership.mesh {
        return Err(Error::invalid(format!(
            "The invite is for {}, and the folder is of {}.",
            invite.slug, membership.slug
        )));
    }
    let identity = new_keys(&folder)?;
    let fresh = join::enroll(flags.invite.trim(), &identity, &name, None).await?;
    let aside = set_aside(&folder, Clock::system().now().micros() / 1_000_000)?;
    save_identity(&folder, &identity)?;
    fresh.save(&folder)?;
    folder.remove(KEYPAIR_REMINT)?;
    host::accept(&folder, &host::Host::read(Path::new("/")))?;
    if flags.at.json {
        return output::json(&json!({
            "mesh": fresh.slug,
            "member_id": fresh.member,
            "name": fresh.name,
            "key": identity.public_key(),
            "aside": aside,
        }));
    }
    output::line(&format!("{}: a new member, {}, with new keys.", fresh.slug, fresh.name))?;
    output::note(&format!("What the folder had of the old member is in {}.", aside.display()))
}

/// Kept before they are enrolled, and used again by whoever tries again: the answer may have been lost, and then they are a member's
/// already.
fn new_keys(folder: &Folder) -> Result<Identity> {
    if let Some(text) = folder.read_text(KEYPAIR_REMINT)? {
        let kept = Identity::from_json(&text)?;
        // Those of a member that the folder has become already are for no other.
        if load_identity(folder)?.is_none_or(|own| own.public_key() != kept.public_key()) {
            return Ok(kept);
        }
    }
    let identity = Identity::generate(entropy().as_ref());
    folder.write(KEYPAIR_REMINT, identity.to_json()?.as_bytes())?;
    Ok(identity)
}

/// The old member goes on under its own name where the folder came from, and a mesh has a name once.
fn another_name(name: &str, host: &str) -> Result<MemberName> {
    let host: String = host.chars().take(MEMBER_NAME_CHARS_MAX / 2).collect();
    let room = MEMBER_NAME_CHARS_MAX - 1 - host.chars().count();
    let name: String = name.chars().take(room).collect();
    format!("{name}-{host}").parse().map_err(|error: Error| error.with_cure("Say --name NAME."))
}

/// Everything that belongs to the old member, in a folder beside the new.
fn set_aside(folder: &Folder, now_s: i64) -> Result<PathBuf> {
    let aside = folder.file(&format!("before-remint-{now_s}"));
    std::fs::create_dir(&aside).map_err(|error| unusable(&aside, &error))?;
    let entries = std::fs::read_dir(folder.path()).map_err(|error| unusable(folder.path(), &error))?;
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_of_member =
            OF_MEMBER.contains(&name.as_str()) || name.starts_with("outbox.") || name.starts_with("inbox.");
        if is_of_member {
            std::fs::rename(entry.path(), aside.join(&name)).map_err(|error| unusable(&entry.path(), &error))?;
        }
    }
    Ok(aside)
}

pub async fn backup(flags: Backup) -> Result<()> {
    let phrase = flags.phrase.read()?;
    let member = flags.at.member()?;
    if flags.file.symlink_metadata().is_ok() {
        return Err(Error::new(Code::AlreadyExists, format!("{} exists already.", flags.file.display())));
    }
    // A running daemon has the topic keys, and the file they are in.
    let (sealed, summary) = match Socket::find(&member.folder).await? {
        Some(daemon) => {
            let answer = daemon.post("/v1/admin/backup", &json!({ "passphrase": phrase.as_str() })).await?;
            let sealed: Base64 = serde_json::from_value(answer["backup"].clone()).map_err(Error::internal)?;
            (sealed.0, serde_json::from_value(answer["summary"].clone()).map_err(Error::internal)?)
        }
        None => sealed_here(&member, phrase).await?,
    };
    safety::replace_private(&flags.file, &sealed).map_err(|error| unusable(&flags.file, &error))?;
    shown(&summary, flags.at.json, &format!("{} holds", flags.file.display()))
}

async fn sealed_here(member: &Member, phrase: Zeroizing<String>) -> Result<(Vec<u8>, Summary)> {
    let lock = Lock::take(&member.folder)?;
    let (store, directory) = directory(&member.folder, &member.membership).await?;
    let folder = member.folder.clone();
    let sealing = move || backup::seal(&folder, &directory, &phrase, Clock::system().now(), entropy().as_ref());
    let sealed = tokio::task::spawn_blocking(sealing).await.map_err(Error::internal)?;
    let _ = tokio::task::spawn_blocking(move || store.close()).await;
    drop(lock);
    sealed
}

async fn directory(folder: &Folder, membership: &Membership) -> Result<(waybill_store::Store, Directory)> {
    let clock = Arc::new(Clock::system());
    let (store, _) = inbox::open_store(&folder.file(folder::INBOX), &clock, &entropy()).await?;
    let directory = Directory::open(store.clone(), membership.owner.ed25519, membership.plaintext).await?;
    Ok((store, directory))
}

pub async fn restore(flags: Restore) -> Result<()> {
    let length = flags.file.metadata().map_err(|error| unusable(&flags.file, &error))?.len();
    if length > BACKUP_BYTES_MAX {
        return Err(Error::invalid(format!("{} is too large to be a backup.", flags.file.display())));
    }
    let sealed = std::fs::read(&flags.file).map_err(|error| unusable(&flags.file, &error))?;
    let phrase = flags.phrase.read()?;
    let opened =
        tokio::task::spawn_blocking(move || backup::open(&sealed, &phrase)).await.map_err(Error::internal)??;
    let folder = Folder::open(&flags.home.path()?, opened.slug())?;
    let lock = Lock::take(&folder)?;
    let membership = opened.write_files(&folder)?;
    let (store, directory) = directory(&folder, &membership).await?;
    let taught = opened.teach(&directory).await;
    let _ = tokio::task::spawn_blocking(move || store.close()).await;
    drop(lock);
    taught?;
    shown(&opened.summary(), flags.json, &format!("{} has", folder.path().display()))?;
    if flags.json {
        Ok(())
    } else {
        output::note("Start one daemon with these keys, not two: stop the one they came from.")
    }
}

fn shown(summary: &Summary, as_json: bool, what: &str) -> Result<()> {
    if as_json {
        return output::json(&serde_json::to_value(summary).map_err(Error::internal)?);
    }
    let Summary { slug, files, topics, topic_keys, .. } = summary;
    output::line(&format!("{what} {slug}: {}; {topics} topics, {topic_keys} topic keys.", files.join(", ")))
}

pub async fn uninstall(flags: Remove) -> Result<()> {
    let member = flags.at.member()?;
    confirmed(&flags, &member.folder, "leaves the mesh and takes away")?;
    control::stop(&member.folder).await?;
    // While there are keys to sign with; without an answer nothing is taken away.
    let _: Json = member.broker()?.post("mesh/v1/leave", &json!({})).await?;
    let unit = service::remove(&flags.at)?;
    remove(&member.folder)?;
    let answer = json!({ "ok": true, "mesh": member.membership.slug, "unit": unit });
    output::answer(flags.at.json, &answer, "Left, and taken away.")
}

pub async fn reset(flags: Remove) -> Result<()> {
    let folder = flags.at.folder()?;
    confirmed(&flags, &folder, "takes away")?;
    control::stop(&folder).await?;
    remove(&folder)?;
    let text = "Taken away here. At the broker the member stays until it is revoked.";
    output::answer(flags.at.json, &json!({ "ok": true }), text)
}

fn confirmed(flags: &Remove, folder: &Folder, what: &str) -> Result<()> {
    if flags.yes {
        return Ok(());
    }
    let message = format!("This {what} {} with its keys and messages.", folder.path().display());
    Err(Error::invalid(message).with_cure("Say --yes to do it; `waybill daemon backup` keeps the keys."))
}

fn remove(folder: &Folder) -> Result<()> {
    let _lock = Lock::take(folder)?;
    std::fs::remove_dir_all(folder.path()).map_err(|error| unusable(folder.path(), &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_called_after_its_host_too() {
        assert_eq!(another_name("alice", "box-2").unwrap().as_str(), "alice-box-2");
        let long = another_name(&"a".repeat(64), &"b".repeat(64)).unwrap();
        assert_eq!(long.as_str(), format!("{}-{}", "a".repeat(31), "b".repeat(32)));
        assert!(another_name("alice", "box ").unwrap_err().cure().contains("--name"));
    }

    #[test]
    fn all_keys_of_the_old_member_are_set_aside_also_those_of_a_rotation_in_doubt() {
        let home = tempfile::tempdir().unwrap();
        let folder = Folder::open(home.path(), "acme").unwrap();
        let kept = [folder::CONFIG, folder::HOST_FINGERPRINT];
        for name in OF_MEMBER.iter().copied().chain([folder::OUTBOX, folder::INBOX]).chain(kept) {
            folder.write(name, b"{}").unwrap();
        }
        let aside = set_aside(&folder, 7).unwrap();
        assert!(OF_MEMBER.contains(&"keypair-next.json"));
        for name in OF_MEMBER.iter().copied().chain([folder::OUTBOX, folder::INBOX]) {
            assert!(!folder.file(name).exists() && aside.join(name).exists(), "{name}");
        }
        for name in kept {
            assert!(folder.file(name).exists(), "{name}");
        }
    }
}
