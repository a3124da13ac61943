//! What a thread comes to, or several: by rules, without a model, from the messages that the caller may read.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Error, Example, OperationSpec, Profile, Result, Route, Time};
use waybill_store::{Ctx, Operation, Reply, Tx};

use crate::acting::{self, Agent, Project, project};
use crate::rules::summary::{ITEMS_MAX, Said, Summary, most_often, summarize};
use crate::search::find::{self, Found};

/// Threads of one digest.
const THREADS_MAX: usize = 20;
/// Messages of each thread: the newest.
const MESSAGES: i64 = 50;
pub(crate) const MESSAGES_MAX: i64 = 200;
/// Pages that are looked through for what one agent has.
const PAGES_MAX: usize = 20;
/// Of each body.
const BODY_CHARS_MAX: i64 = 8_192;
const EXAMPLES_MAX: usize = 3;
const THREAD_ID_CHARS_MAX: usize = 128;

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SummarizeThread {
    /// The project's absolute path or slug.
    pub project_key: String,
    /// The thread's id, or up to 20 ids with commas between them for a digest.
    #[schemars(length(min = 1, max = 2600))]
    pub thread_id: String,
    /// With the first messages of a thread.
    #[schemars(extend("x-rare" = true))]
    pub include_examples: Option<bool>,
    /// The newest messages of each thread that are read: 50 unless given.
    #[schemars(range(min = 1, max = 200))]
    #[schemars(extend("x-rare" = true))]
    pub per_thread_limit: Option<i64>,
    /// Only what this agent of yours has sent or got.
    #[schemars(extend("x-rare" = true))]
    pub agent_name: Option<String>,
    /// That agent's token, where another key has registered it.
    #[schemars(extend("x-rare" = true))]
    pub registration_token: Option<String>,
    /// Accepted and without effect: summaries are made by rules.
    #[schemars(extend("deprecated" = true))]
    pub llm_mode: Option<bool>,
    /// Accepted and without effect.
    #[schemars(extend("deprecated" = true))]
    pub llm_model: Option<String>,
}

/// Of one thread `summary`, of several `threads` and `aggregate`.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct Summarized {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary: Option<SummaryView>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub examples: Vec<ExampleView>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub threads: Vec<ThreadSummary>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aggregate: Option<Aggregate>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct SummaryView {
    pub participants: Vec<String>,
    pub key_points: Vec<String>,
    pub action_items: Vec<String>,
    /// Messages that were read for this.
    pub total_messages: usize,
    pub open_actions: usize,
    pub done_actions: usize,
    pub mentions: Vec<Mention>,
    pub code_references: Vec<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Mention {
    pub name: String,
    pub count: usize,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct ExampleView {
    pub id: i64,
    pub subject: String,
    pub from: String,
    pub created_ts: Time,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct ThreadSummary {
    pub thread_id: String,
    pub summary: SummaryView,
}

/// Over all threads of a digest.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Aggregate {
    pub top_mentions: Vec<Mention>,
    pub key_points: Vec<String>,
    pub action_items: Vec<String>,
}

impl Operation for SummarizeThread {
    const SPEC: OperationSpec = OperationSpec {
        name: "summarize_thread",
        route: Route::post("/v1/mail/threads/summarize"),
        profile: Profile::Core,
        title: "Summarize threads",
        description: "Who took part in a thread, its listed points, what is still to be done, who was named. Several ids with \
                      commas give a digest. Made by rules from what your agents sent or received.",
        example: Example {
            arguments: r#"{"project_key": "data-projects-backend", "thread_id": "FEAT-123"}"#,
            answer: r#"{"thread_id": "FEAT-123", "summary": {"participants": ["BlueLake", "GreenCastle"],
                "key_points": ["deploy on Friday"], "action_items": ["write tests"], "total_messages": 2, "open_actions": 1,
                "done_actions": 0, "mentions": [{"name": "GreenCastle", "count": 1}], "code_references": ["src/api.rs"]}}"#,
        },
        ..super::READ
    };
    type Output = Summarized;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Summarized>> {
        let ids = self.ids()?;
        let limit = limit(self.per_thread_limit)?;
        let project = project(tx, &self.project_key).await?;
        let agent =
            acting::one_of(ctx, tx, &project, self.agent_name.as_deref(), self.registration_token.as_deref()).await?;
        let wanted = Wanted { project: &project, agent: agent.as_ref(), limit };
        if let [id] = ids[..] {
            let Some((summary, count, examples)) = read(ctx, tx, &wanted, id).await? else {
                return Err(Error::not_found("thread"));
            };
            return Ok(Reply::Done(Summarized {
                thread_id: Some(id.to_owned()),
                summary: Some(SummaryView::new(summary, count)),
                examples: if self.include_examples.unwrap_or(false) { examples } else { Vec::new() },
                ..Summarized::default()
            }));
        }
        let mut threads = Vec::new();
        let mut all = Vec::new();
        for id in ids {
            // What the caller may not read, or does not exist, is missing from a digest.
            if let Some((summary, count, _)) = read(ctx, tx, &wanted, id).await? {
                all.push(summary.clone());
                threads.push(ThreadSummary { thread_id: id.to_owned(), summary: SummaryView::new(summary, count) });
            }
        }
        Ok(Reply::Done(Summarized { threads, aggregate: Some(Aggregate::new(&all)), ..Summarized::default() }))
    }
}

impl SummarizeThread {
    fn ids(&self) -> Result<Vec<&str>> {
        let mut ids: Vec<&str> = Vec::new();
        for id in self.thread_id.split(',').map(str::trim).filter(|id| !id.is_empty()) {
            if id.chars().count() > THREAD_ID_CHARS_MAX {
                return Err(Error::invalid(format!("A thread's id has at most {THREAD_ID_CHARS_MAX} characters.")));
            }
            if !ids.contains(&id) {
                ids.push(id);
            }
            if ids.len() > THREADS_MAX {
                return Err(Error::invalid(format!("thread_id may name at most {THREADS_MAX} threads.")));
            }
        }
        if ids.is_empty() { Err(Error::invalid("thread_id names no thread.")) } else { Ok(ids) }
    }
}

/// How many messages of a thread are read.
pub(crate) fn limit(given: Option<i64>) -> Result<i64> {
    let limit = given.unwrap_or(MESSAGES);
    if (1..=MESSAGES_MAX).contains(&limit) {
        Ok(limit)
    } else {
        Err(Error::invalid(format!("per_thread_limit must be from 1 to {MESSAGES_MAX}.")))
    }
}

/// What is read of a thread.
pub(crate) struct Wanted<'a> {
    pub project: &'a Project,
    /// Only what this one has sent or got.
    pub agent: Option<&'a Agent>,
    pub limit: i64,
}

/// What the caller may read of it, the newest first. Where one agent is meant, messages that only others of its principal have lie between
/// its own: further pages are read for those, so many and no more.
pub(crate) async fn newest(ctx: &Ctx<'_>, tx: &mut Tx<'_>, wanted: &Wanted<'_>, id: &str) -> Result<Vec<Found>> {
    let thread = Some(id.to_owned());
    let thread = find::Wanted { thread, ..find::Wanted::new(ctx, wanted.project, wanted.agent) };
    let most = usize::try_from(wanted.limit).unwrap_or_default();
    let (mut found, mut below, mut size) = (Vec::new(), i64::MAX, wanted.limit);
    for _ in 0..PAGES_MAX {
        let page = thread.look(ctx, tx, None, below, size, BODY_CHARS_MAX).await?;
        let is_last = (page.len() as i64) < size;
        below = page.last().map_or(below, |found| found.view.id);
        found.extend(page.into_iter().filter(|found| found.is_party).take(most - found.len()));
        if is_last || found.len() == most {
            break;
        }
        size = MESSAGES_MAX;
    }
    Ok(found)
}

/// Of messages of which the oldest comes first.
pub(crate) fn sum_up(found: &[Found]) -> Summary {
    summarize(found.iter().map(|found| Said { from: &found.view.from, body: &found.body }))
}

/// None where the caller may read nothing of it.
async fn read(
    ctx: &Ctx<'_>,
    tx: &mut Tx<'_>,
    wanted: &Wanted<'_>,
    id: &str,
) -> Result<Option<(Summary, usize, Vec<ExampleView>)>> {
    let mut found = newest(ctx, tx, wanted, id).await?;
    if found.is_empty() {
        return Ok(None);
    }
    found.reverse();
    Ok(Some((sum_up(&found), found.len(), examples(found))))
}

/// The first messages of a thread, of which the oldest comes first.
pub(crate) fn examples(found: Vec<Found>) -> Vec<ExampleView> {
    let shown = |found: Found| ExampleView {
        id: found.view.id,
        subject: found.view.subject,
        from: found.view.from,
        created_ts: found.view.created_ts,
    };
    found.into_iter().take(EXAMPLES_MAX).map(shown).collect()
}

impl SummaryView {
    pub(crate) fn new(summary: Summary, total_messages: usize) -> Self {
        Self {
            participants: summary.participants,
            key_points: summary.key_points,
            action_items: summary.action_items,
            total_messages,
            open_actions: summary.open_actions,
            done_actions: summary.done_actions,
            mentions: mentions(summary.mentions),
            code_references: summary.code_references,
        }
    }
}

impl Aggregate {
    fn new(all: &[Summary]) -> Self {
        let mut counted: BTreeMap<String, usize> = BTreeMap::new();
        for (name, count) in all.iter().flat_map(|summary| &summary.mentions) {
            *counted.entry(name.clone()).or_default() += count;
        }
        let first = |list: fn(&Summary) -> &Vec<String>| all.iter().flat_map(list).take(ITEMS_MAX).cloned().collect();
        Self {
            top_mentions: mentions(most_often(counted)),
            key_points: first(|summary| &summary.key_points),
            action_items: first(|summary| &summary.action_items),
        }
    }
}

fn mentions(counted: Vec<(String, usize)>) -> Vec<Mention> {
    counted.into_iter().map(|(name, count)| Mention { name, count }).collect()
}
