//! PostgreSQL below the broker: killed and started again in place, cut off between COMMIT and its reply, or failed over to its
//! synchronous standby, in turn. The broker serves on and says honestly what it does not know; daemons send again, and each
//! message is accepted once.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::time::sleep;

use super::mesh::Fault;
use crate::cluster::Cluster;
use crate::load::Load;
use crate::mesh::Party;
use crate::proxy::Proxy;
use crate::rng::{Rng, Stream};
use crate::server::{Launch, Server};
use crate::standby;

/// How long the database stays away beyond the time it needs itself.
const AWAY_MS_MAX: u64 = 300;
/// How long the log is held back from the standby before the primary is killed.
const LAG_MS_MAX: u64 = 300;
const IN_TURN: [Harm; 3] = [Harm::Kill, Harm::Cut, Harm::FailOver];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Harm {
    Kill,
    Cut,
    FailOver,
}

pub struct Database {
    folder: PathBuf,
    seed: u64,
    rng: Rng,
    servers: Option<Servers>,
    rounds: usize,
    cuts_before: u64,
    told: String,
}

struct Servers {
    /// Leads the broker to the primary.
    proxy: Proxy,
    primary: Cluster,
    /// Down, and made the standby of a fail-over; after it, the primary of before.
    other: Cluster,
}

impl Servers {
    async fn create(folder: &Path, seed: u64) -> Result<Servers> {
        let primary = Cluster::create(folder).await?;
        standby::prepare(&primary).await?;
        let other = primary.beside("postgres-2")?;
        let proxy = Proxy::start(primary.port, seed, false).await?;
        Ok(Servers { proxy, primary, other })
    }

    /// There is a standby only for a fail-over: without one to wait for, a primary that was killed would answer no commit.
    async fn attach(self) -> Result<Servers> {
        let (other, _) = standby::follow(self.primary.port, self.other).await?;
        standby::attach(&self.primary, true).await?;
        Ok(Servers { other, ..self })
    }

    async fn kill(&mut self, away: Duration) -> Result<String> {
        self.primary.kill().await?;
        sleep(away).await;
        self.primary.start().await.context("PostgreSQL after the kill")?;
        Ok(format!("PostgreSQL killed, away for {} ms and its recovery", away.as_millis()))
    }

    async fn fail_over(&mut self, lag: Duration) -> Result<String> {
        let (killed, behind) = standby::kill_late(&mut self.primary, &self.other, lag).await?;
        standby::promote(&self.other).await.context("promoting the standby")?;
        std::mem::swap(&mut self.primary, &mut self.other);
        self.proxy.aim(self.primary.port);
        let (lag_ms, took) = (lag.as_millis(), killed.elapsed().as_secs_f64());
        let commits = behind.commits;
        Ok(format!("failed over in {took:.1} s with the log {lag_ms} ms late ({commits} commits without an answer)"))
    }
}

impl Database {
    pub fn new(folder: PathBuf, seed: u64) -> Self {
        let rng = Rng::new(seed, Stream::Fault);
        Database { folder, seed, rng, servers: None, rounds: 0, cuts_before: 0, told: String::new() }
    }

    /// Of the round that was begun last.
    fn harm(&self) -> Harm {
        IN_TURN[self.rounds.saturating_sub(1) % IN_TURN.len()]
    }
}

impl Fault<Party> for Database {
    async fn prepare(&mut self, _party: &mut Party, launch: &mut Launch) -> Result<()> {
        let servers = self.servers.insert(Servers::create(&self.folder, self.seed).await?);
        launch.extra.extend(["--store".into(), Cluster::url(servers.proxy.port)]);
        Ok(())
    }

    async fn begin(&mut self, _party: &mut Party, broker: Server, _launch: &Launch, _data: &Path) -> Result<Server> {
        self.rounds += 1;
        let mut servers = self.servers.take().context("no PostgreSQL was made")?;
        if self.harm() == Harm::FailOver {
            servers = servers.attach().await?;
        }
        self.cuts_before = servers.proxy.cuts();
        servers.proxy.arm(self.harm() == Harm::Cut);
        self.servers = Some(servers);
        Ok(broker)
    }

    async fn strike(&mut self, _party: &mut Party, broker: Server, _load: &Load) -> Result<Option<Server>> {
        let harm = self.harm();
        let servers = self.servers.as_mut().context("no PostgreSQL was made")?;
        servers.proxy.arm(false);
        self.told = match harm {
            Harm::Kill => servers.kill(Duration::from_millis(self.rng.below(AWAY_MS_MAX))).await?,
            Harm::Cut => format!("{} commits cut off from their replies", servers.proxy.cuts() - self.cuts_before),
            Harm::FailOver => servers.fail_over(Duration::from_millis(self.rng.below(LAG_MS_MAX))).await?,
        };
        Ok(Some(broker))
    }

    fn told(&self) -> String {
        self.told.clone()
    }
}
