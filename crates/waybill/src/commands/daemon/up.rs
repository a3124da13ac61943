//! `waybill daemon up`: here with `--foreground`, else in a process of its own.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use serde_json::{Value as Json, json};
use waybill_daemon::identity::{Mode, Stance, Surroundings, Wishes, decide};
use waybill_daemon::rotation::Archive;
use waybill_daemon::run::{Config, Daemon};
use waybill_daemon::seal::Keyring;
use waybill_daemon::{Folder, Membership, folder, link};
use waybill_kernel::{Clock, Code, Error, Result};
use waybill_mesh_protocol::{Edition, Identity, MemberName};

use super::fleet::{Fleet, Used};
use super::{control, detach};
use crate::commands::mesh::create::refuse_member;
use crate::commands::mesh::join;
use crate::commands::peer::home::{At, entropy};
use crate::commands::serve::stop_on_signals;
use crate::commands::worker::exec::OWN;
use crate::{log, output};

/// Where an invite is looked for that is not on the command line.
const INVITE: &str = "WAYBILL_INVITE";

#[derive(Args, Clone)]
pub struct Up {
    #[command(flatten)]
    at: At,
    /// Every mesh of this user, each in a process of its own.
    #[arg(long, conflicts_with_all = ["foreground", "ephemeral"])]
    all: bool,
    /// Stay here until stopped; the log comes to stderr as well.
    #[arg(long)]
    foreground: bool,
    /// Keep the keys in memory alone, and remove the member at the end; needs --invite. Usual in CI.
    #[arg(long, conflicts_with = "persistent")]
    ephemeral: bool,
    /// Use the keys in the folder, also in CI.
    #[arg(long)]
    persistent: bool,
    /// End an ephemeral member after this time, as in 2h, 30m or 90s.
    #[arg(long, value_name = "TIME", value_parser = time)]
    ttl: Option<Duration>,
    /// What an ephemeral member joins with.
    #[arg(long, env = INVITE, value_name = "INVITE", hide_env_values = true)]
    invite: Option<String>,
    /// What the other members call you: of an ephemeral member, or with --rename.
    #[arg(long)]
    name: Option<MemberName>,
    /// Take --name as the member's new name.
    #[arg(long, requires = "name")]
    rename: bool,
    /// This is a container: no TCP.
    #[arg(long)]
    container: bool,
    /// Listen on loopback TCP, or not [default: not in containers].
    #[arg(long, value_name = "BOOL")]
    tcp: Option<bool>,
    /// Run hooks, or not [default: not in CI].
    #[arg(long, value_name = "BOOL")]
    hooks: Option<bool>,
    /// What to log, as in `info` or `waybill=debug`.
    #[arg(long, env = "WAYBILL_LOG", value_name = "FILTER", default_value = "info")]
    log: String,
    /// How many seconds to wait until the daemon answers.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
    wait: u64,
    /// This process was started to be the daemon.
    #[arg(long, hide = true)]
    detached: bool,
}

pub async fn run(flags: Up) -> Result<()> {
    if flags.all {
        return all(&flags).await;
    }
    let (slug, stance) = flags.which()?;
    if flags.foreground {
        return here(&flags, &slug, stance).await;
    }
    let pid = start(&flags, &slug).await?;
    let row = json!({ "mesh": slug, "pid": pid, "started": true });
    if flags.at.json { output::json(&row) } else { told(&row) }
}

pub async fn restart(flags: Up) -> Result<()> {
    // What could not be started again is not stopped: the keys of an ephemeral member end with its daemon.
    let slugs = if flags.all { flags.at.home.kept()? } else { vec![flags.which()?.0] };
    for slug in &slugs {
        control::stop(&Folder::at(&flags.at.home.path()?, slug)?).await?;
    }
    run(flags).await
}

async fn all(flags: &Up) -> Result<()> {
    let (home, slugs) = (flags.at.home.path()?, flags.at.home.kept()?);
    if slugs.is_empty() {
        // The same words as for one that was not named.
        flags.at.slug()?;
    }
    let fleet = Fleet::read(&home)?;
    let mut rows = Vec::new();
    for slug in &slugs {
        let folder = Folder::at(&home, slug)?;
        if waybill_daemon::Lock::holder(&folder)?.is_some() {
            rows.push(json!({ "mesh": slug, "started": false }));
            continue;
        }
        fleet.admit(Used::measure(&home, &flags.at.home.meshes()?)?)?;
        let pid = start(flags, slug).await?;
        rows.push(json!({ "mesh": slug, "pid": pid, "started": true }));
    }
    if flags.at.json {
        return output::json(&json!({ "daemons": rows }));
    }
    rows.iter().try_for_each(told)
}

fn told(row: &Json) -> Result<()> {
    let (mesh, pid) = (output::cell(&row["mesh"]), output::cell(&row["pid"]));
    output::line(&match row["started"] == true {
        true => format!("{mesh}: the daemon runs, as process {pid}."),
        false => format!("{mesh}: a daemon was running already."),
    })
}

/// In a process of its own.
async fn start(flags: &Up, slug: &str) -> Result<u32> {
    let home = flags.at.home.path()?;
    let folder = Folder::open(&home, slug)?;
    if let Some(pid) = waybill_daemon::Lock::holder(&folder)? {
        let message = format!("Process {pid} runs a daemon in {}.", folder.path().display());
        return Err(Error::new(Code::DaemonRunning, message));
    }
    let invite = flags.invite.as_deref().map(|invite| (INVITE, invite));
    detach::start(&folder, &flags.again(&home, slug), invite, Duration::from_secs(flags.wait)).await
}

impl Up {
    fn wishes(&self) -> Wishes {
        Wishes {
            ephemeral: self.ephemeral,
            persistent: self.persistent,
            ttl: self.ttl,
            container: self.container,
            tcp: self.tcp,
            hooks: self.hooks,
        }
    }

    /// The arguments of the process that becomes the daemon. Everybody on the host can read them: the invite comes by its
    /// environment, which only this user reads.
    fn again(&self, home: &Path, slug: &str) -> Vec<OsString> {
        let mut args: Vec<OsString> =
            ["daemon", "up", "--foreground", "--detached", "--mesh", slug].map(OsString::from).into();
        args.extend(["--home".into(), home.into(), "--log".into(), self.log.clone().into()]);
        for (flag, is_set) in [
            ("--ephemeral", self.ephemeral),
            ("--persistent", self.persistent),
            ("--container", self.container),
            ("--rename", self.rename),
        ] {
            if is_set {
                args.push(flag.into());
            }
        }
        let ttl = self.ttl.map(|ttl| format!("{}s", ttl.as_secs()));
        let name = self.name.as_ref().map(ToString::to_string);
        let (tcp, hooks) = (self.tcp.map(|tcp| tcp.to_string()), self.hooks.map(|hooks| hooks.to_string()));
        for (flag, value) in [("--ttl", ttl), ("--name", name), ("--tcp", tcp), ("--hooks", hooks)] {
            if let Some(value) = value {
                args.extend([flag.into(), value.into()]);
            }
        }
        args
    }

    /// Which mesh, and how its daemon is to run. What needs no daemon to be refused is refused.
    fn which(&self) -> Result<(String, Stance)> {
        let stance = decide(self.wishes(), Surroundings::read())?;
        let is_ephemeral = matches!(stance.mode, Mode::Ephemeral { .. });
        let slug = match (&self.at.mesh, &self.invite, self.at.slug()) {
            // Of an ephemeral member the invite says it, whatever else there is.
            (None, Some(invite), slug) if is_ephemeral || slug.is_err() => {
                waybill_mesh_protocol::Invite::parse(invite.trim())?.slug.to_string()
            }
            (_, _, slug) => slug?,
        };
        self.refuse_stranger(&slug, &stance)?;
        Ok((slug, stance))
    }

    fn refuse_stranger(&self, slug: &str, stance: &Stance) -> Result<()> {
        match stance.mode {
            Mode::Persistent => {
                let member = At { mesh: Some(slug.to_owned()), ..self.at.clone() }.member()?;
                match &self.name {
                    Some(name) if name.as_str() != member.membership.name && !self.rename => {
                        let message = format!("The member is called {}, and not {name}.", member.membership.name);
                        Err(Error::invalid(message).with_cure("Leave --name out, or say --rename as well."))
                    }
                    _ => Ok(()),
                }
            }
            Mode::Ephemeral { .. } if self.invite.is_none() => {
                Err(Error::invalid("An ephemeral member joins anew each time, and there is no invite.").with_cure(
                    "Say --invite INVITE or set WAYBILL_INVITE; in CI, say --persistent to use the keys in the folder.",
                ))
            }
            // The outbox of that folder is the kept member's: another member in it would end its messages.
            Mode::Ephemeral { .. } => refuse_member(&Folder::at(&self.at.home.path()?, slug)?).map_err(|error| {
                error.with_cure("Choose another WAYBILL_HOME, or say --persistent to use the keys in the folder.")
            }),
        }
    }

    async fn ephemeral_member(&self, mode: Mode) -> Result<Option<(Membership, Identity)>> {
        let Mode::Ephemeral { ttl } = mode else { return Ok(None) };
        let text = self.invite.as_deref().unwrap_or_default().trim();
        let name = match &self.name {
            Some(name) => name.clone(),
            None => host_name()?,
        };
        let identity = Identity::generate(entropy().as_ref());
        let membership = join::enroll(text, &identity, &name, ttl.map(|ttl| ttl.as_secs())).await?;
        Ok(Some((membership, identity)))
    }
}

/// This process is the daemon.
async fn here(flags: &Up, slug: &str, stance: Stance) -> Result<()> {
    if flags.detached {
        detach::let_go()?;
    }
    let home = flags.at.home.path()?;
    let folder = Folder::open(&home, slug)?;
    let settings = folder.settings()?;
    let keep = Duration::from_millis(settings.log.keep_ms);
    let _log =
        log::start_in_file(&flags.log, &folder.file(folder::LOG), settings.log.bytes_max, keep, !flags.detached)?;
    let served = serve(flags, slug, home, stance).await;
    if let Err(error) = &served {
        // The one place where it is told in the log; the other is the exit code.
        tracing::error!(
            code = error.code().entry().code,
            cause = error.cause(),
            "the daemon ends: {}",
            error.message()
        );
    }
    served
}

async fn serve(flags: &Up, slug: &str, home: std::path::PathBuf, stance: Stance) -> Result<()> {
    if flags.rename
        && let (Mode::Persistent, Some(name)) = (stance.mode, &flags.name)
    {
        rename(flags, slug, name).await?;
    }
    let ephemeral = flags.ephemeral_member(stance.mode).await?;
    let config = Config {
        home,
        mesh: slug.to_owned(),
        ephemeral: ephemeral.clone(),
        stance,
        own: OWN.into(),
        edition: Edition::default(),
        clock: Arc::new(Clock::system()),
        entropy: entropy(),
    };
    // What a keeper of hooks that was killed leaves behind comes to us.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).map_err(Error::internal)?;
    let service = match Daemon::open(config).await {
        Ok(service) => service,
        Err(error) => {
            leave(ephemeral).await;
            return Err(error);
        }
    };
    tracing::info!(mesh = slug, "the daemon answers on its socket");
    let ended = service.run(stop_on_signals()?).await;
    if let Err(error) = &ended {
        tracing::error!(code = error.code().entry().code, %error, "the daemon ends");
    }
    ended
}

/// Nobody has the keys of an ephemeral member whose daemon does not start: it would stay in the mesh for nothing.
async fn leave(ephemeral: Option<(Membership, Identity)>) {
    let Some((membership, identity)) = ephemeral else { return };
    let keyring = Keyring::new(identity, Archive::default());
    let Membership { server, mesh, .. } = &membership;
    let broker = link::Broker::new(server, *mesh, keyring, Arc::new(Clock::system()), entropy());
    let left: Result<Json> = async { broker?.post("mesh/v1/leave", &json!({})).await }.await;
    if let Err(error) = left {
        tracing::warn!(%error, "the ephemeral member could not be removed at the broker");
    }
}

async fn rename(flags: &Up, slug: &str, name: &MemberName) -> Result<()> {
    let member = At { mesh: Some(slug.to_owned()), ..flags.at.clone() }.member()?;
    if member.membership.name == name.as_str() {
        return Ok(());
    }
    let _: Json = member.broker()?.post("mesh/v1/rename", &json!({ "name": name })).await?;
    Membership { name: name.to_string(), ..member.membership }.save(&member.folder)
}

pub fn host_name() -> Result<MemberName> {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    name.parse().map_err(|_| Error::invalid("This host's name cannot be a member's.").with_cure("Say --name NAME."))
}

/// As in 2h, 30m, 90s; a number alone means seconds.
fn time(text: &str) -> std::result::Result<Duration, String> {
    let (digits, unit) = text.split_at(text.trim_end_matches(char::is_alphabetic).len());
    let factor = match unit {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => 0,
    };
    let seconds: Option<u64> = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(factor));
    match seconds {
        Some(seconds @ 1..) => Ok(Duration::from_secs(seconds)),
        _ => Err("write it as 2h, 30m or 90s".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Typed {
        #[command(flatten)]
        up: Up,
    }

    #[test]
    fn an_invite_is_not_on_the_command_line_of_the_daemon() {
        let typed = ["up", "--mesh", "acme", "--ephemeral", "--invite", "s3cret", "--name", "runner", "--ttl", "2h"];
        let up = Typed::try_parse_from(typed).unwrap().up;
        assert_eq!(up.invite.as_deref(), Some("s3cret"));
        let args = up.again(Path::new("/home"), "acme");
        assert!(args.iter().all(|arg| !arg.to_string_lossy().contains("s3cret")), "{args:?}");
        assert!(args.iter().any(|arg| arg == "--ephemeral") && args.iter().any(|arg| arg == "7200s"), "{args:?}");
        let known = Typed::try_parse_from(std::iter::once(OsString::from("up")).chain(args.into_iter().skip(2)));
        assert!(known.is_ok(), "the daemon understands the rest");
    }

    #[test]
    fn times_have_units() {
        for (text, seconds) in [("2h", 7_200), ("30m", 1_800), ("90s", 90), ("90", 90), ("1d", 86_400)] {
            assert_eq!(time(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for text in ["", "h", "0s", "2w", "-1s", "1.5h", "99999999999999999999d"] {
            assert!(time(text).is_err(), "{text}");
        }
    }
}
