//! Search: the messages of a project that an agent of the caller sent or received, by their words.
//!
//! By relevance means: first those that have all that is looked for in their subject, then the others, each newest first. Statistics
//! of the whole index are not used: they would let one tenant's mail move another's.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::idempotency::Fingerprint;
use waybill_kernel::{Error, Example, OperationSpec, Profile, Result, Route, Time, cursor};
use waybill_store::{Ctx, Operation, Reply, Tx};

use crate::acting::{self, Agent, Project};
use crate::inbox::MessageView;
use crate::rules::addresses::Names;
use crate::rules::dates;
use crate::rules::excerpt::{excerpt, wanted};
use crate::rules::message::Importance;
use crate::rules::query::{HintKind, Query};
use crate::search::find::{Found, Tier, Wanted};

const LIMIT: i64 = 20;
pub(crate) const LIMIT_MAX: i64 = 1_000;
const OFFSET_MAX: i64 = 1_000;
/// Pages that are looked through for those of one agent.
const PAGES_MAX: usize = 20;
/// Of a body, for the excerpt.
const EXCERPT_CHARS: i64 = 2_000;
/// Of a body where bodies are asked for; the whole is had by get_message.
const BODY_CHARS_MAX: i64 = 16_384;
/// Bodies of one answer together, in characters.
const BODIES_CHARS_MAX: i64 = 1_000_000;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Ranking {
    #[default]
    Relevance,
    Recency,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SearchMessages {
    /// The project's absolute path or slug.
    pub project_key: String,
    /// Words (all must occur), "phrases", begin*, AND, OR, NOT, brackets, subject:x, body:x. Empty lists by the filters alone.
    #[schemars(length(max = 1024))]
    pub query: Option<String>,
    /// 20 unless given.
    #[schemars(range(min = 1, max = 1000))]
    pub limit: Option<i64>,
    /// Skips so many; a cursor is better.
    #[schemars(range(min = 0, max = 1000))]
    #[schemars(extend("x-rare" = true))]
    pub offset: Option<i64>,
    /// `next_cursor` of the page before, with everything else the same.
    #[schemars(extend("x-rare" = true))]
    pub cursor: Option<String>,
    /// relevance (subjects first) unless given, or recency.
    #[schemars(extend("x-rare" = true))]
    pub ranking: Option<Ranking>,
    /// Only from this agent.
    #[serde(alias = "from_agent", alias = "sender_name", alias = "from")]
    pub sender: Option<String>,
    /// Only what this agent of yours has sent or got. A page may be short then; next_cursor says whether there is more.
    #[schemars(extend("x-rare" = true))]
    pub agent_name: Option<String>,
    /// That agent's token, where another key has registered it.
    #[schemars(extend("x-rare" = true))]
    pub registration_token: Option<String>,
    /// Only of this importance, or of one of these: low, normal, high, urgent.
    #[schemars(extend("x-rare" = true))]
    pub importance: Option<Names>,
    /// Only of this thread.
    pub thread_id: Option<String>,
    /// Not older: a moment (2026-01-05T12:30:00Z) or a day (2026-01-05).
    #[serde(alias = "date_from", alias = "after", alias = "since", alias = "created_after")]
    #[schemars(extend("x-rare" = true))]
    pub date_start: Option<String>,
    /// Older than this moment, or not after this day.
    #[serde(alias = "date_to", alias = "before", alias = "until", alias = "created_before")]
    #[schemars(extend("x-rare" = true))]
    pub date_end: Option<String>,
    /// Says how the query was understood.
    #[schemars(extend("x-rare" = true))]
    pub explain: Option<bool>,
    /// With the beginning of each body.
    #[schemars(extend("x-rare" = true))]
    pub include_body_md: Option<bool>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct SearchResult {
    pub result: Vec<Hit>,
    /// Absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
    /// What became of the query, where that is not plain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub assistance: Option<Assistance>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub diagnostics: Option<Diagnostics>,
}

/// A message that fits.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Hit {
    pub id: i64,
    pub subject: String,
    pub from: String,
    pub to: Vec<String>,
    pub created_ts: Time,
    pub importance: Importance,
    pub ack_required: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread_id: Option<String>,
    /// Where the body has what was looked for.
    pub snippet: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body_md: Option<String>,
    /// There is more of the body: get_message has all of it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub body_truncated: bool,
}

impl Hit {
    pub(crate) fn new(found: Found, query: &Query, shows_body: bool) -> Self {
        let snippet = excerpt(&found.body, &query.expr.as_ref().map(wanted).unwrap_or_default());
        let MessageView { id, subject, from, to, created_ts, importance, ack_required, thread_id, .. } = found.view;
        let body_truncated = shows_body && found.body_chars > found.body.chars().count() as i64;
        let body_md = shows_body.then_some(found.body);
        Hit { id, subject, from, to, created_ts, importance, ack_required, thread_id, snippet, body_md, body_truncated }
    }
}

#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct Assistance {
    /// Filters that were written into the query, as `from:BlueLake`.
    pub applied_filters: Vec<String>,
    pub guidance: Vec<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Diagnostics {
    /// The query as a tree; absent where there was nothing to look for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parsed: Option<String>,
    pub ranking: Ranking,
    pub searched_all: bool,
}

impl Operation for SearchMessages {
    const SPEC: OperationSpec = OperationSpec {
        name: "search_messages",
        route: Route::post("/v1/mail/search"),
        profile: Profile::Core,
        title: "Search messages",
        description: "Search the mail that your agents sent or received in a project. All words must occur; use \"phrases\", \
                      begin*, AND, OR, NOT, subject:x. Filters alone, without a query, list the newest.",
        example: Example {
            arguments: r#"{"project_key": "/data/projects/backend", "query": "deploy OR subject:release", "limit": 1}"#,
            answer: r#"{"result": [{"id": 12, "subject": "Release on Friday", "from": "BlueLake", "to": ["GreenCastle"],
                "created_ts": "2026-01-05T12:30:00.000000Z", "importance": "high", "ack_required": false,
                "thread_id": "FEAT-123", "snippet": "We deploy at noon."}], "next_cursor": "010000000000000000c0ffee"}"#,
        },
        ..super::READ
    };
    type Output = SearchResult;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<SearchResult>> {
        let page = self.page()?;
        let query = Query::read(self.query.as_deref().unwrap_or(""))?;
        let project = acting::project(tx, &self.project_key).await?;
        let agent =
            acting::one_of(ctx, tx, &project, self.agent_name.as_deref(), self.registration_token.as_deref()).await?;
        let (wanted, assistance) = self.wanted(ctx, tx, &project, agent.as_ref(), &query).await?;
        let Some(wanted) = wanted else {
            let diagnostics = self.diagnostics(ctx, &query);
            return Ok(Reply::Done(SearchResult { result: Vec::new(), next_cursor: None, assistance, diagnostics }));
        };
        let scope = self.scope(ctx, &project)?;
        let scope: Vec<&[u8]> = scope.iter().map(Vec::as_slice).collect();
        let ranking = self.ranking.unwrap_or_default();
        let (mut found, mut next) = look(ctx, tx, &wanted, ranking, self.position(&scope)?, page).await?;
        // Only a page of one agent's mail is short while there is more.
        for _ in 1..PAGES_MAX {
            let left = page.limit - found.len();
            let Some(position) = next.filter(|_| left > 0) else { break };
            let more = look(ctx, tx, &wanted, ranking, position, Page { skip: 0, limit: left, ..page }).await?;
            found.extend(more.0);
            next = more.1;
        }
        Ok(Reply::Done(SearchResult {
            result: found
                .into_iter()
                .map(|found| Hit::new(found, &query, self.include_body_md.unwrap_or(false)))
                .collect(),
            next_cursor: next.map(|position| cursor::encode(&scope, &position.bytes())),
            assistance,
            diagnostics: self.diagnostics(ctx, &query),
        }))
    }
}

/// How much of what follows is shown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Page {
    pub(crate) skip: usize,
    pub(crate) limit: usize,
    pub(crate) body_chars: i64,
}

/// Below which message of which tier a page begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    tier: Tier,
    below: i64,
}

impl Position {
    pub(crate) const BEGIN: Position = Position { tier: Tier::Subject, below: i64::MAX };

    fn bytes(self) -> Vec<u8> {
        [&[self.tier as u8][..], &self.below.to_be_bytes()].concat()
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let (tier, below) = bytes.split_first()?;
        let tier = [Tier::Subject, Tier::Elsewhere].into_iter().find(|known| *known as u8 == *tier)?;
        Some(Self { tier, below: i64::from_be_bytes(below.try_into().ok()?) })
    }
}

/// One page, and where the next one begins. Of one agent's mail it has less than the limit where others of its principal have the
/// rest.
pub(crate) async fn look(
    ctx: &Ctx<'_>,
    tx: &mut Tx<'_>,
    wanted: &Wanted,
    ranking: Ranking,
    position: Position,
    page: Page,
) -> Result<(Vec<Found>, Option<Position>)> {
    // One more than is shown tells whether there is a next page.
    let most = page.skip + page.limit + 1;
    let tiered = ranking == Ranking::Relevance && wanted.expr.is_some();
    let tiers: &[Option<Tier>] = match (tiered, position.tier) {
        (false, _) => &[None],
        (true, Tier::Subject) => &[Some(Tier::Subject), Some(Tier::Elsewhere)],
        (true, Tier::Elsewhere) => &[Some(Tier::Elsewhere)],
    };
    let mut found: Vec<(Tier, Found)> = Vec::new();
    let mut below = position.below;
    for tier in tiers {
        let left = (most - found.len()) as i64;
        if left > 0 {
            let some = wanted.look(ctx, tx, *tier, below, left, page.body_chars).await?;
            found.extend(some.into_iter().map(|found| (tier.unwrap_or(Tier::Subject), found)));
        }
        below = i64::MAX;
    }
    let has_more = found.len() == most;
    found.truncate(page.skip + page.limit);
    let next = found.last().filter(|_| has_more).map(|(tier, found)| Position { tier: *tier, below: found.view.id });
    let shown = found.into_iter().skip(page.skip).map(|(_, found)| found).filter(|found| found.is_party);
    Ok((shown.collect(), next))
}

impl SearchMessages {
    pub(crate) fn page(&self) -> Result<Page> {
        let limit = self.limit.unwrap_or(LIMIT);
        if !(1..=LIMIT_MAX).contains(&limit) {
            return Err(Error::invalid(format!("limit must be from 1 to {LIMIT_MAX}.")));
        }
        let skip = self.offset.unwrap_or(0);
        if !(0..=OFFSET_MAX).contains(&skip) {
            return Err(Error::invalid(format!("offset must be from 0 to {OFFSET_MAX}; go on by cursor.")));
        }
        let body_chars = match self.include_body_md.unwrap_or(false) {
            true => (BODIES_CHARS_MAX / limit).min(BODY_CHARS_MAX),
            false => EXCERPT_CHARS,
        };
        Ok(Page { skip: skip as usize, limit: limit as usize, body_chars })
    }

    /// What a cursor is only valid with.
    fn scope(&self, ctx: &Ctx<'_>, project: &Project) -> Result<Vec<Vec<u8>>> {
        let filters = (
            (&self.query, self.ranking, &self.sender, &self.importance),
            (&self.thread_id, &self.date_start, &self.date_end, &self.agent_name),
        );
        Ok(vec![
            b"search_messages".to_vec(),
            ctx.caller.tenant.0.to_be_bytes().to_vec(),
            project.id.to_be_bytes().to_vec(),
            Fingerprint::of(&filters)?.as_bytes().to_vec(),
        ])
    }

    fn position(&self, scope: &[&[u8]]) -> Result<Position> {
        let Some(cursor) = &self.cursor else { return Ok(Position::BEGIN) };
        Position::read(&cursor::decode(scope, cursor)?).ok_or_else(cursor::refused)
    }

    /// None where nothing can fit; the assistance says why. `agent` is whose mail alone is wanted.
    pub(crate) async fn wanted(
        &self,
        ctx: &Ctx<'_>,
        tx: &mut Tx<'_>,
        project: &Project,
        agent: Option<&Agent>,
        query: &Query,
    ) -> Result<(Option<Wanted>, Option<Assistance>)> {
        let mut wanted = Wanted::new(ctx, project, agent);
        wanted.expr.clone_from(&query.expr);
        wanted.thread.clone_from(&self.thread_id);
        wanted.since = read_date("date_start", self.date_start.as_deref(), dates::since)?;
        wanted.until = read_date("date_end", self.date_end.as_deref(), dates::until)?;
        for name in self.importance.as_ref().map_or(&[][..], |names| &names.0) {
            wanted.importances.push(importance(name).ok_or_else(|| {
                Error::invalid("importance must be low, normal, high or urgent, or a list of these.")
            })?);
        }
        if let Some(sender) = &self.sender {
            let (home, name) = acting::address(tx, project, sender).await?;
            wanted.sender = Some(acting::agent(tx, &home, &name).await?.id);
        }
        let mut told = Assistance::default();
        let mut possible = true;
        if query.is_fallback {
            told.guidance.push("The query could not be read as written; any of its words is looked for.".to_owned());
        }
        if query.is_unsearchable {
            told.guidance.push("The query has no word that could be looked for.".to_owned());
            possible = false;
        }
        for hint in &query.hints {
            let value = hint.value.trim();
            let used = match hint.kind {
                HintKind::From if wanted.sender.is_none() => match acting::find_addressed(tx, project, value).await? {
                    Some(agent) => wanted.sender.replace(agent.id).is_none(),
                    None => {
                        told.guidance.push(format!("No agent of the project is called {value:?}."));
                        possible = false;
                        true
                    }
                },
                HintKind::Thread if wanted.thread.is_none() => wanted.thread.replace(value.to_owned()).is_none(),
                HintKind::After if wanted.since.is_none() => set(&mut wanted.since, dates::since(value)),
                HintKind::Before if wanted.until.is_none() => set(&mut wanted.until, dates::until(value)),
                HintKind::Importance if self.importance.is_none() => match importance(value) {
                    Some(importance) => {
                        wanted.importances.push(importance);
                        true
                    }
                    None => false,
                },
                _ => false,
            };
            let name = hint.kind.name();
            match used {
                true => told.applied_filters.push(format!("{name}:{value}")),
                false => told.guidance.push(format!("{name}:{value} was left out of account.")),
            }
        }
        let is_plain = told.applied_filters.is_empty() && told.guidance.is_empty();
        Ok((possible.then_some(wanted), (!is_plain).then_some(told)))
    }

    fn diagnostics(&self, ctx: &Ctx<'_>, query: &Query) -> Option<Diagnostics> {
        self.explain.unwrap_or(false).then(|| Diagnostics {
            parsed: query.expr.as_ref().map(ToString::to_string),
            ranking: self.ranking.unwrap_or_default(),
            searched_all: ctx.caller.sees_all_owners() && self.agent_name.is_none(),
        })
    }
}

fn set(field: &mut Option<Time>, time: Option<Time>) -> bool {
    *field = time;
    time.is_some()
}

fn importance(name: &str) -> Option<&'static str> {
    let name = name.trim();
    Importance::ALL.iter().map(|known| known.as_str()).find(|known| known.eq_ignore_ascii_case(name))
}

fn read_date(field: &str, text: Option<&str>, read: fn(&str) -> Option<Time>) -> Result<Option<Time>> {
    let Some(text) = text.map(str::trim).filter(|text| !text.is_empty()) else { return Ok(None) };
    let wrong = || Error::invalid(format!("{field} must be a moment as 2026-01-05T12:30:00Z or a day as 2026-01-05."));
    read(text).ok_or_else(wrong).map(Some)
}
