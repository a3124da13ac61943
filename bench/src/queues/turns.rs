//! What a connection of the load client does with a queue over and over.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use waybill_bench::signed::{Pen, Signature};

use super::speech::{BATCH, BODY_BYTES, Counter, Deletes};
use crate::script::Turn;
use crate::wire::Wire;

/// Senders wait while so many messages have not been received: neither side may run away from the other.
const AHEAD_MAX: i64 = 10_000;
const AHEAD_PAUSE: Duration = Duration::from_millis(1);

#[derive(Clone)]
pub enum Turns {
    Send(Vec<u8>),
    /// Ten messages.
    Batch(Vec<u8>),
    /// Ten messages received and deleted.
    Take(Box<Take>),
    /// As much of both as there are connections, on one queue.
    EndToEnd(Box<EndToEnd>),
    Fifo(Box<Fifo>),
    /// Ten messages received and left in flight.
    Receive(Vec<u8>),
    /// Ten messages of one group, each its own.
    Line(Box<Line>),
    /// One message is sent, one received and deleted; the receive alone is timed.
    Steady {
        send: Box<Fifo>,
        take: Box<Take>,
    },
}

impl Turns {
    pub fn for_connection(&mut self, index: usize) {
        match self {
            Self::Send(_) | Self::Batch(_) | Self::Take(_) | Self::Receive(_) => {}
            Self::Line(line) => line.connection = index,
            Self::EndToEnd(both) => both.is_sender = index.is_multiple_of(2),
            Self::Fifo(fifo) | Self::Steady { send: fifo, .. } => fifo.connection = index,
        }
    }

    /// The client signs before the clock starts where it can.
    pub fn sign_ahead(&mut self, count: usize) {
        if let Self::Fifo(fifo) | Self::Steady { send: fifo, .. } = self {
            fifo.sign_ahead(count);
        }
    }

    pub async fn run(&mut self, wire: &mut Wire, sequence: u64) -> Result<Turn> {
        match self {
            Self::Send(request) => sent(wire, request, 1).await,
            Self::Batch(request) => sent(wire, request, BATCH).await,
            Self::Take(take) => take.run(wire).await,
            Self::Receive(request) => {
                let start = Instant::now();
                let status = wire.exchange(request).await?;
                let count = count_of(wire.response(), b"\"ReceiptHandle\":");
                Ok(match (status, count) {
                    (200, 1..) => Turn::Done(start.elapsed(), count as u64),
                    _ => Turn::Refused(format!("receive: status {status}, {count} messages")),
                })
            }
            Self::Line(line) => {
                let request = line.request(sequence);
                sent(wire, request, BATCH).await
            }
            Self::EndToEnd(both) => both.run(wire).await,
            Self::Fifo(fifo) => {
                let request = fifo.request(sequence);
                sent(wire, request, 1).await
            }
            Self::Steady { send, take } => match sent(wire, send.request(sequence), 1).await? {
                Turn::Done(..) => take.run(wire).await,
                refused => Ok(refused),
            },
        }
    }
}

/// Every entry of a batch must have been taken.
async fn sent(wire: &mut Wire, request: &[u8], messages: usize) -> Result<Turn> {
    let start = Instant::now();
    let status = wire.exchange(request).await?;
    let took = start.elapsed();
    let response = wire.response();
    if status != 200 || (messages > 1 && has(response, b"\"Failed\":[{")) {
        return Ok(Turn::Refused(format!("send: status {status}")));
    }
    Ok(Turn::Done(took, messages as u64))
}

#[derive(Clone)]
pub struct Take {
    receive: Vec<u8>,
    deletes: Deletes,
    timed: Timed,
    /// Nothing to receive is no error where somebody is still sending.
    may_be_empty: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Timed {
    /// Receive and delete.
    Both,
    Receive,
}

impl Take {
    pub fn new(counter: &Counter, most: usize, timed: Timed) -> Result<Self> {
        let (receive, deletes) = (counter.receive(most, 0)?, counter.deletes()?);
        Ok(Self { receive, deletes, timed, may_be_empty: false })
    }

    async fn run(&mut self, wire: &mut Wire) -> Result<Turn> {
        let start = Instant::now();
        let status = wire.exchange(&self.receive).await?;
        let receive = start.elapsed();
        if status != 200 {
            return Ok(Turn::Refused(format!("receive: status {status}")));
        }
        let (count, request) = self.deletes.of(wire.response());
        if count == 0 {
            return Ok(if self.may_be_empty {
                Turn::Aside
            } else {
                Turn::Refused("receive: nothing there".to_owned())
            });
        }
        let start = Instant::now();
        let status = wire.exchange(request).await?;
        if status != 200 || has(wire.response(), b"\"Failed\":[{") {
            return Ok(Turn::Refused(format!("delete: status {status}")));
        }
        let both = receive + start.elapsed();
        Ok(Turn::Done(if self.timed == Timed::Both { both } else { receive }, count as u64))
    }
}

#[derive(Clone)]
pub struct EndToEnd {
    send: Vec<u8>,
    take: Take,
    is_sender: bool,
    /// Sent and not yet received.
    ahead: Arc<AtomicI64>,
}

impl EndToEnd {
    pub fn new(counter: &Counter) -> Result<Self> {
        let mut take = Take::new(counter, BATCH, Timed::Both)?;
        take.receive = counter.receive(BATCH, 1)?;
        take.may_be_empty = true;
        Ok(Self { send: counter.send_batch()?, take, is_sender: false, ahead: Arc::default() })
    }

    async fn run(&mut self, wire: &mut Wire) -> Result<Turn> {
        if !self.is_sender {
            let turn = self.take.run(wire).await?;
            if let Turn::Done(_, count) = &turn {
                self.ahead.fetch_sub(i64::try_from(*count)?, Ordering::Relaxed);
            }
            return Ok(turn);
        }
        if self.ahead.load(Ordering::Relaxed) >= AHEAD_MAX {
            tokio::time::sleep(AHEAD_PAUSE).await;
            return Ok(Turn::Aside);
        }
        match sent(wire, &self.send, BATCH).await? {
            Turn::Done(_, count) => {
                self.ahead.fetch_add(i64::try_from(count)?, Ordering::Relaxed);
                Ok(Turn::Aside)
            }
            refused => Ok(refused),
        }
    }
}

/// A message of its own each, so that none is a duplicate: only the signatures are kept of what is signed ahead.
#[derive(Clone)]
pub struct Fifo {
    pen: Pen,
    /// Of the body, up to what is each message's own.
    begin: String,
    slice: usize,
    is_fifo: bool,
    connection: usize,
    ahead: Vec<Signature>,
    request: Vec<u8>,
}

impl Fifo {
    /// Each connection sends to a group of its own.
    pub fn new(counter: &Counter, slice: usize, is_fifo: bool) -> Result<Self> {
        let pen = counter.signer().context("not in JSON")?.pen("SendMessage")?;
        let begin = format!(r#"{{"QueueUrl":"{}","MessageBody":"{}""#, counter.url(), "m".repeat(BODY_BYTES));
        Ok(Self { pen, begin, slice, is_fifo, connection: 0, ahead: Vec::new(), request: Vec::new() })
    }

    fn body(&self, sequence: u64) -> String {
        let Self { begin, slice, connection, .. } = self;
        match self.is_fifo {
            true => format!(
                r#"{begin},"MessageGroupId":"g{connection}","MessageDeduplicationId":"{slice}-{connection}-{sequence}"}}"#
            ),
            false => format!("{begin}}}"),
        }
    }

    fn sign_ahead(&mut self, count: usize) {
        self.ahead = (1..=count as u64).map(|sequence| self.pen.signature(self.body(sequence).as_bytes())).collect();
    }

    fn request(&mut self, sequence: u64) -> &[u8] {
        let body = self.body(sequence);
        let ahead = usize::try_from(sequence - 1).ok().and_then(|place| self.ahead.get(place));
        match ahead {
            Some(signature) => self.pen.write_signed(body.as_bytes(), signature, &mut self.request),
            None => self.pen.write(body.as_bytes(), &mut self.request),
        }
        &self.request
    }
}

/// Batches of one group of a FIFO queue.
#[derive(Clone)]
pub struct Line {
    pen: Pen,
    url: String,
    group: &'static str,
    slice: usize,
    connection: usize,
    request: Vec<u8>,
}

impl Line {
    pub fn new(counter: &Counter, group: &'static str, slice: usize) -> Result<Self> {
        let pen = counter.signer().context("not in JSON")?.pen("SendMessageBatch")?;
        Ok(Self { pen, url: counter.url().to_owned(), group, slice, connection: 0, request: Vec::new() })
    }

    fn request(&mut self, sequence: u64) -> &[u8] {
        let Self { url, group, slice, connection, .. } = self;
        let (body, run) = ("m".repeat(BODY_BYTES), format!("{slice}-{connection}-{sequence}"));
        let entry = |id: usize| {
            format!(
                r#"{{"Id":"{id}","MessageBody":"{body}","MessageGroupId":"{group}","MessageDeduplicationId":"{run}-{id}"}}"#
            )
        };
        let entries: Vec<String> = (0..BATCH).map(entry).collect();
        let body = format!(r#"{{"QueueUrl":"{url}","Entries":[{}]}}"#, entries.join(","));
        self.pen.write(body.as_bytes(), &mut self.request);
        &self.request
    }
}

fn count_of(response: &[u8], what: &[u8]) -> usize {
    response.windows(what.len()).filter(|window| *window == what).count()
}

fn has(response: &[u8], what: &[u8]) -> bool {
    response.windows(what.len()).any(|window| window == what)
}
