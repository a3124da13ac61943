//! The guard, taken out of a repository again.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_checkout::hooks::{self, Hook, Removed};
use waybill_kernel::{Example, OperationSpec, Profile, Route};
use waybill_store::{Answered, Flow, Procedure, Reply};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UninstallPrecommitGuard {
    /// The absolute path of the repository.
    #[schemars(length(min = 1, max = 4096))]
    pub code_repo_path: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct GuardUninstalled {
    /// Hooks that are gone.
    pub removed: Vec<String>,
    /// Hooks in whose place is again what was there before.
    pub restored: Vec<String>,
}

impl Procedure for UninstallPrecommitGuard {
    const SPEC: OperationSpec = OperationSpec {
        name: "uninstall_precommit_guard",
        route: Route::post("/v1/mail/guard/uninstall"),
        profile: Profile::Full,
        repeatable: true,
        title: "Take the guard out of a repository",
        description: "Takes the guard's hooks out of a repository of the server's machine, and puts back those that were there. \
                      Safe to repeat.",
        example: Example {
            arguments: r#"{"code_repo_path": "/data/projects/backend"}"#,
            answer: r#"{"removed": ["/data/projects/backend/.git/hooks/pre-commit"], "restored": []}"#,
        },
        ..super::WRITE
    };
    type Output = GuardUninstalled;

    async fn call(self, flow: &Flow<'_>) -> Answered<GuardUninstalled> {
        let take = |folder: &waybill_checkout::Hooks| {
            let mut done = GuardUninstalled { removed: Vec::new(), restored: Vec::new() };
            for hook in Hook::ALL {
                let list = match hooks::remove(folder, hook)? {
                    Some(Removed::Gone) => &mut done.removed,
                    Some(Removed::Restored) => &mut done.restored,
                    None => continue,
                };
                list.push(folder.path().join(hook.name()).display().to_string());
            }
            Ok(done)
        };
        Ok((Reply::Done(super::in_hooks(flow, &self.code_repo_path, take).await?), None))
    }
}
