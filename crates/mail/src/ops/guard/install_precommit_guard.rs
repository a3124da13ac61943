//! The guard, put into a repository.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_checkout::hooks::{self, Hook};
use waybill_kernel::{Code, Error, Example, OperationSpec, Profile, Route};
use waybill_store::{Answered, Flow, Procedure, Reply};

use crate::ops::get_project::GetProject;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InstallPrecommitGuard {
    /// The project whose reservations count, by its absolute path or slug.
    pub project_key: String,
    /// The absolute path of the repository.
    #[schemars(length(min = 1, max = 4096))]
    pub code_repo_path: String,
    /// Guard pushes as well as commits.
    #[serde(default)]
    pub prepush: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct GuardInstalled {
    /// The file that git runs before a commit.
    pub hook: String,
    /// All that were put in place.
    pub installed: Vec<String>,
}

impl Procedure for InstallPrecommitGuard {
    const SPEC: OperationSpec = OperationSpec {
        name: "install_precommit_guard",
        route: Route::post("/v1/mail/guard/install"),
        profile: Profile::Core,
        repeatable: true,
        title: "Put the guard into a repository",
        description: "Puts a hook into a repository of the server's machine that stops commits of files which another agent has \
                      reserved. A hook that is there is kept and run first. Safe to repeat.",
        example: Example {
            arguments: r#"{"project_key": "/data/projects/backend", "code_repo_path": "/data/projects/backend"}"#,
            answer: r#"{"hook": "/data/projects/backend/.git/hooks/pre-commit",
                "installed": ["/data/projects/backend/.git/hooks/pre-commit"]}"#,
        },
        ..super::WRITE
    };
    type Output = GuardInstalled;

    async fn call(self, flow: &Flow<'_>) -> Answered<GuardInstalled> {
        let (Reply::Done(found) | Reply::Replay(found) | Reply::Empty { answer: found, .. }) =
            flow.run(flow.home(), GetProject { project_key: self.project_key }).await?;
        let human_key = found.project.human_key;
        // Linked working trees share their hooks, and what is committed in each is asked about by where it stands.
        let named = (human_key != self.code_repo_path.trim_end_matches('/')).then_some(human_key);
        let chosen = if self.prepush { &Hook::ALL[..] } else { &[Hook::PreCommit] };
        let put = move |folder: &waybill_checkout::Hooks| {
            let unreadable = || Error::new(Code::PathUnusable, "The server's program has a path that is not UTF-8.");
            let program = std::env::current_exe().map_err(Error::internal)?;
            let program = program.to_str().ok_or_else(unreadable)?;
            let mut installed = Vec::new();
            for hook in chosen {
                hooks::put(folder, *hook, &hooks::text(*hook, program, named.as_deref()))?;
                installed.push(folder.path().join(hook.name()).display().to_string());
            }
            Ok(GuardInstalled { hook: installed[0].clone(), installed })
        };
        Ok((Reply::Done(super::in_hooks(flow, &self.code_repo_path, put).await?), None))
    }
}
