//! `waybill guard check`

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use clap::Args;
use serde_json::json;
use waybill_kernel::{Code, Error, Result};
use waybill_mail::guard::{Reaches, Target};

use super::git::{Git, unusable};
use super::held::{self, Held};
use super::{Hook, Repository};
use crate::cli::Reach;
use crate::output;

/// What git tells of a push: one line for each ref.
const REFS_BYTES_MAX: u64 = 16 << 20;
/// A server that takes longer is one that is away: somebody is waiting to commit.
const PATIENCE: Duration = Duration::from_secs(5);
/// Of the files that others hold; all are counted.
const SHOWN_MAX: usize = 20;
/// Files of an issue tracker that keeps its state in the repository, where every agent writes with every commit.
const EXEMPT: &str = ".beads/";

#[derive(Args)]
pub struct Check {
    /// What is being made.
    #[arg(long, value_enum, default_value_t = Hook::PreCommit)]
    hook: Hook,
    /// The project to ask about, by its absolute path or slug [default: that of the working tree, or of the one that it was
    /// made from].
    #[arg(long, env = "WAYBILL_PROJECT", value_name = "PATH")]
    project: Option<String>,
    /// Whose own reservations are no hindrance. Without a name nothing passes, unless what is held is only to be told.
    #[arg(long, env = "AGENT_NAME", value_name = "NAME")]
    agent: Option<String>,
    /// Say what is held by others, and let it pass.
    #[arg(long)]
    warn: bool,
    /// Another hook to run first, if it is there.
    #[arg(long, value_name = "FILE")]
    own: Option<PathBuf>,
    #[command(flatten)]
    repository: Repository,
    #[command(flatten)]
    reach: Reach,
    /// What git gives the hook: of a push the remote's name and address.
    #[arg(last = true, value_name = "ARGS")]
    rest: Vec<String>,
}

/// How the environment changes what the guard does; the names are those that users of other servers have in theirs.
struct Wishes {
    passes_by: bool,
    warns: bool,
}

impl Wishes {
    fn of(word: impl Fn(&str) -> Option<String>) -> Self {
        let is = |name: &str, words: &[&str]| {
            word(name).is_some_and(|word| words.contains(&word.trim().to_lowercase().as_str()))
        };
        Self {
            passes_by: is("AGENT_MAIL_BYPASS", &["1", "true", "yes"])
                || is("FILE_RESERVATIONS_ENFORCEMENT_ENABLED", &["0", "false", "no"]),
            warns: is("AGENT_MAIL_GUARD_MODE", &["warn", "advisory"]),
        }
    }
}

pub async fn run(flags: Check) -> Result<()> {
    let refs = match flags.hook {
        Hook::PreCommit => String::new(),
        Hook::PrePush => refs()?,
    };
    run_own(&flags, &refs)?;
    let wishes = Wishes::of(|name| std::env::var(name).ok());
    if wishes.passes_by {
        return output::note("waybill guard: passed by, as the environment says.");
    }
    let warns = flags.warn || wishes.warns;
    if !warns {
        must_be_known(&flags)?;
    }
    match tokio::time::timeout(PATIENCE, look(&flags, &refs)).await {
        Ok(Ok(found)) => judge(&flags, &found, warns),
        // It was looked, and not all could be seen: that is no server which is away.
        Ok(Err(error)) if error.code() == Code::ChecksFailed && !warns => Err(error),
        Ok(Err(error)) => unknown(&format!("{} {}", error.message(), error.cure())),
        Err(_) => unknown("No answer came in time."),
    }
}

fn is_known(flags: &Check) -> bool {
    flags.agent.as_deref().is_some_and(|agent| !agent.trim().is_empty())
}

/// Nobody can say of somebody unknown which reservations are its own.
fn must_be_known(flags: &Check) -> Result<()> {
    if is_known(flags) {
        return Ok(());
    }
    let message = format!("AGENT_NAME is not set, so it is not known whose this {} is.", what(flags.hook));
    let cure = "Set it to your agent's name, which `waybill mail register` gives. Who commits as no agent sets \
                AGENT_MAIL_BYPASS=1 or says `--no-verify`; AGENT_MAIL_GUARD_MODE=warn only tells.";
    Err(Error::new(Code::ChecksFailed, message).with_cure(cure))
}

/// Only a reservation stops anybody.
fn unknown(why: &str) -> Result<()> {
    output::note(&format!("waybill guard: it is not known what others have reserved, so nothing is stopped. {why}"))
}

/// A file of the commit or push, and who holds it.
struct Met {
    file: String,
    held: Held,
}

async fn look(flags: &Check, refs: &str) -> Result<Vec<Met>> {
    let git = Git::at(flags.repository.repo.as_deref());
    let files = match flags.hook {
        Hook::PreCommit => git.staged()?,
        Hook::PrePush => git.pushed(refs)?,
    };
    let files: Vec<String> = files.into_iter().filter(|file| !file.starts_with(EXEMPT)).collect();
    if files.is_empty() {
        return Ok(Vec::new());
    }
    let projects = match &flags.project {
        Some(project) => vec![project.clone()],
        None => git.projects()?,
    };
    let Some(held) = held::of_projects(&flags.reach, &projects).await? else {
        let names = projects.iter().map(|name| output::cell(&json!(name))).collect::<Vec<_>>().join(" or ");
        output::note(&format!("waybill guard: there is no project {names}, so nothing is known to be reserved."))?;
        return Ok(Vec::new());
    };
    let own = flags.agent.as_deref().unwrap_or_default().trim();
    let others: Vec<Held> = held.into_iter().filter(|held| !held.agent.eq_ignore_ascii_case(own)).collect();
    if others.is_empty() {
        return Ok(Vec::new());
    }
    let ignores_case = git.ignores_case();
    let reaches = Reaches::new(others.into_iter().map(|held| (held.reach(ignores_case), held)));
    let mut met = Vec::new();
    for file in files {
        if let Some(held) = reaches.holding(&Target::of(&file, ignores_case)) {
            let held = held.clone();
            met.push(Met { file, held });
        }
        // So that patience can end: a first commit may have very many files.
        tokio::task::yield_now().await;
    }
    Ok(met)
}

fn judge(flags: &Check, met: &[Met], warns: bool) -> Result<()> {
    if flags.reach.json {
        let conflicts: Vec<_> = met.iter().map(|met| json!({ "path": met.file, "holder": met.held })).collect();
        output::json(&json!({ "clear": met.is_empty(), "conflicts": conflicts }))?;
    }
    if met.is_empty() {
        return Ok(());
    }
    let mut lines: Vec<String> = met.iter().take(SHOWN_MAX).map(line).collect();
    if met.len() > SHOWN_MAX {
        lines.push(format!("… and {} more files", met.len() - SHOWN_MAX));
    }
    let told = format!("Others have reserved files of this {}:\n  {}", what(flags.hook), lines.join("\n  "));
    if warns {
        let who = if is_known(flags) { "" } else { "\n  AGENT_NAME is not set: one of them may be you." };
        return output::note(&format!("waybill guard: {told}{who}"));
    }
    let cure = "Ask them by `waybill mail send`, or leave these files out. If you must, `--no-verify` or AGENT_MAIL_BYPASS=1 \
                passes the guard by.";
    Err(Error::new(Code::ChecksFailed, told).with_cure(cure))
}

const fn what(hook: Hook) -> &'static str {
    match hook {
        Hook::PreCommit => "commit",
        Hook::PrePush => "push",
    }
}

fn line(met: &Met) -> String {
    let shown = |text: &str| output::cell(&json!(text));
    let Held { agent, path_pattern, reason, expires_ts } = &met.held;
    let why = if reason.is_empty() { String::new() } else { format!(": {}", shown(reason)) };
    let (file, agent, pattern) = (shown(&met.file), shown(agent), shown(path_pattern));
    format!("{file} ({agent} has {pattern} until {}{why})", shown(expires_ts))
}

fn refs() -> Result<String> {
    let mut text = String::new();
    let read = std::io::stdin().lock().take(REFS_BYTES_MAX).read_to_string(&mut text);
    read.map_err(|error| Error::invalid("What git says of the push cannot be read.").because(error))?;
    Ok(text)
}

/// The hook that was there before ours. One that git would not run is not run here.
fn run_own(flags: &Check, refs: &str) -> Result<()> {
    let Some(own) = flags.own.as_deref().filter(|own| is_executable(own)) else { return Ok(()) };
    let spawned = Command::new(own).args(&flags.rest).stdin(Stdio::piped()).spawn();
    let mut child = spawned.map_err(|error| unusable(own, error))?;
    if let Some(mut stdin) = child.stdin.take() {
        // One that does not listen has heard enough.
        let _ = stdin.write_all(refs.as_bytes());
    }
    let ended = child.wait().map_err(|error| unusable(own, error))?;
    if ended.success() {
        return Ok(());
    }
    let message = format!("The repository's own hook {} has refused this {}.", own.display(), what(flags.hook));
    Err(Error::new(Code::ChecksFailed, message).with_cure("Do what it says."))
}

fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(agent: Option<&str>) -> Check {
        Check {
            hook: Hook::PreCommit,
            project: None,
            agent: agent.map(str::to_owned),
            warn: false,
            own: None,
            repository: Repository::default(),
            reach: Reach::default(),
            rest: Vec::new(),
        }
    }

    fn met() -> Vec<Met> {
        let held = Held {
            agent: "BlueLake".to_owned(),
            path_pattern: "src/*.rs".to_owned(),
            reason: "the API".to_owned(),
            expires_ts: "noon".to_owned(),
        };
        vec![Met { file: "src/a.rs".to_owned(), held }]
    }

    #[test]
    fn only_what_others_hold_stops_somebody_who_is_known() {
        let error = judge(&flags(Some("RedFox")), &met(), false).unwrap_err();
        assert!(error.message().contains("src/a.rs (BlueLake has src/*.rs until noon: the API)"), "{error}");
        assert!(error.cure().contains("--no-verify"));
        judge(&flags(Some("RedFox")), &met(), true).unwrap();
        judge(&flags(Some("RedFox")), &[], false).unwrap();
    }

    #[test]
    fn somebody_without_a_name_is_stopped_and_told_what_to_do() {
        for nobody in [None, Some(""), Some(" ")] {
            let error = must_be_known(&flags(nobody)).unwrap_err();
            assert_eq!(error.code(), Code::ChecksFailed);
            assert!(error.message().contains("AGENT_NAME"), "{error}");
            for way in ["waybill mail register", "AGENT_MAIL_BYPASS=1", "--no-verify", "AGENT_MAIL_GUARD_MODE=warn"] {
                assert!(error.cure().contains(way), "{way}: {}", error.cure());
            }
            judge(&flags(nobody), &met(), true).unwrap();
        }
        must_be_known(&flags(Some("RedFox"))).unwrap();
    }

    #[test]
    fn the_environment_says_when_to_look_away() {
        let of = |name: &'static str, value: &'static str| {
            Wishes::of(move |asked| (asked == name).then(|| value.to_owned()))
        };
        assert!(of("AGENT_MAIL_BYPASS", "1").passes_by && of("AGENT_MAIL_BYPASS", "True").passes_by);
        assert!(!of("AGENT_MAIL_BYPASS", "0").passes_by && !of("AGENT_MAIL_BYPASS", "").passes_by);
        assert!(of("FILE_RESERVATIONS_ENFORCEMENT_ENABLED", "false").passes_by);
        assert!(!of("FILE_RESERVATIONS_ENFORCEMENT_ENABLED", "true").passes_by);
        assert!(of("AGENT_MAIL_GUARD_MODE", "warn").warns && !of("AGENT_MAIL_GUARD_MODE", "block").warns);
    }

    #[test]
    fn an_own_hook_that_fails_stops_and_one_that_is_not_there_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join("pre-commit.orig");
        let with = |own: &Path| Check { own: Some(own.to_owned()), ..flags(None) };
        run_own(&with(&own), "").unwrap();
        std::fs::write(&own, "#!/bin/sh\nexit 3\n").unwrap();
        run_own(&with(&own), "").unwrap();
        std::fs::set_permissions(&own, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(run_own(&with(&own), "").unwrap_err().code(), Code::ChecksFailed);
    }
}
