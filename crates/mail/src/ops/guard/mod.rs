//! The guard of repositories, put in place by the server itself: for repositories beneath `mail.project_roots` alone. Elsewhere
//! `waybill guard install` does it, with the rights of whoever runs it.

use std::path::Path;

use waybill_checkout::Checkout;
use waybill_checkout::hooks::{self, BY_HAND};
use waybill_kernel::{Code, Error, Result};
use waybill_store::{Flow, Registry};

use crate::Settings;

pub mod install_precommit_guard;
pub mod uninstall_precommit_guard;

pub(crate) use super::files::WRITE;

/// Those that are tools only where the server may touch repositories.
pub const NEEDS_ROOTS: [&str; 2] = ["mail.install_precommit_guard", "mail.uninstall_precommit_guard"];

pub(crate) fn register(registry: Registry) -> Registry {
    registry
        .with::<install_precommit_guard::InstallPrecommitGuard>()
        .with::<uninstall_precommit_guard::UninstallPrecommitGuard>()
}

/// Does something in the folder of hooks of a repository, off the runtime.
async fn in_hooks<T: Send + 'static>(
    flow: &Flow<'_>,
    path: &str,
    then: impl FnOnce(&waybill_checkout::Hooks) -> Result<T> + Send + 'static,
) -> Result<T> {
    let roots = flow.home().settings().get::<Settings>().roots();
    let path = path.to_owned();
    let work = move || {
        let outside = || {
            let message = format!("{path:?} does not lie beneath a folder of `mail.project_roots`.");
            Error::new(Code::FeatureDisabled, message).with_cure(BY_HAND)
        };
        let checkout = Checkout::open(&roots, Path::new(&path))?.ok_or_else(outside)?;
        then(&hooks::folder(&checkout)?)
    };
    tokio::task::spawn_blocking(work).await.map_err(Error::internal)?
}
