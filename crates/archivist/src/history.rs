//! What the archive's commits say about an agent, for those who ask who it is.

use std::sync::Arc;

use waybill_archive::repo::{Archive, Logged};
use waybill_kernel::{Code, Error, Time};
use waybill_mail::archive_health::{CommitView, CommitsOf, History};

use crate::probe::FindOwner;
use crate::turn::blocking;

/// How the subject of a commit about a message begins.
const MAIL: &str = "mail: ";
/// Newest commits of a project that are looked at.
const LOOKED_MAX: usize = 1_000;

pub(crate) fn reader(archive: Arc<Archive>) -> History {
    Arc::new(move |of: CommitsOf| {
        let archive = Arc::clone(&archive);
        Box::pin(async move {
            let Some(owner) = of.store.system().run(FindOwner((of.tenant, of.project))).await? else {
                return Ok(Vec::new());
            };
            let (key, now) = (owner.key(), of.store.now());
            let look = move || if archive.exists(&key) { archive.log(&key, LOOKED_MAX, now) } else { Ok(Vec::new()) };
            let unreadable =
                |error| Error::new(Code::StoreUnavailable, "The archive cannot be read now.").because(error);
            let found = blocking(look).await?.map_err(unreadable)?;
            let about = found.into_iter().filter(|commit| is_about(&of.agent, &commit.author, &commit.message));
            Ok(about.take(of.limit).map(|commit| view(commit, &of.agent, of.with_mail)).collect())
        })
    })
}

fn view(commit: Logged, agent: &str, with_mail: bool) -> CommitView {
    CommitView {
        commit: commit.commit.to_string(),
        committed_ts: Time::from_micros(commit.at_s.saturating_mul(1_000_000)),
        subject: shown(commit.subject, &commit.author, agent, with_mail),
        author: commit.author,
    }
}

/// Of mail that the caller may not read only that it was sent. A commit about one thing has whoever did it for its author; one about
/// several says in its subject only how many.
fn shown(subject: String, author: &str, agent: &str, with_mail: bool) -> String {
    let is_hidden = subject.starts_with(MAIL) && !(with_mail && author == agent);
    if is_hidden { format!("{MAIL}{agent}") } else { subject }
}

/// Its own commits, and those of several changes with a line of its: as in `mail: GreenCastle -> …`, `agent: profile GreenCastle`.
fn is_about(agent: &str, author: &str, message: &str) -> bool {
    let of_line = |line: &str| {
        let line = line.strip_prefix("- ").unwrap_or(line);
        let Some((_, rest)) = line.split_once(": ") else { return false };
        let rest = rest.strip_prefix("profile ").unwrap_or(rest);
        rest.strip_prefix(agent).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
    };
    author == agent || message.lines().any(of_line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_is_about_whoever_acts_in_it() {
        let batch =
            "batch: 2 changes (1 message, 1 agent)\n\n- mail: GreenCastle -> BlueLake | Hi\n- agent: profile RedFox\n";
        assert!(is_about("GreenCastle", "Waybill", batch) && is_about("RedFox", "Waybill", batch));
        assert!(!is_about("BlueLake", "Waybill", batch) && !is_about("Green", "Waybill", batch));
        assert!(is_about("BlueLake", "BlueLake", "state: x"));
    }

    #[test]
    fn a_commit_shows_mail_to_those_who_may_read_it() {
        let shown =
            |author: &str, subject: &str, with_mail| shown(subject.to_owned(), author, "GreenCastle", with_mail);
        let subject = "mail: GreenCastle -> BlueLake | Hi";
        assert_eq!(shown("GreenCastle", subject, true), subject);
        assert_eq!(shown("GreenCastle", subject, false), "mail: GreenCastle");
        // Of one whose name begins the same.
        assert_eq!(shown("GreenCastle -> BlueLake", subject, true), "mail: GreenCastle");
        assert_eq!(shown("GreenCastle", "agent: profile GreenCastle", false), "agent: profile GreenCastle");
    }
}
