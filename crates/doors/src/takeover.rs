//! A connection that changes its protocol: after its 101 the socket belongs to whoever answered, within the server's bounds.
//!
//! # Contract
//! The connection stays in the table until the session ends. Until the session occupies it, and again when it has left it, the
//! connection is idle: it makes way when others need its place, and the session is dropped. An occupied one nobody closes for
//! being quiet: whether the other side is alive is the session's own question. A server that stops tells the session, waits for
//! it for as long as for requests, and then drops it.

use std::net::IpAddr;
use std::sync::Arc;

use axum::body::Body;
use http::Request;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::connections::{Connection, UnderWay};

/// What sessions need of their server. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Sessions {
    pub(crate) running: TaskTracker,
    pub(crate) stopping: CancellationToken,
    pub(crate) closing: CancellationToken,
}

/// In the extensions of a request whose client asked to change the protocol. HTTP/2 has no such requests.
#[derive(Clone)]
pub struct Takeover {
    upgrade: OnUpgrade,
    peer: IpAddr,
    connection: Arc<Connection>,
    sessions: Sessions,
}

/// Read and written as tokio does.
pub type TakenSocket = TokioIo<Upgraded>;

/// The socket, and when to leave it.
pub struct Taken {
    /// Begins with what the client sent after its request.
    pub socket: TakenSocket,
    /// Cancelled when the server begins to stop: the session says so to the other side and ends.
    pub stopping: CancellationToken,
    pub presence: Presence,
}

/// The connection's standing among those that make way for others.
pub struct Presence(Arc<Connection>);

/// As long as this lives the connection makes way for nobody.
pub struct Occupied(#[expect(dead_code, reason = "it is dropped")] UnderWay);

impl Presence {
    /// The other side has shown who it is.
    pub fn occupy(&self) -> Occupied {
        Occupied(self.0.begin())
    }
}

impl Sessions {
    /// Ordinary requests carry nothing and pay a look at an empty table.
    pub(crate) fn offer(&self, request: &mut Request<Body>, peer: IpAddr, connection: &Arc<Connection>) {
        let Some(upgrade) = request.extensions_mut().remove::<OnUpgrade>() else { return };
        let (connection, sessions) = (Arc::clone(connection), self.clone());
        request.extensions_mut().insert(Takeover { upgrade, peer, connection, sessions });
    }
}

impl Takeover {
    /// None when the client did not ask for it.
    pub fn of<B>(request: &mut Request<B>) -> Option<Self> {
        request.extensions_mut().remove()
    }

    /// The client's address, as the log shows it.
    pub fn peer(&self) -> IpAddr {
        self.peer
    }

    /// Runs `session` once the answer, which the caller makes a 101, has been written. Where it is not, the session is
    /// dropped with all that it holds and never runs.
    pub fn begin<S, F>(self, session: S)
    where
        S: FnOnce(Taken) -> F + Send + 'static,
        F: Future<Output = ()> + Send,
    {
        let Self { upgrade, connection, sessions: Sessions { running, stopping, closing }, .. } = self;
        let under_way = connection.begin();
        running.spawn(async move {
            let upgraded = tokio::select! {
                upgraded = upgrade => upgraded,
                () = closing.cancelled() => return,
            };
            let Ok(upgraded) = upgraded else { return };
            drop(under_way);
            let taken = Taken { socket: TokioIo::new(upgraded), stopping, presence: Presence(Arc::clone(&connection)) };
            tokio::select! {
                () = session(taken) => {}
                () = connection.closed() => {}
                () = closing.cancelled() => {}
            }
        });
    }
}
