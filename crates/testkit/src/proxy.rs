//! A TCP proxy that breaks the link on purpose, most usefully the one to PostgreSQL.
//!
//! PostgreSQL's protocol, as far as it matters here: the client opens with untyped packets (length, code), possibly
//! asking for encryption first; from then on both sides send frames of type byte, length (which counts itself), body.
//! A statement travels as `Q` (text), or as `P` (parse: name, text), `B` (bind: portal, statement name) and `E`
//! (execute: portal). The server tells the end of a statement by `C` and a tag, here `COMMIT`.

use std::collections::{HashMap, HashSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

const CHUNK_BYTES: usize = 16 * 1024;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mode {
    Pass,
    /// New connections are closed at once; open ones go on. [`Proxy::cut`] closes those.
    Refuse,
    /// Every chunk waits this long, in both directions.
    Delay(Duration),
    /// Connections stay open and nothing moves.
    Stall,
    /// The next COMMIT on any connection reaches the server, which carries it out; its reply is lost and the
    /// connection cut. Fires once and returns to [`Mode::Pass`], so that a retry meets a good link.
    CutAfterCommit,
}

/// Ends with its owner, and all connections with it.
#[derive(Debug)]
pub struct Proxy {
    pub addr: SocketAddr,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    mode: watch::Sender<Mode>,
    /// Connections end when this changes.
    cuts: watch::Sender<u64>,
    commits_lost: AtomicU64,
}

impl Proxy {
    pub async fn start(upstream: SocketAddr) -> anyhow::Result<Proxy> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let addr = listener.local_addr()?;
        let (mode, cuts) = (watch::Sender::new(Mode::Pass), watch::Sender::new(0));
        let shared = Arc::new(Shared { mode, cuts, commits_lost: AtomicU64::new(0) });
        let accepting = tokio::spawn(accept(listener, upstream, Arc::clone(&shared)));
        Ok(Proxy { addr, shared, accepting })
    }

    pub fn set(&self, mode: Mode) {
        self.shared.mode.send_replace(mode);
    }

    /// Closes every open connection now. New ones are served as the mode says.
    pub fn cut(&self) {
        self.shared.cut();
    }

    /// How many commits were carried out and their replies withheld.
    pub fn commits_lost(&self) -> u64 {
        self.shared.commits_lost.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
    }
}

impl Shared {
    fn cut(&self) {
        self.cuts.send_modify(|count| *count += 1);
    }

    /// Takes the one shot of `CutAfterCommit`, if it is loaded.
    fn fire(&self) -> bool {
        self.mode.send_if_modified(|mode| {
            let loaded = *mode == Mode::CutAfterCommit;
            if loaded {
                *mode = Mode::Pass;
            }
            loaded
        })
    }

    /// Holds a chunk back as the mode says, and follows the mode when it changes meanwhile.
    async fn hold(&self) {
        let mut modes = self.mode.subscribe();
        loop {
            let mode = *modes.borrow_and_update();
            match mode {
                Mode::Stall => {
                    if modes.changed().await.is_err() {
                        return;
                    }
                }
                Mode::Delay(time) => return tokio::time::sleep(time).await,
                Mode::Pass | Mode::Refuse | Mode::CutAfterCommit => return,
            }
        }
    }
}

async fn accept(listener: TcpListener, upstream: SocketAddr, shared: Arc<Shared>) {
    while let Ok((client, _)) = listener.accept().await {
        if *shared.mode.borrow() == Mode::Refuse {
            continue;
        }
        let mut cuts = shared.cuts.subscribe();
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            tokio::select! {
                _ = cuts.changed() => {}
                _ = serve(client, upstream, &shared) => {}
            }
        });
    }
}

/// Ends with the first of its two directions; dropping the sockets closes both sides.
async fn serve(client: TcpStream, upstream: SocketAddr, shared: &Shared) -> std::io::Result<()> {
    let server = TcpStream::connect(upstream).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let losing = watch::Sender::new(false);
    tokio::select! {
        ended = forward(from_client, to_server, shared, &losing) => ended,
        ended = back(from_server, to_client, shared, losing.subscribe()) => ended,
    }
}

async fn forward(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    shared: &Shared,
    losing: &watch::Sender<bool>,
) -> std::io::Result<()> {
    let mut frames = Frontend::default();
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let count = from.read(&mut chunk).await?;
        if count == 0 {
            return Ok(());
        }
        shared.hold().await;
        // Before the write: the reply must not overtake the decision to withhold it.
        if frames.has_commit(&chunk[..count]) && shared.fire() {
            losing.send_replace(true);
        }
        to.write_all(&chunk[..count]).await?;
    }
}

async fn back(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    shared: &Shared,
    losing: watch::Receiver<bool>,
) -> std::io::Result<()> {
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut withheld = Vec::new();
    loop {
        let count = from.read(&mut chunk).await?;
        if count == 0 {
            return Ok(());
        }
        if *losing.borrow() {
            withheld.extend_from_slice(&chunk[..count]);
            // Only now is the commit a fact; cutting earlier would leave it to chance.
            if withheld.windows(COMMITTED.len()).any(|bytes| bytes == COMMITTED) {
                shared.commits_lost.fetch_add(1, Ordering::SeqCst);
                return Ok(());
            }
            continue;
        }
        shared.hold().await;
        to.write_all(&chunk[..count]).await?;
    }
}

/// CommandComplete, 11 bytes after its type, with the tag COMMIT.
const COMMITTED: &[u8] = b"C\0\0\0\x0bCOMMIT\0";

/// Codes of requests that come before the start-up packet proper: encryption by TLS or GSSAPI.
const ENCRYPTION_REQUESTS: [u32; 2] = [80_877_103, 80_877_104];

/// Follows what one client sends. Bytes arrive in chunks that know nothing of frames.
#[derive(Default)]
struct Frontend {
    buffer: Vec<u8>,
    started: bool,
    /// Prepared statements that are a COMMIT, and the portals bound to any statement.
    commits: HashSet<Vec<u8>>,
    portals: HashMap<Vec<u8>, Vec<u8>>,
}

impl Frontend {
    /// Whether a frame completed by these bytes executes a COMMIT.
    fn has_commit(&mut self, bytes: &[u8]) -> bool {
        self.buffer.extend_from_slice(bytes);
        let mut found = false;
        loop {
            let head = usize::from(self.started);
            let Some(length) = self.buffer.get(head..head + 4).map(number) else { return found };
            let end = head + length as usize;
            if self.buffer.len() < end || length < 4 {
                return found;
            }
            let frame: Vec<u8> = self.buffer.drain(..end).collect();
            let body = &frame[head + 4..];
            if self.started {
                found |= self.executes_commit(frame[0], body);
            } else {
                self.started = !body.get(..4).map(number).is_some_and(|code| ENCRYPTION_REQUESTS.contains(&code));
            }
        }
    }

    fn executes_commit(&mut self, kind: u8, body: &[u8]) -> bool {
        let (first, rest) = text(body);
        match kind {
            b'Q' => return is_commit(first),
            b'P' if is_commit(text(rest).0) => _ = self.commits.insert(first.to_vec()),
            b'P' => _ = self.commits.remove(first),
            b'B' => _ = self.portals.insert(first.to_vec(), text(rest).0.to_vec()),
            b'E' => return self.portals.get(first).is_some_and(|statement| self.commits.contains(statement)),
            _ => {}
        }
        false
    }
}

fn number(bytes: &[u8]) -> u32 {
    bytes.iter().take(4).fold(0, |value, byte| value << 8 | u32::from(*byte))
}

/// A zero-terminated string and what follows it.
fn text(bytes: &[u8]) -> (&[u8], &[u8]) {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    (&bytes[..end], bytes.get(end + 1..).unwrap_or_default())
}

fn is_commit(sql: &[u8]) -> bool {
    sql.split(|byte| *byte == b';').any(|statement| statement.trim_ascii().eq_ignore_ascii_case(b"COMMIT"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::postgres::Postgres;

    async fn connect(url: &str) -> Result<tokio_postgres::Client, tokio_postgres::Error> {
        let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await?;
        tokio::spawn(connection);
        Ok(client)
    }

    #[tokio::test]
    async fn a_commit_is_carried_out_and_its_reply_lost() {
        let database = Postgres::shared().await.unwrap().database().await.unwrap();
        let proxy = Proxy::start(database.addr).await.unwrap();
        let url = database.url_via(proxy.addr);
        connect(&url).await.unwrap().batch_execute("CREATE TABLE marks (id BIGINT)").await.unwrap();
        for (id, prepared) in [(1i64, false), (2, true)] {
            proxy.set(Mode::CutAfterCommit);
            let client = connect(&url).await.unwrap();
            let lost = if prepared {
                client.batch_execute(&format!("BEGIN; INSERT INTO marks VALUES ({id})")).await.unwrap();
                client.execute("COMMIT", &[]).await.map(|_| ())
            } else {
                client.batch_execute(&format!("BEGIN; INSERT INTO marks VALUES ({id}); commit;")).await
            };
            assert!(lost.unwrap_err().is_closed(), "prepared: {prepared}");
        }
        assert_eq!(proxy.commits_lost(), 2);
        let rows = connect(&url).await.unwrap().query("SELECT id FROM marks ORDER BY id", &[]).await.unwrap();
        assert_eq!(rows.iter().map(|row| row.get(0)).collect::<Vec<i64>>(), [1, 2]);
    }

    #[tokio::test]
    async fn links_are_cut_refused_and_stalled() {
        let database = Postgres::shared().await.unwrap().database().await.unwrap();
        let proxy = Proxy::start(database.addr).await.unwrap();
        let url = database.url_via(proxy.addr);
        let client = connect(&url).await.unwrap();
        proxy.set(Mode::Stall);
        let brief = Duration::from_millis(100);
        assert!(tokio::time::timeout(brief, client.batch_execute("SELECT 1")).await.is_err());
        proxy.set(Mode::Delay(Duration::from_millis(1)));
        client.batch_execute("SELECT 1").await.unwrap();
        proxy.set(Mode::Refuse);
        assert!(connect(&url).await.is_err());
        client.batch_execute("SELECT 1").await.unwrap();
        proxy.cut();
        assert!(client.batch_execute("SELECT 1").await.is_err());
        proxy.set(Mode::Pass);
        connect(&url).await.unwrap().batch_execute("SELECT 1").await.unwrap();
    }

    #[test]
    fn frames_are_found_however_they_are_cut() {
        let mut stream = Vec::new();
        stream.extend([0, 0, 0, 8]);
        stream.extend(ENCRYPTION_REQUESTS[0].to_be_bytes());
        stream.extend([0, 0, 0, 9, 0, 3, 0, 0, 0]);
        stream.extend(b"Q\0\0\0\x0bSELECT\0");
        stream.extend(b"P\0\0\0\x0fs\0COMMIT\0\0\0");
        stream.extend(b"B\0\0\0\x0d\0s\0\0\0\0\0\0\0");
        let mut frames = Frontend::default();
        assert!(!stream.iter().any(|byte| frames.has_commit(&[*byte])));
        assert!(frames.has_commit(b"E\0\0\0\x09\0\0\0\0\0"));
    }
}
