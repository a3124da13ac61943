//! What local programs talk to: HTTP/1 on a Unix socket, and on loopback TCP with a token.
//!
//! | file | what |
//! |---|---|
//! | `guard` | who may ask, by the head of a request; pure |
//! | `front` | what every request passes: guard, token, places, endpoint, figures |
//! | `routes` | which endpoint a path is |
//! | `send` | from a caller's words to a row of the outbox |
//! | `read`, `stream`, `files`, `status`, `admin` | the other endpoints |
//!
//! Everything that waits is bounded: connections, requests in hand, streams, the bytes of a body and the time it may take.

mod admin;
mod body;
mod files;
mod front;
mod guard;
mod query;
mod read;
mod reply;
mod routes;
mod send;
mod status;
mod stream;
mod ulid;

use std::fs;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use waybill_kernel::{Clock, Code, Entropy, Error, Result, Time};

use crate::config::Settings;
use crate::directory::Directory;
use crate::events::Events;
use crate::folder::{self, Folder};
use crate::hooks::Hooks;
use crate::identity::Membership;
use crate::inbox::Inbox;
use crate::link::{LinkHandle, Status};
use crate::outbox::Outbox;
use crate::seal::{Keyring, Sealer};
use crate::token::Tokens;

pub use front::Front;
pub use guard::Via;
pub(crate) use send::take;

/// More than any client sends; hyper answers 431 beyond.
const HEADERS_MAX: usize = 64;
const HEAD_BYTES_MAX: usize = 16 << 10;
/// After an accept that failed: without files to open, the loop would only burn time.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What requests work with.
pub struct Local {
    pub folder: Folder,
    pub settings: Settings,
    pub membership: Membership,
    pub clock: Arc<Clock>,
    pub entropy: Arc<dyn Entropy>,
    pub started: Time,
    pub schema_version: i32,
    pub tokens: Tokens,
    pub outbox: Outbox,
    pub inbox: Inbox,
    pub events: Events,
    pub directory: Directory,
    pub keyring: Keyring,
    pub sealer: Sealer,
    pub hooks: Hooks,
    pub link: LinkHandle,
    pub link_status: watch::Receiver<Status>,
    pub recorder: PrometheusHandle,
    /// Cancelled when the daemon is to stop.
    pub stop: CancellationToken,
    /// Held by whoever looks for the line of a member that has rotated, until the message is in it.
    pub lining_up: Mutex<()>,
    /// Held by whoever changes the profile, from reading its file to writing it.
    pub profiling: Mutex<()>,
}

impl Local {
    /// What is accepted for a member that was revoked could never be sent.
    pub(crate) fn refuse_if_revoked(&self) -> Result<()> {
        if self.link_status.borrow().is_revoked() {
            return Err(Error::new(Code::MemberRevoked, Code::MemberRevoked.entry().title));
        }
        Ok(())
    }
}

/// Bound, and not yet served.
pub struct Listeners {
    socket: UnixListener,
    tcp: Option<TcpListener>,
}

impl Listeners {
    /// The lock on the folder is held: a socket that is there was left by a daemon that has ended.
    pub async fn bind(folder: &Folder, tcp_port: Option<u16>) -> Result<Self> {
        let path = folder.socket()?;
        let unusable = |error: std::io::Error| folder::unusable(&path, &error);
        folder.remove(folder::SOCKET)?;
        let socket = UnixListener::bind(&path).map_err(unusable)?;
        // Nobody but the owner can enter the folder meanwhile.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).map_err(unusable)?;
        let Some(port) = tcp_port else {
            folder.remove(folder::HTTP_PORT)?;
            return Ok(Self { socket, tcp: None });
        };
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let tcp = TcpListener::bind(address).await.and_then(|tcp| Ok((tcp.local_addr()?.port(), tcp)));
        let (bound, tcp) = tcp.map_err(|error| {
            let message = format!("The address {address} cannot be used: {error}.");
            Error::new(Code::AddressUnusable, message).with_cure("Set ipc.tcp_port to 0, or ipc.tcp to false.")
        })?;
        folder.write(folder::HTTP_PORT, format!("{bound}\n").as_bytes())?;
        Ok(Self { socket, tcp: Some(tcp) })
    }

    pub fn tcp_address(&self) -> Option<SocketAddr> {
        self.tcp.as_ref().and_then(|tcp| tcp.local_addr().ok())
    }

    /// Until the daemon stops; then requests under way may take the drain time.
    pub async fn serve(self, local: Arc<Local>) {
        let drain = Duration::from_millis(local.settings.ipc.drain_ms);
        let server = Server {
            places: Arc::new(Semaphore::new(local.settings.ipc.connections_max)),
            front: Arc::new(Front::new(Arc::clone(&local))),
            connections: TaskTracker::new(),
            stop: local.stop.clone(),
            closing: CancellationToken::new(),
            header_read: Duration::from_millis(local.settings.ipc.header_read_ms),
        };
        tokio::join!(server.accept_socket(&self.socket), server.accept_tcp(self.tcp.as_ref()));
        drop(self.socket);
        let _ = local.folder.remove(folder::SOCKET);
        let _ = local.folder.remove(folder::HTTP_PORT);
        server.connections.close();
        if tokio::time::timeout(drain, server.connections.wait()).await.is_err() {
            tracing::warn!(open = server.connections.len(), "the drain time is over; open connections are closed");
        }
        server.closing.cancel();
        server.connections.wait().await;
    }
}

struct Server {
    front: Arc<Front>,
    places: Arc<Semaphore>,
    connections: TaskTracker,
    stop: CancellationToken,
    closing: CancellationToken,
    header_read: Duration,
}

impl Server {
    async fn accept_socket(&self, socket: &UnixListener) {
        let own = rustix::process::geteuid().as_raw();
        loop {
            let accepted = tokio::select! {
                accepted = socket.accept() => accepted,
                () = self.stop.cancelled() => return,
            };
            match accepted {
                // The mode of the socket keeps others out; this holds where a system does not look at it.
                Ok((stream, _)) => match stream.peer_cred() {
                    Ok(peer) if [own, 0].contains(&peer.uid()) => self.open(stream, Via::Socket),
                    _ => self.front.suspicious("foreign_user"),
                },
                Err(error) => failed(&error).await,
            }
        }
    }

    async fn accept_tcp(&self, tcp: Option<&TcpListener>) {
        let Some(tcp) = tcp else { return };
        loop {
            let accepted = tokio::select! {
                accepted = tcp.accept() => accepted,
                () = self.stop.cancelled() => return,
            };
            match accepted {
                Ok((stream, _)) => {
                    let _ = stream.set_nodelay(true);
                    self.open(stream, Via::Tcp);
                }
                Err(error) => failed(&error).await,
            }
        }
    }

    /// Without room the connection is closed at once: left to wait, it would look as if the daemon were slow.
    fn open<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(&self, stream: S, via: Via) {
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else { return };
        let served = Served {
            front: Arc::clone(&self.front),
            stop: self.stop.clone(),
            closing: self.closing.clone(),
            header_read: self.header_read,
            via,
            _place: place,
        };
        self.connections.spawn(served.serve(stream));
    }
}

async fn failed(error: &std::io::Error) {
    if !matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted) {
        tracing::warn!(%error, "a local connection could not be accepted");
        tokio::time::sleep(ACCEPT_PAUSE).await;
    }
}

/// What the task of one connection needs.
struct Served {
    front: Arc<Front>,
    stop: CancellationToken,
    closing: CancellationToken,
    header_read: Duration,
    via: Via,
    _place: OwnedSemaphorePermit,
}

impl Served {
    async fn serve<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(self, stream: S) {
        let (front, via) = (Arc::clone(&self.front), self.via);
        let service = service_fn(move |request| {
            let front = Arc::clone(&front);
            async move { front.answer(via, request).await }
        });
        let mut builder = http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(self.header_read)
            .max_headers(HEADERS_MAX)
            .max_buf_size(HEAD_BYTES_MAX);
        let mut http = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
        tokio::select! {
            _ = http.as_mut() => return,
            () = self.stop.cancelled() => http.as_mut().graceful_shutdown(),
        }
        tokio::select! {
            _ = http => {}
            () = self.closing.cancelled() => {}
        }
    }
}
