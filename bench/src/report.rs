//! What the run says: a table, the targets, and the same as JSON.
//!
//! A ratio is the median of the ratios of each round, never the ratio of two numbers taken at different times.

use std::io::Write;

use anyhow::Result;
use serde_json::{Value, json};

use crate::burst::{self, Burst};
use crate::contest::{Contestant, Engine, Results, Sample, Slot};
use crate::costs::Costs;
use crate::idle::Idle;
use crate::mesh::{Drain, Load, Sockets};
use crate::queues::{Deed, House};
use crate::table::print_table;
use crate::targets::Target;
use crate::waits::{WAITS, Waits};

pub struct Report<'a> {
    pub settings: Value,
    pub results: &'a Results,
    pub idle: &'a Idle,
    pub targets: Vec<Target>,
}

pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

impl Results {
    fn rounds(&self, slot: Slot) -> &[Option<Sample>] {
        self.samples.get(&slot).map_or(&[], Vec::as_slice)
    }

    /// The median over the rounds of one number of a slice.
    pub fn median(&self, slot: Slot, number: impl Fn(&Sample) -> Option<f64>) -> Option<f64> {
        median(self.rounds(slot).iter().flatten().filter_map(number).collect())
    }

    /// Operations per second of `slot` over those of `base`.
    pub fn ratio(&self, slot: Slot, base: Slot) -> Option<f64> {
        self.ratio_of(slot, base, |sample| Some(sample.ops_per_second))
    }

    /// One number of `slot` over that of `base`, each pair of the same round.
    pub fn ratio_of(&self, slot: Slot, base: Slot, number: impl Fn(&Sample) -> Option<f64>) -> Option<f64> {
        let pairs = self.rounds(slot).iter().zip(self.rounds(base));
        median(pairs.filter_map(|(a, b)| Some(number(a.as_ref()?)? / number(b.as_ref()?)?)).collect())
    }

    fn cost(&self, slot: Slot, cost: impl Fn(&Costs) -> Option<f64>) -> Option<f64> {
        self.median(slot, |sample| cost(&sample.costs))
    }

    fn errors(&self, slot: Slot) -> u64 {
        self.rounds(slot).iter().flatten().flat_map(|sample| sample.errors.values()).sum()
    }

    fn slots(&self) -> impl Iterator<Item = Slot> {
        self.samples.iter().filter(|(_, rounds)| rounds.iter().any(Option::is_some)).map(|(slot, _)| *slot)
    }

    fn hello_ratio(&self, slot: Slot) -> Option<f64> {
        match slot.0 {
            Contestant::Sqlite | Contestant::Postgres | Contestant::Send(_) => {
                self.ratio(slot, (Contestant::Hello, slot.1))
            }
            // In messages, whatever the number of connections: what counts is the ceiling of the same rounds.
            Contestant::Queue(House::Sqlite, _) if is_beside_hello(slot) => self.ratio(slot, HELLO_BESIDE),
            Contestant::Mesh(_) if slot.1 > 1 => self.ratio(slot, HELLO_MESH),
            Contestant::Lifecycle(Engine::Sqlite) if slot.1 == 64 => self.of_hello_elsewhere(slot),
            _ => None,
        }
    }

    /// Of a hello that ran in another heat of the same run: the ratio of two medians.
    pub fn of_hello_elsewhere(&self, slot: Slot) -> Option<f64> {
        let rate = |slot| self.median(slot, |sample: &Sample| Some(sample.ops_per_second));
        Some(rate(slot)? / rate((Contestant::Hello, slot.1))?)
    }

    fn single_ratio(&self, slot: Slot) -> Option<f64> {
        (slot.1 > 1).then(|| self.ratio(slot, (slot.0, 1))).flatten()
    }
}

pub const HELLO_BESIDE: Slot = (Contestant::HelloBeside, 64);
pub const HELLO_MESH: Slot = (Contestant::HelloMesh, 64);

/// Those of its own heat.
fn is_beside_hello((contestant, connections): Slot) -> bool {
    use Deed::{Batch, EndToEnd, Fifo, Send, Take};
    let is_load = matches!(contestant, Contestant::Queue(_, Send | Batch | Take | EndToEnd | Fifo));
    is_load && connections >= 32
}

const HEADINGS: [&str; 15] = [
    "contestant",
    "conns",
    "ops/s",
    "of hello",
    "of 1 conn",
    "fsync/op",
    "bytes/op",
    "writer µs",
    "cpu µs",
    "client %",
    "ops/commit",
    "p50 ms",
    "p99 ms",
    "lag ms",
    "errors",
];

impl Report<'_> {
    pub fn print(&self, out: &mut impl Write) -> Result<()> {
        let mut rows = vec![HEADINGS.map(str::to_owned).to_vec()];
        rows.extend(self.results.slots().map(|slot| self.row(slot)));
        if rows.len() > 1 {
            print_table(out, &rows)?;
            writeln!(out, "\nMedians of the rounds; a ratio is the median of the ratios within each round.")?;
            writeln!(out, "PostgreSQL's fsyncs and bytes are those of its write-ahead log; cpu is the server's own.")?;
            writeln!(
                out,
                "A lifecycle is three calls; so is an operation of claim, of which only the claim is timed."
            )?;
            writeln!(out, "lag is the 99th percentile from a message's answer to its commit in the archive.\n")?;
        }
        self.print_idle(out)?;
        let mut rows = vec![["target", "wanted", "measured", "met"].map(str::to_owned).to_vec()];
        rows.extend(self.targets.iter().map(Target::row));
        print_table(out, &rows)?;
        writeln!(out)?;
        for (slot, what, count) in self.errors() {
            writeln!(out, "errors: {} at {}: {count} × {what}", slot.0.name(), slot.1)?;
        }
        for (name, why) in &self.results.failures {
            writeln!(out, "could not run: {name}: {why}")?;
        }
        Ok(())
    }

    fn row(&self, slot: Slot) -> Vec<String> {
        let results = self.results;
        let millis = |us: Option<f64>| text(us.map(|us| us / 1e3), 2);
        vec![
            slot.0.name().to_owned(),
            slot.1.to_string(),
            text(results.median(slot, |sample| Some(sample.ops_per_second)), 0),
            percent(results.hello_ratio(slot)),
            text(results.single_ratio(slot), 2),
            text(results.cost(slot, |costs| costs.fsyncs), 3),
            text(results.cost(slot, |costs| costs.bytes), 0),
            text(results.cost(slot, |costs| costs.writer_us), 1),
            text(results.cost(slot, |costs| costs.cpu_us), 1),
            text(results.median(slot, |sample| sample.client_cpu.map(|share| share * 100.0)), 0),
            text(results.cost(slot, |costs| costs.ops_per_commit), 1),
            millis(results.median(slot, |sample| sample.p50_us)),
            millis(results.median(slot, |sample| sample.p99_us)),
            millis(results.median(slot, |sample| sample.archive_lag_us)),
            results.errors(slot).to_string(),
        ]
    }

    fn print_idle(&self, out: &mut impl Write) -> Result<()> {
        if let Some(memory) = &self.idle.memory {
            let (resident, anonymous) = (mib(memory.resident), mib(memory.anonymous));
            writeln!(out, "memory   {resident:.1} MiB resident when idle, {anonymous:.1} MiB of it its own\n")?;
        }
        for Waits { what, bytes, cpu } in &self.idle.waits {
            let (above, each) = (mib(*bytes), *bytes as f64 / 1024.0 / WAITS as f64);
            let (cpu, what) = (cpu * 100.0, what.name());
            writeln!(
                out,
                "waits    {above:.1} MiB more with {WAITS} who wait for {what} ({each:.1} KiB each, connections included), {cpu:.2} % of a core\n"
            )?;
        }
        if let Some(Burst { peak, log, refused, lost, seconds }) = &self.idle.burst {
            let (peak, log) = (mib(*peak), mib(*log));
            writeln!(
                out,
                "burst    {peak:.1} MiB resident at most and a log of {log:.1} MiB with {} connections that send 1 MB four times each, {seconds:.1} s; {refused} asked to come back, {lost} lost\n",
                burst::CONNECTIONS
            )?;
        }
        let load = self.idle.mesh.as_ref();
        if let Some(sockets) = load.and_then(|load| load.sockets.as_ref()) {
            let Sockets { count, bytes, resident, cpu, reconnected_per_second } = sockets;
            let (above, all, each, cpu) =
                (mib(*bytes), mib(*resident), *bytes as f64 / 1024.0 / *count as f64, cpu * 100.0);
            writeln!(
                out,
                "sockets  {above:.1} MiB more with {count} idle members ({each:.1} KiB each, {all:.1} MiB in all), {cpu:.2} % of a core; connected again at {reconnected_per_second:.0}/s\n"
            )?;
        }
        if let Some(drain) = load.and_then(|load| load.drain.as_ref()) {
            let Drain { messages, peak, accepted_per_second, reconnected_ms, drained_per_second, misplaced } = drain;
            writeln!(
                out,
                "drain    {messages} messages taken at {accepted_per_second:.0}/s without a broker, connected again after {reconnected_ms:.0} ms and drained at {drained_per_second:.0}/s, {:.1} MiB at most, {misplaced} out of order\n",
                mib(*peak)
            )?;
        }
        if let (Some(least), Some(middle)) = (self.idle.startup_ms.first(), median(self.idle.startup_ms.clone())) {
            let starts = self.idle.startup_ms.len();
            writeln!(out, "startup  {least:.0} ms at best, {middle:.0} ms median of {starts} starts\n")?;
        }
        Ok(())
    }

    fn errors(&self) -> impl Iterator<Item = (Slot, &String, u64)> {
        self.results.samples.iter().flat_map(|(slot, rounds)| {
            let mut sums = std::collections::BTreeMap::new();
            for (what, count) in rounds.iter().flatten().flat_map(|sample| &sample.errors) {
                *sums.entry(what).or_insert(0) += count;
            }
            sums.into_iter().map(|(what, count)| (*slot, what, count))
        })
    }

    pub fn json(&self) -> Value {
        let rows: Vec<Value> = self.results.slots().map(|slot| self.json_row(slot)).collect();
        json!({
            "settings": self.settings,
            "contestants": rows,
            "memory": self.idle.memory.as_ref().map(|memory| json!({
                "resident_bytes": memory.resident, "anonymous_bytes": memory.anonymous,
            })),
            "startup_ms": self.idle.startup_ms,
            "waits": self.idle.waits.iter().map(|waits| json!({
                "for": waits.what.name(), "bytes": waits.bytes, "cpu": waits.cpu, "count": WAITS,
            })).collect::<Vec<_>>(),
            "burst": self.idle.burst.as_ref().map(|burst| json!({
                "peak_bytes": burst.peak, "log_bytes": burst.log, "refused": burst.refused, "lost": burst.lost,
                "seconds": burst.seconds,
            })),
            "mesh": self.idle.mesh.as_ref().map(json_mesh),
            "targets": self.targets.iter().map(Target::json).collect::<Vec<_>>(),
            "failures": self.results.failures,
        })
    }

    fn json_row(&self, slot: Slot) -> Value {
        let results = self.results;
        json!({
            "name": slot.0.name(),
            "connections": slot.1,
            "ops_per_second": results.median(slot, |sample| Some(sample.ops_per_second)),
            "of_hello": results.hello_ratio(slot),
            "of_one_connection": results.single_ratio(slot),
            "rounds": results.rounds(slot).iter().map(|sample| sample.as_ref().map(json_sample)).collect::<Vec<_>>(),
        })
    }
}

fn json_mesh(load: &Load) -> Value {
    json!({
        "sockets": load.sockets.as_ref().map(|sockets| json!({
            "count": sockets.count, "bytes": sockets.bytes, "resident_bytes": sockets.resident, "cpu": sockets.cpu,
            "reconnected_per_second": sockets.reconnected_per_second,
        })),
        "drain": load.drain.as_ref().map(|drain| json!({
            "messages": drain.messages, "peak_bytes": drain.peak, "accepted_per_second": drain.accepted_per_second,
            "reconnected_ms": drain.reconnected_ms, "drained_per_second": drain.drained_per_second,
            "misplaced": drain.misplaced,
        })),
    })
}

fn json_sample(sample: &Sample) -> Value {
    json!({
        "ops_per_second": sample.ops_per_second,
        "p50_us": sample.p50_us,
        "p95_us": sample.p95_us,
        "p99_us": sample.p99_us,
        "archive_lag_us": sample.archive_lag_us,
        "fsyncs_per_op": sample.costs.fsyncs,
        "bytes_per_op": sample.costs.bytes,
        "writer_us_per_op": sample.costs.writer_us,
        "cpu_us_per_op": sample.costs.cpu_us,
        "client_cpu": sample.client_cpu,
        "ops_per_commit": sample.costs.ops_per_commit,
        "errors": sample.errors,
    })
}

pub fn mib(bytes: u64) -> f64 {
    bytes as f64 / (1024.0 * 1024.0)
}

fn text(value: Option<f64>, decimals: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.decimals$}"))
}

pub fn percent(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{:.1} %", ratio * 100.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0]), Some(2.5));
    }
}
