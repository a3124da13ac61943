//! What a connection of the load client does with mail over and over. Connections act for the agents in turn.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::agents::{Agent, PROJECT, next};
use super::letters::{push_letter, query};
use super::mcp::{Endpoint, Pen, is_success};
use crate::script::Turn;
use crate::wire::Wire;

#[derive(Clone)]
pub struct Turns {
    endpoint: Endpoint,
    agents: Arc<[Agent]>,
    what: What,
    connection: usize,
    /// Made for the connection's agent at its first turn.
    own: Option<Own>,
}

#[derive(Clone)]
pub enum What {
    Send {
        slice: usize,
        /// Between two turns of a connection, where it is not as fast as it can.
        every: Option<Duration>,
    },
    Fetch,
    Search,
}

/// What does not change from turn to turn.
#[derive(Clone)]
struct Own {
    pen: Pen,
    /// The beginning of the arguments.
    begin: String,
    arguments: String,
    began: Instant,
}

impl Turns {
    pub fn new(endpoint: Endpoint, agents: Arc<[Agent]>, what: What) -> Self {
        Self { endpoint, agents, what, connection: 0, own: None }
    }

    pub fn for_connection(&mut self, index: usize) {
        self.connection = index;
    }

    pub async fn run(&mut self, wire: &mut Wire, sequence: u64) -> Result<Turn> {
        let Self { endpoint, agents, what, connection, own } = self;
        let own = own.get_or_insert_with(|| Own::new(endpoint, agents, what, *connection));
        let Own { pen, begin, arguments, began } = own;
        if let What::Send { every: Some(every), .. } = what {
            let due = *began + every.saturating_mul(u32::try_from(sequence)?);
            tokio::time::sleep_until(due.into()).await;
        }
        arguments.clear();
        arguments.push_str(begin);
        match what {
            What::Send { slice, .. } => push_letter(arguments, *slice, *connection, sequence),
            What::Fetch => {}
            What::Search => arguments.push_str(&query(sequence)),
        }
        arguments.push_str(match what {
            What::Send { .. } | What::Fetch => "}",
            What::Search => "\"}",
        });
        let request = pen.write(arguments);
        let start = Instant::now();
        let status = wire.exchange(request).await?;
        let took = start.elapsed();
        Ok(match is_success(status, wire.response()) {
            true => Turn::Done(took, 1),
            false => Turn::Refused(refusal(status, wire.response())),
        })
    }
}

impl Own {
    fn new(endpoint: &Endpoint, agents: &[Agent], what: &What, connection: usize) -> Self {
        let place = connection % agents.len();
        let (agent, other) = (&agents[place], next(agents, place));
        let (tool, begin) = match what {
            What::Send { .. } => (
                "send_message",
                format!(r#"{{"project_key":"{PROJECT}","sender_name":"{}","to":["{}"],"#, agent.name, other.name),
            ),
            What::Fetch => ("fetch_inbox", format!(r#"{{"project_key":"{PROJECT}","agent_name":"{}""#, agent.name)),
            What::Search => ("search_messages", format!(r#"{{"project_key":"{PROJECT}","query":""#)),
        };
        let pen = endpoint.pen(agent.key.as_deref(), tool);
        Self { pen, begin, arguments: String::new(), began: Instant::now() }
    }
}

/// The code of the error, so that the same ones are counted together.
fn refusal(status: u16, response: &[u8]) -> String {
    let text = String::from_utf8_lossy(response);
    let code = text.split_once("\"error\":\"").and_then(|(_, rest)| rest.split_once('"'));
    match code {
        Some((code, _)) => format!("status {status}: {code}"),
        None => format!("status {status}"),
    }
}
