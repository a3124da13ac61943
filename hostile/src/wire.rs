//! Connections from an address of one's choice. Every address of 127/8 is this machine, so that an attack can come from
//! one place or from many, and the innocent from another.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

/// A server that accepts nobody lets a call to connect hang.
const CONNECT_MAX: Duration = Duration::from_secs(3);

/// Whoever runs the server.
pub const OPERATOR: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 1);
/// The second tenant, who has done nothing.
pub const INNOCENT: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 77);

/// The address of the attacker's n-th machine.
pub fn attacker(number: usize) -> Ipv4Addr {
    let [high, low] = u16::try_from(number % 50_000).unwrap_or_default().to_be_bytes();
    Ipv4Addr::new(127, 66, high, low.saturating_add(1))
}

pub async fn connect(from: Ipv4Addr, to: SocketAddr) -> Result<TcpStream> {
    connect_with(from, to, None).await
}

/// With a receive buffer of so many bytes: what the kernel takes in for a reader who does not read.
pub async fn connect_with(from: Ipv4Addr, to: SocketAddr, receive_bytes: Option<u32>) -> Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    // Ports of connections that ended a moment ago may be used again.
    socket.set_reuseaddr(true)?;
    if let Some(bytes) = receive_bytes {
        socket.set_recv_buffer_size(bytes)?;
    }
    socket.bind(SocketAddr::from((from, 0)))?;
    let stream = timeout(CONNECT_MAX, socket.connect(to)).await.context("connecting took too long")??;
    stream.set_nodelay(true)?;
    Ok(stream)
}
