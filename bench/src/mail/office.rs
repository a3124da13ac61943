//! One server of mail, its project and the agents in it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::json;

use super::agents::{Agent, PROJECT, next};
use super::archive;
use super::guard::Repository;
use super::letters::push_letter;
use super::mcp::Endpoint;
use super::rival::{self, Rival};
use super::turns::{Turns, What};
use crate::load::{self, Outcome, Plan};
use crate::process::Server;
use crate::product;
use crate::script::Script;
use crate::site::Site;

const PATH: &str = "/mcp/mail";
const SCOPES: [&str; 2] = ["mail:read", "mail:write"];
/// Messages that everybody has got before anything is measured: more than a page.
const SEEDS: u64 = 25;
/// How many agents have got them: as many as fetch.
const FETCHERS: usize = 8;
const FILLERS: usize = 16;
const FILL: Duration = Duration::from_secs(2);
const FILL_MAX: Duration = Duration::from_secs(900);

/// Fields are dropped in order.
pub struct Office {
    pub house: Running,
    endpoint: Endpoint,
    pub agents: Arc<[Agent]>,
    /// Sent so far.
    pub messages: u64,
}

pub enum Running {
    Own(Box<Server>),
    Rival(Rival),
}

impl Office {
    /// Of the product, on a folder of its own. Each agent has a key of its own, and contact with the next.
    pub async fn open(site: &Site, agents: usize) -> Result<Self> {
        let server = site.start().await?;
        let endpoint = Endpoint { addr: server.http, path: PATH };
        let mut keys = Vec::new();
        for place in 0..agents {
            let input = json!({ "principal": format!("agent:bench-{place}"), "scopes": SCOPES });
            let made = product::make_key(&server, &input).await?;
            keys.push(Some(made["key"].as_str().context("no key")?.to_owned()));
        }
        let office = Self::with_agents(Running::Own(Box::new(server)), endpoint, keys, true).await?;
        office.settle().await?;
        Ok(office)
    }

    pub async fn of_rival(rival: Rival, agents: usize) -> Result<Self> {
        let endpoint = Endpoint { addr: rival.addr, path: rival::PATH };
        Self::with_agents(Running::Rival(rival), endpoint, vec![None; agents], false).await
    }

    async fn with_agents(
        house: Running,
        endpoint: Endpoint,
        keys: Vec<Option<String>>,
        asks_for_contact: bool,
    ) -> Result<Self> {
        let first = keys.first().context("no agents")?.as_deref();
        endpoint.call(first, "ensure_project", &json!({ "human_key": PROJECT })).await?;
        let mut agents = Vec::new();
        for key in keys {
            agents.push(Agent::register(&endpoint, PROJECT, key).await?);
        }
        if asks_for_contact {
            for (place, agent) in agents.iter().enumerate() {
                agent.befriend(&endpoint, next(&agents, place)).await?;
            }
        }
        let mut office = Self { house, endpoint, agents: agents.into(), messages: 0 };
        office.seed().await?;
        Ok(office)
    }

    async fn seed(&mut self) -> Result<()> {
        let count = self.agents.len();
        for place in (0..FETCHERS).map(|place| (place + count - 1) % count) {
            let (agent, to) = (&self.agents[place], next(&self.agents, place));
            for sequence in 0..SEEDS {
                let mut text = "{".to_owned();
                push_letter(&mut text, 0, place, sequence);
                text.push('}');
                let mut input: serde_json::Value = serde_json::from_str(&text)?;
                input["project_key"] = PROJECT.into();
                input["sender_name"] = agent.name.as_str().into();
                input["to"] = json!([to.name]);
                self.endpoint.call(agent.key.as_deref(), "send_message", &input).await?;
                self.messages += 1;
            }
        }
        Ok(())
    }

    /// Until there are so many messages, all of them in the archive.
    pub async fn fill(&mut self, wanted: u64) -> Result<()> {
        let began = Instant::now();
        // Of numbers that no slice has.
        let mut slice = 10_000;
        while self.messages < wanted {
            if began.elapsed() > FILL_MAX {
                bail!("only {} of {wanted} messages after {} s", self.messages, FILL_MAX.as_secs());
            }
            slice += 1;
            let what = What::Send { slice, every: None };
            let outcome = self.load(what, FILLERS, Duration::ZERO, FILL).await?;
            if let Some((why, _)) = outcome.errors.first_key_value() {
                bail!("while it was filled: {why}");
            }
        }
        self.settle().await
    }

    async fn settle(&self) -> Result<()> {
        match &self.house {
            Running::Own(server) => archive::settle(server).await,
            Running::Rival(_) => Ok(()),
        }
    }

    /// Keeps the agents at work for a while.
    pub async fn load(
        &mut self,
        what: What,
        connections: usize,
        warmup: Duration,
        measure: Duration,
    ) -> Result<Outcome> {
        let sends = matches!(what, What::Send { .. });
        let turns = Turns::new(self.endpoint.clone(), Arc::clone(&self.agents), what);
        let script = Script::Mail(Box::new(turns));
        let addr = self.endpoint.addr;
        let outcome =
            load::run(Plan { addr: addr.into(), connections, script, warmup, measure, signed_ahead: 0 }).await?;
        if sends {
            self.messages += outcome.ops_total;
        }
        Ok(outcome)
    }

    /// A repository beside the data, with the first agents at work in it.
    pub async fn repository(&self, site: &Site) -> Result<Repository> {
        let folder: PathBuf = site.data.with_extension("repository");
        let agents = &self.agents[..FETCHERS.min(self.agents.len())];
        Repository::make(&self.endpoint, agents, &site.waybill, &site.data, folder).await
    }

    /// At least one message is found by a word that most have a neighbour of.
    pub async fn check_search(&self) -> Result<()> {
        let first = self.agents.first().context("no agents")?;
        let input = json!({ "project_key": PROJECT, "query": super::letters::query(0) });
        let found = self.endpoint.call(first.key.as_deref(), "search_messages", &input).await?;
        match found["result"].as_array().map_or(0, Vec::len) {
            0 => bail!("a search for two common words finds nothing"),
            _ => Ok(()),
        }
    }
}

impl Running {
    pub fn pid(&mut self) -> Result<u32> {
        match self {
            Self::Own(server) => {
                server.check_running()?;
                Ok(server.pid())
            }
            Self::Rival(rival) => {
                rival.process.check_running()?;
                Ok(rival.process.pid())
            }
        }
    }

    pub fn server(&self) -> Option<&Server> {
        match self {
            Self::Own(server) => Some(server),
            Self::Rival(_) => None,
        }
    }
}
