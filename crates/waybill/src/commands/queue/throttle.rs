//! `waybill queue throttle`

use clap::Args;
use serde_json::{Map, Value as Json, json};
use waybill_kernel::{Error, Result};

use crate::cli::Reach;
use crate::commands::session::Session;
use crate::output;

const COLUMNS: &[&str] = &["bucket", "capacity", "refill_per_second", "for"];
const OFF: &str = "off";

/// What the attributes of a bucket begin with, what it is called here, and what it is for.
const BUCKETS: [(&str, &str, &str); 3] = [
    ("ThrottleSend", "send", "sends"),
    ("ThrottleRecv", "receive", "receives, deletes, changes of visibility"),
    ("ThrottleDefault", "default", "whichever of the two has no bucket of its own"),
];

#[derive(Args)]
pub struct Throttle {
    name: String,
    /// So many at once and so many each second, as in 100,20; or off.
    #[arg(long, value_name = "CAPACITY,PER_SECOND")]
    send: Option<String>,
    /// The same for receives, deletes and changes of visibility.
    #[arg(long, value_name = "CAPACITY,PER_SECOND")]
    receive: Option<String>,
    /// The same for whichever of the two has no bucket of its own.
    #[arg(long, value_name = "CAPACITY,PER_SECOND")]
    default: Option<String>,
    /// Take every limit away.
    #[arg(long, conflicts_with_all = ["send", "receive", "default"])]
    off: bool,
    #[command(flatten)]
    reach: Reach,
}

pub async fn run(flags: Throttle) -> Result<()> {
    let wanted = wanted(&flags)?;
    let session = Session::open(&flags.reach).await?;
    let outcome = changed(&session, &flags.name, wanted).await;
    session.close().await;
    let throttle = of(&outcome?);
    if flags.reach.json {
        return output::json(&throttle);
    }
    let rows: Vec<Json> = BUCKETS.iter().filter_map(|(_, bucket, of)| row(&throttle[*bucket], bucket, of)).collect();
    match rows.is_empty() {
        true => output::note("The queue is not throttled."),
        false => output::table(COLUMNS, &rows),
    }
}

/// The queue as it is after the change, if there is one to be made.
async fn changed(session: &Session, name: &str, attributes: Map<String, Json>) -> Result<Json> {
    if !attributes.is_empty() {
        session.call("set_queue_attributes", json!({ "queue": name, "attributes": attributes })).await?;
    }
    session.call("get_queue", json!({ "queue": name })).await
}

/// The attributes that the flags ask for. Whether a queue can have them is the server's to say.
fn wanted(flags: &Throttle) -> Result<Map<String, Json>> {
    let mut attributes = Map::new();
    for ((prefix, bucket, _), flag) in BUCKETS.iter().zip([&flags.send, &flags.receive, &flags.default]) {
        let (capacity, refill) = match flag.as_deref() {
            None if flags.off => ("0", "0"),
            None => continue,
            Some(OFF) => ("0", "0"),
            Some(text) => text.split_once(',').ok_or_else(|| {
                Error::invalid(format!(
                    "--{bucket} {text} is not written CAPACITY,PER_SECOND, as in 100,20, and not off."
                ))
            })?,
        };
        attributes.insert(format!("{prefix}Capacity"), json!(capacity.trim()));
        attributes.insert(format!("{prefix}RefillPerSecond"), json!(refill.trim()));
    }
    Ok(attributes)
}

/// What a queue with these attributes is held to.
fn of(queue: &Json) -> Json {
    let number = |name: String| queue["attributes"][name].as_str().and_then(|text| text.parse::<Json>().ok());
    let mut throttle = json!({ "queue": queue["queue"] });
    for (prefix, bucket, _) in BUCKETS {
        let pair = number(format!("{prefix}Capacity")).zip(number(format!("{prefix}RefillPerSecond")));
        throttle[bucket] =
            pair.map_or(Json::Null, |(capacity, refill)| json!({ "capacity": capacity, "refill_per_second": refill }));
    }
    throttle
}

fn row(rate: &Json, bucket: &str, of: &str) -> Option<Json> {
    let rate = rate.as_object()?;
    Some(json!({
        "bucket": bucket, "capacity": rate["capacity"], "refill_per_second": rate["refill_per_second"], "for": of
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(send: Option<&str>, default: Option<&str>, off: bool) -> Throttle {
        let text = |flag: Option<&str>| flag.map(str::to_owned);
        let reach = Reach::default();
        Throttle { name: "jobs".to_owned(), send: text(send), receive: None, default: text(default), off, reach }
    }

    #[test]
    fn only_what_is_named_is_set() {
        let of = |flags: &Throttle| Json::Object(wanted(flags).unwrap());
        assert_eq!(of(&flags(None, None, false)), json!({}));
        let expected = json!({
            "ThrottleSendCapacity": "100", "ThrottleSendRefillPerSecond": "0.5",
            "ThrottleDefaultCapacity": "0", "ThrottleDefaultRefillPerSecond": "0",
        });
        assert_eq!(of(&flags(Some("100, 0.5"), Some("off"), false)), expected);
        assert_eq!(wanted(&flags(None, None, true)).unwrap().len(), 6);
        for bad in ["100", "", "lots"] {
            let error = wanted(&flags(Some(bad), None, false)).unwrap_err();
            assert!(error.message().contains("--send"), "{bad}: {error}");
        }
    }

    #[test]
    fn a_queue_tells_what_it_is_held_to() {
        let queue = json!({ "queue": "jobs", "attributes": {
            "DelaySeconds": "0", "ThrottleRecvCapacity": "10", "ThrottleRecvRefillPerSecond": "0.5" } });
        let throttle = of(&queue);
        let receive = json!({ "capacity": 10, "refill_per_second": 0.5 });
        assert_eq!(throttle, json!({ "queue": "jobs", "send": null, "receive": receive, "default": null }));
        assert_eq!(row(&throttle["receive"], "receive", "receives").unwrap()["capacity"], 10);
        assert!(row(&throttle["send"], "send", "sends").is_none());
    }
}
