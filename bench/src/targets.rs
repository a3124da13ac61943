//! What the product promises about its speed and weight, next to what this run has seen. Nothing here is an assertion.

use serde_json::{Value, json};

use crate::contest::{Contestant, Results};
use crate::idle::Idle;
use crate::report::{median, mib, percent};

const SQLITE_OF_HELLO: f64 = 0.12;
const SQLITE_OF_HELLO_WISHED: f64 = 0.25;
const SQLITE_OF_SINGLE: f64 = 5.0;
const SQLITE_FSYNCS_MAX: f64 = 0.1;
const SINGLE_OF_FDATASYNC: f64 = 0.4;
const POSTGRES_OF_PGBENCH: f64 = 0.3;
const IDLE_MIB_MAX: f64 = 30.0;
const STARTUP_MS_MAX: f64 = 300.0;

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

    fn times_at_least(name: &'static str, least: f64, measured: Option<f64>) -> Self {
        let shown = show(measured, 2, "×");
        Self { name, wanted: format!("≥ {least} ×"), measured, shown, met: measured.map(|ratio| ratio >= least) }
    }

    fn at_most(name: &'static str, most: f64, measured: Option<f64>) -> Self {
        let shown = show(measured, 3, "");
        Self { name, wanted: format!("≤ {most}"), measured, shown, met: measured.map(|value| value <= most) }
    }

    fn below(name: &'static str, limit: f64, unit: &str, measured: Option<f64>) -> Self {
        let shown = show(measured, 1, unit);
        Self { name, wanted: format!("< {limit} {unit}"), measured, shown, met: measured.map(|value| value < limit) }
    }

    pub fn row(&self) -> Vec<String> {
        let met = match self.met {
            Some(true) => "yes",
            Some(false) => "NO",
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
    let of_fdatasync = results.ratio((Sqlite, 1), (Fdatasync, 1));
    let of_pgbench = results.ratio((Postgres, 32), (Pgbench, 32));
    let memory = idle.memory.as_ref().map(|memory| mib(memory.resident));
    let startup = median(idle.startup_ms.clone());
    vec![
        Target::times_at_least("sqlite, 64 connections over 1", SQLITE_OF_SINGLE, of_single),
        Target::ratio_at_least("sqlite, 64 connections, of hello", SQLITE_OF_HELLO, of_hello),
        Target::ratio_at_least("  wished", SQLITE_OF_HELLO_WISHED, of_hello),
        Target::at_most("sqlite, 64 connections, fsyncs per create", SQLITE_FSYNCS_MAX, fsyncs),
        Target::ratio_at_least("sqlite, 1 connection, of fdatasync", SINGLE_OF_FDATASYNC, of_fdatasync),
        Target::ratio_at_least("postgres, 32 connections, of pgbench", POSTGRES_OF_PGBENCH, of_pgbench),
        Target::below("idle memory", IDLE_MIB_MAX, "MiB", memory),
        Target::below("ready after a clean stop, median", STARTUP_MS_MAX, "ms", startup),
    ]
}
