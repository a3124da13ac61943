//! Every operation that agents have as a tool does the same through REST and through MCP: the same answers, the same
//! errors, the same state and the same receipts, from the same start, on both stores.
//!
//! The list of operations is the registry. An operation brings its own rows in [`scenarios`]; the rows of bad input are
//! made from its schema and its roles in [`bad_rows`]. Each row runs through both doors on a server of its own, and
//! everything is compared with ids replaced by the order of their first appearance and times left out.

mod bad_rows;
mod doors;
mod ledger;
mod mail;
mod mail_files;
mod normal;
mod scenarios;

use std::collections::HashMap;

use serde_json::{Value as Json, json};
use waybill_kernel::idempotency::Fingerprint;
use waybill_kernel::{Code, Mode};

use crate::world::{Engine, World};
use doors::{Outcome, Through};
use normal::Ordinals;

/// One call. Texts that begin with `$` in the arguments stand for what earlier rows have kept.
#[derive(Clone, Debug)]
pub struct Row {
    pub what: String,
    pub who: String,
    pub operation: &'static str,
    pub args: Json,
    pub expected: Expected,
    /// A name, and the field of the answer (or the JSON pointer to it) to keep under it.
    pub keep: Option<(&'static str, &'static str)>,
    /// False where REST carries as text what MCP carries as a number, so that the sentence about it differs.
    pub same_message: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    Done,
    Replay,
    Refused(Code),
}

impl Row {
    pub fn new(what: impl Into<String>, who: &str, operation: &'static str, args: Json) -> Self {
        let (what, who) = (what.into(), who.to_owned());
        Self { what, who, operation, args, expected: Expected::Done, keep: None, same_message: true }
    }

    pub fn refused(mut self, code: Code) -> Self {
        self.expected = Expected::Refused(code);
        self
    }

    pub fn replay(mut self) -> Self {
        self.expected = Expected::Replay;
        self
    }

    pub fn keep(mut self, name: &'static str, field: &'static str) -> Self {
        self.keep = Some((name, field));
        self
    }
}

fn rows() -> Vec<Row> {
    // Those that need folders are no tools of a server that was given none.
    let registry = waybill_domains::registry().without_tools(&waybill_mail::ops::guard::NEEDS_ROOTS);
    let mut rows = Vec::new();
    for entry in registry.entries().filter(|entry| registry.is_tool(entry.spec())) {
        let name = entry.spec().name;
        let scenario = scenarios::of(name);
        let scenario = scenario.unwrap_or_else(|| panic!("{name} has no scenario: add one to scenarios.rs"));
        let works = scenario.rows.iter().any(|row| row.operation == name && row.expected == Expected::Done);
        assert!(works, "no row shows {name} at work");
        let replays = scenario.rows.iter().any(|row| row.operation == name && row.expected == Expected::Replay);
        assert_eq!(replays, entry.replays(), "{name} says whether it replays, and a row shows it");
        rows.extend(scenario.rows);
        rows.extend(bad_rows::of(entry.as_ref(), &scenario.good));
    }
    for who in ["admin", "alice", "bob", "stranger"] {
        rows.push(Row::new(format!("all tasks {who} can see"), who, "list_tasks", json!({ "limit": 200 })));
    }
    rows
}

const WORKERS: &[&str] = &["wendy", "walt"];

/// The players: who they are in words, and their keys once they have been needed.
struct Cast<'a> {
    world: &'a World,
    keys: HashMap<String, String>,
}

impl<'a> Cast<'a> {
    async fn gather(world: &'a World) -> Self {
        world.admin_post("/admin/tenants", &json!({ "name": "elsewhere" })).await;
        // What makes queues is no tool.
        for queue in ["jobs", "orders.fifo"] {
            world.admin_post("/v1/queues", &json!({ "queue": queue, "tags": { "team": "a" } })).await;
        }
        let keys = HashMap::from([("admin".to_owned(), world.server.admin_key.clone())]);
        Self { world, keys }
    }

    async fn key(&mut self, who: &str) -> String {
        if !self.keys.contains_key(who) {
            let input = match who.split_once('/') {
                // A role with every scope, or a role without some scopes.
                Some((role, scopes)) => json!({
                    "principal": format!("agent:{role}"),
                    "role": role,
                    "scopes": scopes.split(',').collect::<Vec<_>>(),
                }),
                None if who == "stranger" => json!({ "principal": "agent:stranger", "tenant": "elsewhere" }),
                None if who == "strange_worker" => json!({ "principal": "worker:stranger", "tenant": "elsewhere" }),
                None if WORKERS.contains(&who) => json!({ "principal": format!("worker:{who}") }),
                None => json!({ "principal": format!("agent:{who}") }),
            };
            self.keys.insert(who.to_owned(), self.world.key(input).await);
        }
        self.keys[who].clone()
    }
}

/// The same name on both sides: it stands in every receipt. What the process remembers it writes at its end, and not in the
/// middle of whichever side takes longer than a minute.
const SETTINGS: &str = "[tasks]\ninstance_id = \"here\"\n[background]\nseen_interval_s = 100000\n";

/// Everything one door did with the rows.
struct Transcript {
    outcomes: Vec<Outcome>,
    ledger: Json,
}

async fn play(engine: Engine, through: Through, rows: &[Row]) -> Transcript {
    let registry = waybill_domains::registry();
    let mut world = World::with(engine, SETTINGS, &[]).await;
    let mut cast = Cast::gather(&world).await;
    let mut kept = HashMap::new();
    let mut outcomes = Vec::new();
    for row in rows {
        let spec = registry.find(row.operation).unwrap().spec();
        let key = cast.key(&row.who).await;
        let outcome = doors::call(&world, through, &key, spec, filled(&row.args, &kept)).await;
        assert_eq!(outcome.as_expected(), row.expected, "{through:?}: {}: {}", row.what, outcome.body);
        if row.expected == Expected::Refused(Code::Forbidden) {
            let says = |one: &str, other: &str| outcome.body[one].is_string() && outcome.body[other].is_string();
            let told = says("required_role", "your_role") || says("required_scope", "your_scopes");
            assert!(told, "{}: it does not say what is missing: {}", row.what, outcome.body);
        }
        if let Some((name, field)) = row.keep {
            let value = if field.starts_with('/') { outcome.body.pointer(field) } else { outcome.body.get(field) };
            let value = value.unwrap_or_else(|| panic!("{}: no {field} in {}", row.what, outcome.body));
            kept.insert(format!("${name}"), value.clone());
        }
        outcomes.push(outcome);
    }
    let ledger = ledger::read(&mut world).await;
    Transcript { outcomes, ledger }
}

/// The arguments with their `$names` replaced.
fn filled(args: &Json, kept: &HashMap<String, Json>) -> Json {
    match args {
        Json::String(text) if text.starts_with('$') => {
            kept.get(text).unwrap_or_else(|| panic!("nothing was kept as {text}")).clone()
        }
        Json::Object(fields) => {
            Json::Object(fields.iter().map(|(name, value)| (name.clone(), filled(value, kept))).collect())
        }
        other => other.clone(),
    }
}

async fn compare(engine: Engine) {
    let rows = rows();
    let (rest, mcp) = tokio::join!(play(engine, Through::Rest, &rows), play(engine, Through::Mcp, &rows));
    let (mut rest_ids, mut mcp_ids) = (Ordinals::default(), Ordinals::default());
    for (row, (one, other)) in rows.iter().zip(rest.outcomes.iter().zip(&mcp.outcomes)) {
        let (mut one, mut other) = (rest_ids.normal(&one.body), mcp_ids.normal(&other.body));
        if !row.same_message {
            one["message"].take();
            other["message"].take();
        }
        // How long calls have waited for the database is not the same twice, and the health as a whole follows it.
        for body in [&mut one, &mut other].into_iter().filter(|body| body.get("pool").is_some()) {
            for follows in ["pool", "health_level", "status"] {
                body[follows].take();
            }
        }
        assert_eq!(one, other, "{engine:?}: {}: REST on the left, MCP on the right", row.what);
    }
    let (one, other) = (rest_ids.normal(&rest.ledger), mcp_ids.normal(&mcp.ledger));
    assert_eq!(one, other, "{engine:?}: the ledger");
    assert_eq!(hashes(&one), hashes(&other), "{engine:?}: the hashes of the receipts");
    assert!(rest.ledger["receipts"].as_array().unwrap().len() > 10, "the rows left no receipts: {}", rest.ledger);
    foreign_is_unknown(&rows, &rest.outcomes);
    foreign_is_unknown(&rows, &mcp.outcomes);
}

/// Of each receipt together with all before it, as a chain has them, of what is left when ids are numbers and times gone.
fn hashes(ledger: &Json) -> Vec<Fingerprint> {
    let chained = |last: &mut Option<Fingerprint>, receipt: &Json| {
        let before = last.as_ref().map(|last| last.as_bytes().to_vec());
        *last = Some(Fingerprint::of(&json!([before, receipt])).unwrap());
        *last
    };
    ledger["receipts"].as_array().unwrap().iter().scan(None, chained).collect()
}

/// Nobody learns from an answer whether an id of another tenant exists.
fn foreign_is_unknown(rows: &[Row], outcomes: &[Outcome]) {
    let of = |what: &str, operation: &str| {
        let index = rows.iter().position(|row| row.what == what && row.operation == operation);
        index.map(|index| &outcomes[index].body)
    };
    let mut compared = 0;
    for operation in ["get_task", "cancel_task", "complete", "fail", "report_progress"] {
        assert_eq!(of(bad_rows::FOREIGN_ID, operation), of(bad_rows::UNKNOWN_ID, operation));
        compared += usize::from(of(bad_rows::FOREIGN_ID, operation).is_some());
    }
    assert_eq!(compared, 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn a12_1_every_tool_does_the_same_through_rest_and_mcp_on_sqlite() {
    compare(Engine::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a12_1_every_tool_does_the_same_through_rest_and_mcp_on_postgresql() {
    compare(Engine::Postgres).await;
}

#[test]
fn a12_1_no_transition_of_a_task_is_reachable_from_one_door_only() {
    for entry in waybill_domains::registry().entries() {
        let spec = entry.spec();
        let moves_tasks = spec.domain == "tasks" && spec.mode == Mode::Write;
        assert!(spec.tool || !moves_tasks, "{} is a REST call and no tool", spec.name);
    }
}
