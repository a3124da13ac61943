//! What the product promises about its speed and weight, next to what this run has seen. Nothing here is an assertion.

use serde_json::{Value, json};

use crate::contest::{Contestant, Engine, Graphile, Raw, Results};
use crate::idle::Idle;
use crate::mail;
use crate::mesh;
use crate::queues::{Deed, House};
use crate::report::{HELLO_BESIDE, HELLO_MESH, median, mib, percent};
use crate::waits::Awaited;

const SQLITE_OF_HELLO: f64 = 0.22;
const SQLITE_CPU_US_MAX: f64 = 75.0;
const LIFECYCLES_OF_HELLO: f64 = 0.06;
const LIFECYCLES_OF_HELLO_WISHED: f64 = 0.075;
const SQLITE_OF_HELLO_WISHED: f64 = 0.25;
const SENDS_OF_HELLO: f64 = 0.30;
const SQLITE_OF_SINGLE: f64 = 5.0;
const SQLITE_FSYNCS_MAX: f64 = 0.1;
const SINGLE_OF_FDATASYNC: f64 = 0.4;
const POSTGRES_OF_PGBENCH: f64 = 0.3;
const SQLITE_LIFECYCLES: f64 = 2_000.0;
const SQLITE_LIFECYCLES_WISHED: f64 = 4_000.0;
const POSTGRES_LIFECYCLES: f64 = 500.0;
const POSTGRES_LIFECYCLES_WISHED: f64 = 800.0;
const OBLIGATIONS_MS_MAX: f64 = 5.0;
const CLAIM_PAST_MAX: f64 = 1.2;
const WAITS_MIB_MAX: f64 = 110.0;
const WAITS_CPU_PERCENT_MAX: f64 = 1.0;
const BURST_MIB_MAX: f64 = 200.0;
/// The log's bound, and what one batch may have beyond it.
const BURST_LOG_MIB_MAX: f64 = 32.0;
const RECEIVE_OF_MANY_MAX: f64 = 1.5;
const RECEIVE_LOCKED_MAX: f64 = 1.2;
const RECEIVE_LARGE_KB_MAX: f64 = 16.0;
const SENDS_OF_PGBENCH: f64 = 0.6;
const MAIL_SENDS: f64 = 1_000.0;
const MAIL_SEND_MS_MAX: f64 = 25.0;
const MAIL_LAG_S_MAX: f64 = 1.0;
const MAIL_FETCHES: f64 = 5_000.0;
/// More clients, or more mail, slow nobody down: the same, and within a tenth of it.
const MAIL_OF_64: f64 = 1.0;
const MAIL_OF_MANY: f64 = 0.9;
const MAIL_SEARCH_MS_MAX: f64 = 20.0;
const MAIL_GUARD_MS_MAX: f64 = 50.0;
const MESH_SENDS_OF_HELLO: f64 = 0.20;
const MESH_HALF_MS_MAX: f64 = 10.0;
const MESH_MOST_MS_MAX: f64 = 50.0;
const MESH_TOPICS_OF_HELLO: f64 = 0.04;
const MESH_SOCKETS: usize = 2_000;
const MESH_MESSAGES: usize = 100_000;
const MESH_SOCKETS_MIB_MAX: f64 = 150.0;
const MESH_SOCKETS_CPU_PERCENT_MAX: f64 = 2.0;
const MESH_DRAIN_MIB_MAX: f64 = 64.0;
const MESH_DRAINED: f64 = 500.0;
const IDLE_MIB_MAX: f64 = 30.0;
const STARTUP_MS_MAX: f64 = 300.0;

const NOTHING: &str = "-";

pub struct Target {
    name: &'static str,
    wanted: String,
    measured: Option<f64>,
    shown: String,
    /// `None`: not measured in this run.
    met: Option<bool>,
}

impl Target {
    fn ratio_at_least(name: &'static str, least: f64, measured: Option<f64>) -> Self {
        let (wanted, shown) = (format!("≥ {:.0} %", least * 100.0), percent(measured));
        Self { name, wanted, measured, shown, met: measured.map(|ratio| ratio >= least) }
    }

    pub fn times_at_least(name: &'static str, least: f64, measured: Option<f64>) -> Self {
        let shown = show(measured, 2, "×");
        Self { name, wanted: format!("≥ {least} ×"), measured, shown, met: measured.map(|ratio| ratio >= least) }
    }

    fn times_at_most(name: &'static str, most: f64, measured: Option<f64>) -> Self {
        let shown = show(measured, 2, "×");
        Self { name, wanted: format!("≤ {most} ×"), measured, shown, met: measured.map(|ratio| ratio <= most) }
    }

    fn per_second_at_least(name: &'static str, least: f64, measured: Option<f64>) -> Self {
        let shown = show(measured, 0, "/s");
        Self { name, wanted: format!("≥ {least} /s"), measured, shown, met: measured.map(|rate| rate >= least) }
    }

    /// Next to somebody else's figure, of whom nothing was promised.
    fn compared(name: &'static str, measured: Option<f64>) -> Self {
        Self { name, wanted: NOTHING.to_owned(), measured, shown: percent(measured), met: None }
    }

    /// Of which nothing was promised.
    fn shown(name: &'static str, unit: &str, measured: Option<f64>) -> Self {
        Self { name, wanted: NOTHING.to_owned(), measured, shown: show(measured, 0, unit), met: None }
    }

    fn cpu_at_most(name: &'static str, most: f64, measured: Option<f64>) -> Self {
        let shown = show(measured, 1, "µs");
        Self { name, wanted: format!("≤ {most} µs"), measured, shown, met: measured.map(|value| value <= most) }
    }

    fn at_most(name: &'static str, most: f64, measured: Option<f64>) -> Self {
        let shown = show(measured, 3, "");
        Self { name, wanted: format!("≤ {most}"), measured, shown, met: measured.map(|value| value <= most) }
    }

    fn below(name: &'static str, limit: f64, unit: &str, measured: Option<f64>) -> Self {
        let shown = show(measured, 2, unit);
        Self { name, wanted: format!("< {limit} {unit}"), measured, shown, met: measured.map(|value| value < limit) }
    }

    pub fn row(&self) -> Vec<String> {
        let met = match self.met {
            Some(true) => "yes",
            Some(false) => "NO",
            None if self.wanted == NOTHING && self.measured.is_some() => NOTHING,
            None => "not measured",
        };
        vec![self.name.to_owned(), self.wanted.clone(), self.shown.clone(), met.to_owned()]
    }

    pub fn json(&self) -> Value {
        json!({ "name": self.name, "wanted": self.wanted, "measured": self.measured, "met": self.met })
    }
}

fn show(measured: Option<f64>, decimals: usize, unit: &str) -> String {
    let Some(value) = measured else { return "-".to_owned() };
    format!("{value:.decimals$} {unit}").trim_end().to_owned()
}

pub fn judge(results: &Results, idle: &Idle) -> Vec<Target> {
    use Contestant::{Fdatasync, Hello, Pgbench, Postgres, Sqlite};
    let of_hello = results.ratio((Sqlite, 64), (Hello, 64));
    let of_single = results.ratio((Sqlite, 64), (Sqlite, 1));
    let fsyncs = results.median((Sqlite, 64), |sample| sample.costs.fsyncs);
    let cpu_us = results.median((Sqlite, 64), |sample| sample.costs.cpu_us);
    let of_fdatasync = |raw| results.ratio((Sqlite, 1), (Fdatasync(raw), 1));
    let of_pgbench = results.ratio((Postgres, 32), (Pgbench, 32));
    let memory = idle.memory.as_ref().map(|memory| mib(memory.resident));
    let startup = median(idle.startup_ms.clone());
    let mut targets = vec![
        Target::times_at_least("sqlite, 64 connections over 1", SQLITE_OF_SINGLE, of_single),
        Target::ratio_at_least("sqlite, 64 connections, of hello", SQLITE_OF_HELLO, of_hello),
        Target::ratio_at_least("  wished", SQLITE_OF_HELLO_WISHED, of_hello),
        Target::cpu_at_most("sqlite, 64 connections, server CPU per create", SQLITE_CPU_US_MAX, cpu_us),
        Target::at_most("sqlite, 64 connections, fsyncs per create", SQLITE_FSYNCS_MAX, fsyncs),
        Target::ratio_at_least("sqlite, 1 connection, of fdatasync", SINGLE_OF_FDATASYNC, of_fdatasync(Raw::Append)),
        Target::compared("  of fdatasync over what is there", of_fdatasync(Raw::Over)),
        Target::ratio_at_least("postgres, 32 connections, of pgbench", POSTGRES_OF_PGBENCH, of_pgbench),
    ];
    let sends = results.ratio((Contestant::Send(Engine::Sqlite), 64), (Hello, 64));
    targets.push(Target::ratio_at_least("signed sends, sqlite, 64 connections, of hello", SENDS_OF_HELLO, sends));
    targets.extend(judge_tasks(results));
    targets.extend(judge_queues(results));
    targets.extend(judge_mail(results));
    targets.extend(judge_mesh(results, idle));
    targets.push(Target::below("idle memory", IDLE_MIB_MAX, "MiB", memory));
    for (what, memory, cpu) in [
        (Awaited::Task, "5,000 who wait for a task, above it", "  of a core"),
        (Awaited::Message, "5,000 who wait for a message, above it", "  of a core"),
    ] {
        let waits = idle.waits.iter().find(|waits| waits.what == what);
        targets.push(Target::below(memory, WAITS_MIB_MAX, "MiB", waits.map(|waits| mib(waits.bytes))));
        targets.push(Target::below(cpu, WAITS_CPU_PERCENT_MAX, "%", waits.map(|waits| waits.cpu * 100.0)));
    }
    let burst = idle.burst.as_ref();
    targets.extend([
        Target::below(
            "256 connections × 1 MB, resident at most",
            BURST_MIB_MAX,
            "MiB",
            burst.map(|burst| mib(burst.peak)),
        ),
        Target::at_most("  log, in MiB", BURST_LOG_MIB_MAX, burst.map(|burst| mib(burst.log))),
        Target::at_most("  lost", 0.0, burst.map(|burst| burst.lost as f64)),
        Target::below("ready after a clean stop, median", STARTUP_MS_MAX, "ms", startup),
    ]);
    targets
}

/// What the tasks door promises beyond a single create.
fn judge_tasks(results: &Results) -> Vec<Target> {
    use Contestant::{Claim, ClaimPast, Lifecycle, Obligations};
    let rate = |slot| results.median(slot, |sample| Some(sample.ops_per_second));
    let sqlite = rate((Lifecycle(Engine::Sqlite), 64));
    let of_hello = results.of_hello_elsewhere((Lifecycle(Engine::Sqlite), 64));
    let postgres = rate((Lifecycle(Engine::Postgres), 32));
    let millis = |us: f64| us / 1e3;
    let half = |engine| results.median((Obligations(engine), 1), |sample| sample.p50_us.map(millis));
    let most = |engine| results.median((Obligations(engine), 1), |sample| sample.p99_us.map(millis));
    let past = |engine| results.ratio_of((ClaimPast(engine), 1), (Claim(engine), 1), |sample| sample.p50_us);
    let (ms, max) = ("ms", OBLIGATIONS_MS_MAX);
    vec![
        Target::per_second_at_least("lifecycles, sqlite, 64 connections", SQLITE_LIFECYCLES, sqlite),
        Target::per_second_at_least("  wished", SQLITE_LIFECYCLES_WISHED, sqlite),
        Target::ratio_at_least("  of hello", LIFECYCLES_OF_HELLO, of_hello),
        Target::ratio_at_least("  wished", LIFECYCLES_OF_HELLO_WISHED, of_hello),
        Target::per_second_at_least("lifecycles, postgres, 32 connections", POSTGRES_LIFECYCLES, postgres),
        Target::per_second_at_least("  wished", POSTGRES_LIFECYCLES_WISHED, postgres),
        Target::compared("  of graphile's add, then claim and complete", of_graphile(results)),
        Target::below("open obligations in 1,000,000 receipts, sqlite, p50", max, ms, half(Engine::Sqlite)),
        Target::below("open obligations in 1,000,000 receipts, sqlite, p99", max, ms, most(Engine::Sqlite)),
        Target::below("open obligations in 1,000,000 receipts, postgres, p50", max, ms, half(Engine::Postgres)),
        Target::below("open obligations in 1,000,000 receipts, postgres, p99", max, ms, most(Engine::Postgres)),
        Target::times_at_most("claim past 100,000 unmatched over none, sqlite", CLAIM_PAST_MAX, past(Engine::Sqlite)),
        Target::times_at_most(
            "claim past 100,000 unmatched over none, postgres",
            CLAIM_PAST_MAX,
            past(Engine::Postgres),
        ),
    ]
}

/// What queues promise, in messages.
fn judge_queues(results: &Results) -> Vec<Target> {
    let of = |house, deed| Contestant::Queue(house, deed);
    let own = |deed| of(House::Sqlite, deed);
    let loads = [
        (Deed::Send, 64, "SendMessage of hello", 0.35),
        (Deed::Send, 64, "  wished", 0.55),
        (Deed::Batch, 64, "SendMessageBatch of 10 of hello, in messages", 1.5),
        (Deed::Take, 64, "receive 10 + delete batch of 10 of hello, in messages", 0.55),
        (Deed::EndToEnd, 32, "end to end, 16 + 16, of hello, in messages", 0.28),
        (Deed::Fifo, 64, "FIFO sends over 64 groups of hello", 0.18),
    ];
    let loads = loads.into_iter().map(|(deed, connections, name, least)| {
        Target::ratio_at_least(name, least, results.ratio((own(deed), connections), HELLO_BESIDE))
    });
    let mut targets: Vec<Target> = loads.collect();
    let of_pgbench = results.ratio((of(House::Postgres, Deed::Send), 32), (Contestant::PgbenchSends, 32));
    let times = |deed, base| results.ratio_of((own(deed), 1), (own(base), 1), |sample| sample.p50_us);
    let large = results.median((own(Deed::Large), 1), |sample| sample.costs.bytes.map(|bytes| bytes / 1e3));
    targets.extend([
        Target::ratio_at_least("PostgreSQL sends, 32 connections, of pgbench", SENDS_OF_PGBENCH, of_pgbench),
        Target::times_at_most(
            "receive of 1 m messages over one of 100",
            RECEIVE_OF_MANY_MAX,
            times(Deed::Many, Deed::Few),
        ),
        Target::times_at_most(
            "receive past a locked group over none",
            RECEIVE_LOCKED_MAX,
            times(Deed::Locked, Deed::Free),
        ),
        Target::below("written by a receive of 1 MiB", RECEIVE_LARGE_KB_MAX, "KB", large),
    ]);
    for (house, names) in [
        (House::Fauxqs, ["sends, 16 connections, over fauxqs", "  batches", "  receives and deletes"]),
        (House::ElasticMq, ["sends, 16 connections, over elasticmq", "  batches", "  receives and deletes"]),
    ] {
        for (deed, name) in [Deed::Send, Deed::Batch, Deed::Take].into_iter().zip(names) {
            let ahead = results.ratio((own(deed), 16), (of(house, deed), 16));
            targets.push(Target::times_at_least(name, 1.0, ahead));
        }
    }
    targets
}

/// What mail promises, over MCP.
fn judge_mail(results: &Results) -> Vec<Target> {
    use mail::Deed::{Fetch, Guard, Paced, Search, Send};
    use mail::House::{AgentMail, Few, Many};
    let of = |house, deed| Contestant::Mail(house, deed);
    let rate = |slot| results.median(slot, |sample| Some(sample.ops_per_second));
    let millis = |us: f64| us / 1e3;
    let lag = |house, deed| results.median((of(house, deed), 8), |sample| sample.archive_lag_us.map(|us| us / 1e6));
    let send = (of(Few, Send), 8);
    let p99 = results.median(send, |sample| sample.p99_us.map(millis));
    let search = results.median((of(Many, Search), 1), |sample| sample.p95_us.map(millis));
    let guard = results.median((of(Few, Guard), 1), |sample| sample.p50_us.map(millis));
    let of_few = |deed| results.ratio((of(Many, deed), 8), (of(Few, deed), 8));
    let ahead = |deed| results.ratio((of(Few, deed), 4), (of(AgentMail, deed), 4));
    let (lag_max, many) = (MAIL_LAG_S_MAX, MAIL_OF_MANY);
    vec![
        Target::per_second_at_least("send_message over MCP, 8 clients", MAIL_SENDS, rate(send)),
        Target::below("  p99", MAIL_SEND_MS_MAX, "ms", p99),
        Target::below("  archive behind it at 1,000 sends/s, p99", lag_max, "s", lag(Few, Paced)),
        Target::below("  at full speed", lag_max, "s", lag(Few, Send)),
        Target::times_at_least("  64 clients over 8", MAIL_OF_64, results.ratio((of(Few, Send), 64), send)),
        Target::times_at_least("  with 100,000 messages over few", many, of_few(Send)),
        Target::below("  archive behind it, p99", lag_max, "s", lag(Many, Send)),
        Target::per_second_at_least("fetch_inbox over MCP, 8 clients", MAIL_FETCHES, rate((of(Few, Fetch), 8))),
        Target::times_at_least("  with 100,000 messages over few", many, of_few(Fetch)),
        Target::below("search_messages in 100,000 messages, p95", MAIL_SEARCH_MS_MAX, "ms", search),
        Target::below("guard check from its start to its end, median", MAIL_GUARD_MS_MAX, "ms", guard),
        Target::times_at_least("send_message, 4 clients, over mcp-agent-mail", 1.0, ahead(Send)),
        Target::times_at_least("  fetch_inbox", 1.0, ahead(Fetch)),
    ]
}

/// What the mesh promises: of its daemons, on their way, and of the broker.
fn judge_mesh(results: &Results, idle: &Idle) -> Vec<Target> {
    use mesh::Deed::{EndToEnd, Send, Topics};
    let of_hello = |deed, connections| results.ratio((Contestant::Mesh(deed), connections), HELLO_MESH);
    let on_the_way = |quantile: fn(&crate::contest::Sample) -> Option<f64>| {
        results.median((Contestant::Mesh(EndToEnd), 1), |sample| quantile(sample).map(|us| us / 1e3))
    };
    let load = idle.mesh.as_ref();
    // A run of another size says nothing about what is promised.
    let sockets = load.and_then(|load| load.sockets.as_ref()).filter(|sockets| sockets.count == MESH_SOCKETS);
    let drain = load.and_then(|load| load.drain.as_ref()).filter(|drain| drain.messages == MESH_MESSAGES);
    vec![
        Target::ratio_at_least("mesh, POST /v1/send, 64 callers, of hello", MESH_SENDS_OF_HELLO, of_hello(Send, 64)),
        Target::below(
            "mesh, from a send to the other daemon's event, p50",
            MESH_HALF_MS_MAX,
            "ms",
            on_the_way(|sample| sample.p50_us),
        ),
        Target::below("  p99", MESH_MOST_MS_MAX, "ms", on_the_way(|sample| sample.p99_us)),
        Target::ratio_at_least(
            "mesh, 16 topics to another daemon, of hello",
            MESH_TOPICS_OF_HELLO,
            of_hello(Topics, 16),
        ),
        Target::below(
            "mesh, 2,000 idle sockets, above an idle broker",
            MESH_SOCKETS_MIB_MAX,
            "MiB",
            sockets.map(|sockets| mib(sockets.bytes)),
        ),
        Target::below("  processor", MESH_SOCKETS_CPU_PERCENT_MAX, "%", sockets.map(|sockets| sockets.cpu * 100.0)),
        Target::shown("  connected again", "/s", sockets.map(|sockets| sockets.reconnected_per_second)),
        Target::below(
            "mesh, 100,000 messages queued and drained, daemon at most",
            MESH_DRAIN_MIB_MAX,
            "MiB",
            drain.map(|drain| mib(drain.peak)),
        ),
        Target::shown("  taken without a broker", "/s", drain.map(|drain| drain.accepted_per_second)),
        Target::shown("  connected again after", "ms", drain.map(|drain| drain.reconnected_ms)),
        Target::per_second_at_least("  drained", MESH_DRAINED, drain.map(|drain| drain.drained_per_second)),
        Target::at_most("  not in the order of their topic", 0.0, drain.map(|drain| drain.misplaced as f64)),
    ]
}

/// One job after the other takes graphile-worker the time of an add and that of a claim with its completion.
fn of_graphile(results: &Results) -> Option<f64> {
    let lifecycle = (Contestant::Lifecycle(Engine::Postgres), 32);
    let part = |what| results.ratio(lifecycle, (Contestant::Graphile(what), 32));
    Some(part(Graphile::Add)? + part(Graphile::Claim)?)
}
