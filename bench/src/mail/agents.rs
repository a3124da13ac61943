//! The agents of a project, who write to each other in a ring.

use anyhow::{Context, Result};
use serde_json::json;

use super::mcp::Endpoint;

pub const PROJECT: &str = "/data/projects/bench";
const PROGRAM: &str = "bench";

#[derive(Clone)]
pub struct Agent {
    pub name: String,
    /// Its own, on a server that knows keys.
    pub key: Option<String>,
}

impl Agent {
    /// Under a name that the server chooses.
    pub async fn register(endpoint: &Endpoint, project: &str, key: Option<String>) -> Result<Self> {
        let input = json!({ "project_key": project, "program": PROGRAM, "model": "none" });
        let answer = endpoint.call(key.as_deref(), "register_agent", &input).await?;
        let name = answer["name"].as_str().context("an agent without a name")?.to_owned();
        Ok(Self { name, key })
    }

    /// Asks for contact and is let in: agents whose policy is the default one write only to those who did.
    pub async fn befriend(&self, endpoint: &Endpoint, other: &Self) -> Result<()> {
        let ask = json!({ "project_key": PROJECT, "from_agent": self.name, "to_agent": other.name });
        endpoint.call(self.key.as_deref(), "request_contact", &ask).await?;
        let accept = json!({ "project_key": PROJECT, "to_agent": other.name, "from_agent": self.name, "accept": true });
        endpoint.call(other.key.as_deref(), "respond_contact", &accept).await?;
        Ok(())
    }
}

/// Whom the agent at this place writes to.
pub fn next(agents: &[Agent], place: usize) -> &Agent {
    &agents[(place + 1) % agents.len()]
}
