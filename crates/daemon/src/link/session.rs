//! One connection from its first byte to its last. All of it is one task: when any part of it ends, the others are dropped with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::SplitStream;
use reqwest::Url;
use serde_json::json;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior};
use tokio_tungstenite::tungstenite::{Error as SocketError, Message};
use tokio_util::sync::CancellationToken;
use waybill_kernel::{Code, Error, Result};
use waybill_mesh_protocol::challenge::{self, ChallengeNonce, unix_seconds};
use waybill_mesh_protocol::frames::{Framed, Hello, MemberGone, SendResult};
use waybill_mesh_protocol::{ClientFrame, CloseCode, ServerFrame, negotiation, outbox_max_age};

use super::ending::Ending;
use super::inbound::{self, Arrival, Inbound};
use super::machine::{Action, Agreed, Ended, Expected, Machine};
use super::socket::{self, Socket};
use super::writer::Writer;
use super::{Parts, Status, ending, sync};
use crate::drain::{self, Drain};
use crate::events::EventKind;
use crate::metrics;

/// Time for the last frame to leave.
const FAREWELL: Duration = Duration::from_secs(1);

/// Why a connection has ended.
#[derive(Debug)]
pub enum End {
    /// The daemon is stopping.
    Stopped,
    /// To be connected again at once, with other keys.
    Renew,
    Finally(Error),
    Over(Ending),
}

pub struct Session<'a> {
    parts: &'a Arc<Parts>,
    status: &'a watch::Sender<Status>,
    renew: &'a Notify,
    began: Instant,
    /// When the broker was last heard, in milliseconds after the beginning.
    heard_ms: AtomicU64,
}

/// Where the reader hands things on to.
struct Hands {
    writer: Writer,
    arrivals: mpsc::Sender<Arrival>,
    answers: mpsc::Sender<SendResult>,
    ready: Notify,
}

impl<'a> Session<'a> {
    pub fn new(parts: &'a Arc<Parts>, status: &'a watch::Sender<Status>, renew: &'a Notify) -> Self {
        Self { parts, status, renew, began: Instant::now(), heard_ms: AtomicU64::new(0) }
    }

    pub async fn run(mut self, url: &Url, token: &CancellationToken) -> End {
        let within = Duration::from_millis(self.parts.settings.connect_ms);
        let connected = tokio::select! {
            () = token.cancelled() => return End::Stopped,
            connected = socket::connect(url, within) => connected,
        };
        match connected {
            Ok(socket) => {
                self.began = Instant::now();
                self.talk(socket, token).await
            }
            Err(error) => End::Over(Ending::Lost(format!("{error}: {}", error.cause().unwrap_or_default()))),
        }
    }

    async fn talk(&self, socket: Socket, token: &CancellationToken) -> End {
        let (sink, stream) = socket.split();
        let (writer, writing) = Writer::new(sink);
        let (arrivals, arriving) = mpsc::channel(inbound::WAITING_MAX);
        let (answers, answering) = mpsc::channel(drain::ANSWERS_MAX);
        let hands = Hands { writer: writer.clone(), arrivals: arrivals.clone(), answers, ready: Notify::new() };
        let mut writing = std::pin::pin!(writing);
        let serve = async {
            hands.ready.notified().await;
            self.serve(writer.clone(), arrivals.clone(), arriving, answering).await
        };
        let end = tokio::select! {
            end = self.read(stream, &hands) => end,
            end = serve => broken(end),
            end = &mut writing => broken(end),
            end = self.watch(&writer) => End::Over(end),
            () = self.renew.notified() => End::Renew,
            () = token.cancelled() => End::Stopped,
        };
        let farewell = match &end {
            End::Finally(error) => negotiation::close_code(error).or(Some(CloseCode::Normal)),
            End::Stopped | End::Renew => Some(CloseCode::Normal),
            End::Over(_) => None,
        };
        if let Some(code) = farewell {
            // The line to the writer may be full, and the broker may not read.
            let _ = tokio::time::timeout(FAREWELL, async { tokio::join!(writer.close(code), &mut writing).1 }).await;
        }
        end
    }

    /// Everything that begins once both sides agree.
    async fn serve(
        &self,
        writer: Writer,
        arrivals: mpsc::Sender<Arrival>,
        arriving: mpsc::Receiver<Arrival>,
        answering: mpsc::Receiver<SendResult>,
    ) -> Result<()> {
        // Before messages are opened: most of their keys come this way. Without an answer they are held, and opened later.
        let first = Duration::from_millis(self.parts.settings.connect_ms);
        if !matches!(tokio::time::timeout(first, sync::sync(self.parts)).await, Ok(Ok(()))) {
            self.parts.refresh.notify_one();
        }
        // Before anything is sent, whatever has become of the reading.
        self.parts.resealer.direct_messages().await?;
        let inbound = Inbound::new(Arc::clone(self.parts), writer.clone()).run(arriving);
        let drain = Drain::new(Arc::clone(self.parts), writer).run(answering);
        let refreshing = sync::keep(self.parts, &arrivals);
        tokio::try_join!(inbound, drain, refreshing).map(drop)
    }

    /// Pings, and ends what does not answer: a broker that is gone without a word, or one that takes too long to greet.
    async fn watch(&self, writer: &Writer) -> Ending {
        let settings = &self.parts.settings;
        let mut ticks = tokio::time::interval(Duration::from_millis(settings.ping_ms));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (greeting, dead) = (Duration::from_millis(settings.connect_ms), Duration::from_millis(settings.dead_ms));
        let greeted_by = tokio::time::sleep_until(self.began + greeting);
        let mut greeted_by = std::pin::pin!(greeted_by);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = &mut greeted_by, if !greeted_by.is_elapsed() => {
                    if !self.status.borrow().connected {
                        return Ending::Lost("the broker does not greet".to_owned());
                    }
                }
            }
            let heard = Duration::from_millis(self.heard_ms.load(Ordering::Relaxed));
            if self.began.elapsed().saturating_sub(heard) >= dead {
                return Ending::Lost("the broker is silent".to_owned());
            }
            if self.status.borrow().connected {
                // One that has no room for a ping has a broker that does not read: the time runs on.
                let ping = Framed::from(ClientFrame::Ping {});
                let within = Duration::from_millis(settings.ping_ms);
                if let Ok(Err(error)) = tokio::time::timeout(within, writer.send(&ping)).await {
                    return Ending::Lost(error.to_string());
                }
            }
        }
    }

    async fn read(&self, mut stream: SplitStream<Socket>, hands: &Hands) -> End {
        let expected = Expected { mesh: self.parts.mesh, plaintext: self.parts.directory.is_plaintext() };
        let mut machine = Machine::new(expected, self.parts.edition.clone());
        while let Some(message) = stream.next().await {
            let heard = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
            self.heard_ms.store(heard, Ordering::Relaxed);
            let text = match message {
                Ok(Message::Text(text)) => text,
                Ok(Message::Close(frame)) => return End::Over(Ending::Closed(frame.map(|frame| frame.code.into()))),
                Ok(Message::Ping(_) | Message::Pong(_)) => continue,
                Ok(_) => {
                    metrics::invalid_inbound("frame_binary");
                    continue;
                }
                Err(error) => return End::Over(Ending::Lost(what(&error))),
            };
            let frame = match Framed::<ServerFrame>::read(text.as_bytes()) {
                Ok(frame) => frame,
                Err(error) => {
                    // What it was about is pushed again, or asked for at the next connection.
                    metrics::invalid_inbound("frame_invalid");
                    tracing::warn!(%error, "a frame of the broker cannot be read and is passed over");
                    continue;
                }
            };
            match self.act(machine.on_frame(frame), hands).await {
                Ok(None) => {}
                Ok(Some(end)) => return end,
                Err(error) => return broken(Err(error)),
            }
        }
        End::Over(Ending::Closed(None))
    }

    async fn act(&self, action: Action, hands: &Hands) -> Result<Option<End>> {
        let arrival = match action {
            Action::Sign(nonce) => {
                hands.writer.send(&self.hello(&nonce).into()).await?;
                return Ok(None);
            }
            Action::Send(frame) => {
                hands.writer.send(&frame.into()).await?;
                return Ok(None);
            }
            Action::Ready(agreed) => return Ok(self.ready(*agreed, hands).err().map(End::Finally)),
            Action::Settle(result) => {
                hands.answers.send(*result).await.map_err(|_| ending::lost("the drain has ended"))?;
                return Ok(None);
            }
            Action::Note(refused) => {
                tracing::warn!(error.code = refused.error, message = refused.message, "the broker has refused a frame");
                return Ok(None);
            }
            Action::Alive => return Ok(None),
            Action::End(ended) => return Ok(Some(over(ended))),
            Action::Revoked(gone) if self.is_me(&gone) => {
                return Ok(Some(End::Finally(ending::error(Code::MemberRevoked))));
            }
            Action::Store(deliver) => {
                let lag = self.parts.clock.now().since(deliver.message.accepted_at);
                metrics::lag(lag);
                self.status.send_modify(|status| status.lag_ms = u64::try_from(lag.as_millis()).unwrap_or(u64::MAX));
                Arrival::Deliver(deliver)
            }
            Action::Page(page) => Arrival::Page(page),
            Action::Joined(peer) => Arrival::Joined(peer),
            Action::Left(gone) => Arrival::Left(gone),
            Action::Renamed(renamed) => Arrival::Renamed(renamed),
            Action::Rotated(rotated) => Arrival::Rotated(rotated),
            Action::Revoked(gone) => Arrival::Revoked(gone),
            Action::Learn(key) => Arrival::Learn(key),
            Action::Mint(wanted) => Arrival::Mint(wanted),
        };
        hands.arrivals.send(arrival).await.map_err(|_| ending::lost("the inbox has ended"))?;
        Ok(None)
    }

    fn is_me(&self, gone: &MemberGone) -> bool {
        gone.member_id == self.parts.member || gone.key == self.parts.keyring.public_key()
    }

    fn hello(&self, nonce: &ChallengeNonce) -> ClientFrame {
        let (identity, mesh) = (self.parts.keyring.identity(), self.parts.mesh);
        let time = unix_seconds(self.parts.clock.now());
        ClientFrame::Hello(Hello {
            mesh,
            key: identity.public_key(),
            time,
            signature: challenge::sign(&identity, nonce, mesh, time),
            client: Some(concat!("waybill-daemon/", env!("CARGO_PKG_VERSION")).to_owned()),
        })
    }

    /// # Errors
    /// Those that end the daemon: what the broker remembers does not allow what the operator wants.
    fn ready(&self, agreed: Agreed, hands: &Hands) -> Result<()> {
        let Agreed { hello, features, response } = agreed;
        let max_age = outbox_max_age(features.dedupe, self.parts.outbox.max_age_wanted())?;
        self.parts.outbox.set_max_age(max_age);
        self.parts.sealer.set_inline_bytes_max(features.inline_bytes);
        self.parts.files.set_bytes_max(features.blob_bytes);
        tracing::info!(broker.version = hello.broker_version, features = %json!(response.supported), "the link is up");
        let was_up = self.status.borrow().connections > 0;
        self.status.send_modify(|status| {
            status.connected = true;
            status.up_since = Some(Instant::now());
            status.connections += 1;
            status.broker_version = Some(hello.broker_version);
            status.name = Some(hello.name.to_string());
            status.features = Some(json!(response.supported));
        });
        metrics::connected(true);
        if was_up {
            metrics::reconnected();
            let data = json!({ "mesh": self.parts.slug });
            self.parts.events.publish(EventKind::DaemonReconnect, self.parts.clock.now(), data);
        }
        hands.ready.notify_one();
        Ok(())
    }
}

fn over(ended: Ended) -> End {
    match ended {
        Ended::Finally { code, message } => End::Finally(Error::new(code, message)),
        Ended::OutOfTurn(frame) => End::Over(Ending::Lost(format!("the broker sent {frame} out of turn"))),
        Ended::Refused(message) => End::Over(Ending::Lost(message)),
    }
}

/// A part of the connection has ended: with it the connection, and not the daemon.
fn broken(end: Result<()>) -> End {
    match end {
        Ok(()) => End::Over(Ending::Closed(None)),
        Err(error) => End::Over(Ending::Lost(format!("{error}: {}", error.cause().unwrap_or_default()))),
    }
}

fn what(error: &SocketError) -> String {
    error.to_string()
}
