//! The offices of the heat, and one slice of each deed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::sync::watch;

use super::archive::Watch;
use super::guard::Repository;
use super::office::{Office, Running};
use super::rival::Rival;
use super::turns::What;
use super::{Deed, House, name};
use crate::contest::Sample;
use crate::costs::{Costs, Counters, PerOp};
use crate::load::Outcome;
use crate::process::cpu_seconds;
use crate::site::Site;

/// As many as send at once.
const AGENTS: usize = 64;
/// Those who have all of the 100,000 messages between them: long inboxes are the harder case.
const AGENTS_OF_MANY: usize = 8;
const AGENTS_OF_RIVAL: usize = 8;
const MANY: u64 = 100_000;
/// An office with few messages is opened anew when the slices have sent so many to it.
const FEW_MAX: u64 = 20_000;
const PACE_PER_SECOND: u64 = 1_000;

pub struct Offices {
    waybill: PathBuf,
    dir: PathBuf,
    /// Where mcp-agent-mail is installed.
    agent_mail: Option<PathBuf>,
    open: BTreeMap<House, Office>,
    /// Why one could not be opened: a second attempt would fail as the first did.
    failed: BTreeMap<House, String>,
    repository: Option<Repository>,
    /// Folders are used once.
    opened: usize,
    sites: BTreeMap<House, Site>,
    /// Of offices that were closed. They are removed when nothing is measured any more: ext4 passes over the inodes of files that
    /// were deleted within the last minutes, one by one, for every file that the archive makes.
    left: Vec<PathBuf>,
}

/// When and how long.
#[derive(Clone, Copy)]
pub struct Slice {
    pub number: usize,
    pub connections: usize,
    pub warmup: Duration,
    pub measure: Duration,
}

impl Offices {
    pub fn new(waybill: &Path, dir: &Path, agent_mail: Option<&Path>) -> Self {
        Self {
            waybill: waybill.to_owned(),
            dir: dir.to_owned(),
            agent_mail: agent_mail.map(Path::to_owned),
            open: BTreeMap::new(),
            failed: BTreeMap::new(),
            repository: None,
            opened: 0,
            sites: BTreeMap::new(),
            left: Vec::new(),
        }
    }

    pub async fn prepare(&mut self, house: House, deed: Deed) -> Result<()> {
        if let Some(why) = self.failed.get(&house) {
            bail!("{why}");
        }
        if !self.open.contains_key(&house)
            && let Err(error) = self.open(house).await
        {
            self.failed.insert(house, format!("{error:#}"));
            return Err(error);
        }
        if deed == Deed::Search {
            self.open.get(&house).context("not running")?.check_search().await?;
        }
        Ok(())
    }

    async fn open(&mut self, house: House) -> Result<()> {
        self.opened += 1;
        let data = self.dir.join(format!("{}_{}", name(house, Deed::Send).replace(' ', "_"), self.opened));
        if house == House::AgentMail {
            let rival = Rival::start(self.agent_mail.as_deref(), &data).await?;
            self.open.insert(house, Office::of_rival(rival, AGENTS_OF_RIVAL).await?);
            return Ok(());
        }
        let site = Site { waybill: self.waybill.clone(), data, store: None };
        let office = match house {
            House::Many => {
                let mut office = Office::open(&site, AGENTS_OF_MANY).await?;
                office.fill(MANY).await?;
                office
            }
            _ => Office::open(&site, AGENTS).await?,
        };
        self.open.insert(house, office);
        self.sites.insert(house, site);
        Ok(())
    }

    /// Stops them all, and removes what the product's kept.
    pub fn dismiss(&mut self) -> Result<()> {
        self.repository = None;
        for house in [House::Few, House::Many, House::AgentMail] {
            self.close(house);
        }
        for folder in std::mem::take(&mut self.left) {
            std::fs::remove_dir_all(folder)?;
        }
        Ok(())
    }

    fn close(&mut self, house: House) {
        drop(self.open.remove(&house));
        self.left.extend(self.sites.remove(&house).map(|site| site.data));
    }

    pub async fn slice(&mut self, house: House, deed: Deed, slice: Slice) -> Result<Sample> {
        let is_grown = self.open.get(&house).is_some_and(|office| office.messages > FEW_MAX);
        if house == House::Few && is_grown {
            self.repository = None;
            self.close(house);
            self.open(house).await?;
        }
        let office = self.open.get_mut(&house).context("not running")?;
        let Slice { number, connections, warmup, measure } = slice;
        let what = match deed {
            Deed::Send => What::Send { slice: number, every: None },
            Deed::Paced => {
                let every = Duration::from_micros(connections as u64 * 1_000_000 / PACE_PER_SECOND);
                What::Send { slice: number, every: Some(every) }
            }
            Deed::Fetch => What::Fetch,
            Deed::Search => What::Search,
            Deed::Guard => return self.guard(house).await,
        };
        let pid = office.house.pid()?;
        let (before, cpu_before) = (counters(office).await?, cpu_seconds(pid));
        let sends = matches!(deed, Deed::Send | Deed::Paced);
        let (outcome, lags) = match &office.house {
            Running::Own(_) if sends => watched(office, what, slice).await?,
            _ => (office.load(what, connections, warmup, measure).await?, None),
        };
        let costs = match (counters(office).await?, before) {
            (Some(after), Some(before)) => after.since(&before, outcome.ops_total),
            _ => {
                let cpu_us = PerOp(outcome.ops_total).share(cpu_before, cpu_seconds(pid), 1e6);
                Costs { cpu_us, ..Costs::default() }
            }
        };
        // Reads write nothing but the log.
        let bytes = costs.bytes.filter(|_| sends);
        let sample = Sample::new(outcome, Costs { bytes, ..costs })?;
        Ok(Sample { archive_lag_us: lags, ..sample })
    }

    async fn guard(&mut self, house: House) -> Result<Sample> {
        let (office, site) = (self.open.get(&house), self.sites.get(&house));
        let (Some(office), Some(site)) = (office, site) else { bail!("not running") };
        let repository = match &self.repository {
            Some(repository) => repository,
            None => self.repository.insert(office.repository(site).await?),
        };
        Sample::new(repository.measure().await?, Costs::default())
    }
}

/// With the 99th percentile of the archive's lag.
async fn watched(office: &mut Office, what: What, slice: Slice) -> Result<(Outcome, Option<f64>)> {
    let looking = Watch::begin(office.house.server().context("not the product's")?).await?;
    let (end, ended) = watch::channel(false);
    let load = async {
        let outcome = office.load(what, slice.connections, slice.warmup, slice.measure).await;
        end.send_replace(true);
        outcome
    };
    let (outcome, lags) = tokio::join!(load, looking.until(ended));
    Ok((outcome?, lags?.quantile_us(0.99)))
}

async fn counters(office: &Office) -> Result<Option<Counters>> {
    match office.house.server() {
        Some(server) => Counters::read(server).await.map(Some),
        None => Ok(None),
    }
}
