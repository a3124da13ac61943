//! Where clients come in: an address, or a socket in the file system.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream};
use tokio_util::either::Either;
use waybill_kernel::{Code, Error, Result};

/// After an error of accept (no more file descriptors): others may close meanwhile.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Whoever comes by a socket is on this machine.
const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// The kernel's bound for the name of a socket, without its closing NUL.
const SOCKET_PATH_BYTES_MAX: usize = 107;

pub(crate) type Stream = Either<TcpStream, UnixStream>;

pub struct Listener(Socket);

enum Socket {
    Tcp {
        socket: TcpListener,
        address: SocketAddr,
    },
    /// The file goes with the listener.
    Unix {
        socket: UnixListener,
        path: PathBuf,
    },
}

/// Connections that have come and were not taken yet; the system may allow fewer. Left to itself it is 128, and of a crowd whoever is
/// one too many comes again a second later.
const BACKLOG: u32 = 4_096;

fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    // What a server before this one has left behind does not keep the address.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

impl Listener {
    pub fn bind(address: SocketAddr) -> Result<Self> {
        let refused = |error: std::io::Error| {
            let why = match error.kind() {
                std::io::ErrorKind::AddrInUse => "another program is listening there".to_owned(),
                _ => error.to_string(),
            };
            unusable(format!("Cannot listen on {address}: {why}."))
        };
        let socket = listen(address).map_err(refused)?;
        let address = socket.local_addr().map_err(refused)?;
        Ok(Self(Socket::Tcp { socket, address }))
    }

    /// A socket for this user alone. What a killed server has left there is removed, what lives is not.
    pub async fn bind_unix(path: &Path) -> Result<Self> {
        let refused = |why: String| unusable(format!("Cannot listen on {}: {why}.", path.display()));
        if path.as_os_str().len() > SOCKET_PATH_BYTES_MAX {
            return Err(refused(format!("the path has more than {SOCKET_PATH_BYTES_MAX} bytes")));
        }
        if let Ok(found) = fs::symlink_metadata(path) {
            if !found.file_type().is_socket() {
                return Err(refused("something else than a socket is there".to_owned()));
            }
            if UnixStream::connect(path).await.is_ok() {
                return Err(refused("another program is listening there".to_owned()));
            }
            fs::remove_file(path).map_err(|error| refused(error.to_string()))?;
        }
        let socket = UnixListener::bind(path).map_err(|error| refused(error.to_string()))?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(|error| refused(error.to_string()))?;
        Ok(Self(Socket::Unix { socket, path: path.to_owned() }))
    }

    /// None for a socket in the file system.
    pub fn address(&self) -> Option<SocketAddr> {
        match &self.0 {
            Socket::Tcp { address, .. } => Some(*address),
            Socket::Unix { .. } => None,
        }
    }

    pub(crate) async fn accept(&self) -> (Stream, IpAddr) {
        loop {
            let accepted = match &self.0 {
                Socket::Tcp { socket, .. } => socket.accept().await.map(|(stream, peer)| {
                    // An answer is written whole: there is nothing to wait for.
                    let _ = stream.set_nodelay(true);
                    (Either::Left(stream), peer.ip())
                }),
                Socket::Unix { socket, .. } => socket.accept().await.map(|(stream, _)| (Either::Right(stream), LOCAL)),
            };
            match accepted {
                Ok(accepted) => return accepted,
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Socket::Unix { path, .. } = &self.0 {
            let _ = fs::remove_file(path);
        }
    }
}

fn unusable(message: String) -> Error {
    Error::new(Code::AddressUnusable, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_is_its_users_alone_and_a_dead_one_makes_room() {
        let folder = std::env::temp_dir().join(format!("waybill-listener-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("s");
        let listener = Listener::bind_unix(&path).await.unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let second = Listener::bind_unix(&path).await.map(drop).unwrap_err();
        assert!(second.message().contains("another program"), "{second}");
        drop(listener);
        assert!(!path.exists());

        // Left by a program that was killed.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        drop(Listener::bind_unix(&path).await.unwrap());

        fs::write(&path, "mine").unwrap();
        assert!(Listener::bind_unix(&path).await.is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
        assert!(Listener::bind_unix(&folder.join("x".repeat(200))).await.is_err());
        fs::remove_dir_all(&folder).unwrap();
    }
}
