//! The outbox on its way to the broker: at most one message per destination in flight, answers in any order.
//!
//! Which message may be sent is the outbox's to say ([`crate::Outbox::claim`]); here is only what is in flight over one
//! connection, which the window bounds, however many messages wait.
//!
//! A message that was claimed is in flight in its row before its first byte is written, and stays so until its answer is stored:
//! a crash at any line leaves it to be sent again under the same id.

mod outcome;
mod renew;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use waybill_kernel::{Error, Result};
use waybill_mesh_protocol::frames::SendResult;

pub use outcome::outcome;

use crate::link::Parts;
use crate::link::writer::Writer;
use crate::metrics;
use crate::outbox::{Flight, Outcome, Settled};

/// Answers that wait to be stored.
pub const ANSWERS_MAX: usize = 128;
/// Without anything due or awaited, the outbox is looked at this often.
const IDLE: Duration = Duration::from_secs(60);

/// An attempt whose end is being stored.
type Settling = BoxFuture<'static, Result<Option<Settled>>>;

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
    window: usize,
    answer_within: Duration,
}

impl Drain {
    pub fn new(parts: Arc<Parts>, writer: Writer) -> Self {
        let (window, answer_within) = (parts.settings.window, Duration::from_millis(parts.settings.answer_ms));
        Self { parts, writer, in_flight: HashMap::new(), window, answer_within }
    }

    /// Ends with the connection: by an error, or when no answer can come any more.
    pub async fn run(mut self, mut answers: mpsc::Receiver<SendResult>) -> Result<()> {
        let mut settling = FuturesUnordered::new();
        let outbox = self.parts.outbox.clone();
        let mut look_at = Instant::now();
        loop {
            if look_at <= Instant::now() {
                look_at = self.fill(settling.len()).await?;
            }
            let wake = self.in_flight.values().map(|flight| flight.deadline).fold(look_at, Instant::min);
            tokio::select! {
                answer = answers.recv() => match answer {
                    Some(answer) => settling.extend(self.answered(answer)),
                    None => return Ok(()),
                },
                Some(settled) = settling.next(), if !settling.is_empty() => {
                    stored(settled)?;
                    look_at = Instant::now();
                }
                () = outbox.arrived() => look_at = Instant::now(),
                () = sleep_until(wake) => settling.extend(self.late()),
            }
        }
    }

    /// Claims and sends as much as the window has room for. Says when to look again at the latest.
    async fn fill(&mut self, settling: usize) -> Result<Instant> {
        let room = self.window.saturating_sub(self.in_flight.len() + settling);
        let now = Instant::now();
        if room == 0 {
            // An answer or its absence comes first.
            return Ok(now + IDLE);
        }
        let claimed = self.parts.outbox.claim(room).await?;
        let is_full = claimed.flights.len() == room;
        for flight in claimed.flights {
            self.send(flight).await?;
        }
        let due = claimed.next_at.map(|at| now + at.since(self.parts.clock.now()));
        // A due one that the window had no room for is looked for when there is room.
        Ok(if is_full { now + IDLE } else { due.unwrap_or(now + IDLE).min(now + IDLE) })
    }

    /// Writes the frame. The envelope goes as it was frozen, not read and written anew.
    async fn send(&mut self, flight: Flight) -> Result<()> {
        let id = json!(flight.client_message_id);
        let text = format!(r#"{{"t":"send","client_message_id":{id},"envelope":{}}}"#, flight.envelope);
        let topic = (flight.destination_kind == "topic").then_some(flight.destination_ref);
        let deadline = Instant::now() + self.answer_within;
        self.in_flight.insert(flight.client_message_id, InFlight { row: flight.id, topic, deadline });
        self.writer.send_text(text).await?;
        #[cfg(feature = "sabotage")]
        waybill_store::sabotage::point("daemon_sent");
        Ok(())
    }

    /// The answer to a message: what is to be stored. None for one that nobody waits for: it came too late and the message
    /// is sent again, or it was never asked for.
    fn answered(&mut self, answer: SendResult) -> Option<Settling> {
        let flight = self.in_flight.remove(answer.client_message_id.as_str())?;
        #[cfg(feature = "sabotage")]
        waybill_store::sabotage::point("daemon_ack_received");
        note(&answer);
        Some(Box::pin(settle(Arc::clone(&self.parts), flight, Some(answer))))
    }

    /// Those whose answer did not come in time.
    fn late(&mut self) -> Vec<Settling> {
        let now = Instant::now();
        let is_late = |_: &String, flight: &mut InFlight| flight.deadline <= now;
        let late: Vec<InFlight> = self.in_flight.extract_if(is_late).map(|(_, flight)| flight).collect();
        late.into_iter().map(|flight| Box::pin(settle(Arc::clone(&self.parts), flight, None)) as Settling).collect()
    }
}

/// Stores what became of an attempt.
async fn settle(parts: Arc<Parts>, flight: InFlight, answer: Option<SendResult>) -> Result<Option<Settled>> {
    let outcome = match (answer, &flight.topic) {
        (None, _) => Outcome::Failed { reason: "timeout".to_owned(), retry_after: None },
        // Nothing was stored under the id, so another envelope is no other message.
        (Some(answer), Some(topic)) if answer.error.as_deref() == Some("epoch_unknown") => {
            renew::renew(&parts, flight.row, topic).await?
        }
        (Some(answer), _) => outcome(&answer),
    };
    parts.outbox.settle(flight.row, outcome).await
}

/// The answer is durable.
fn stored(settled: std::result::Result<Option<Settled>, Error>) -> Result<()> {
    #[cfg(feature = "sabotage")]
    waybill_store::sabotage::point("daemon_ack_stored");
    if let Some(Settled::Dead { reason }) = settled? {
        tracing::warn!(
            reason,
            "a message could not be sent and is dead; `waybill daemon outbox list --failed` shows it"
        );
    }
    Ok(())
}

fn note(answer: &SendResult) {
    if answer.history_available == Some(false) {
        metrics::history_pruned();
        tracing::warn!(message.id = %answer.client_message_id, "the broker had the message already and no longer has its text");
    }
}
