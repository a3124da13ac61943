//! How a command reaches the operations: through a running server, or by opening the data folder itself when none runs.
//! Both ways call the same operation by name, so a command cannot mean one thing here and another there.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use reqwest::Url;
use serde_json::Value as Json;
use waybill_client::{Client, Options, Repeat, Request};
use waybill_kernel::{Caller, Code, Error, Result};
use waybill_store::{Backend, Stores};

use crate::cli::{Location, Reach};
use crate::config::Config;
use crate::data::{self, DataFolder};
use crate::wiring;

/// Rows asked for at a time.
const PAGE: u64 = 200;

/// Added to the client's own patience, so that together they are longer than the server takes before it gives up: only a
/// call to one that has stopped answering is ended.
pub const SERVER_PATIENCE: Duration = Duration::from_secs(60);

pub enum Session {
    Server(Client),
    Folder { stores: Stores, caller: Caller, _data: DataFolder },
}

impl Session {
    pub async fn open(reach: &Reach) -> Result<Self> {
        if let Some((url, key)) = server(&reach.location, reach.url.clone(), reach.key.clone())? {
            let user_agent = concat!("waybill/", env!("CARGO_PKG_VERSION")).to_owned();
            return Client::new(Options { url, key: Some(key), user_agent }).map(Session::Server);
        }
        let config = Config::at(&reach.location)?;
        refuse_absent(&config)?;
        let data = DataFolder::open(&config.data)?;
        let server_key = data::server_key(&config.data, config.server_key_file.as_deref())?;
        let stores = wiring::open(&config, &data, server_key.as_ref()).await?.stores;
        let caller = waybill_access::admin_caller(stores.home()).await?;
        Ok(Session::Folder { stores, caller, _data: data })
    }

    pub async fn call(&self, operation: &str, input: Json) -> Result<Json> {
        let registry = waybill_domains::registry();
        let entry = registry.find(operation).ok_or_else(|| Error::internal(format!("no operation {operation}")))?;
        match self {
            Session::Server(client) => {
                let route = &entry.spec().route;
                // Whoever typed the command sees that it failed, and decides.
                let (repeat, wait) = (Repeat::Never, SERVER_PATIENCE);
                let request = Request { method: route.method, path: route.path, input, repeat, wait };
                client.call(request).await.map(|answer| answer.json)
            }
            Session::Folder { stores, caller, .. } => {
                let answer = entry.call(stores, caller, &input.to_string()).await?;
                serde_json::from_str(&answer.json).map_err(Error::internal)
            }
        }
    }

    /// Every page of a list, as one.
    pub async fn call_all(&self, operation: &str, field: &str) -> Result<Vec<Json>> {
        let mut rows = Vec::new();
        let mut input = serde_json::json!({ "limit": PAGE });
        loop {
            let mut page = self.call(operation, input.clone()).await?;
            rows.extend(page[field].as_array_mut().map(std::mem::take).unwrap_or_default());
            match page["next_cursor"].take() {
                Json::Null => return Ok(rows),
                cursor => input["cursor"] = cursor,
            }
        }
    }

    pub async fn close(self) {
        if let Session::Folder { stores, .. } = self {
            let _ = tokio::task::spawn_blocking(move || stores.close()).await;
        }
    }
}

/// One call in a session of its own.
pub async fn call(reach: &Reach, operation: &str, input: Json) -> Result<Json> {
    let session = Session::open(reach).await?;
    let answer = session.call(operation, input).await;
    session.close().await;
    answer
}

/// Every page of a list, read in a session of its own.
pub async fn call_all(reach: &Reach, operation: &str, field: &str) -> Result<Vec<Json>> {
    let session = Session::open(reach).await?;
    let rows = session.call_all(operation, field).await;
    session.close().await;
    rows
}

/// A command makes no deployment: in a folder whose name was mistyped it would find an empty one in order.
pub fn refuse_absent(config: &Config) -> Result<()> {
    let Backend::Sqlite(options) = &config.backend else { return Ok(()) };
    // What cannot be looked for is told by whoever opens the folder.
    if options.path.try_exists().unwrap_or(true) {
        return Ok(());
    }
    let message = format!("There is no database in {}; the first `waybill serve` makes one.", config.data.display());
    Err(Error::new(Code::DataFolderUnusable, message))
}

/// The key that was named: by its flag, in WAYBILL_KEY, or where clients of AsyncGate keep theirs. An empty one is none.
pub fn named_key(key: Option<String>) -> Option<String> {
    let is_key = |key: &String| !key.trim().is_empty();
    key.filter(is_key).or_else(|| std::env::var("ASYNCGATE_API_KEY").ok().filter(is_key))
}

/// Where a command finds its server.
enum Found {
    /// The one that runs on the data folder, at the address it has written down there.
    OfFolder(String),
    Elsewhere(String),
}

/// The address and key of the server to speak to; None when none runs on the data folder. Changes nothing in it.
///
/// The folder's own key goes to the folder's own server and to nobody else: an address in the environment may be anybody's.
pub fn server(location: &Location, url: Option<String>, key: Option<String>) -> Result<Option<(String, String)>> {
    let config = Config::at(location)?;
    match (named_key(key), url) {
        // The folder has no say in it, and need not be there.
        (Some(key), Some(url)) => Ok(Some((url.trim_end_matches('/').to_owned(), key))),
        (key, url) => match find(&config, url)? {
            None => Ok(None),
            Some(Found::OfFolder(url)) => {
                let key = key.or_else(|| data::admin_key(&config.data)).ok_or_else(|| no_key(&url, ""))?;
                Ok(Some((url, key)))
            }
            Some(Found::Elsewhere(url)) => {
                let folder = config.data.display();
                let why = format!(" The key in {folder} is only for the server that runs on that folder.");
                key.map(|key| Some((url.clone(), key))).ok_or_else(|| no_key(&url, &why))
            }
        },
    }
}

/// The address alone.
pub fn address(location: &Location, url: Option<String>) -> Result<Option<String>> {
    match url {
        Some(url) => Ok(Some(url)),
        None => Ok(find(&Config::at(location)?, None)?.map(|(Found::OfFolder(url) | Found::Elsewhere(url))| url)),
    }
}

fn no_key(url: &str, why: &str) -> Error {
    Error::new(Code::Unauthorized, format!("There is no key for {url}: say --key, or set WAYBILL_KEY.{why}"))
}

fn find(config: &Config, url: Option<String>) -> Result<Option<Found>> {
    let holder = data::holder(&config.data)?;
    // A file that a killed server has left says where somebody else may listen by now.
    let running = data::running(&config.data).filter(|running| holder.as_deref() == Some(&*running.pid.to_string()));
    match (url, holder, running) {
        (None, None, _) => Ok(None),
        (None, Some(holder), None) => Err(data::in_use(&config.data, &holder)),
        (None, _, Some(running)) => Ok(Some(Found::OfFolder(format!("http://{}", running.http)))),
        // It is asked where it says that it listens, and not where a name may lead.
        (Some(url), _, Some(running)) if names(&url, running.http) => {
            Ok(Some(Found::OfFolder(format!("http://{}", running.http))))
        }
        (Some(url), ..) => Ok(Some(Found::Elsewhere(url.trim_end_matches('/').to_owned()))),
    }
}

/// Does the URL mean the server that listens there, on this machine?
fn names(url: &str, server: SocketAddr) -> bool {
    let Ok(url) = Url::parse(url.trim()) else { return false };
    let plain = url.scheme() == "http" && url.path() == "/" && url.username().is_empty() && url.password().is_none();
    let host = url.host_str().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    let is_it = match host.parse::<IpAddr>() {
        Ok(ip) => ip == server.ip() || (server.ip().is_unspecified() && ip.is_loopback()),
        Err(_) => host == "localhost" && (server.ip().is_loopback() || server.ip().is_unspecified()),
    };
    plain && is_it && url.port_or_known_default() == Some(server.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_folders_own_server_is_taken_for_it() {
        for (url, server, is_it) in [
            ("http://127.0.0.1:7700", "127.0.0.1:7700", true),
            ("http://127.0.0.1:7700/", "127.0.0.1:7700", true),
            ("http://localhost:7700", "127.0.0.1:7700", true),
            ("http://[::1]:7700", "[::1]:7700", true),
            ("http://127.0.0.1:7700", "0.0.0.0:7700", true),
            ("http://10.1.2.3:7700", "10.1.2.3:7700", true),
            ("http://127.0.0.1", "127.0.0.1:80", true),
            ("http://127.0.0.1:7701", "127.0.0.1:7700", false),
            ("http://127.0.0.2:7700", "127.0.0.1:7700", false),
            ("http://10.1.2.3:7700", "0.0.0.0:7700", false),
            ("http://localhost:7700", "10.1.2.3:7700", false),
            ("http://localhost.evil.example:7700", "127.0.0.1:7700", false),
            ("http://127.0.0.1.evil.example:7700", "127.0.0.1:7700", false),
            ("http://127.0.0.1:7700@evil.example:7700", "127.0.0.1:7700", false),
            ("http://user@127.0.0.1:7700", "127.0.0.1:7700", false),
            ("https://127.0.0.1:7700", "127.0.0.1:7700", false),
            ("http://127.0.0.1:7700/elsewhere", "127.0.0.1:7700", false),
            ("127.0.0.1:7700", "127.0.0.1:7700", false),
            ("", "127.0.0.1:7700", false),
        ] {
            assert_eq!(names(url, server.parse().unwrap()), is_it, "{url} for {server}");
        }
    }
}
