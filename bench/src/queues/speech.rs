//! What is said to a server of queues: the product and fauxqs in JSON, signed; ElasticMQ of 2013, which knows no JSON, in forms.

use std::net::SocketAddr;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use waybill_bench::signed::{Pen, Signer};

use crate::process::Server;
use crate::product;
use crate::wire::Wire;

pub const BODY_BYTES: usize = 256;
/// Messages of a batch, and of a receive.
pub const BATCH: usize = 10;
const VERSION: &str = "2012-11-05";

/// One queue, and how its server is spoken to.
#[derive(Clone)]
pub struct Counter {
    pub addr: SocketAddr,
    url: String,
    speech: Speech,
}

#[derive(Clone)]
pub enum Speech {
    Json(Signer),
    Forms,
}

impl Counter {
    /// Makes the queue.
    pub async fn open(addr: SocketAddr, speech: Speech, name: &str, attributes: &Value) -> Result<Self> {
        let mut counter = Self { addr, url: String::new(), speech };
        let made = match &counter.speech {
            Speech::Json(signer) => {
                let input = json!({ "QueueName": name, "Attributes": attributes });
                signer.post("CreateQueue", &input.to_string())?
            }
            Speech::Forms => counter.form(&format!("Action=CreateQueue&QueueName={name}")),
        };
        let answer = counter.ask(&made).await?;
        counter.url = between(&answer, "\"QueueUrl\":\"", "\"")
            .or_else(|| between(&answer, "<QueueUrl>", "<"))
            .with_context(|| format!("no QueueUrl in {answer}"))?
            .to_owned();
        Ok(counter)
    }

    pub fn signer(&self) -> Option<&Signer> {
        match &self.speech {
            Speech::Json(signer) => Some(signer),
            Speech::Forms => None,
        }
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// A request in JSON, to be signed.
    pub fn post(&self, action: &str, mut input: Value) -> Result<Vec<u8>> {
        input["QueueUrl"] = self.url.as_str().into();
        self.signer().context("not in JSON")?.post(action, &input.to_string())
    }

    pub fn send(&self) -> Result<Vec<u8>> {
        let body = "m".repeat(BODY_BYTES);
        match &self.speech {
            Speech::Json(_) => self.post("SendMessage", json!({ "MessageBody": body })),
            Speech::Forms => Ok(self.form(&format!("Action=SendMessage&MessageBody={body}"))),
        }
    }

    pub fn send_batch(&self) -> Result<Vec<u8>> {
        let body = "m".repeat(BODY_BYTES);
        match &self.speech {
            Speech::Json(_) => {
                let entries: Vec<Value> =
                    (0..BATCH).map(|id| json!({ "Id": id.to_string(), "MessageBody": body })).collect();
                self.post("SendMessageBatch", json!({ "Entries": entries }))
            }
            Speech::Forms => {
                let entry = |id: usize| {
                    let name = format!("&SendMessageBatchRequestEntry.{id}");
                    format!("{name}.Id={id}{name}.MessageBody={body}")
                };
                Ok(self.form(&format!("Action=SendMessageBatch{}", (1..=BATCH).map(entry).collect::<String>())))
            }
        }
    }

    pub fn receive(&self, most: usize, wait_s: u64) -> Result<Vec<u8>> {
        match &self.speech {
            Speech::Json(_) => {
                self.post("ReceiveMessage", json!({ "MaxNumberOfMessages": most, "WaitTimeSeconds": wait_s }))
            }
            Speech::Forms => Ok(self.form(&format!("Action=ReceiveMessage&MaxNumberOfMessages={most}"))),
        }
    }

    pub fn deletes(&self) -> Result<Deletes> {
        let pen = self.signer().map(|signer| signer.pen("DeleteMessageBatch")).transpose()?;
        Ok(Deletes { counter: self.clone(), pen, body: Vec::new(), request: Vec::new() })
    }

    /// Asks once, on a connection of its own; the body of the answer.
    pub async fn ask(&self, request: &[u8]) -> Result<String> {
        let mut wire = Wire::connect(self.addr).await?;
        let status = wire.exchange(request).await?;
        let response = String::from_utf8_lossy(wire.response()).into_owned();
        if status != 200 {
            bail!("answered {status}: {response}");
        }
        Ok(response.split_once("\r\n\r\n").context("no body")?.1.to_owned())
    }

    /// To the queue's own address once there is one, as old clients do.
    fn form(&self, parameters: &str) -> Vec<u8> {
        let path = self.url.splitn(4, '/').nth(3).unwrap_or_default();
        let body = format!("{parameters}&Version={VERSION}");
        let (addr, length) = (self.addr, body.len());
        format!(
            "POST /{path} HTTP/1.1\r\nHost: {addr}\r\nContent-Type: application/x-www-form-urlencoded\r\n\
             Content-Length: {length}\r\n\r\n{body}"
        )
        .into_bytes()
    }
}

/// Deletes what was received. Its handles are known only then, so that it is signed then.
#[derive(Clone)]
pub struct Deletes {
    counter: Counter,
    pen: Option<Pen>,
    body: Vec<u8>,
    request: Vec<u8>,
}

impl Deletes {
    /// The request that deletes all messages of a response, and how many they are.
    pub fn of(&mut self, response: &[u8]) -> (usize, &[u8]) {
        let Self { counter, pen, body, request } = self;
        let mut count = 0;
        body.clear();
        match pen {
            Some(pen) => {
                for handle in texts(response, b"\"ReceiptHandle\":\"", b'"') {
                    let before: &[u8] = if count == 0 { b"" } else { b"," };
                    let id = count.to_string();
                    body.extend(
                        [before, b"{\"Id\":\"", id.as_bytes(), b"\",\"ReceiptHandle\":\"", handle, b"\"}"].concat(),
                    );
                    count += 1;
                }
                let body = [b"{\"QueueUrl\":\"", counter.url.as_bytes(), b"\",\"Entries\":[", body, b"]}"].concat();
                pen.write(&body, request);
            }
            None => {
                let mut parameters = "Action=DeleteMessageBatch".to_owned();
                for handle in texts(response, b"<ReceiptHandle>", b'<') {
                    count += 1;
                    let name = format!("&DeleteMessageBatchRequestEntry.{count}");
                    let handle = String::from_utf8_lossy(handle).replace('#', "%23");
                    parameters.push_str(&format!("{name}.Id={count}{name}.ReceiptHandle={handle}"));
                }
                *request = counter.form(&parameters);
            }
        }
        (count, request)
    }
}

/// A queue of the product, and a key of its own.
pub async fn opened_at(server: &Server, name: &str, attributes: &Value) -> Result<Counter> {
    opened_by(server, &json!({ "principal": product::OWNER, "sqs": true }), name, attributes).await
}

/// With a key like this.
pub async fn opened_by(server: &Server, key: &Value, name: &str, attributes: &Value) -> Result<Counter> {
    let addr = server.sqs.context("the server does not say where SQS clients find it")?;
    let made = product::make_key(server, key).await?;
    let text = |name: &str| made[name].as_str().map(str::to_owned).with_context(|| format!("no {name}"));
    let signer = Signer { addr, id: text("access_key_id")?, secret: text("secret_access_key")? };
    Counter::open(addr, Speech::Json(signer), name, attributes).await
}

/// What stands between each `name` and the next `end`.
fn texts<'a>(response: &'a [u8], name: &'a [u8], end: u8) -> impl Iterator<Item = &'a [u8]> {
    let mut rest = response;
    std::iter::from_fn(move || {
        let from = rest.windows(name.len()).position(|window| window == name)? + name.len();
        let length = rest[from..].iter().position(|byte| *byte == end)?;
        let found = &rest[from..from + length];
        rest = &rest[from + length..];
        Some(found)
    })
}

fn between<'a>(text: &'a str, name: &str, end: &str) -> Option<&'a str> {
    text.split_once(name)?.1.split_once(end).map(|(found, _)| found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_received_is_deleted_in_either_speech() {
        let addr = "127.0.0.1:1".parse().unwrap();
        let signer = Signer { addr, id: "A".to_owned(), secret: "s".to_owned() };
        let mut json =
            Counter { addr, url: "http://h/1/q".to_owned(), speech: Speech::Json(signer) }.deletes().unwrap();
        let (count, request) = json.of(br#"{"Messages":[{"ReceiptHandle":"a-1"},{"ReceiptHandle":"b-2"}]}"#);
        let text = String::from_utf8(request.to_vec()).unwrap();
        let body: Value = serde_json::from_str(text.split_once("\r\n\r\n").unwrap().1).unwrap();
        assert_eq!((count, body["Entries"][1]["ReceiptHandle"].as_str()), (2, Some("b-2")));
        assert_eq!(json.of(b"{}").0, 0);

        let mut forms = Counter { addr, url: "http://h/queue/q".to_owned(), speech: Speech::Forms }.deletes().unwrap();
        let (count, request) = forms.of(b"<ReceiptHandle>a#1</ReceiptHandle>");
        let text = String::from_utf8(request.to_vec()).unwrap();
        assert!(count == 1 && text.starts_with("POST /queue/q HTTP") && text.contains("ReceiptHandle=a%231"), "{text}");
    }
}
