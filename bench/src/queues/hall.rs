//! The queues of one heat, whoever serves them, and one slice of each.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::rivals::{Homes, Rival};
use super::speech::{BATCH, Counter, opened_at};
use super::turns::{EndToEnd, Fifo, Line, Take, Timed, Turns};
use super::{Deed, House, name, single};
use crate::contest::Sample;
use crate::costs::{Costs, Counters, PerOp};
use crate::load::{self, Plan};
use crate::process::cpu_seconds;
use crate::script::Script;
use crate::site::{Site, Station};

const FEW: u64 = 100;
const MANY: u64 = 1_000_000;
const IN_FLIGHT: u64 = 100_000;
const LOCKED: u64 = 100_000;
const LOCKED_GROUP: &str = "locked";
const FILLERS: usize = 16;
const FILL: Duration = Duration::from_millis(250);
/// As long as SQS lets a message be invisible.
const LONG_S: u64 = 43_200;
/// Requests a second and connection that are signed ahead where each has a signature of its own: about twice as many as are
/// sent by one of 64.
const AHEAD_PER_SECOND: u64 = 600;

/// Fields are dropped in order.
#[derive(Default)]
pub struct Hall {
    opened: BTreeMap<(House, Deed), Opened>,
    rivals: BTreeMap<House, Rival>,
}

struct Opened {
    counter: Counter,
    /// Of the product's.
    station: Option<Station>,
    /// Messages that are there to be received.
    stock: u64,
}

/// When and how long.
#[derive(Clone, Copy)]
pub struct Slice {
    pub number: usize,
    pub connections: usize,
    pub warmup: Duration,
    pub measure: Duration,
}

impl Hall {
    pub fn has(&self, house: House, deed: Deed) -> bool {
        self.opened.contains_key(&(house, deed))
    }

    /// `site` is for the product's own.
    pub async fn prepare(
        &mut self,
        (house, deed): (House, Deed),
        site: Option<Site>,
        homes: &Homes,
        dir: &Path,
    ) -> Result<()> {
        let mut opened = match site {
            Some(site) => {
                let station = site.open().await?;
                let (queue, attributes) = match deed.is_fifo() {
                    true => ("bench.fifo", json!({ "FifoQueue": "true" })),
                    false => ("bench", Value::Null),
                };
                let counter = opened_at(&station.server, queue, &attributes).await?;
                Opened { counter, station: Some(station), stock: 0 }
            }
            None => {
                if let Entry::Vacant(place) = self.rivals.entry(house) {
                    let folder = dir.join(name(house, Deed::Send).replace(' ', "_"));
                    place.insert(Rival::start(house, homes, &folder).await?);
                }
                let rival = self.rivals.get(&house).context("not running")?;
                let counter = rival.open(&format!("bench{}", self.opened.len())).await?;
                Opened { counter, station: None, stock: 0 }
            }
        };
        match deed {
            Deed::Few => opened.fill(FEW).await?,
            Deed::Many => {
                opened.fill(MANY).await?;
                opened.put_in_flight(IN_FLIGHT).await?;
            }
            Deed::Locked => opened.lock().await?,
            _ => {}
        }
        self.opened.insert((house, deed), opened);
        Ok(())
    }

    /// Stops them all; who they were.
    pub fn dismiss(&mut self) -> Vec<(House, Deed)> {
        let opened = std::mem::take(&mut self.opened);
        self.rivals.clear();
        opened.into_keys().collect()
    }

    pub async fn slice(&mut self, (house, deed): (House, Deed), slice: Slice) -> Result<Sample> {
        let opened = self.opened.get_mut(&(house, deed)).context("not running")?;
        let pid = match &mut opened.station {
            Some(station) => {
                station.server.check_running()?;
                station.server.pid()
            }
            None => {
                let rival = self.rivals.get_mut(&house).context("not running")?;
                rival.process.check_running()?;
                rival.process.pid()
            }
        };
        match (deed, &opened.station) {
            (Deed::Wake, _) => {
                let outcome = single::wake(&opened.counter, slice.measure).await?;
                return Sample::new(outcome, Costs::default());
            }
            (Deed::Large, Some(station)) => {
                let (outcome, costs) = single::receive_large(&station.server, &opened.counter).await?;
                return Sample::new(outcome, costs);
            }
            _ => {}
        }
        if deed == Deed::Take {
            let seconds = (slice.warmup + slice.measure).as_secs() + 1;
            opened.fill(seconds * expected_per_second(house)).await?;
        }
        let turns = opened.turns(deed, slice.number)?;
        let (before, cpu_before) = (opened.counters().await?, cpu_seconds(pid));
        let outcome = load::run(opened.plan(turns, slice)).await?;
        if deed == Deed::Take {
            opened.stock = opened.stock.saturating_sub(outcome.ops_total);
        }
        let costs = match (opened.counters().await?, before) {
            (Some(after), Some(before)) => after.since(&before, outcome.ops_total),
            _ => {
                let cpu_us = PerOp(outcome.ops_total).share(cpu_before, cpu_seconds(pid), 1e6);
                Costs { cpu_us, ..Costs::default() }
            }
        };
        // For PostgreSQL the server's own bytes are not all there is.
        let bytes = costs.bytes.filter(|_| house != House::Postgres);
        Sample::new(outcome, Costs { bytes, ..costs })
    }
}

/// More than anybody has been seen to receive and delete.
const fn expected_per_second(house: House) -> u64 {
    match house {
        House::Fauxqs => 5_000,
        House::ElasticMq => 50_000,
        House::Sqlite | House::Postgres => 90_000,
    }
}

impl Opened {
    async fn counters(&self) -> Result<Option<Counters>> {
        match &self.station {
            Some(station) => Counters::read(&station.server).await.map(Some),
            None => Ok(None),
        }
    }

    fn turns(&self, deed: Deed, slice: usize) -> Result<Turns> {
        let counter = &self.counter;
        Ok(match deed {
            // Signed once: all that follow are the same.
            Deed::Send => Turns::Send(counter.send()?),
            Deed::Batch => Turns::Batch(counter.send_batch()?),
            Deed::Take => Turns::Take(Box::new(Take::new(counter, BATCH, Timed::Both)?)),
            Deed::EndToEnd => Turns::EndToEnd(Box::new(EndToEnd::new(counter)?)),
            Deed::Fifo => Turns::Fifo(Box::new(Fifo::new(counter, slice, true)?)),
            Deed::Few | Deed::Many | Deed::Free | Deed::Locked => Turns::Steady {
                send: Box::new(Fifo::new(counter, slice, deed.is_fifo())?),
                take: Box::new(Take::new(counter, 1, Timed::Receive)?),
            },
            Deed::Wake | Deed::Large => bail!("not a load"),
        })
    }

    fn plan(&self, turns: Turns, slice: Slice) -> Plan {
        let ahead = (slice.warmup + slice.measure).as_secs() + 1;
        Plan {
            addr: self.counter.addr.into(),
            connections: slice.connections,
            script: Script::Queue(turns),
            warmup: slice.warmup,
            measure: slice.measure,
            signed_ahead: (ahead * AHEAD_PER_SECOND) as usize,
        }
    }

    /// What the turns have done, all of it.
    async fn repeat(&self, turns: Turns, connections: usize, measure: Duration) -> Result<u64> {
        let slice = Slice { number: 0, connections, warmup: Duration::ZERO, measure };
        let outcome = load::run(Plan { signed_ahead: 0, ..self.plan(turns, slice) }).await?;
        if let Some((what, _)) = outcome.errors.first_key_value() {
            bail!("while it was filled: {what}");
        }
        Ok(outcome.ops_total)
    }

    /// Until there is at least so much.
    async fn fill(&mut self, wanted: u64) -> Result<()> {
        let turns = Turns::Batch(self.counter.send_batch()?);
        if wanted <= FEW {
            for _ in 0..wanted / BATCH as u64 {
                self.counter.ask(&self.counter.send_batch()?).await?;
            }
            self.stock += wanted;
            return Ok(());
        }
        while self.stock < wanted {
            self.stock += self.repeat(turns.clone(), FILLERS, FILL).await?;
        }
        Ok(())
    }

    async fn put_in_flight(&mut self, wanted: u64) -> Result<()> {
        let input = json!({ "MaxNumberOfMessages": BATCH, "VisibilityTimeout": LONG_S });
        let receive = self.counter.post("ReceiveMessage", input)?;
        let mut flying = 0;
        while flying < wanted {
            flying += self.repeat(Turns::Receive(receive.clone()), 4, FILL / 5).await?;
        }
        Ok(())
    }

    /// A hundred thousand of one group, of which one was received.
    async fn lock(&mut self) -> Result<()> {
        let (mut count, mut slice) = (0, 0);
        while count < LOCKED {
            slice += 1;
            let line = Line::new(&self.counter, LOCKED_GROUP, slice)?;
            count += self.repeat(Turns::Line(Box::new(line)), FILLERS, FILL).await?;
        }
        let input = json!({ "MaxNumberOfMessages": 1, "VisibilityTimeout": LONG_S });
        self.counter.ask(&self.counter.post("ReceiveMessage", input)?).await?;
        Ok(())
    }
}
