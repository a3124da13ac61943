//! What a window is made of, before it is text: things read from the database, and the lines that a commit says about them.

use bytes::Bytes;
use waybill_archive::layout::{
    self, BuildSlot, Digest, Message, Product, Profile, ProjectFile, Reservation, Seen, State,
};
use waybill_archive::repo::{Author, COMMITTER_NAME, Change, ProjectKey, Window};
use waybill_archive::{Error, Result};
use waybill_kernel::{Tenant, Time};
use waybill_mail::rules::addresses::foreign;

/// Lines that a commit lists; the rest is counted.
const LINES_MAX: usize = 100;
/// Characters of one line.
const LINE_CHARS_MAX: usize = 200;
/// For what has no size of its own worth counting.
const SMALL: usize = 512;
/// An agent's line in a file of what it has seen.
const SEEN_BYTES: usize = 120;

/// Whose archive it is: a project's, or the tenant's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    pub tenant: Tenant,
    pub tenant_name: String,
    /// [`waybill_mail::archive_rows::NO_PROJECT`] for the tenant's own.
    pub project: i64,
    pub slug: String,
    pub human_key: String,
    pub created_at: Time,
}

impl Owner {
    pub fn key(&self) -> ProjectKey {
        ProjectKey::new(&self.tenant_name, &self.slug)
    }

    fn author(&self, name: &str) -> Author {
        let part =
            |text: &str| text.chars().filter(|c| c.is_ascii_alphanumeric() || "-_.".contains(*c)).collect::<String>();
        Author { name: name.to_owned(), email: format!("{}@{}.waybill.invalid", part(name), part(&self.slug)) }
    }
}

/// One thing with its files.
#[derive(Clone, Debug)]
pub enum Item {
    Project(ProjectFile),
    Agent {
        profile: Profile,
        state: State,
    },
    /// Among a thousand messages, which `message` is one of.
    Seen {
        agent: String,
        message: i64,
        seen: Seen,
    },
    Message(Box<Filed>),
    Attachment {
        sha256: String,
        content: Bytes,
    },
    /// The page that `message` is on.
    Digest {
        thread: String,
        message: i64,
        page: Digest,
    },
    Reservation(Reservation),
    /// It ended so long ago that its row is gone: its file goes too, and stays in the history.
    ForgottenReservation(i64),
    BuildSlot(BuildSlot),
    Product(Product),
}

/// A message and where it is filed.
#[derive(Clone, Debug)]
pub struct Filed {
    pub message: Message,
    /// In the archive of its own project: with its canonical file and its sender's copy.
    pub is_home: bool,
    /// The agents of this archive that got it.
    pub inboxes: Vec<String>,
}

impl Item {
    /// About how many bytes it takes in memory.
    pub fn weight(&self) -> usize {
        match self {
            Item::Message(filed) => filed.message.body.len() + SMALL,
            Item::Attachment { content, .. } => content.len() + SMALL,
            Item::Seen { seen, .. } => seen.0.len() * SEEN_BYTES + SMALL,
            Item::Agent { state, .. } => {
                state.contacts.iter().map(|contact| contact.reason.len() + SMALL).sum::<usize>() + 2 * SMALL
            }
            Item::Digest { page, .. } => page.ids().count() * 4 * SMALL + SMALL,
            _ => SMALL,
        }
    }

    /// What it is, where it cannot be said by a path.
    pub fn title(&self) -> String {
        match self {
            Item::Project(project) => format!("project {}", project.slug),
            Item::Agent { profile, .. } => format!("agent {}", profile.name),
            Item::Seen { agent, message, .. } => format!("what {agent} has read from message {message} on"),
            Item::Message(filed) => format!("message {}", filed.message.id),
            Item::Attachment { sha256, .. } => format!("attachment {sha256}"),
            Item::Digest { thread, message, .. } => format!("thread {thread} from message {message} on"),
            Item::Reservation(Reservation { id, .. }) | Item::ForgottenReservation(id) => format!("reservation {id}"),
            Item::BuildSlot(held) => format!("build slot {} of {}", held.slot, held.agent),
            Item::Product(product) => format!("product {}", product.key),
        }
    }

    pub fn changes(&self, into: &mut Vec<Change>) -> Result<()> {
        match self {
            Item::Project(project) => into.push(Change::put(layout::project_path()?, project.write()?)),
            Item::Agent { profile, state } => {
                into.push(Change::put(layout::profile_path(&profile.name)?, profile.write()?));
                into.push(Change::put(layout::state_path(&profile.name)?, state.write()?));
            }
            Item::Seen { agent, message, seen } => {
                into.push(Change::put(layout::seen_path(agent, *message)?, seen.write()?));
            }
            Item::Message(filed) => filed.changes(into)?,
            Item::Attachment { sha256, content } => {
                into.push(Change::put(layout::attachment_path(sha256)?, content.clone()));
            }
            Item::Digest { thread, message, page } => {
                into.push(Change::put(layout::digest_path(thread, *message)?, page.write(thread)?));
            }
            Item::Reservation(held) => into.push(Change::put(layout::reservation_path(held.id)?, held.write()?)),
            Item::ForgottenReservation(id) => into.push(Change::remove(layout::reservation_path(*id)?)),
            Item::BuildSlot(held) => {
                into.push(Change::put(layout::build_slot_path(&held.slot, &held.agent)?, held.write()?));
            }
            Item::Product(product) => into.push(Change::put(layout::product_path(product.id)?, product.write()?)),
        }
        Ok(())
    }
}

impl Filed {
    /// The same bytes wherever they may be: a copy costs a name.
    fn changes(&self, into: &mut Vec<Change>) -> Result<()> {
        let Message { id, created, subject, from, .. } = &self.message;
        if self.is_home {
            let whole = Bytes::from(self.message.write()?);
            into.push(Change::put(layout::canonical_path(*id, *created, subject)?, whole.clone()));
            into.push(Change::put(layout::outbox_path(from, *id, *created, subject)?, whole));
        }
        if !self.inboxes.is_empty() {
            let shown = Bytes::from(self.message.write_for_inbox()?);
            for agent in &self.inboxes {
                into.push(Change::put(layout::inbox_path(agent, *id, *created, subject)?, shown.clone()));
            }
        }
        Ok(())
    }
}

/// What a commit says about one thing that led to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// In the plural, for the count of several.
    pub kind: &'static str,
    pub text: String,
    /// Who did it, if anybody.
    pub by: Option<String>,
}

impl Line {
    pub fn project(slug: &str) -> Self {
        Self { kind: "projects", text: format!("project: {slug}"), by: None }
    }

    pub fn agent(name: &str) -> Self {
        Self { kind: "agents", text: format!("agent: profile {name}"), by: Some(name.to_owned()) }
    }

    /// Nobody who was written to in secret is named. Who writes from another project is no agent of this one, whatever its name.
    pub fn message(message: &Message, is_home: bool) -> Self {
        let by = if is_home { message.from.clone() } else { foreign(&message.project_slug, &message.from) };
        let text = format!("mail: {by} -> {} | {}", message.shown_recipients(), message.subject);
        Self { kind: "messages", text, by: Some(by) }
    }

    pub fn reservation(held: &Reservation) -> Self {
        let text = format!("file_reservation: {} {}", held.agent, held.path_pattern);
        Self { kind: "reservations", text, by: Some(held.agent.clone()) }
    }

    pub fn forgotten_reservation(id: i64) -> Self {
        Self { kind: "reservations", text: format!("file_reservation: {id} ended long ago"), by: None }
    }

    pub fn state(name: &str) -> Self {
        Self { kind: "states", text: format!("state: {name}"), by: Some(name.to_owned()) }
    }

    pub fn product(key: &str) -> Self {
        Self { kind: "products", text: format!("product: {key}"), by: None }
    }
}

/// A window that is being put together.
#[derive(Clone, Debug)]
pub struct Draft {
    pub owner: Owner,
    pub items: Vec<Item>,
    pub lines: Vec<Line>,
    pub at: Time,
}

impl Draft {
    pub fn new(owner: Owner, at: Time) -> Self {
        Self { owner, items: Vec::new(), lines: Vec::new(), at }
    }

    pub fn weight(&self) -> usize {
        self.items.iter().map(Item::weight).sum()
    }

    /// Leaves out what cannot be filed at all: in a walk over everything it must not stand before the rest.
    #[must_use]
    pub fn fileable(mut self) -> Self {
        self.leave_out();
        self
    }

    /// As [`Self::fileable`]; answers with what was left out.
    pub fn leave_out(&mut self) -> Vec<String> {
        let (project, mut left_out) = (self.owner.project, Vec::new());
        self.items.retain(|item| match item.changes(&mut Vec::new()) {
            Ok(()) => true,
            Err(error) => {
                let what = item.title();
                tracing::warn!(project, what, %error, "something of a project cannot be archived and is left out");
                left_out.push(what);
                false
            }
        });
        left_out
    }

    pub fn changes(&self) -> Result<Vec<Change>> {
        let mut changes = Vec::new();
        for item in &self.items {
            item.changes(&mut changes)?;
        }
        Ok(changes)
    }

    /// With a subject that reads well in a list of commits: of one thing its own, of several a count.
    pub fn window(&self) -> Result<Window> {
        let changes = self.changes()?;
        let lines = gathered(&self.lines);
        let (subject, body, author) = match lines.as_slice() {
            [] => return Err(Error::Format("a window about nothing".to_owned())),
            [one] => {
                let name = one.by.as_deref().unwrap_or(COMMITTER_NAME);
                (cut(&one.text), format!("Project: {}\n", self.owner.slug), self.owner.author(name))
            }
            many => (counted(&self.lines), listed(many), self.owner.author(COMMITTER_NAME)),
        };
        Ok(Window { changes, subject, body, author, at: self.at })
    }
}

/// Several reservations of one agent are one line, and so is the same line twice.
fn gathered(lines: &[Line]) -> Vec<Line> {
    let mut gathered: Vec<(Line, usize)> = Vec::new();
    for line in lines {
        match gathered.last_mut() {
            Some((last, _)) if last == line => {}
            Some((last, more)) if line.kind == "reservations" && last.kind == line.kind && last.by == line.by => {
                *more += 1
            }
            _ => gathered.push((line.clone(), 0)),
        }
    }
    let with_count = |(line, more): (Line, usize)| match more {
        0 => line,
        more => Line { text: format!("{} (+{more} more)", line.text), ..line },
    };
    gathered.into_iter().map(with_count).collect()
}

/// `batch: 3 changes (2 messages, 1 agent)`.
fn counted(lines: &[Line]) -> String {
    let mut kinds: Vec<(&str, usize)> = Vec::new();
    for line in lines {
        match kinds.iter_mut().find(|(kind, _)| *kind == line.kind) {
            Some((_, count)) => *count += 1,
            None => kinds.push((line.kind, 1)),
        }
    }
    let shown = |(kind, count): &(&str, usize)| match count {
        1 => format!("1 {}", kind.strip_suffix('s').unwrap_or(kind)),
        count => format!("{count} {kind}"),
    };
    let parts: Vec<String> = kinds.iter().map(shown).collect();
    format!("batch: {} changes ({})", lines.len(), parts.join(", "))
}

fn listed(lines: &[Line]) -> String {
    let mut text: String = lines.iter().take(LINES_MAX).map(|line| format!("- {}\n", cut(&line.text))).collect();
    if lines.len() > LINES_MAX {
        text.push_str(&format!("- and {} more\n", lines.len() - LINES_MAX));
    }
    text
}

/// One line, whatever a subject holds.
fn cut(text: &str) -> String {
    text.chars().take(LINE_CHARS_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use waybill_archive::layout::Contact;

    use super::*;

    fn owner() -> Owner {
        Owner {
            tenant: Tenant(1),
            tenant_name: "default".to_owned(),
            project: 1,
            slug: "data-p".to_owned(),
            human_key: "/data/p".to_owned(),
            created_at: Time::from_micros(0),
        }
    }

    #[test]
    fn an_agent_weighs_what_its_contacts_say() {
        let at = Time::from_micros(0);
        let contact = |reason: &str| Contact {
            from: "BlueLake".to_owned(),
            from_project: None,
            to: "RedFox".to_owned(),
            to_project: None,
            status: "approved".to_owned(),
            reason: reason.to_owned(),
            created_ts: at,
            updated_ts: at,
            expires_ts: None,
        };
        let profile = Profile {
            id: 1,
            name: "BlueLake".to_owned(),
            program: String::new(),
            model: String::new(),
            task_description: String::new(),
            attachments_policy: String::new(),
            reaper_exempt: false,
            principal: None,
            token_sha256: None,
            inception_ts: at,
            last_active_ts: at,
            retired_ts: None,
            project_id: 1,
        };
        let weight = |reason: &str| {
            let state = State { contact_policy: "auto".to_owned(), contacts: vec![contact(reason); 3] };
            Item::Agent { profile: profile.clone(), state }.weight()
        };
        assert_eq!(weight(&"x".repeat(8_000)) - weight(""), 3 * 8_000);
    }

    fn reservation(id: i64, path: &str) -> Reservation {
        let at = Time::from_micros(0);
        Reservation {
            id,
            agent: "BlueLake".to_owned(),
            path_pattern: path.to_owned(),
            exclusive: true,
            reason: String::new(),
            created_ts: at,
            expires_ts: at,
            released_ts: None,
            project: "/data/p".to_owned(),
        }
    }

    fn subject(lines: Vec<Line>) -> (String, String) {
        let draft = Draft { lines, ..Draft::new(owner(), Time::from_micros(0)) };
        let window = draft.window().unwrap();
        (window.subject, window.body)
    }

    #[test]
    fn a_commit_says_what_it_is_about() {
        let one = Line::agent("BlueLake");
        assert_eq!(subject(vec![one.clone()]).0, "agent: profile BlueLake");
        let held = [reservation(1, "src/a"), reservation(2, "src/b"), reservation(3, "src/c")];
        let lines: Vec<Line> = held.iter().map(Line::reservation).collect();
        assert_eq!(subject(lines.clone()).0, "file_reservation: BlueLake src/a (+2 more)");
        let (subject, body) = subject([vec![one], lines].concat());
        assert_eq!(subject, "batch: 4 changes (1 agent, 3 reservations)");
        assert_eq!(body, "- agent: profile BlueLake\n- file_reservation: BlueLake src/a (+2 more)\n");
    }

    #[test]
    fn a_line_stays_a_line() {
        let line = Line { kind: "messages", text: format!("mail: A -> B | x\ny{}", "ä".repeat(400)), by: None };
        let (subject, _) = subject(vec![line]);
        assert!(!subject.contains('\n') && subject.chars().count() == LINE_CHARS_MAX, "{subject}");
    }

    #[test]
    fn an_author_is_no_way_into_a_commit() {
        let author = owner().author("A> <x@y>\nevil");
        assert_eq!(author.email, "Axyevil@data-p.waybill.invalid");
    }
}
