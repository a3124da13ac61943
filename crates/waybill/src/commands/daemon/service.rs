//! `waybill daemon install-service`.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;
use waybill_daemon::identity::Surroundings;
use waybill_daemon::service::{Manager, Scope, Service, Unit};
use waybill_kernel::{Code, Error, Result};
use waybill_store::safety;

use crate::commands::peer::home::{At, unusable};
use crate::output;

#[derive(Args)]
pub struct Install {
    /// For this user, while it is logged in [default].
    #[arg(long, conflicts_with = "system")]
    user: bool,
    /// For the system, from its start on; needs the rights to write there.
    #[arg(long)]
    system: bool,
    #[command(flatten)]
    at: At,
}

pub fn install(flags: &Install) -> Result<()> {
    let around = Surroundings::read();
    if around.ci || around.kubernetes {
        return Err(Error::new(Code::NotInCi, "A unit that starts a daemon is not written in CI or Kubernetes.")
            .with_cure("Run it on a host that stays, where neither CI nor KUBERNETES_SERVICE_HOST is set."));
    }
    let member = flags.at.member()?;
    let scope = if flags.system { Scope::System } else { Scope::User };
    let unit = unit(&flags.at, &member.membership.slug, scope)?;
    let folder = unit.path.parent().unwrap_or(&unit.path);
    std::fs::create_dir_all(folder).map_err(|error| unusable(folder, &error))?;
    safety::replace_private(&unit.path, unit.text.as_bytes()).map_err(|error| unusable(&unit.path, &error))?;
    if flags.at.json {
        return output::json(&json!({ "path": unit.path, "start": unit.start, "stop": unit.stop }));
    }
    output::line(&format!("{} is written.", unit.path.display()))?;
    output::note(&format!("Start it with: {}", unit.start))
}

/// The unit of this user, if there is one: where it was.
pub fn remove(at: &At) -> Result<Option<PathBuf>> {
    let unit = unit(at, &at.slug()?, Scope::User)?;
    match std::fs::remove_file(&unit.path) {
        Ok(()) => {
            output::note(&format!("If it is still loaded: {}", unit.stop))?;
            Ok(Some(unit.path))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unusable(&unit.path, &error)),
    }
}

fn unit(at: &At, slug: &str, scope: Scope) -> Result<Unit> {
    let user_home = std::env::var_os("HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
    let user_home = user_home.ok_or_else(|| Error::new(Code::ConfigInvalid, "There is no home folder: set HOME."))?;
    let program = std::env::current_exe().map_err(Error::internal)?;
    let user = std::env::var("USER").ok().filter(|user| !user.is_empty());
    let user = match (user, scope) {
        (Some(user), _) => user,
        (None, Scope::User) => String::new(),
        (None, Scope::System) => return Err(Error::new(Code::ConfigInvalid, "It is not known as whom: set USER.")),
    };
    let home = at.home.path()?;
    let service = Service { slug, program: &program, home: &home, user_home: &user_home, user: &user };
    service.unit(Manager::of_this_system(), scope)
}
