//! One run of one hook: started behind its fence, given the event, ended in time, and told of.

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value as Json, json};
use tokio::time::{sleep, timeout};
use waybill_keeper::{Exit, Program, Start, text};
use waybill_store::safety;

use super::Inner;
use super::capability::{Capability, Grant, Scope};
use super::occasion::{self, INPUT_BYTES_MAX, Message};
use super::settings::Hook;

/// What a hook finds programs by, whatever the daemon's own is.
const PATH: &str = "/usr/bin:/bin";
/// Of what it said, in the line of the audit.
const AUDIT_WORDS_MAX: usize = 1_024;

pub struct Run<'a> {
    pub name: &'a str,
    pub hook: &'a Hook,
    pub event_id: &'a str,
    pub input: &'a Json,
    pub message: Option<&'a Message>,
}

/// How it went.
pub struct Ran {
    pub result: Outcome,
    pub exit_code: Option<i32>,
    pub stdout: String,
    /// There was more of it than the hook may say.
    pub stdout_cut: bool,
    pub stderr: String,
    pub enforced: bool,
    pub took: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Succeeded,
    Failed,
    TimedOut,
    NotStarted,
}

impl Outcome {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::TimedOut => "timed_out",
            Self::NotStarted => "not_started",
        }
    }
}

impl Run<'_> {
    pub async fn go(&self, hooks: &Inner) -> Ran {
        let began = Instant::now();
        let mut ran = match executable(&hooks.config.hooks_folder().join(self.name)) {
            Ok(path) => self.start(hooks, &path).await,
            Err(why) => Ran::not_started(why),
        };
        ran.took = began.elapsed();
        ran
    }

    async fn start(&self, hooks: &Inner, path: &Path) -> Ran {
        let fenced = hooks.fences.around(self.hook, path).await;
        let capability = self.capability(hooks);
        let environment = self.environment(hooks, capability.as_ref());
        let folder = hooks.config.hooks_folder();
        let start = Start {
            own: &hooks.config.own,
            program: &fenced.program,
            args: &fenced.args,
            environment: &environment,
            folder: Some(&folder),
            output_bytes_max: self.hook.output_size_limit,
        };
        let mut program = match Program::start(&start) {
            Ok(program) => program,
            Err(error) => return Ran::not_started(error.to_string()),
        };
        let input = occasion::input(self.input, &self.hook.redact_payload, INPUT_BYTES_MAX);
        let grace = Duration::from_millis(hooks.config.settings.grace_ms);
        let (exit, in_time) = finish(&mut program, input.as_bytes(), self.hook.timeout(), grace).await;
        let has_ended = exit.is_some();
        // Before anybody is told that it has ended.
        drop(capability);
        let (result, exit_code, why) = match exit {
            _ if !in_time => (Outcome::TimedOut, None, None),
            Some(Exit::Known(status)) if status.success() => (Outcome::Succeeded, Some(0), None),
            Some(Exit::Known(status)) => (Outcome::Failed, status.code(), None),
            Some(Exit::NotStarted(why)) => (Outcome::NotStarted, None, Some(why)),
            Some(Exit::Unknown) | None => (Outcome::Failed, None, None),
        };
        let ((stdout, stdout_cut), (stderr, _)) = (program.out.told(), program.err.told());
        if !has_ended {
            program.end().await;
        }
        Ran {
            result,
            exit_code,
            stdout,
            stdout_cut,
            stderr: why.unwrap_or(stderr),
            enforced: fenced.enforced,
            took: Duration::ZERO,
        }
    }

    fn capability(&self, hooks: &Inner) -> Option<Capability> {
        let scopes: Vec<Scope> = self.hook.scopes.iter().filter_map(|scope| Scope::parse(scope)).collect();
        if scopes.is_empty() {
            return None;
        }
        let grant = Grant {
            hook: self.name.to_owned(),
            event_id: self.event_id.to_owned(),
            message_id: self.message.map(|message| message.id.clone()),
            sender_key: self.message.map(|message| message.sender_key.clone()),
            sender_name: self.message.map(|message| message.sender_name.clone()),
            scopes,
            ends_at: hooks.clock.now().after(Duration::from_millis(hooks.config.settings.capability_ms)),
        };
        Some(hooks.capabilities.issue(grant, hooks.entropy.as_ref()))
    }

    /// All of it: nothing of the daemon's own is handed on.
    fn environment(&self, hooks: &Inner, capability: Option<&Capability>) -> Vec<(OsString, OsString)> {
        let mut environment: Vec<(OsString, OsString)> = vec![
            ("PATH".into(), PATH.into()),
            ("WAYBILL_MESH".into(), hooks.config.mesh.clone().into()),
            ("WAYBILL_HOOK".into(), self.name.into()),
            ("WAYBILL_EVENT_ID".into(), self.event_id.into()),
            ("WAYBILL_SOCKET".into(), hooks.config.socket.clone().into()),
        ];
        if let Some(capability) = capability {
            environment.push(("WAYBILL_HOOK_TOKEN".into(), capability.token.clone().into()));
        }
        environment
    }

    /// The line of the audit.
    pub fn line(&self, ran: &Ran, at: waybill_kernel::Time) -> Json {
        let words = |text: &str| text.chars().take(AUDIT_WORDS_MAX).collect::<String>();
        json!({
            "at": at,
            "hook": self.name,
            "event_id": self.event_id,
            "message_id": self.message.map(|message| message.id.clone()),
            "result": ran.result.name(),
            "exit_code": ran.exit_code,
            "duration_ms": u64::try_from(ran.took.as_millis()).unwrap_or(u64::MAX),
            "stdout_bytes": ran.stdout.len(),
            "stdout_cut": ran.stdout_cut,
            "stderr": words(&ran.stderr),
            "scopes": self.hook.scopes,
            "fence_enforced": ran.enforced,
        })
    }
}

/// Its end, and whether it came before it was asked for. `grace` is the time between asking it to end and ending it.
async fn finish(program: &mut Program, input: &[u8], time: Duration, grace: Duration) -> (Option<Exit>, bool) {
    let ask = program.ask();
    let finish = program.finish(input);
    tokio::pin!(finish);
    tokio::select! {
        exit = &mut finish => return (Some(exit), true),
        () = sleep(time) => ask.cancel(),
    }
    (timeout(grace, finish).await.ok(), false)
}

impl Ran {
    fn not_started(why: String) -> Self {
        Self {
            result: Outcome::NotStarted,
            exit_code: None,
            stdout: String::new(),
            stdout_cut: false,
            stderr: why,
            enforced: true,
            took: Duration::ZERO,
        }
    }

    /// What it said about why it refuses, on one line for people.
    pub fn reason(&self) -> String {
        let (text, _) = text(self.stderr.trim().as_bytes());
        match text.is_empty() {
            true => {
                format!(
                    "it ended with {}",
                    self.exit_code.map_or_else(|| "no exit code".to_owned(), |code| code.to_string())
                )
            }
            false => text,
        }
    }
}

/// A hook that others may write would run what they wrote.
fn executable(path: &Path) -> Result<PathBuf, String> {
    let shown = path.display();
    match safety::exposure_of_file(path) {
        Ok(None) => {}
        Ok(Some(exposure)) => return Err(format!("{exposure}; {}", exposure.cure)),
        Err(error) => return Err(format!("{shown}: {error}")),
    }
    let file = path.metadata().map_err(|error| format!("{shown}: {error}"))?;
    if file.permissions().mode() & 0o111 == 0 {
        return Err(format!("{shown} is not executable; chmod u+x {shown}"));
    }
    Ok(path.to_owned())
}
