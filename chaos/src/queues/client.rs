//! One signed connection to the listener for SQS clients. A call ends in one of three ways: it was done, it was surely
//! not done, or nobody knows.

use anyhow::Result;
use serde_json::{Value, json};
use waybill_bench::signed::Signer;

use super::history::{Name, QueueKind};
use crate::client::{Answer, Wire};
use crate::history::Event;
use crate::workload::Signals;

/// Refusals that a valid request may meet: its handle is not the latest any more, or the message visible again.
const EXCUSED: [&str; 2] = ["ReceiptHandleIsInvalid", "MessageNotInflight"];

pub enum Outcome {
    Done(Value),
    /// By this shape.
    Refused(String),
    Unknown(String),
}

impl Outcome {
    pub fn event(&self) -> Event {
        match self {
            Outcome::Done(_) => Event::Ok,
            Outcome::Refused(_) => Event::Fail,
            Outcome::Unknown(_) => Event::Info,
        }
    }

    pub fn done(&self) -> Option<&Value> {
        match self {
            Outcome::Done(value) => Some(value),
            _ => None,
        }
    }

    /// What no fault excuses: a 500, or a refusal of a valid request.
    pub fn unexpected(&self) -> Option<String> {
        match self {
            Outcome::Refused(shape) if !EXCUSED.contains(&shape.as_str()) => Some(shape.clone()),
            Outcome::Unknown(why) if why.starts_with("500 ") => Some(why.clone()),
            _ => None,
        }
    }
}

/// A 4xx is a refusal before any write; a 5xx, and no answer at all, say nothing.
fn classify(answer: Result<Answer>, cut: bool) -> Outcome {
    match answer {
        Ok(answer) if answer.refused() => {
            let shape = answer.text("__type").and_then(|shape| shape.rsplit('#').next()).unwrap_or("without a shape");
            Outcome::Refused(shape.to_owned())
        }
        Ok(_) if cut => Outcome::Unknown("answered after the cut".to_owned()),
        Ok(answer) if answer.success() => Outcome::Done(answer.body),
        Ok(answer) => Outcome::Unknown(answer.brief()),
        Err(error) => Outcome::Unknown(format!("{error:#}")),
    }
}

/// The way to the queues of a run.
#[derive(Clone)]
pub struct Target {
    pub signer: Signer,
    pub run: String,
    pub signals: Signals,
}

pub struct Client {
    target: Target,
    wire: Wire,
}

impl Client {
    pub fn new(target: &Target) -> Self {
        Client { target: target.clone(), wire: Wire::new(target.signer.addr) }
    }

    /// The name is what counts in it.
    pub fn url(&self, kind: QueueKind) -> String {
        format!("http://queues/000000000000/{}", kind.name(&self.target.run))
    }

    pub async fn call(&mut self, action: &str, input: &Value) -> Outcome {
        let answer = match self.target.signer.post(action, &input.to_string()) {
            Ok(request) => self.wire.exchange(&request).await,
            Err(error) => Err(error),
        };
        // Read after the answer arrived: an answer that came before the cut is a promise.
        classify(answer, self.target.signals.is_cut())
    }

    pub async fn create(&mut self, kind: QueueKind, attributes: &Value) -> Outcome {
        let input = json!({"QueueName": kind.name(&self.target.run), "Attributes": attributes});
        self.call("CreateQueue", &input).await
    }

    /// Visible, in flight and delayed, together.
    pub async fn total(&mut self, kind: QueueKind) -> Option<u64> {
        let input = json!({"QueueUrl": self.url(kind), "AttributeNames": ["All"]});
        let outcome = self.call("GetQueueAttributes", &input).await;
        let attributes = outcome.done()?.get("Attributes")?;
        let figure = |name: &str| attributes.get(name)?.as_str()?.parse::<u64>().ok();
        let names = ["", "NotVisible", "Delayed"].map(|part| format!("ApproximateNumberOfMessages{part}"));
        names.iter().map(|name| figure(name)).sum()
    }
}

/// As an answer, or a received message, names it.
pub fn name_of(message: &Value) -> Option<Name> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let sequence = message.get("SequenceNumber").or_else(|| message.get("Attributes")?.get("SequenceNumber"));
    Some(Name { id: text(message.get("MessageId")?)?, sequence: sequence.and_then(text) })
}

/// How each entry of a batch ended, by its number.
pub fn of_batch(outcome: &Outcome, entries: usize) -> Vec<Event> {
    let Some(answer) = outcome.done() else { return vec![outcome.event(); entries] };
    let among = |list: &str, number: usize| {
        let id = number.to_string();
        answer.get(list).and_then(Value::as_array).into_iter().flatten().find(|entry| entry["Id"] == id.as_str())
    };
    let event = |number| match (among("Successful", number), among("Failed", number)) {
        (Some(_), None) => Event::Ok,
        // A store that is away says nothing about what it has done.
        (None, Some(failed)) if failed["SenderFault"] != false => Event::Fail,
        // In both lists or in none: nobody knows.
        _ => Event::Info,
    };
    (0..entries).map(event).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_ends_in_one_of_three_ways() {
        let answer = |status, body: Value| Ok(Answer { status, replay: false, body });
        let refused = || json!({"__type": "com.amazonaws.sqs#InvalidParameterValue"});
        assert_eq!(classify(answer(200, json!({})), false).event(), Event::Ok);
        assert_eq!(classify(answer(200, json!({})), true).event(), Event::Info);
        assert_eq!(classify(answer(400, refused()), true).event(), Event::Fail);
        assert_eq!(classify(answer(400, refused()), false).unexpected().as_deref(), Some("InvalidParameterValue"));
        assert_eq!(classify(answer(503, json!({})), false).event(), Event::Info);
        assert!(classify(answer(500, json!({})), false).unexpected().is_some());
        assert!(classify(answer(503, json!({})), false).unexpected().is_none());
        assert_eq!(classify(Err(anyhow::anyhow!("reset")), false).event(), Event::Info);
    }

    #[test]
    fn an_entry_of_a_batch_is_in_one_of_two_lists() {
        let answer = json!({"Successful": [{"Id": "0"}, {"Id": "2"}], "Failed": [{"Id": "1"}, {"Id": "2"}]});
        let events = of_batch(&Outcome::Done(answer), 4);
        assert_eq!(events, [Event::Ok, Event::Fail, Event::Info, Event::Info]);
        let away =
            json!({"Successful": [], "Failed": [{"Id": "0", "SenderFault": true}, {"Id": "1", "SenderFault": false}]});
        assert_eq!(of_batch(&Outcome::Done(away), 2), [Event::Fail, Event::Info]);
        assert_eq!(of_batch(&Outcome::Unknown(String::new()), 2), [Event::Info; 2]);
    }
}
