//! What agents hold exclusively in a project: asked of the server that runs, else read in the database, which is not changed.

use serde::{Deserialize, Serialize};
use serde_json::json;
use waybill_kernel::{Clock, Code, Error, Result, Time};
use waybill_mail::guard::{self, Reach as Holds};
use waybill_store::Backend;
use waybill_store::safety::{Beside, Inspection};

use crate::cli::Reach;
use crate::commands::session::{self, Session};
use crate::config::Config;

/// Reservations asked for at a time.
const PAGE: usize = 1000;
/// Pages that are asked for: as many as hold what a project may have.
const PAGES_MAX: usize = guard::HELD_MAX / PAGE;

/// One reservation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Held {
    pub agent: String,
    pub path_pattern: String,
    pub reason: String,
    pub expires_ts: String,
}

impl Held {
    /// Which files it is about.
    pub fn reach(&self, ignores_case: bool) -> Holds {
        Holds::of(&self.path_pattern, ignores_case)
    }
}

/// Of the first of these projects that there is; None where there is none of them.
pub async fn of_projects(reach: &Reach, projects: &[String]) -> Result<Option<Vec<Held>>> {
    let runs = session::server(&reach.location, reach.url.clone(), reach.key.clone())?.is_some();
    let config = Config::at(&reach.location)?;
    match &config.backend {
        Backend::Sqlite(options) if !runs => {
            session::refuse_absent(&config)?;
            let file = Inspection::open(&options.path, Beside::Nobody)?;
            projects.iter().find_map(|project| in_file(&file, project).transpose()).transpose()
        }
        _ => {
            let session = Session::open(reach).await?;
            let held = of_session(&session, projects).await;
            session.close().await;
            held
        }
    }
}

/// None where there is no such project.
fn in_file(file: &Inspection, project: &str) -> Result<Option<Vec<Held>>> {
    let Some(text) = file.text(&guard::held_sql(project, Clock::system().now()))? else { return Ok(None) };
    let rows: Vec<guard::Row> = serde_json::from_str(&text).map_err(Error::internal)?;
    if rows.len() > guard::HELD_MAX {
        return Err(cut());
    }
    let held = rows.into_iter().map(|row| Held {
        agent: row.agent,
        path_pattern: row.path,
        reason: row.reason,
        expires_ts: Time::from_micros(row.expires_at).to_string(),
    });
    Ok(Some(held.collect()))
}

async fn of_session(session: &Session, projects: &[String]) -> Result<Option<Vec<Held>>> {
    for project in projects {
        match exclusive(session, project).await {
            Err(error) if error.code() == Code::NotFound => {}
            held => return held.map(Some),
        }
    }
    Ok(None)
}

async fn exclusive(session: &Session, project: &str) -> Result<Vec<Held>> {
    let mut held = Vec::new();
    let mut input = json!({ "project_key": project, "active_only": true, "exclusive_only": true, "limit": PAGE });
    for _ in 0..PAGES_MAX {
        let mut page = session.call("mail.list_file_reservations", input.clone()).await?;
        for row in page["file_reservations"].as_array_mut().map(std::mem::take).unwrap_or_default() {
            held.push(serde_json::from_value(row).map_err(Error::internal)?);
        }
        match page["next_cursor"].take() {
            serde_json::Value::Null => return Ok(held),
            cursor => input["cursor"] = cursor,
        }
    }
    Err(cut())
}

/// Whoever holds what was not looked at would be passed by in silence.
fn cut() -> Error {
    let message =
        format!("The project has more than {} exclusive reservations: not all were looked at.", guard::HELD_MAX);
    let cure = "Release those that are not needed, or pass the guard by with `--no-verify` or AGENT_MAIL_BYPASS=1.";
    Error::new(Code::ChecksFailed, message).with_cure(cure)
}
