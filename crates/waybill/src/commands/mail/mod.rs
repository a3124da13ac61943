//! `waybill mail …`

mod contacts;
mod files;
mod offline;
mod reading;
mod reconcile;
mod reindex;
mod salvage;
mod writing;

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::json;
use waybill_kernel::{Code, Error, Result};

use super::session::{call, call_all};
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
    /// Write to agents as the person who oversees them, whatever their policies say. For admins.
    Overseer(writing::Overseer),
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
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=AGENTS_MAX))]
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
    /// Compare the archive of mail with the database, or write it again from there. No server may run.
    Reconcile(reconcile::Reconcile),
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
/// As many agents as one answer lists.
const AGENTS_MAX: u64 = 250;
const PROJECTS: &[&str] = &["slug", "human_key", "created_at"];

pub async fn run(command: Mail) -> Result<()> {
    match command {
        Mail::Register(flags) => writing::register(flags).await,
        Mail::Send(flags) => writing::send(flags).await,
        Mail::Reply(flags) => writing::reply(flags).await,
        Mail::Overseer(flags) => writing::overseer(flags).await,
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
            let input = json!({ "project_key": project.key(&reach).await?, "limit": limit });
            let answer = call(&reach, "mail.list_agents", input).await?;
            if !reach.json && answer["has_more"] == true {
                output::note(&format!("There are more that are not shown: raise --limit, {AGENTS_MAX} at most."))?;
            }
            output::list(reach.json, &answer, "agents", AGENTS)
        }
        Mail::Projects { reach } => {
            let projects = call_all(&reach, "mail.list_projects", "projects").await?;
            output::list(reach.json, &json!({ "projects": projects }), "projects", PROJECTS)
        }
        Mail::Reconcile(flags) => reconcile::run(flags).await,
    }
}

impl Project {
    /// The one that is said, else that of the repository where the command is run. A linked working tree belongs to the project
    /// of the tree that it was made from, unless it has become one itself: so the guard looks as well.
    pub async fn key(&self, reach: &Reach) -> Result<String> {
        if let Some(project) = self.said() {
            return Ok(project.to_owned());
        }
        let unusable = |error| Error::new(Code::PathUnusable, "The working directory cannot be used.").because(error);
        let here = std::env::current_dir().and_then(|here| here.canonicalize()).map_err(unusable)?;
        let Roots { own, first } = Roots::of(&here);
        let own = text_of(own)?;
        let Some(first) = first else { return Ok(own) };
        match call(reach, "mail.get_project", json!({ "project_key": own })).await {
            Ok(_) => Ok(own),
            Err(error) if error.code() == Code::NotFound => text_of(first),
            Err(error) => Err(error),
        }
    }

    fn said(&self) -> Option<&str> {
        self.project.as_deref().map(str::trim).filter(|project| !project.is_empty())
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

/// The roots of working trees. No git is run: its configuration is of no concern here.
struct Roots {
    /// Of the repository that a folder is in, else the folder.
    own: PathBuf,
    /// Of the tree that this one was made from by `git worktree add`.
    first: Option<PathBuf>,
}

impl Roots {
    fn of(here: &Path) -> Self {
        let own = here.ancestors().find(|folder| folder.join(".git").exists()).unwrap_or(here);
        Self { own: own.to_owned(), first: first_tree(own) }
    }
}

/// The file `.git` of a linked tree names its folder in the repository, and that folder names the repository it is part of. A
/// submodule has such a file too, and is a repository of its own.
fn first_tree(root: &Path) -> Option<PathBuf> {
    let file = std::fs::read_to_string(root.join(".git")).ok()?;
    let folder = root.join(file.strip_prefix("gitdir:")?.trim());
    let common = std::fs::read_to_string(folder.join("commondir")).ok()?;
    let common = folder.join(common.trim()).canonicalize().ok()?;
    // A bare repository has no tree of its own.
    if common.file_name()? == ".git" { common.parent().map(Path::to_owned) } else { None }
}

fn text_of(path: PathBuf) -> Result<String> {
    path.into_os_string().into_string().map_err(|path| {
        Error::new(Code::PathUnusable, format!("{} is not UTF-8, and names no project.", path.to_string_lossy()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_project_that_is_said_goes_before_where_one_stands() {
        let of = |project: &str| Project { project: Some(project.to_owned()) }.said().map(str::to_owned);
        assert_eq!(of(" data-x "), Some("data-x".to_owned()));
        assert_eq!(of(" "), None);
    }

    #[test]
    fn a_linked_tree_knows_the_one_it_was_made_from() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let (main, linked, module) = (root.join("main"), root.join("linked"), root.join("main/module"));
        for made in ["main/.git/worktrees/linked", "main/.git/modules/module", "main/src", "linked/src", "main/module"]
        {
            std::fs::create_dir_all(root.join(made)).unwrap();
        }
        std::fs::write(main.join(".git/worktrees/linked/commondir"), "../..\n").unwrap();
        let gitdir = format!("gitdir: {}\n", main.join(".git/worktrees/linked").display());
        std::fs::write(linked.join(".git"), gitdir).unwrap();
        std::fs::write(module.join(".git"), "gitdir: ../.git/modules/module\n").unwrap();
        let of = |folder: &Path| {
            let Roots { own, first } = Roots::of(folder);
            (own, first)
        };
        assert_eq!(of(&main.join("src")), (main.clone(), None));
        assert_eq!(of(&linked.join("src")), (linked, Some(main)));
        assert_eq!(of(&module), (module.clone(), None));
    }

    #[test]
    fn an_agent_without_a_name_is_told_how_to_say_it() {
        let error = Actor { agent: Some(" ".to_owned()), ..Actor::default() }.name().unwrap_err();
        assert!(error.cure().contains("AGENT_NAME"), "{}", error.cure());
        assert_eq!(Actor { agent: Some("BlueLake".to_owned()), ..Actor::default() }.name().unwrap(), "BlueLake");
    }
}
