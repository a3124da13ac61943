//! `waybill queue …`

mod peek;
mod redrive;
mod show;
mod throttle;
mod watch;

use clap::{Args, Subcommand};
use serde_json::{Map, Value as Json, json};
use waybill_kernel::{Error, Result};

use super::session::call;
use crate::cli::Reach;
use crate::output;

#[derive(Subcommand)]
pub enum Queue {
    /// List the tenant's queues, and how much is in each.
    List {
        /// Only queues whose names begin with this.
        #[arg(long)]
        prefix: Option<String>,
        #[command(flatten)]
        watch: Watch,
        #[command(flatten)]
        reach: Reach,
    },
    /// Show all about a queue: attributes, tags, messages, dead letters.
    Show {
        name: String,
        #[command(flatten)]
        watch: Watch,
        #[command(flatten)]
        reach: Reach,
    },
    /// Make a queue. One whose name ends in .fifo keeps messages in order.
    Create {
        name: String,
        /// As in VisibilityTimeout=60; may be given several times.
        #[arg(value_name = "ATTRIBUTE=VALUE")]
        attributes: Vec<String>,
        /// As in team=billing; may be given several times.
        #[arg(long, value_name = "KEY=VALUE")]
        tag: Vec<String>,
        #[command(flatten)]
        reach: Reach,
    },
    /// Change attributes of a queue: all that are named, or none of them.
    Set {
        name: String,
        /// As in VisibilityTimeout=60; `RedrivePolicy=` takes a policy away.
        #[arg(value_name = "ATTRIBUTE=VALUE", required = true)]
        attributes: Vec<String>,
        #[command(flatten)]
        reach: Reach,
    },
    /// Delete every message of a queue, for good. Once a minute at most.
    Purge {
        name: String,
        #[command(flatten)]
        reach: Reach,
    },
    /// Show messages that could be received, without receiving them.
    Peek(peek::Peek),
    /// Move the messages of a dead-letter queue back to where they came from.
    Redrive(redrive::Redrive),
    /// Show or change how often a queue may be used.
    Throttle(throttle::Throttle),
}

#[derive(Args)]
pub struct Watch {
    /// Show it again and again, until Ctrl-C.
    #[arg(long)]
    pub watch: bool,
    /// Seconds between two looks.
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub interval: u64,
}

pub async fn run(command: Queue) -> Result<()> {
    match command {
        Queue::List { prefix, watch, reach } => show::list(prefix.as_deref(), &watch, &reach).await,
        Queue::Show { name, watch, reach } => show::one(&name, &watch, &reach).await,
        Queue::Create { name, attributes, tag, reach } => {
            let input = json!({ "queue": name, "attributes": pairs(&attributes)?, "tags": pairs(&tag)? });
            let answer = call(&reach, "create_queue", input).await?;
            output::answer(reach.json, &answer, &output::cell(&answer["arn"]))
        }
        Queue::Set { name, attributes, reach } => {
            let input = json!({ "queue": name, "attributes": pairs(&attributes)? });
            let answer = call(&reach, "set_queue_attributes", input).await?;
            output::answer(reach.json, &answer, "Set.")
        }
        Queue::Purge { name, reach } => {
            let answer = call(&reach, "purge_queue", json!({ "queue": name })).await?;
            let text = "Purged. What was received before cannot be deleted or put off any more.";
            output::answer(reach.json, &answer, text)
        }
        Queue::Peek(flags) => peek::run(flags).await,
        Queue::Redrive(flags) => redrive::run(flags).await,
        Queue::Throttle(flags) => throttle::run(flags).await,
    }
}

/// `name=value`, where the value may be empty or have further equals signs.
fn pairs(words: &[String]) -> Result<Json> {
    let mut pairs = Map::new();
    for word in words {
        let Some((name, value)) = word.split_once('=').filter(|(name, _)| !name.is_empty()) else {
            return Err(Error::invalid(format!("{word:?} is not written NAME=VALUE.")));
        };
        if pairs.insert(name.to_owned(), json!(value)).is_some() {
            return Err(Error::invalid(format!("{name} is given twice.")));
        }
    }
    Ok(Json::Object(pairs))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_has_a_name_and_any_value() {
        let of = |words: &[&str]| pairs(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        let policy = r#"RedrivePolicy={"a":"b=c"}"#;
        let expected = json!({ "DelaySeconds": "3", "Policy": "", "RedrivePolicy": r#"{"a":"b=c"}"# });
        assert_eq!(of(&["DelaySeconds=3", "Policy=", policy]).unwrap(), expected);
        for bad in [&["DelaySeconds"][..], &["=3"], &[""], &["a=1", "a=2"]] {
            assert!(of(bad).is_err(), "{bad:?}");
        }
    }
}
