//! The sending half of the socket: one task owns it, others hand it texts.

use futures_util::SinkExt;
use futures_util::stream::SplitSink;
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use waybill_kernel::{Error, Result};
use waybill_mesh_protocol::{ClientFrame, CloseCode, Framed};

use super::ending;
use super::socket::Socket;

/// Frames that wait to be written. Each has at most `FRAME_BYTES_MAX`; the window bounds the large ones.
const WAITING_MAX: usize = 128;

enum Out {
    Text(String),
    /// As many frames, which leave together.
    Texts(Vec<String>),
    Close(CloseCode),
}

#[derive(Clone)]
pub struct Writer(mpsc::Sender<Out>);

impl Writer {
    /// And the task that writes: it ends when the socket does, or when nobody can write any more.
    pub fn new(sink: SplitSink<Socket, Message>) -> (Self, impl Future<Output = Result<()>>) {
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        (Self(sender), write(sink, receiver))
    }

    pub async fn send(&self, frame: &Framed<ClientFrame>) -> Result<()> {
        self.send_text(frame.write()?).await
    }

    pub async fn send_text(&self, text: String) -> Result<()> {
        self.0.send(Out::Text(text)).await.map_err(|_| ending::lost("the socket is closed"))
    }

    pub async fn send_texts(&self, texts: Vec<String>) -> Result<()> {
        self.0.send(Out::Texts(texts)).await.map_err(|_| ending::lost("the socket is closed"))
    }

    /// The last thing that is written.
    pub async fn close(&self, code: CloseCode) {
        let _ = self.0.send(Out::Close(code)).await;
    }
}

async fn write(mut sink: SplitSink<Socket, Message>, mut waiting: mpsc::Receiver<Out>) -> Result<()> {
    let broken = |error: tokio_tungstenite::tungstenite::Error| ending::lost(&error.to_string());
    while let Some(out) = waiting.recv().await {
        match out {
            Out::Text(text) => sink.feed(Message::text(text)).await.map_err(broken)?,
            Out::Texts(texts) => {
                for text in texts {
                    sink.feed(Message::text(text)).await.map_err(broken)?;
                }
            }
            Out::Close(code) => {
                let frame = CloseFrame { code: code.code().into(), reason: code.name().into() };
                sink.send(Message::Close(Some(frame))).await.map_err(broken)?;
                return Ok(());
            }
        }
        // Many small frames leave together.
        if waiting.is_empty() {
            sink.flush().await.map_err(broken)?;
        }
    }
    sink.close().await.map_err(Error::internal)
}
