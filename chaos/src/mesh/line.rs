//! The line between daemons and broker: a proxy that daemons know as the broker's address, whatever the broker's own is after a
//! restart, and that can be slow, deaf, still or down.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;

const CHUNK: usize = 16 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weather {
    Clear,
    /// Everything arrives, each piece so much later.
    Slow(Duration),
    /// What the broker says does not arrive: messages are accepted, and nobody hears of it.
    Deaf,
    /// Nothing arrives in either direction, and no connection ends.
    Still,
    /// Every connection ends, and none is made.
    Down,
}

impl Weather {
    fn holds(self, is_answer: bool) -> bool {
        match self {
            Weather::Clear | Weather::Slow(_) => false,
            Weather::Deaf => is_answer,
            Weather::Still | Weather::Down => true,
        }
    }
}

struct Shared {
    target: Mutex<SocketAddr>,
    weather: watch::Sender<Weather>,
}

pub struct Line {
    pub port: u16,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

impl Line {
    pub async fn start(target: SocketAddr) -> Result<Line> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let port = listener.local_addr()?.port();
        let shared = Arc::new(Shared { target: Mutex::new(target), weather: watch::Sender::new(Weather::Clear) });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Ok(Line { port, shared, accepting })
    }

    /// Where the next connections lead.
    pub fn aim(&self, target: SocketAddr) {
        *self.shared.target.lock().unwrap_or_else(PoisonError::into_inner) = target;
    }

    pub fn turn(&self, weather: Weather) {
        self.shared.weather.send_replace(weather);
    }
}

impl Drop for Line {
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

/// Until either end closes, or the line is down.
async fn relay(client: TcpStream, shared: &Shared) -> Result<()> {
    let mut weather = shared.weather.subscribe();
    if *weather.borrow() == Weather::Down {
        return Ok(());
    }
    let target = *shared.target.lock().unwrap_or_else(PoisonError::into_inner);
    let server = TcpStream::connect(target).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    tokio::select! {
        passed = pass(from_client, to_server, false, weather.clone()) => passed,
        passed = pass(from_server, to_client, true, weather.clone()) => passed,
        _ = weather.wait_for(|now| *now == Weather::Down) => Ok(()),
    }
}

async fn pass(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    is_answer: bool,
    mut weather: watch::Receiver<Weather>,
) -> Result<()> {
    let mut bytes = vec![0; CHUNK];
    loop {
        let count = from.read(&mut bytes).await?;
        if count == 0 {
            return Ok(());
        }
        let now = *weather.wait_for(|now| !now.holds(is_answer)).await?;
        if let Weather::Slow(by) = now {
            sleep(by).await;
        }
        to.write_all(&bytes[..count]).await?;
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    /// A broker that says everything back.
    async fn echo() -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let addr = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (mut from, mut to) = stream.into_split();
                tokio::spawn(async move { drop(tokio::io::copy(&mut from, &mut to).await) });
            }
        });
        addr
    }

    #[tokio::test]
    async fn what_is_held_arrives_when_it_clears_and_what_is_down_ends() {
        let line = Line::start(echo().await).await.unwrap();
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, line.port)).await.unwrap();
        let mut byte = [0; 1];
        stream.write_all(b"a").await.unwrap();
        stream.read_exact(&mut byte).await.unwrap();
        for weather in [Weather::Deaf, Weather::Still] {
            line.turn(weather);
            stream.write_all(b"b").await.unwrap();
            let answer = timeout(Duration::from_millis(30), stream.read_exact(&mut byte)).await;
            assert!(answer.is_err(), "{weather:?} let an answer through");
            line.turn(Weather::Clear);
            stream.read_exact(&mut byte).await.unwrap();
            assert_eq!(&byte, b"b");
        }
        line.turn(Weather::Down);
        assert_eq!(stream.read(&mut byte).await.unwrap_or(0), 0);
        let mut refused = TcpStream::connect((Ipv4Addr::LOCALHOST, line.port)).await.unwrap();
        assert_eq!(refused.read(&mut byte).await.unwrap_or(0), 0);
    }
}
