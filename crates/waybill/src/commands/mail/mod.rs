//! `waybill mail …`

mod contacts;
mod files;
mod reading;
mod reindex;
mod salvage;
mod writing;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::{Value as Json, json};
use waybill_kernel::{Code, Error, Result};

use super::session::Session;
use crate::cli::Reach;
use crate::output;

#[derive(Subcommand)]
pub enum Mail {
    /// Take part in a project as an agent, which gets a name unless one is said.
    Register(writing::Register),
    /// Write to agents of a project.
    Send(writing::Send),
    /// Answer a message.
    Reply(writing::Reply),
    /// List what an agent has got, the newest first. Nothing is marked as read.
    Inbox(reading::Inbox),
    /// Show a message and mark it as read.
    Read(reading::Message),
    /// Acknowledge a message.
    Ack(reading::Message),
    /// Find messages by their words.
    Search(reading::Search),
    /// Show a thread, the oldest first.
    Thread(reading::Thread),
    /// Ask another agent to let one write to it.
    Contact(contacts::Contact),
    /// Let an agent that has asked for contact write, or not.
    Answer(contacts::Answer),
    /// Say who may write to an agent without asking.
    Policy(contacts::Policy),
    /// Say that an agent is working on files. Exit code 6 when others hold some of them.
    Reserve(files::Reserve),
    /// End reservations: of these files, or all of the agent's.
    Release(files::Release),
    /// List the agents of a project, those who were active last first.
    Agents {
        /// How many at most.
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=250))]
        limit: u64,
        #[command(flatten)]
        project: Project,
        #[command(flatten)]
        reach: Reach,
    },
    /// List the tenant's projects.
    Projects {
        #[command(flatten)]
        reach: Reach,
    },
    /// Take over an archive of another server, or of ours: what it has and the database has not. Exit code 79 when some of it
    /// was refused. No server may run on the data folder.
    Reindex(reindex::Reindex),
    /// Make a damaged database usable: read what can be read, take the rest of its mail from the archive, keep the damaged files.
    /// No server may run on the data folder.
    Salvage(salvage::Salvage),
}

/// Which project.
#[derive(Args, Clone, Default)]
pub struct Project {
    /// Its absolute path or slug [default: the repository of the working directory].
    #[arg(long, env = "WAYBILL_PROJECT", value_name = "PATH")]
    pub project: Option<String>,
}

/// Who acts, in which project.
#[derive(Args, Clone, Default)]
pub struct Actor {
    /// The agent's name.
    #[arg(long, env = "AGENT_NAME", value_name = "NAME")]
    pub agent: Option<String>,
    /// The agent's token, where another key has registered it.
    #[arg(long, env = "AGENT_TOKEN", value_name = "TOKEN", hide_env_values = true)]
    pub token: Option<String>,
    #[command(flatten)]
    pub project: Project,
}

const AGENTS: &[&str] =
    &["name", "program", "model", "task_description", "contact_policy", "last_active_ts", "retired_ts"];
const PROJECTS: &[&str] = &["slug", "human_key", "created_at"];

pub async fn run(command: Mail) -> Result<()> {
    match command {
        Mail::Register(flags) => writing::register(flags).await,
        Mail::Send(flags) => writing::send(flags).await,
        Mail::Reply(flags) => writing::reply(flags).await,
        Mail::Inbox(flags) => reading::inbox(flags).await,
        Mail::Read(flags) => reading::read(flags).await,
        Mail::Ack(flags) => reading::acknowledge(flags).await,
        Mail::Search(flags) => reading::search(flags).await,
        Mail::Thread(flags) => reading::thread(flags).await,
        Mail::Contact(flags) => contacts::ask(flags).await,
        Mail::Answer(flags) => contacts::answer(flags).await,
        Mail::Policy(flags) => contacts::set_policy(flags).await,
        Mail::Reserve(flags) => files::reserve(flags).await,
        Mail::Release(flags) => files::release(flags).await,
        Mail::Reindex(flags) => reindex::run(flags).await,
        Mail::Salvage(flags) => salvage::run(flags).await,
        Mail::Agents { limit, project, reach } => {
            let input = json!({ "project_key": project.key()?, "limit": limit });
            let answer = call(&reach, "mail.list_agents", input).await?;
            shown(&reach, &answer, AGENTS, "agents")
        }
        Mail::Projects { reach } => {
            let session = Session::open(&reach).await?;
            let projects = session.call_all("mail.list_projects", "projects").await;
            session.close().await;
            shown(&reach, &json!({ "projects": projects? }), PROJECTS, "projects")
        }
    }
}

impl Project {
    pub fn key(&self) -> Result<String> {
        match self.project.as_deref().map(str::trim).filter(|project| !project.is_empty()) {
            Some(project) => Ok(project.to_owned()),
            None => working_project(),
        }
    }
}

impl Actor {
    /// Its name, which nobody can guess.
    pub fn name(&self) -> Result<&str> {
        self.agent.as_deref().map(str::trim).filter(|name| !name.is_empty()).ok_or_else(|| {
            Error::new(Code::InvalidRequest, "It is not said as which agent.")
                .with_cure("Say --agent NAME or set AGENT_NAME; `waybill mail register` makes an agent.")
        })
    }
}

/// The root of the repository that the working directory is in, else the working directory. No git is run: its configuration is
/// of no concern here.
pub fn working_project() -> Result<String> {
    let unusable = |error| Error::new(Code::PathUnusable, "The working directory cannot be used.").because(error);
    let here = std::env::current_dir().and_then(|here| here.canonicalize()).map_err(unusable)?;
    let root = here.ancestors().find(|folder| folder.join(".git").exists()).unwrap_or(&here);
    text_of(root.to_owned())
}

fn text_of(path: PathBuf) -> Result<String> {
    path.into_os_string().into_string().map_err(|path| {
        Error::new(Code::PathUnusable, format!("{} is not UTF-8, and names no project.", path.to_string_lossy()))
    })
}

async fn call(reach: &Reach, operation: &str, input: Json) -> Result<Json> {
    let session = Session::open(reach).await?;
    let answer = session.call(operation, input).await;
    session.close().await;
    answer
}

fn told(reach: &Reach, answer: &Json, text: &str) -> Result<()> {
    if reach.json { output::json(answer) } else { output::line(text) }
}

/// A list as a table, or the answer as it is.
fn shown(reach: &Reach, answer: &Json, columns: &[&str], list: &str) -> Result<()> {
    if reach.json {
        return output::json(answer);
    }
    output::table(columns, answer[list].as_array().map_or(&[], Vec::as_slice))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_project_that_is_said_goes_before_where_one_stands() {
        let of = |project: Option<&str>| Project { project: project.map(str::to_owned) }.key().unwrap();
        assert_eq!(of(Some(" data-x ")), "data-x");
        // The tests run in a folder of this repository.
        assert!(std::path::Path::new(&of(None)).join(".git").exists(), "{}", of(None));
        assert_eq!(of(Some("")), of(None));
    }

    #[test]
    fn an_agent_without_a_name_is_told_how_to_say_it() {
        let error = Actor { agent: Some(" ".to_owned()), ..Actor::default() }.name().unwrap_err();
        assert!(error.cure().contains("AGENT_NAME"), "{}", error.cure());
        assert_eq!(Actor { agent: Some("BlueLake".to_owned()), ..Actor::default() }.name().unwrap(), "BlueLake");
    }
}
