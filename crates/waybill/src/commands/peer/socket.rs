//! How commands speak to a daemon: HTTP on its socket. Whether there is one is found out by connecting, never by a file that says
//! so: a process that was killed leaves its files behind.

use std::path::PathBuf;
use std::time::Duration;

use reqwest::Method;
use serde_json::Value as Json;
use tokio::net::UnixStream;
use waybill_daemon::Folder;
use waybill_kernel::{Code, Error, Result};

/// A daemon on this host takes a connection at once, or is none.
pub const CONNECT_MAX: Duration = Duration::from_millis(100);
/// The longest that the daemon itself may need: a rotation asks the broker.
const ANSWER_MAX: Duration = Duration::from_secs(90);
const ANSWER_BYTES_MAX: usize = 64 << 20;

pub struct Socket {
    path: PathBuf,
    http: reqwest::Client,
}

impl Socket {
    /// None when nobody listens.
    pub async fn find(folder: &Folder) -> Result<Option<Self>> {
        let path = folder.socket()?;
        match tokio::time::timeout(CONNECT_MAX, UnixStream::connect(&path)).await {
            Ok(Ok(_)) => Self::at(path).map(Some),
            Ok(Err(_)) | Err(_) => Ok(None),
        }
    }

    /// # Errors
    /// `daemon_unreachable`, with how to start one.
    pub async fn of(folder: &Folder) -> Result<Self> {
        Self::find(folder).await?.ok_or_else(|| {
            let slug = folder.path().file_name().unwrap_or_default().to_string_lossy();
            let message = format!("No daemon answers on {}.", folder.path().join("sock").display());
            Error::new(Code::DaemonUnreachable, message)
                .with_cure(format!("Start one with `waybill daemon up --mesh {slug}`."))
        })
    }

    fn at(path: PathBuf) -> Result<Self> {
        let http = waybill_guard::client().unix_socket(path.clone()).no_proxy().build().map_err(Error::internal)?;
        Ok(Self { path, http })
    }

    pub async fn get(&self, target: &str, query: &[(&str, String)]) -> Result<Json> {
        let url =
            reqwest::Url::parse_with_params(&format!("http://localhost{target}"), query).map_err(Error::internal)?;
        self.answer(self.http.request(Method::GET, url)).await
    }

    pub async fn post(&self, target: &str, body: &Json) -> Result<Json> {
        self.answer(self.http.request(Method::POST, format!("http://localhost{target}")).json(body)).await
    }

    async fn answer(&self, request: reqwest::RequestBuilder) -> Result<Json> {
        let lost = |error: reqwest::Error| {
            let message = format!("The daemon on {} went away before it answered.", self.path.display());
            Error::new(Code::DaemonUnreachable, message).because(error.without_url())
        };
        let mut response = request.timeout(ANSWER_MAX).send().await.map_err(lost)?;
        let status = response.status();
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(lost)? {
            if body.len() + chunk.len() > ANSWER_BYTES_MAX {
                return Err(Error::internal("the daemon's answer is too large"));
            }
            body.extend_from_slice(&chunk);
        }
        let json = serde_json::from_slice::<Json>(&body);
        match json {
            Ok(json) if status.is_success() => Ok(json),
            Ok(json) => Err(waybill_client::told(status.as_u16(), &json)),
            Err(error) => Err(Error::internal(format!("HTTP {status}: {error}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_was_left_behind_is_no_daemon() {
        let home = tempfile::tempdir().unwrap();
        let folder = Folder::open(home.path(), "acme").unwrap();
        let missing = Socket::of(&folder).await.err().unwrap();
        assert_eq!(missing.code(), Code::DaemonUnreachable);
        assert!(missing.cure().contains("waybill daemon up --mesh acme"), "{}", missing.cure());
        // As a daemon that was killed leaves it: a socket that nobody listens on, and its own number.
        drop(std::os::unix::net::UnixListener::bind(folder.socket().unwrap()).unwrap());
        std::fs::write(folder.file("pid"), std::process::id().to_string()).unwrap();
        assert!(Socket::find(&folder).await.unwrap().is_none());
    }
}
