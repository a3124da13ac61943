//! A WebSocket as a client sees it, as much of it as a member needs: whole text frames, pings answered. Its frames are masked
//! with zeros, which the protocol allows and a measurement does not pay for.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

const OPEN_MAX: Duration = Duration::from_secs(10);
const HEAD_BYTES_MAX: usize = 4 << 10;
const FRAME_BYTES_MAX: u64 = 4 << 20;
const FINAL: u8 = 0x80;
const MASKED: u8 = 0x80;
const TEXT: u8 = 1;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

pub enum Heard {
    Text(String),
    /// Answered already, or an answer.
    Ping,
    /// With the number that says why; zero for none.
    Closed(u16),
}

pub struct Socket {
    stream: TcpStream,
}

impl Socket {
    /// The upgrade alone: what comes first is the challenge.
    pub async fn open(from: Ipv4Addr, to: SocketAddr, receive_bytes: Option<u32>) -> Result<Socket> {
        let socket = TcpSocket::new_v4()?;
        socket.set_reuseaddr(true)?;
        if let Some(bytes) = receive_bytes {
            socket.set_recv_buffer_size(bytes)?;
        }
        socket.bind(SocketAddr::from((from, 0)))?;
        let opened = async {
            let mut stream = socket.connect(to).await?;
            stream.set_nodelay(true)?;
            stream.write_all(Self::upgrade(to).as_bytes()).await?;
            let mut head = Vec::new();
            // Byte by byte: what follows the head belongs to the socket.
            while !head.ends_with(b"\r\n\r\n") {
                ensure!(head.len() < HEAD_BYTES_MAX, "an endless head");
                head.push(stream.read_u8().await?);
            }
            let head = String::from_utf8_lossy(&head);
            ensure!(head.starts_with("HTTP/1.1 101"), "no upgrade: {}", head.lines().next().unwrap_or_default());
            Ok(stream)
        };
        let stream = timeout(OPEN_MAX, opened).await.context("no upgrade in time")??;
        Ok(Socket { stream })
    }

    pub fn upgrade(to: SocketAddr) -> String {
        format!(
            "GET /mesh/ws HTTP/1.1\r\nHost: {to}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
    }

    /// A frame as it goes over the wire.
    pub fn frame(text: &[u8]) -> Vec<u8> {
        frame(TEXT, text)
    }

    pub async fn say(&mut self, text: &str) -> Result<()> {
        Ok(self.stream.write_all(&frame(TEXT, text.as_bytes())).await?)
    }

    /// As much as the other side takes at once; false when the connection has ended.
    pub fn try_say(&self, frames: &[u8]) -> bool {
        match self.stream.try_write(frames) {
            Ok(_) => true,
            Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
        }
    }

    /// The next frame. Not to be given up half-way: what was read would be missing.
    pub async fn hear(&mut self) -> Result<Heard> {
        let [first, second] = [self.stream.read_u8().await?, self.stream.read_u8().await?];
        ensure!(first & FINAL != 0, "a frame in parts");
        ensure!(second & MASKED == 0, "a masked frame from a server");
        let length = match second {
            126 => u64::from(self.stream.read_u16().await?),
            127 => self.stream.read_u64().await?,
            short => u64::from(short),
        };
        ensure!(length <= FRAME_BYTES_MAX, "a frame of {length} bytes");
        let mut bytes = vec![0; usize::try_from(length)?];
        self.stream.read_exact(&mut bytes).await?;
        match first & 0x0f {
            TEXT => Ok(Heard::Text(String::from_utf8(bytes)?)),
            CLOSE => Ok(Heard::Closed(bytes.get(..2).map_or(0, |code| u16::from_be_bytes([code[0], code[1]])))),
            PING => {
                self.stream.write_all(&frame(PONG, &bytes)).await?;
                Ok(Heard::Ping)
            }
            PONG => Ok(Heard::Ping),
            other => bail!("a frame of kind {other}"),
        }
    }
}

fn frame(kind: u8, bytes: &[u8]) -> Vec<u8> {
    let mut frame = vec![FINAL | kind];
    match u16::try_from(bytes.len()) {
        Ok(length) if length < 126 => frame.push(MASKED | length as u8),
        Ok(length) => {
            frame.push(MASKED | 126);
            frame.extend(length.to_be_bytes());
        }
        Err(_) => {
            frame.push(MASKED | 127);
            frame.extend((bytes.len() as u64).to_be_bytes());
        }
    }
    frame.extend([0; 4]);
    frame.extend(bytes);
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_says_its_length_in_the_shortest_form() {
        for (length, head) in [(0, 6), (125, 6), (126, 8), (65_535, 8), (65_536, 14)] {
            let frame = frame(TEXT, &vec![b'x'; length]);
            assert_eq!(frame.len(), head + length, "{length}");
            assert_eq!(frame[0], 0x81);
        }
        assert_eq!(frame(PONG, b"ab"), [0x8a, 0x82, 0, 0, 0, 0, b'a', b'b']);
    }
}
