//! Stands between the server and PostgreSQL and cuts connections between a COMMIT and its reply.
//!
//! A frontend speaks in messages of a type byte, a length that counts itself, and a body; only the first ones of a
//! connection (the request for TLS, the start) have no type. A COMMIT is the simple query of that text. The last writes of a
//! transaction come right before it, so what a backend answers is counted: every query and every sync ends with one "ready".
//! Everything else passes as it is.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

use crate::rng::{Rng, Stream};

/// One commit in this many is cut.
const CUT_ONE_IN: u64 = 20;
const REPLY_MAX: Duration = Duration::from_secs(2);
const CHUNK: usize = 16 << 10;
const MESSAGE_BYTES_MAX: usize = 64 << 20;

struct Shared {
    /// The port of PostgreSQL.
    target: AtomicU16,
    armed: AtomicBool,
    cuts: AtomicU64,
    rng: Mutex<Rng>,
    /// Answers the chosen commits itself and makes PostgreSQL roll back: a lie that the check must find.
    planted: bool,
}

pub struct Proxy {
    pub port: u16,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    pub async fn start(target_port: u16, seed: u64, planted: bool) -> Result<Proxy> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let port = listener.local_addr()?.port();
        let shared = Arc::new(Shared {
            target: AtomicU16::new(target_port),
            armed: AtomicBool::new(false),
            cuts: AtomicU64::new(0),
            rng: Mutex::new(Rng::new(seed, Stream::Fault)),
            planted,
        });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Ok(Proxy { port, shared, accepting })
    }

    /// Whether commits are cut from here on.
    pub fn arm(&self, armed: bool) {
        self.shared.armed.store(armed, Ordering::SeqCst);
    }

    /// Where new connections lead; those that are open end with the server they lead to.
    pub fn aim(&self, target_port: u16) {
        self.shared.target.store(target_port, Ordering::SeqCst);
    }

    /// Cuts so far.
    pub fn cuts(&self) -> u64 {
        self.shared.cuts.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    /// The connections belong to the accepting task and end with it.
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut relays = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        let shared = Arc::clone(&shared);
        // A relay's error is a closed connection, and both ends see it as such.
        relays.spawn(async move { drop(relay(client, &shared).await) });
        while relays.try_join_next().is_some() {}
    }
}

/// One connection on both its sides.
struct Relay<'a> {
    client: TcpStream,
    server: TcpStream,
    answers: Backend,
    /// How often the server has yet to say that it is ready; once after the start.
    awaited: u64,
    shared: &'a Shared,
}

/// Until either end closes, or a cut.
async fn relay(client: TcpStream, shared: &Shared) -> Result<()> {
    let target = (Ipv4Addr::LOCALHOST, shared.target.load(Ordering::SeqCst));
    let server = TcpStream::connect(target).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    Relay { client, server, answers: Backend::default(), awaited: 1, shared }.run().await
}

impl Relay<'_> {
    async fn run(mut self) -> Result<()> {
        let mut messages = Frontend::default();
        let (mut asked, mut told) = (vec![0; CHUNK], vec![0; CHUNK]);
        loop {
            tokio::select! {
                count = self.client.read(&mut asked) => {
                    let count = count?;
                    if count == 0 {
                        return Ok(());
                    }
                    messages.extend(&asked[..count]);
                    while let Some(message) = messages.next()? {
                        if !is_commit(&message) || !self.shared.chosen() {
                            self.ask(&message).await?;
                        } else if self.shared.planted {
                            self.lie().await?;
                        } else {
                            return self.cut(&message).await;
                        }
                    }
                }
                count = self.server.read(&mut told) => {
                    let count = count?;
                    if count == 0 {
                        return Ok(());
                    }
                    self.awaited = self.awaited.saturating_sub(self.answers.ready(&told[..count]));
                    self.client.write_all(&told[..count]).await?;
                }
            }
        }
    }

    async fn ask(&mut self, message: &[u8]) -> Result<()> {
        self.awaited += u64::from(matches!(message.first(), Some(b'Q' | b'S')));
        Ok(self.server.write_all(message).await?)
    }

    /// Reads until nothing more is awaited of the server.
    async fn hear_out(&mut self, pass_on: bool) -> Result<()> {
        let mut told = vec![0; CHUNK];
        while self.awaited > 0 {
            let count = timeout(REPLY_MAX, self.server.read(&mut told)).await??;
            ensure!(count > 0, "the server has closed the connection");
            self.awaited = self.awaited.saturating_sub(self.answers.ready(&told[..count]));
            if pass_on {
                self.client.write_all(&told[..count]).await?;
            }
        }
        Ok(())
    }

    /// Half of the cuts wait for the reply and drop it: the commit has surely happened. The others close at once, and
    /// nobody knows.
    async fn cut(mut self, commit: &[u8]) -> Result<()> {
        self.ask(commit).await?;
        if self.shared.draw(2) == 0 {
            self.hear_out(false).await?;
        }
        Ok(())
    }

    /// What was asked before is answered truly.
    async fn lie(&mut self) -> Result<()> {
        self.hear_out(true).await?;
        self.ask(b"Q\0\0\0\x0dROLLBACK\0").await?;
        self.hear_out(false).await?;
        self.client.write_all(b"C\0\0\0\x0bCOMMIT\0Z\0\0\0\x05I").await?;
        Ok(())
    }
}

impl Shared {
    fn draw(&self, bound: u64) -> u64 {
        self.rng.lock().unwrap_or_else(PoisonError::into_inner).below(bound)
    }

    fn chosen(&self) -> bool {
        let chosen = self.armed.load(Ordering::SeqCst) && self.draw(CUT_ONE_IN) == 0;
        self.cuts.fetch_add(u64::from(chosen), Ordering::SeqCst);
        chosen
    }
}

/// Looks through the bytes of a backend for the messages that say it is ready.
#[derive(Default)]
struct Backend {
    buffer: Vec<u8>,
}

impl Backend {
    /// How many of them these bytes have completed.
    fn ready(&mut self, bytes: &[u8]) -> u64 {
        self.buffer.extend_from_slice(bytes);
        let (mut at, mut ready) = (0, 0);
        while let Some([kind, a, b, c, d]) = self.buffer.get(at..at + 5).and_then(|head| <[u8; 5]>::try_from(head).ok())
        {
            let end = at + 1 + u32::from_be_bytes([a, b, c, d]) as usize;
            if end > self.buffer.len() {
                break;
            }
            ready += u64::from(kind == b'Z');
            at = end;
        }
        self.buffer.drain(..at);
        ready
    }
}

/// Cuts the bytes of a frontend into whole messages.
#[derive(Default)]
struct Frontend {
    buffer: Vec<u8>,
    started: bool,
}

impl Frontend {
    fn extend(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole message with its head, once it is there.
    fn next(&mut self) -> Result<Option<Vec<u8>>> {
        let head = usize::from(self.started);
        let Some(length) = number(&self.buffer, head) else { return Ok(None) };
        let end = head + length as usize;
        ensure!((head + 4..=MESSAGE_BYTES_MAX).contains(&end), "a message of {length} bytes");
        if self.buffer.len() < end {
            return Ok(None);
        }
        let rest = self.buffer.split_off(end);
        let message = std::mem::replace(&mut self.buffer, rest);
        if !self.started {
            // Requests for TLS or a cancellation have codes of their own; protocol 3 begins the conversation.
            let code = number(&message, 4).context("a first message without a code")?;
            self.started = code >> 16 == 3;
        }
        Ok(Some(message))
    }
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn is_commit(message: &[u8]) -> bool {
    let Some((b'Q', rest)) = message.split_first() else { return false };
    let text = rest.get(4..).and_then(|text| text.strip_suffix(b"\0")).unwrap_or_default();
    let text = String::from_utf8_lossy(text);
    text.trim().trim_end_matches(';').trim_end().eq_ignore_ascii_case("commit")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_is_ready_as_often_as_it_says_however_the_bytes_come() {
        let bytes = b"2\0\0\0\x04D\0\0\0\x06ZZC\0\0\0\x06Z\0Z\0\0\0\x05TC\0\0\0\x0bCOMMIT\0Z\0\0\0\x05I";
        for size in 1..=bytes.len() {
            let mut backend = Backend::default();
            assert_eq!(bytes.chunks(size).map(|part| backend.ready(part)).sum::<u64>(), 2, "{size}");
        }
    }

    fn typed(kind: u8, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(body.len() + 4).unwrap();
        [&[kind][..], &length.to_be_bytes(), body].concat()
    }

    fn untyped(code: u32, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(body.len() + 8).unwrap();
        [&length.to_be_bytes()[..], &code.to_be_bytes(), body].concat()
    }

    #[test]
    fn messages_come_out_whole_however_they_arrive() {
        let sent = [
            untyped(80_877_103, b""),
            untyped(3 << 16, b"user\0postgres\0\0"),
            typed(b'Q', b"COMMIT\0"),
            typed(b'X', b""),
        ];
        let bytes = sent.concat();
        for step in 1..=bytes.len() {
            let mut frontend = Frontend::default();
            let mut got = Vec::new();
            for chunk in bytes.chunks(step) {
                frontend.extend(chunk);
                while let Some(message) = frontend.next().unwrap() {
                    got.push(message);
                }
            }
            assert_eq!(got, sent, "in steps of {step}");
        }
    }

    #[test]
    fn an_impossible_length_ends_the_connection() {
        let mut frontend = Frontend::default();
        frontend.extend(&[0, 0, 0, 3, 0, 3, 0, 0]);
        assert!(frontend.next().is_err());
        let mut frontend = Frontend { started: true, ..Frontend::default() };
        frontend.extend(b"Q\xff\xff\xff\xff");
        assert!(frontend.next().is_err());
    }

    #[test]
    fn only_a_commit_is_one() {
        for text in ["COMMIT\0", "commit;\0", " Commit ; \0"] {
            assert!(is_commit(&typed(b'Q', text.as_bytes())), "{text}");
        }
        for text in ["ROLLBACK\0", "COMMIT PREPARED 'a'\0", "BEGIN\0", "\0"] {
            assert!(!is_commit(&typed(b'Q', text.as_bytes())), "{text}");
        }
        assert!(!is_commit(&typed(b'P', b"COMMIT\0")));
        assert!(!is_commit(&untyped(3 << 16, b"COMMIT\0")));
    }
}
