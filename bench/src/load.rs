//! The load client: as many keep-alive HTTP/1.1 connections as asked, one request in flight on each.
//!
//! It shares two cores with what it measures, so it does little: one thread, requests built once with only their
//! digits rewritten, responses read as far as status and length. Every status is checked; only 2xx counts.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::{JoinSet, LocalSet};

use crate::histogram::Histogram;
use crate::http;

const RESPONSE_BYTES_MAX: usize = 16 * 1024;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the requests in flight at the end may take before they count as lost.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
/// A refused caller that comes back at once would only measure how fast refusals are.
const REFUSED_PAUSE: Duration = Duration::from_millis(2);

const SEQUENCE: &[u8] = b"@@@@@@@@@";
const CONNECTION: &[u8] = b"###";

#[derive(Clone)]
pub struct Plan {
    pub addr: SocketAddr,
    pub connections: usize,
    pub template: Template,
    /// Answers before this are checked but not counted in `ops` and the latencies.
    pub warmup: Duration,
    pub measure: Duration,
}

#[derive(Default)]
pub struct Outcome {
    /// 2xx answers inside the measured time.
    pub ops: u64,
    /// 2xx answers since the first byte was sent: what the server's own counters have seen.
    pub ops_total: u64,
    pub seconds: f64,
    pub latencies: Histogram,
    /// What went wrong, and how often.
    pub errors: BTreeMap<String, u64>,
}

/// The bytes of a request, and where the digits stand that change.
#[derive(Clone)]
pub struct Template {
    bytes: Vec<u8>,
    sequence_at: Vec<usize>,
    connection_at: Vec<usize>,
}

impl Template {
    /// `POST` of a small task. `slice` keeps the keys of one slice apart from all others of the run.
    pub fn task(addr: SocketAddr, path: &str, key: Option<&str>, slice: usize, idempotent: bool) -> Self {
        let text = "resize the picture to 800 x 600, keep the colour profile, answer with its address";
        let idempotency = match idempotent {
            true => format!(r####","idempotency_key":"b-{slice:05}-###-@@@@@@@@@""####),
            false => String::new(),
        };
        let body = format!(r#"{{"type":"echo","payload":{{"n":1@@@@@@@@@,"text":"{text}"}}{idempotency}}}"#);
        let bytes = format!("{}{body}", http::head(addr, "POST", path, key, body.len(), "")).into_bytes();
        let (sequence_at, connection_at) = (positions(&bytes, SEQUENCE), positions(&bytes, CONNECTION));
        Self { bytes, sequence_at, connection_at }
    }

    fn number(&mut self, sequence: u64) {
        for at in &self.sequence_at {
            write_digits(&mut self.bytes[*at..at + SEQUENCE.len()], sequence);
        }
    }

    fn for_connection(mut self, index: usize) -> Self {
        for at in &self.connection_at {
            write_digits(&mut self.bytes[*at..at + CONNECTION.len()], index as u64);
        }
        self
    }
}

fn positions(bytes: &[u8], marker: &[u8]) -> Vec<usize> {
    let starts = bytes.windows(marker.len()).enumerate();
    starts.filter(|(_, window)| *window == marker).map(|(at, _)| at).collect()
}

fn write_digits(field: &mut [u8], mut number: u64) {
    for digit in field.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

/// Runs the plan on a thread of its own. Dropping the future leaves that thread to end by itself, in bounded time.
pub async fn run(plan: Plan) -> Result<Outcome> {
    let (done, outcome) = tokio::sync::oneshot::channel();
    std::thread::Builder::new().name("load".to_owned()).spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let result = match runtime {
            Ok(runtime) => LocalSet::new().block_on(&runtime, drive(plan)),
            Err(error) => Err(error.into()),
        };
        // Nobody listens when the run was interrupted.
        drop(done.send(result));
    })?;
    outcome.await.context("the load thread ended early")?
}

struct Clock {
    counted_from: Instant,
    end: Instant,
}

async fn drive(plan: Plan) -> Result<Outcome> {
    let mut streams = Vec::with_capacity(plan.connections);
    for _ in 0..plan.connections {
        let connect = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(plan.addr));
        let stream = connect.await.context("connecting took too long")?.context("connecting")?;
        stream.set_nodelay(true)?;
        streams.push(stream);
    }
    let tally = Rc::new(RefCell::new(Outcome::default()));
    let counted_from = Instant::now() + plan.warmup;
    let clock = Rc::new(Clock { counted_from, end: counted_from + plan.measure });
    let mut connections = JoinSet::new();
    for (index, stream) in streams.into_iter().enumerate() {
        let template = plan.template.clone().for_connection(index);
        let connection = Connection { stream, template, buffer: vec![0; RESPONSE_BYTES_MAX], tally: tally.clone() };
        connections.spawn_local(connection.keep_asking(clock.clone()));
    }
    let drained = async { while connections.join_next().await.is_some() {} };
    let lost = tokio::time::timeout_at((clock.end + DRAIN_TIMEOUT).into(), drained).await.is_err();
    if lost {
        *tally.borrow_mut().errors.entry("no answer within 10 s".to_owned()).or_default() += connections.len() as u64;
    }
    drop(connections);
    let mut outcome = tally.take();
    outcome.seconds = plan.measure.as_secs_f64();
    Ok(outcome)
}

struct Connection {
    stream: TcpStream,
    template: Template,
    buffer: Vec<u8>,
    tally: Rc<RefCell<Outcome>>,
}

impl Connection {
    /// One request after the other until the end. A broken connection stays broken, so that it shows in the result.
    async fn keep_asking(mut self, clock: Rc<Clock>) {
        let mut before = Instant::now();
        let mut sequence = 0;
        while before < clock.end {
            sequence += 1;
            self.template.number(sequence);
            let status = match self.exchange().await {
                Ok(status) => status,
                Err(error) => return self.failed(format!("{error:#}")),
            };
            let after = Instant::now();
            if (200..300).contains(&status) {
                let mut tally = self.tally.borrow_mut();
                tally.ops_total += 1;
                if after >= clock.counted_from && after < clock.end {
                    tally.ops += 1;
                    tally.latencies.record(after - before);
                }
                before = after;
            } else {
                self.failed(format!("status {status}"));
                tokio::time::sleep(REFUSED_PAUSE).await;
                before = Instant::now();
            }
        }
    }

    fn failed(&self, what: String) {
        *self.tally.borrow_mut().errors.entry(what).or_default() += 1;
    }

    async fn exchange(&mut self) -> Result<u16> {
        self.stream.write_all(&self.template.bytes).await.context("sending")?;
        let mut filled = 0;
        loop {
            let read = self.stream.read(&mut self.buffer[filled..]).await.context("receiving")?;
            if read == 0 {
                bail!("the server closed the connection");
            }
            filled += read;
            let Some(head) = parse_head(&self.buffer[..filled])? else {
                if filled == self.buffer.len() {
                    bail!("the response head is longer than {RESPONSE_BYTES_MAX} bytes");
                }
                continue;
            };
            if head.response_bytes > self.buffer.len() {
                bail!("the response is longer than {RESPONSE_BYTES_MAX} bytes");
            }
            match filled.cmp(&head.response_bytes) {
                std::cmp::Ordering::Less => continue,
                std::cmp::Ordering::Equal => return Ok(head.status),
                std::cmp::Ordering::Greater => bail!("more bytes than one response"),
            }
        }
    }
}

#[derive(Debug, PartialEq)]
struct Head {
    status: u16,
    response_bytes: usize,
}

/// `None` while the head is not complete.
fn parse_head(bytes: &[u8]) -> Result<Option<Head>> {
    const LENGTH: &[u8] = b"content-length:";
    let (mut at, mut length) = (0, None);
    while let Some(end) = bytes[at..].iter().position(|byte| *byte == b'\n') {
        let line = bytes[at..at + end].trim_ascii();
        at += end + 1;
        if line.is_empty() {
            let status = bytes.get(9..12).and_then(number).context("no status line")?;
            // 204 and 304 have no body and need no length.
            let body =
                if status == 204 || status == 304 { 0 } else { length.context("a response without a length")? };
            return Ok(Some(Head { status: status as u16, response_bytes: at + body }));
        }
        if line.len() > LENGTH.len() && line[..LENGTH.len()].eq_ignore_ascii_case(LENGTH) {
            length = Some(number(&line[LENGTH.len()..]).context("a length that is no number")?);
        }
    }
    Ok(None)
}

fn number(digits: &[u8]) -> Option<usize> {
    std::str::from_utf8(digits.trim_ascii()).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads() {
        let response = b"HTTP/1.1 201 Created\r\nContent-Length: 5\r\nx: y\r\n\r\nhello";
        for cut in 0..response.len() - 5 {
            assert_eq!(parse_head(&response[..cut]).unwrap(), None);
        }
        let head = Head { status: 201, response_bytes: response.len() };
        assert_eq!(parse_head(response).unwrap(), Some(head));
        assert!(parse_head(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
        assert!(parse_head(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap().is_some());
    }

    #[test]
    fn every_request_is_its_own() {
        let addr = SocketAddr::from(([127, 0, 0, 1], 1));
        let mut template = Template::task(addr, "/v1/tasks", Some("k"), 7, true).for_connection(12);
        template.number(345);
        let text = String::from_utf8(template.bytes.clone()).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(body["payload"]["n"], 1_000_000_345);
        assert_eq!(body["idempotency_key"], "b-00007-012-000000345");
        template.number(346);
        assert_ne!(text.into_bytes(), template.bytes);
    }
}
