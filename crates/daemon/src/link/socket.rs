//! The socket itself: connected with bounds, over TLS unless the address says otherwise.

use std::time::Duration;

use reqwest::Url;
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, client_async_tls_with_config};
use waybill_kernel::{Code, Error, Result};
use waybill_mesh_protocol::FRAME_BYTES_MAX;

pub type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// Bytes read or gathered at once.
const BUFFER_BYTES: usize = 16 << 10;

/// Where the broker's socket is, by the address of its server. A path before `/mesh` is kept.
pub fn address(server: &str) -> Result<Url> {
    let invalid = || {
        let message = format!("{server:?} is not a server's URL: write it as https://host or http://127.0.0.1:7700.");
        Error::new(Code::ConfigInvalid, message)
    };
    let mut url = Url::parse(server).map_err(|_| invalid())?;
    let scheme = match url.scheme() {
        "https" => "wss",
        "http" => "ws",
        _ => return Err(invalid()),
    };
    let path = format!("{}/mesh/ws", url.path().trim_end_matches('/'));
    url.set_path(&path);
    url.set_scheme(scheme).map_err(|()| invalid())?;
    if url.host_str().is_none() || url.query().is_some() || url.fragment().is_some() || !url.username().is_empty() {
        return Err(invalid());
    }
    Ok(url)
}

/// True where nobody else can listen: messages are sealed whatever is between, and who writes to whom is not.
pub fn is_private(url: &Url) -> bool {
    let is_loopback = |host: &str| {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
    };
    url.scheme() == "wss" || url.host_str().is_some_and(is_loopback)
}

pub async fn connect(url: &Url, within: Duration) -> Result<Socket> {
    let connecting = async {
        let host = url.host_str().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
        let port = url.port_or_known_default().unwrap_or(443);
        let stream = TcpStream::connect((host, port)).await.map_err(|error| unreachable(url, &error.to_string()))?;
        // Acknowledgements are small and somebody waits for each.
        let _ = stream.set_nodelay(true);
        let config = WebSocketConfig::default()
            .read_buffer_size(BUFFER_BYTES)
            .write_buffer_size(BUFFER_BYTES)
            .max_write_buffer_size(4 * FRAME_BYTES_MAX)
            .max_message_size(Some(FRAME_BYTES_MAX))
            .max_frame_size(Some(FRAME_BYTES_MAX));
        let connected = client_async_tls_with_config(url.as_str(), stream, Some(config), None).await;
        connected.map(|(socket, _)| socket).map_err(|error| unreachable(url, &error.to_string()))
    };
    match tokio::time::timeout(within, connecting).await {
        Ok(connected) => connected,
        Err(_) => Err(unreachable(url, "it took too long")),
    }
}

fn unreachable(url: &Url, cause: &str) -> Error {
    Error::new(Code::ServerUnreachable, format!("The broker at {url} cannot be reached.")).because(cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_socket_is_beside_the_rest_of_the_server() {
        for (server, expected, private) in [
            ("http://127.0.0.1:7700", "ws://127.0.0.1:7700/mesh/ws", true),
            ("http://localhost:7700/", "ws://localhost:7700/mesh/ws", true),
            ("http://[::1]:7700", "ws://[::1]:7700/mesh/ws", true),
            ("https://waybill.example/base/", "wss://waybill.example/base/mesh/ws", true),
            ("http://10.0.0.5:7700", "ws://10.0.0.5:7700/mesh/ws", false),
        ] {
            let url = address(server).unwrap();
            assert_eq!((url.as_str(), is_private(&url)), (expected, private), "{server}");
        }
        for server in ["", "127.0.0.1:7700", "ftp://h", "http://u@h", "http://h/?x=1", "http://h/#x"] {
            assert_eq!(address(server).unwrap_err().code(), Code::ConfigInvalid, "{server}");
        }
    }
}
