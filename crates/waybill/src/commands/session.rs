//! How a command reaches the operations: through a running server, or by opening the data folder itself when none runs.
//! Both ways call the same operation by name, so a command cannot mean one thing here and another there.

use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Map, Value as Json};
use waybill_kernel::{Caller, Code, Error, Method, OperationSpec, Result};
use waybill_store::{Backend, Store};

use crate::cli::{Place, Reach};
use crate::config::Config;
use crate::data::{self, DataFolder};
use crate::wiring;

/// Rows asked for at a time.
const PAGE: u64 = 200;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longer than the server itself takes before it gives up: it only ends calls to one that has stopped answering.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(90);

pub enum Session {
    Server { http: reqwest::Client, url: String, key: String },
    Folder { store: Store, caller: Caller, _data: DataFolder },
}

impl Session {
    pub async fn open(reach: &Reach) -> Result<Self> {
        if let Some((url, key)) = server(&reach.place, reach.url.clone(), reach.key.clone())? {
            let http = reqwest::Client::builder()
                // A proxy set for the web has no business between this machine and its own server.
                .no_proxy()
                .connect_timeout(CONNECT_TIMEOUT)
                .timeout(REQUEST_TIMEOUT)
                .build()
                .map_err(Error::internal)?;
            return Ok(Session::Server { http, url, key });
        }
        let config = Config::of_place(&reach.place)?;
        refuse_absent(&config)?;
        let data = DataFolder::open(&config.data)?;
        let store = wiring::open(&config, &data).await?.store;
        let caller = waybill_access::admin_caller(&store).await?;
        Ok(Session::Folder { store, caller, _data: data })
    }

    pub async fn call(&self, operation: &str, input: Json) -> Result<Json> {
        let registry = wiring::registry();
        let entry = registry.find(operation).ok_or_else(|| Error::internal(format!("no operation {operation}")))?;
        match self {
            Session::Server { http, url, key } => send(http, url, key, entry.spec(), input).await,
            Session::Folder { store, caller, .. } => {
                let answer = entry.call(store, caller, input).await?;
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
        if let Session::Folder { store, .. } = self {
            let _ = tokio::task::spawn_blocking(move || store.close()).await;
        }
    }
}

/// A command makes no deployment: in a folder whose name was mistyped it would find an empty one in order.
fn refuse_absent(config: &Config) -> Result<()> {
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

/// The address and key of the server to speak to; None when none runs on the data folder. Changes nothing in it.
pub fn server(place: &Place, url: Option<String>, key: Option<String>) -> Result<Option<(String, String)>> {
    let config = Config::of_place(place)?;
    let key = named_key(key).or_else(|| data::admin_key(&config.data));
    let url = match url {
        Some(url) => url.trim_end_matches('/').to_owned(),
        None => match (data::holder(&config.data)?, data::running(&config.data)) {
            (None, _) => return Ok(None),
            (Some(_), Some(running)) => format!("http://{}", running.http),
            (Some(holder), None) => return Err(data::in_use(&config.data, &holder)),
        },
    };
    let key = key.ok_or_else(|| {
        Error::new(Code::Unauthorized, format!("There is no key for {url}: say --key, or set WAYBILL_KEY."))
    })?;
    Ok(Some((url, key)))
}

async fn send(http: &reqwest::Client, url: &str, key: &str, spec: &OperationSpec, input: Json) -> Result<Json> {
    let Json::Object(mut fields) = input else { return Err(Error::internal("the input is no object")) };
    let path = fill(spec.path, &mut fields);
    let address = format!("{url}{path}");
    let request = match spec.method {
        Method::Get => http.get(format!("{address}?{}", query(&fields))),
        Method::Post => http.post(address).json(&fields),
    };
    let response = request.bearer_auth(key).send().await.map_err(|error| {
        Error::new(Code::ServerUnreachable, format!("The server at {url} did not answer.")).because(error)
    })?;
    let status = response.status();
    let body: Json = response.json().await.map_err(|error| {
        Error::new(Code::ServerUnreachable, format!("What answers at {url} is no Waybill server.")).because(error)
    })?;
    if status.is_success() { Ok(body) } else { Err(told(&body)) }
}

/// The path with its `{name}` parts taken from the fields.
fn fill(template: &str, fields: &mut Map<String, Json>) -> String {
    let part = |part: &str| match part.strip_prefix('{').and_then(|part| part.strip_suffix('}')) {
        Some(name) => fields.shift_remove(name).map_or_else(String::new, |value| text(&value)),
        None => part.to_owned(),
    };
    template.split('/').map(part).collect::<Vec<_>>().join("/")
}

fn query(fields: &Map<String, Json>) -> String {
    let given = fields.iter().filter(|(_, value)| !value.is_null());
    given.map(|(name, value)| format!("{name}={}", text(value))).collect::<Vec<_>>().join("&")
}

fn text(value: &Json) -> String {
    let plain = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    utf8_percent_encode(&plain, NON_ALPHANUMERIC).to_string()
}

/// The server's error, as ours.
fn told(body: &Json) -> Error {
    let code = Code::ALL.iter().find(|code| body["error"] == code.entry().code).copied().unwrap_or(Code::Internal);
    let error = Error::new(code, body["message"].as_str().unwrap_or("The server gave no reason."));
    match body["help"].as_str() {
        Some(help) => error.with_cure(help),
        None => error,
    }
}
