//! `waybill mail reserve` and `release`

use clap::Args;
use serde_json::{Value as Json, json};
use waybill_kernel::{Code, Error, Result};

use super::{Actor, call};
use crate::cli::Reach;
use crate::output;

const GRANTED: &[&str] = &["id", "path_pattern", "exclusive", "expires_ts"];

#[derive(Args)]
pub struct Reserve {
    /// Paths or globs below the project's root, as in src/api/*.rs.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<String>,
    /// Others may share them too.
    #[arg(long)]
    shared: bool,
    /// Until they are free again: at least 60, at most a year.
    #[arg(long, value_name = "SECONDS", default_value_t = 3600)]
    ttl: i64,
    /// What for, shown to those who meet it.
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    #[command(flatten)]
    actor: Actor,
    #[command(flatten)]
    reach: Reach,
}

#[derive(Args)]
pub struct Release {
    /// Paths or patterns exactly as they were reserved [default: all of the agent's].
    #[arg(value_name = "PATH")]
    paths: Vec<String>,
    /// Reservations by their numbers; may be given several times.
    #[arg(long, value_name = "ID")]
    id: Vec<i64>,
    #[command(flatten)]
    actor: Actor,
    #[command(flatten)]
    reach: Reach,
}

pub async fn reserve(flags: Reserve) -> Result<()> {
    let Reserve { paths, shared, ttl, reason, actor, reach } = flags;
    let input = json!({
        "project_key": actor.project.key(&reach).await?,
        "agent_name": actor.name()?,
        "registration_token": actor.token,
        "paths": paths,
        "exclusive": !shared,
        "ttl_seconds": ttl,
        "reason": reason,
    });
    let answer = call(&reach, "mail.file_reservation_paths", input).await?;
    if reach.json {
        output::json(&answer)?;
    } else if answer["granted"].as_array().is_some_and(|granted| !granted.is_empty()) {
        output::table(GRANTED, answer["granted"].as_array().map_or(&[], Vec::as_slice))?;
    }
    refusal(&answer).map_or(Ok(()), Err)
}

/// Paths that others hold were not reserved: a script must not go on as if they were.
fn refusal(answer: &Json) -> Option<Error> {
    let conflicts = answer["conflicts"].as_array().filter(|conflicts| !conflicts.is_empty())?;
    let message = format!("Others hold {}.", conflicts.iter().map(held).collect::<Vec<_>>().join(", "));
    let cure = "Ask them by `waybill mail send`, or choose other files. What they do not hold was reserved.";
    Some(Error::new(Code::AlreadyExists, message).with_cure(cure))
}

/// A path with those who hold it, as in `src/a.rs (BlueLake until …)`.
fn held(conflict: &Json) -> String {
    let holders = conflict["holders"].as_array().map_or(&[][..], Vec::as_slice);
    let one = |holder: &Json| {
        let until = format!("{} until {}", output::cell(&holder["agent"]), output::cell(&holder["expires_ts"]));
        match holder["reason"].as_str().filter(|reason| !reason.is_empty()) {
            Some(reason) => format!("{until}: {}", output::cell(&json!(reason))),
            None => until,
        }
    };
    let holders: Vec<String> = holders.iter().map(one).collect();
    format!("{} ({})", output::cell(&conflict["path"]), holders.join("; "))
}

pub async fn release(flags: Release) -> Result<()> {
    let Release { paths, id, actor, reach } = flags;
    let chosen = |list: Json| if list.as_array().is_some_and(Vec::is_empty) { Json::Null } else { list };
    let input = json!({
        "project_key": actor.project.key(&reach).await?,
        "agent_name": actor.name()?,
        "registration_token": actor.token,
        "paths": chosen(json!(paths)),
        "file_reservation_ids": chosen(json!(id)),
    });
    let answer = call(&reach, "mail.release_file_reservations", input).await?;
    output::answer(reach.json, &answer, &format!("Released {}.", output::cell(&answer["released"])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conflict_is_an_error_that_names_who_holds_what() {
        let holder = json!({ "agent": "BlueLake", "expires_ts": "noon", "reason": "the\nAPI" });
        let answer = json!({ "granted": [], "conflicts": [{ "path": "src/a.rs", "holders": [holder] }] });
        let error = refusal(&answer).unwrap();
        assert_eq!(error.message(), "Others hold src/a.rs (BlueLake until noon: the\u{fffd}API).");
        assert_eq!(error.code().entry().exit, 6);
        assert!(refusal(&json!({ "granted": [{}], "conflicts": [] })).is_none());
    }
}
