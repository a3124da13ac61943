//! A WebSocket over a connection that was taken over: frames as text, one at a time, with bounds on bytes and on time.
//!
//! Most sockets are quiet most of the time, and there may be thousands: a reader or writer that has grown with a long frame is
//! replaced by a fresh one as soon as nothing is half read.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::error::Error as WsError;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Message, Role, WebSocketConfig};
use waybill_doors::TakenSocket;
use waybill_kernel::Result;
use waybill_mesh_protocol::{CloseCode, FRAME_BYTES_MAX, Framed, ServerFrame};

use super::boundaries::Boundaries;

/// What a socket keeps for reading while it is quiet.
const READ_BYTES: usize = 2 << 10;
/// Longer frames are worth a fresh reader afterwards.
const SMALL_BYTES_MAX: usize = 8 << 10;
/// What is fed is written when there is so much of it, or when it is flushed.
const WRITE_BYTES: usize = 16 << 10;
/// A writer that had more before it is not kept while the socket is quiet.
const WRITTEN_BYTES_MAX: usize = 2 << 10;
/// Before it is known who is there.
const GREETING_BYTES_MAX: usize = 4 << 10;
/// After its close frame a socket is read for so long, so that the frame is not lost to what the other side was still sending.
const LINGER: Duration = Duration::from_secs(1);
const LINGER_BYTES_MAX: usize = 32 << 20;

/// Why a socket is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leave {
    /// The other side is gone, or has said goodbye.
    Gone,
    /// It is told why.
    Close(CloseCode),
}

pub(crate) struct Socket {
    /// None only while a fresh one is put in its place.
    stream: Option<WebSocketStream<Counted>>,
    write: Duration,
    frame_bytes_max: usize,
    /// The most bytes that had to wait to be written since the last fresh one.
    written: usize,
    /// Bytes that were fed since the last flush.
    fed: usize,
    /// Messages since the last fresh one.
    heard: u64,
    /// The bound on frames has changed, which the present one does not know.
    is_outdated: bool,
}

impl Socket {
    pub(crate) async fn new(socket: TakenSocket, write: Duration) -> Self {
        let counted = Counted { socket, frames: Boundaries::default() };
        let stream = Some(fresh(counted, GREETING_BYTES_MAX).await);
        Self { stream, write, frame_bytes_max: GREETING_BYTES_MAX, written: 0, fed: 0, heard: 0, is_outdated: false }
    }

    /// Who is there is known: frames may be of any length from now on.
    pub(crate) fn trust(&mut self) {
        (self.frame_bytes_max, self.is_outdated) = (FRAME_BYTES_MAX, true);
    }

    /// Some text, or None for what only shows that the other side is there.
    ///
    /// # Cancel safety
    /// Nothing is lost: what has been read stays.
    pub(crate) async fn hear(&mut self) -> std::result::Result<Option<String>, Leave> {
        if self.is_outdated {
            self.replace().await;
        }
        let Some(stream) = &mut self.stream else { return Err(Leave::Gone) };
        let next = stream.next().await;
        self.heard += 1;
        if matches!(next, Some(Ok(Message::Close(_)))) {
            // The goodbye is answered.
            let _ = timeout(LINGER, stream.flush()).await;
        }
        match next {
            Some(Ok(Message::Text(text))) => Ok(Some(text.as_str().to_owned())),
            Some(Ok(Message::Ping(_) | Message::Pong(_))) => Ok(None),
            Some(Ok(Message::Binary(_) | Message::Frame(_))) => Err(Leave::Close(CloseCode::FrameInvalid)),
            Some(Err(WsError::Capacity(_))) => Err(Leave::Close(CloseCode::TooBig)),
            Some(Err(WsError::Protocol(_) | WsError::Utf8(_))) => Err(Leave::Close(CloseCode::FrameInvalid)),
            Some(Ok(Message::Close(_)) | Err(_)) | None => Err(Leave::Gone),
        }
    }

    /// Ends when the other side's system has taken the frame.
    pub(crate) async fn say(&mut self, frame: &Framed<ServerFrame>) -> std::result::Result<(), Leave> {
        self.feed(frame).await?;
        self.flush().await
    }

    /// The frame leaves with the next flush, or earlier. Waits while the other side's system has not taken what is before it.
    pub(crate) async fn feed(&mut self, frame: &Framed<ServerFrame>) -> std::result::Result<(), Leave> {
        match frame.write() {
            Ok(text) => self.feed_text(text).await,
            Err(error) => {
                waybill_doors::log_cause(&error);
                Ok(())
            }
        }
    }

    pub(crate) async fn feed_text(&mut self, text: String) -> std::result::Result<(), Leave> {
        self.fed += text.len();
        self.written = self.written.max(self.fed.min(WRITE_BYTES + text.len()));
        let Some(stream) = &mut self.stream else { return Err(Leave::Gone) };
        taken(timeout(self.write, stream.feed(Message::text(text))).await)
    }

    /// Ends when the other side's system has taken all that was fed.
    pub(crate) async fn flush(&mut self) -> std::result::Result<(), Leave> {
        if self.fed == 0 {
            return Ok(());
        }
        let Some(stream) = &mut self.stream else { return Err(Leave::Gone) };
        taken(timeout(self.write, stream.flush()).await)?;
        self.fed = 0;
        Ok(())
    }

    pub(crate) async fn ping(&mut self) -> std::result::Result<(), Leave> {
        self.send(Message::Ping(bytes::Bytes::new())).await
    }

    async fn send(&mut self, message: Message) -> std::result::Result<(), Leave> {
        let Some(stream) = &mut self.stream else { return Err(Leave::Gone) };
        taken(timeout(self.write, stream.send(message)).await)?;
        self.fed = 0;
        Ok(())
    }

    /// Gives back what long frames have left behind.
    pub(crate) async fn rest(&mut self) {
        let Some(stream) = &self.stream else { return };
        if stream.get_ref().frames.longest() > SMALL_BYTES_MAX as u64 || self.written > WRITTEN_BYTES_MAX {
            self.replace().await;
        }
    }

    /// A fresh reader and writer, unless something is half read, or read and not yet heard.
    ///
    /// # Cancel safety
    /// Nothing is lost: what may wait comes before anything is taken apart.
    async fn replace(&mut self) {
        let Some(stream) = &mut self.stream else { return };
        let frames = &stream.get_ref().frames;
        if !frames.is_between() || frames.messages() != self.heard {
            return;
        }
        if !timeout(self.write, stream.flush()).await.is_ok_and(|flushed| flushed.is_ok()) {
            return;
        }
        if let Some(stream) = self.stream.take() {
            let counted = Counted { socket: stream.into_inner().socket, frames: Boundaries::default() };
            // Waits for nothing.
            self.stream = Some(fresh(counted, self.frame_bytes_max).await);
            (self.written, self.fed, self.heard, self.is_outdated) = (0, 0, 0, false);
        }
    }

    /// Says why, and takes what is still on its way: a socket that is closed with bytes unread is reset, and the other side would
    /// not learn why.
    pub(crate) async fn close(mut self, code: CloseCode) {
        let frame = CloseFrame { code: code.code().into(), reason: code.name().into() };
        let said = match code {
            // It would only wait again.
            CloseCode::TooSlow => Ok(()),
            _ => self.send(Message::Close(Some(frame))).await,
        };
        let (Ok(()), Some(stream)) = (said, self.stream) else { return };
        let mut socket = stream.into_inner().socket;
        let drained = async {
            socket.shutdown().await?;
            let (mut scratch, mut read) = (vec![0; READ_BYTES], 0);
            while read < LINGER_BYTES_MAX {
                match socket.read(&mut scratch).await? {
                    0 => break,
                    more => read += more,
                }
            }
            io::Result::Ok(())
        };
        let _ = timeout(LINGER, drained).await;
    }
}

fn taken(
    outcome: std::result::Result<std::result::Result<(), WsError>, tokio::time::error::Elapsed>,
) -> std::result::Result<(), Leave> {
    match outcome {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) => Err(Leave::Gone),
        Err(_) => Err(Leave::Close(CloseCode::TooSlow)),
    }
}

async fn fresh(socket: Counted, frame_bytes_max: usize) -> WebSocketStream<Counted> {
    let config = WebSocketConfig::default()
        .read_buffer_size(READ_BYTES)
        .write_buffer_size(WRITE_BYTES)
        .max_write_buffer_size(FRAME_BYTES_MAX + WRITE_BYTES + SMALL_BYTES_MAX)
        .max_frame_size(Some(frame_bytes_max))
        .max_message_size(Some(frame_bytes_max));
    WebSocketStream::from_raw_socket(socket, Role::Server, Some(config)).await
}

/// The socket, and where the frames end in what came from it.
struct Counted {
    socket: TakenSocket,
    frames: Boundaries,
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.socket).poll_read(context, buffer);
        if let Some(new) = buffer.filled().get(before..) {
            self.frames.feed(new);
        }
        read
    }
}

impl AsyncWrite for Counted {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}

/// What a frame of the broker is as text, made once for many sockets.
pub(crate) fn text(frame: ServerFrame) -> Result<String> {
    Framed::from(frame).write()
}
