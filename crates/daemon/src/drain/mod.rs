//! The outbox on its way to the broker: at most one message per destination in flight, answers in any order.
//!
//! Which message may be sent is the outbox's to say ([`crate::Outbox::advance`]); here is only what is in flight over one
//! connection, which the window bounds, however many messages wait.
//!
//! Answers are stored and the next messages taken in one commit, by a task of its own: answers that come meanwhile gather for
//! the next one, and the socket is read and written on.
//!
//! A message that was claimed is in flight in its row before its first byte is written, and stays so until its answer is stored:
//! a crash at any line leaves it to be sent again under the same id.

mod outcome;
mod renew;

use std::collections::HashMap;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};
use waybill_kernel::{Error, Result};
use waybill_mesh_protocol::frames::SendResult;

pub use outcome::outcome;

use crate::link::Parts;
use crate::link::writer::Writer;
use crate::metrics;
use crate::outbox::{Claimed, Flight, Outcome, Settled};

/// Answers that wait to be stored.
pub const ANSWERS_MAX: usize = 128;
/// Without anything due or awaited, the outbox is looked at this often.
const IDLE: Duration = Duration::from_secs(60);

/// A row, and what has become of the attempt to send it.
type Ended = (i64, Outcome);
/// One whose envelope is made anew before its end is stored.
type Renewing = BoxFuture<'static, Result<Ended>>;
/// One commit on its way, and how many it may claim.
type Advancing = (usize, JoinHandle<Result<(Vec<Option<Settled>>, Claimed)>>);

/// A message without an answer yet.
struct InFlight {
    row: i64,
    topic: Option<String>,
    deadline: Instant,
}

pub struct Drain {
    parts: Arc<Parts>,
    writer: Writer,
    in_flight: HashMap<String, InFlight>,
    renewing: FuturesUnordered<Renewing>,
    /// To be stored with the next commit.
    ended: Vec<Ended>,
    advancing: Option<Advancing>,
    /// When to look for what is due, at the latest.
    look_at: Instant,
    window: usize,
    answer_within: Duration,
}

impl Drain {
    pub fn new(parts: Arc<Parts>, writer: Writer) -> Self {
        let (window, answer_within) = (parts.settings.window, Duration::from_millis(parts.settings.answer_ms));
        Self {
            parts,
            writer,
            in_flight: HashMap::new(),
            renewing: FuturesUnordered::new(),
            ended: Vec::new(),
            advancing: None,
            look_at: Instant::now(),
            window,
            answer_within,
        }
    }

    /// Ends with the connection: by an error, or when no answer can come any more.
    pub async fn run(mut self, mut answers: mpsc::Receiver<SendResult>) -> Result<()> {
        let outbox = self.parts.outbox.clone();
        let mut heard = Vec::new();
        loop {
            self.advance();
            let wake = self.wake_at();
            tokio::select! {
                count = answers.recv_many(&mut heard, ANSWERS_MAX) => match count {
                    0 => return Ok(()),
                    _ => heard.drain(..).for_each(|answer| self.answered(answer)),
                },
                advanced = advanced(&mut self.advancing) => self.advanced(advanced?).await?,
                Some(renewed) = self.renewing.next(), if !self.renewing.is_empty() => self.ended.push(renewed?),
                () = outbox.arrived() => self.look_at = Instant::now(),
                () = sleep_until(wake) => self.give_up_late(),
            }
        }
    }

    /// Begins the next commit if there is something for it and none is on its way.
    fn advance(&mut self) {
        let now = Instant::now();
        if self.advancing.is_some() || (self.ended.is_empty() && now < self.look_at) {
            return;
        }
        // What arrives from here on is looked for by the one after.
        self.look_at = now + IDLE;
        let room = self.window.saturating_sub(self.in_flight.len() + self.renewing.len());
        if room == 0 && self.ended.is_empty() {
            // An answer or its absence comes first.
            return;
        }
        let advance = self.parts.outbox.advance(std::mem::take(&mut self.ended), room);
        self.advancing = Some((room, tokio::spawn(advance)));
    }

    /// The answers are durable, and so is that the next messages are in flight: these are sent.
    async fn advanced(&mut self, (room, settled, claimed): (usize, Vec<Option<Settled>>, Claimed)) -> Result<()> {
        settled.into_iter().for_each(stored);
        let now = Instant::now();
        // A due one that the window had no room for is looked for when there is room.
        if claimed.flights.len() < room
            && let Some(at) = claimed.next_at
        {
            self.look_at = self.look_at.min(now + at.since(self.parts.clock.now()));
        }
        self.send(claimed.flights).await
    }

    /// Writes the frames, which leave together. Envelopes go as they were frozen, not read and written anew.
    async fn send(&mut self, flights: Vec<Flight>) -> Result<()> {
        if flights.is_empty() {
            return Ok(());
        }
        let deadline = Instant::now() + self.answer_within;
        let mut texts = Vec::with_capacity(flights.len());
        for flight in flights {
            let id = json!(flight.client_message_id);
            texts.push(format!(r#"{{"t":"send","client_message_id":{id},"envelope":{}}}"#, flight.envelope));
            let topic = (flight.destination_kind == "topic").then_some(flight.destination_ref);
            self.in_flight.insert(flight.client_message_id, InFlight { row: flight.id, topic, deadline });
        }
        #[cfg(feature = "sabotage")]
        let count = texts.len();
        self.writer.send_texts(texts).await?;
        #[cfg(feature = "sabotage")]
        (0..count).for_each(|_| waybill_store::sabotage::point("daemon_sent"));
        Ok(())
    }

    /// The answer to a message: what is to be stored. Nothing for one that nobody waits for: it came too late and the message
    /// is sent again, or it was never asked for.
    fn answered(&mut self, answer: SendResult) {
        let Some(flight) = self.in_flight.remove(answer.client_message_id.as_str()) else { return };
        #[cfg(feature = "sabotage")]
        waybill_store::sabotage::point("daemon_ack_received");
        note(&answer);
        match flight.topic {
            // Nothing was stored under the id, so another envelope is no other message.
            Some(topic) if answer.error.as_deref() == Some("epoch_unknown") => {
                let (parts, row) = (Arc::clone(&self.parts), flight.row);
                let renewed = async move { Ok((row, renew::renew(&parts, row, &topic).await?)) };
                self.renewing.push(Box::pin(renewed));
            }
            _ => self.ended.push((flight.row, outcome(&answer))),
        }
    }

    /// Those whose answer did not come in time.
    fn give_up_late(&mut self) {
        let now = Instant::now();
        let is_late = |_: &String, flight: &mut InFlight| flight.deadline <= now;
        let timeout = || Outcome::Failed { reason: "timeout".to_owned(), retry_after: None };
        self.ended.extend(self.in_flight.extract_if(is_late).map(|(_, flight)| (flight.row, timeout())));
    }

    /// When something is to be done though nothing happens. While a commit is on its way, what is due waits for it.
    fn wake_at(&self) -> Instant {
        let look_at = if self.advancing.is_some() { Instant::now() + IDLE } else { self.look_at };
        self.in_flight.values().map(|flight| flight.deadline).fold(look_at, Instant::min)
    }
}

/// Waits for the commit on its way; for ever where there is none.
async fn advanced(advancing: &mut Option<Advancing>) -> Result<(usize, Vec<Option<Settled>>, Claimed)> {
    let Some((room, task)) = advancing else { return pending().await };
    let room = *room;
    let ended = task.await;
    *advancing = None;
    let (settled, claimed) = ended.map_err(Error::internal)??;
    Ok((room, settled, claimed))
}

/// The answer is durable.
fn stored(settled: Option<Settled>) {
    #[cfg(feature = "sabotage")]
    waybill_store::sabotage::point("daemon_ack_stored");
    if let Some(Settled::Dead { reason }) = settled {
        tracing::warn!(
            reason,
            "a message could not be sent and is dead; `waybill daemon outbox list --failed` shows it"
        );
    }
}

fn note(answer: &SendResult) {
    if answer.history_available == Some(false) {
        metrics::history_pruned();
        tracing::warn!(message.id = %answer.client_message_id, "the broker had the message already and no longer has its text");
    }
}
