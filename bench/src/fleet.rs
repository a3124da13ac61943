//! Everything that runs during a heat: servers, their database, and one slice of each.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::cluster::{self, Cluster};
use crate::contest::{Contestant, Engine, PAUSE, Sample, Settings, Slot};
use crate::costs::{Costs, Counters, PerOp, wal_costs};
use crate::graphile::Installed;
use crate::load::{self, Plan};
use crate::mail::{self, Offices};
use crate::mesh::{self, Pairs};
use crate::process::{Server, cpu_seconds};
use crate::queues::{Counter, Deed, Hall, House, Slice, Turns, opened_at};
use crate::request::Template;
use crate::script::{Lifecycle, Script, Timed};
use crate::site::{OBLIGATIONS, Site, Station};
use crate::{disk, http, pgbench};

const WARMUP: Duration = Duration::from_millis(300);
/// PostgreSQL's processes report what they did at most once a second, and then only when they do something.
const REPORT_INTERVAL: Duration = Duration::from_millis(1100);
const REPORT_NUDGE: Duration = Duration::from_millis(100);

/// Whose database pgbench sends to.
const POSTGRES_SENDS: Contestant = Contestant::Queue(House::Postgres, Deed::Send);

/// Of a server's data, and the name of its database.
fn folder(contestant: Contestant) -> String {
    contestant.name().replace([' ', '+'], "_").to_lowercase()
}

/// Fields are dropped in order: servers before their database.
pub struct Fleet<'a> {
    settings: &'a Settings,
    dir: &'a Path,
    hello: Option<Server>,
    stations: BTreeMap<Contestant, Station>,
    queues: BTreeMap<Contestant, Counter>,
    hall: Hall,
    mail: Offices,
    mesh: Pairs,
    graphile: Option<Installed>,
    cluster: Option<Cluster>,
    slices: usize,
}

impl<'a> Fleet<'a> {
    pub fn new(settings: &'a Settings, dir: &'a Path) -> Self {
        Self {
            settings,
            dir,
            hello: None,
            stations: BTreeMap::new(),
            queues: BTreeMap::new(),
            hall: Hall::default(),
            mail: Offices::new(&settings.waybill, dir, settings.agent_mail.as_deref()),
            mesh: Pairs::new(&settings.waybill, dir),
            graphile: None,
            cluster: None,
            slices: 0,
        }
    }

    pub async fn prepare(&mut self, contestant: Contestant) -> Result<()> {
        match contestant {
            Contestant::Fdatasync(_) => {}
            Contestant::Hello | Contestant::HelloBeside | Contestant::HelloMesh => {
                self.hello = Some(Server::hello(&self.dir.join("hello")).await?)
            }
            Contestant::Graphile(_) if self.graphile.is_some() => {}
            Contestant::Graphile(_) => {
                let home = self.settings.graphile.as_deref();
                let home = home.context("not installed; `cargo xtask bench` does that, or give --graphile")?;
                let url = self.cluster().await?.database("graphile").await?;
                self.graphile = Some(Installed::new(home, self.dir, url)?);
            }
            // pgbench needs the tables that the product's migrations make.
            Contestant::Pgbench => return Box::pin(self.prepare(Contestant::Postgres)).await,
            Contestant::PgbenchSends => return Box::pin(self.prepare(POSTGRES_SENDS)).await,
            Contestant::Queue(house, deed) if self.hall.has(house, deed) => {}
            Contestant::Queue(house, deed) => {
                let site = match contestant.engine() {
                    Some(_) => Some(self.site(contestant).await?),
                    None => None,
                };
                self.hall.prepare((house, deed), site, &self.settings.rivals, self.dir).await?;
            }
            Contestant::Mail(house, deed) => self.mail.prepare(house, deed).await?,
            Contestant::Mesh(deed) => self.mesh.prepare(deed).await?,
            _ if self.stations.contains_key(&contestant) => {}
            _ => {
                let site = self.site(contestant).await?;
                let station = match contestant {
                    Contestant::Obligations(_) => site.with_a_long_ledger().await?,
                    Contestant::ClaimPast(_) => site.with_a_backlog().await?,
                    _ => site.open().await?,
                };
                if let Contestant::Send(_) = contestant {
                    let queue = opened_at(&station.server, "bench", &serde_json::Value::Null).await?;
                    self.queues.insert(contestant, queue);
                }
                if matches!(contestant, Contestant::Sqlite | Contestant::Postgres) {
                    create_one(&station.server).await?;
                }
                self.stations.insert(contestant, station);
            }
        }
        Ok(())
    }

    /// A folder and, on PostgreSQL, a database of its own.
    async fn site(&mut self, contestant: Contestant) -> Result<Site> {
        let name = folder(contestant);
        let store = match contestant.engine() {
            Some(Engine::Sqlite) => None,
            Some(Engine::Postgres) if contestant == Contestant::Postgres => Some(self.cluster().await?.url()),
            Some(Engine::Postgres) => Some(self.cluster().await?.database(&name).await?),
            None => bail!("{name} is not a server of the product"),
        };
        Ok(Site { waybill: self.settings.waybill.clone(), data: self.dir.join(name), store })
    }

    /// Started when the first contestant needs it; a second attempt would fail as the first did.
    async fn cluster(&mut self) -> Result<&Cluster> {
        if self.cluster.is_none() && !self.dir.join("pg").exists() {
            let cluster = Cluster::start(self.settings.pg_bin.as_deref(), &self.dir.join("pg")).await?;
            self.cluster = Some(cluster);
        }
        self.cluster.as_ref().context("PostgreSQL did not start")
    }

    /// The end of a heat: the servers stop, and what they kept in folders is removed.
    pub fn dismiss(&mut self) -> Result<()> {
        self.hello = None;
        self.queues.clear();
        self.mail.dismiss()?;
        self.mesh.dismiss()?;
        let halls = self.hall.dismiss();
        for (contestant, station) in std::mem::take(&mut self.stations) {
            drop(station);
            std::fs::remove_dir_all(self.dir.join(folder(contestant)))?;
        }
        for (house, deed) in halls {
            let folder = self.dir.join(folder(Contestant::Queue(house, deed)));
            if folder.exists() {
                std::fs::remove_dir_all(folder)?;
            }
        }
        Ok(())
    }

    pub async fn slice(&mut self, (contestant, connections): Slot) -> Result<Sample> {
        self.slices += 1;
        match contestant {
            Contestant::Fdatasync(raw) => {
                let (dir, measure) = (self.dir.to_owned(), self.settings.measure);
                let outcome = tokio::task::spawn_blocking(move || disk::write_and_sync(&dir, raw, measure)).await??;
                let bytes = disk::bytes_of(raw) as f64;
                let costs = Costs { fsyncs: Some(1.0), bytes: Some(bytes), ..Costs::default() };
                Sample::new(outcome, costs)
            }
            Contestant::Hello | Contestant::HelloBeside | Contestant::HelloMesh => {
                let server = self.hello.as_mut().context("not running")?;
                server.check_running()?;
                let before = cpu_seconds(server.pid());
                let key = server.key.as_deref();
                let hello = Template::task(server.http, "/hello", key, self.slices, self.settings.idempotent);
                let outcome = load::run(plan(server, Script::Single(hello), connections, self.settings)).await?;
                let per_op = PerOp(outcome.ops_total);
                let cpu_us = per_op.share(before, cpu_seconds(server.pid()), 1e6);
                Sample::new(outcome, Costs { cpu_us, ..Costs::default() })
            }
            Contestant::Pgbench => self.pgbench(cluster::DATABASE, pgbench::CREATE_TASK, connections).await,
            Contestant::PgbenchSends => self.pgbench(&folder(POSTGRES_SENDS), pgbench::SEND_MESSAGE, connections).await,
            Contestant::Queue(house, deed) => {
                let slice = Slice { number: self.slices, connections, warmup: WARMUP, measure: self.settings.measure };
                self.hall.slice((house, deed), slice).await
            }
            Contestant::Mail(house, deed) => {
                let (number, measure) = (self.slices, self.settings.measure);
                self.mail.slice(house, deed, mail::Slice { number, connections, warmup: WARMUP, measure }).await
            }
            Contestant::Mesh(deed) => {
                let (number, measure) = (self.slices, self.settings.measure);
                self.mesh.slice(deed, mesh::Slice { number, connections, warmup: WARMUP, measure }).await
            }
            Contestant::Graphile(what) => {
                let installed = self.graphile.as_ref().context("not prepared")?;
                let cluster = self.cluster.as_ref().context("not running")?;
                installed.slice(cluster, what, connections, WARMUP, self.settings.measure).await
            }
            Contestant::Postgres | Contestant::Lifecycle(Engine::Postgres) => {
                self.logged_slice(contestant, connections).await
            }
            _ => {
                let station = self.stations.get_mut(&contestant).context("not running")?;
                station.server.check_running()?;
                let before = Counters::read(&station.server).await?;
                let plan = match self.queues.get(&contestant) {
                    Some(queue) => {
                        let send = Script::Queue(Turns::Send(queue.send()?));
                        Plan { addr: queue.addr.into(), ..plan(&station.server, send, connections, self.settings) }
                    }
                    None => {
                        let script = script(contestant, station, self.slices, self.settings)?;
                        plan(&station.server, script, connections, self.settings)
                    }
                };
                let outcome = load::run(plan).await?;
                let costs = Counters::read(&station.server).await?.since(&before, outcome.ops_total);
                // Reads write nothing but the log, and for PostgreSQL the server's own bytes are not all there is.
                let reads = matches!(contestant, Contestant::Obligations(_));
                let whole = contestant.engine() == Some(Engine::Sqlite) && !reads;
                Sample::new(outcome, Costs { bytes: costs.bytes.filter(|_| whole), ..costs })
            }
        }
    }

    async fn pgbench(&self, database: &str, script: &str, connections: usize) -> Result<Sample> {
        let cluster = self.cluster.as_ref().context("not running")?;
        let before = cluster.wal().await?;
        let outcome = pgbench::run(cluster, database, script, connections, self.settings.measure).await?;
        let costs = wal_costs(&before, &cluster.wal().await?, outcome.ops_total);
        Sample::new(outcome, costs)
    }

    /// With what PostgreSQL has written to its log for it.
    async fn logged_slice(&mut self, contestant: Contestant, connections: usize) -> Result<Sample> {
        let station = self.stations.get_mut(&contestant).context("not running")?;
        let cluster = self.cluster.as_ref().context("not running")?;
        station.server.check_running()?;
        let (before, wal_before) = (Counters::read(&station.server).await?, cluster.wal().await?);
        let script_of = |slice| script(contestant, station, slice, self.settings);
        let outcome = load::run(plan(&station.server, script_of(self.slices)?, connections, self.settings)).await?;
        let own = Counters::read(&station.server).await?.since(&before, outcome.ops_total);

        // The nudge makes every busy backend report; what it creates is part of the division. It is a slice of its own,
        // or its keys would be repeats.
        tokio::time::sleep(REPORT_INTERVAL).await;
        self.slices += 1;
        let nudge = plan(&station.server, script_of(self.slices)?, connections, self.settings);
        let nudge = Plan { warmup: Duration::ZERO, measure: REPORT_NUDGE, ..nudge };
        let all = outcome.ops_total + load::run(nudge).await?.ops_total;
        tokio::time::sleep(PAUSE).await;
        let wal = wal_costs(&wal_before, &cluster.wal().await?, all);
        Sample::new(outcome, Costs { fsyncs: wal.fsyncs, bytes: wal.bytes, ..own })
    }
}

/// Verifies the key and the route once, before anything is measured.
async fn create_one(server: &Server) -> Result<()> {
    let body = r#"{"type":"echo","payload":{"n":1},"idempotency_key":"b-first"}"#;
    let answer = http::post(server.http, "/v1/tasks", server.key.as_deref(), body).await?;
    if answer.status != 201 {
        bail!("create_task answered {}: {}", answer.status, answer.body.trim());
    }
    Ok(())
}

fn plan(server: &Server, script: Script, connections: usize, settings: &Settings) -> Plan {
    Plan { addr: server.http.into(), connections, script, warmup: WARMUP, measure: settings.measure, signed_ahead: 0 }
}

fn script(contestant: Contestant, station: &Station, slice: usize, settings: &Settings) -> Result<Script> {
    let (addr, keys) = (station.server.http, &station.keys);
    let lifecycle = |timed| Script::Lifecycle(Box::new(Lifecycle::new(addr, keys, slice, settings.idempotent, timed)));
    Ok(match contestant {
        Contestant::Sqlite | Contestant::Postgres => {
            let key = station.server.key.as_deref();
            Script::Single(Template::task(addr, "/v1/tasks", key, slice, settings.idempotent))
        }
        Contestant::Lifecycle(_) => lifecycle(Timed::Lifecycle),
        Contestant::Claim(_) | Contestant::ClaimPast(_) => lifecycle(Timed::Claim),
        Contestant::Obligations(_) => Script::Single(Template::get(addr, OBLIGATIONS, &keys.owner)),
        _ => bail!("{} does not go over HTTP to the product", contestant.name()),
    })
}
