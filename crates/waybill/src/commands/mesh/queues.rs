//! `waybill mesh queues …`: which queues of the server members may send to, as the owner says.

use clap::Subcommand;
use serde_json::{Value as Json, json};
use waybill_kernel::Result;
use waybill_queues::rules::names::check_new;

use crate::commands::peer::home::{At, Of};
use crate::output;

const QUEUES: &[&str] = &["queue", "allowed_at", "allowed_by"];

#[derive(Subcommand)]
pub enum Queues {
    /// Let members send to a queue.
    Allow {
        #[command(flatten)]
        of: Of,
        /// The queue's name.
        queue: String,
    },
    /// Let members send to a queue no more. What is in it stays.
    Disallow {
        #[command(flatten)]
        of: Of,
        /// The queue's name.
        queue: String,
    },
    /// List the queues that members may send to.
    List(Of),
}

pub async fn run(command: Queues) -> Result<()> {
    match command {
        Queues::Allow { of, queue } => {
            let answer = change(&of.at(), &queue, "allow").await?;
            let text = if answer["allowed"] == true { "members may send to it" } else { "it was allowed already" };
            output::answer(of.at().json, &answer, &format!("{queue}: {text}."))
        }
        Queues::Disallow { of, queue } => {
            let answer = change(&of.at(), &queue, "disallow").await?;
            let text =
                if answer["disallowed"] == true { "members may no longer send to it" } else { "it was not allowed" };
            output::answer(of.at().json, &answer, &format!("{queue}: {text}."))
        }
        Queues::List(of) => {
            let mut answer: Json = of.at().member()?.broker()?.get("mesh/v1/queues").await?;
            if of.json {
                return output::json(&answer);
            }
            output::table(QUEUES, &answer["queues"].as_array_mut().map(std::mem::take).unwrap_or_default())
        }
    }
}

async fn change(at: &At, queue: &str, word: &str) -> Result<Json> {
    // Anything else would be another path.
    check_new(queue)?;
    at.member()?.broker()?.post(&format!("mesh/v1/queues/{queue}/{word}"), &json!({})).await
}
