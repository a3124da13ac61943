//! A running server on either store, and short ways to talk to it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use reqwest::header::HeaderMap;
use serde_json::{Value as Json, json};
use tempfile::NamedTempFile;
use waybill_kernel::entropy::OsEntropy;
use waybill_kernel::{Clock, Code, OperationSpec};
use waybill_store::{Backend, PostgresOptions, Settings, SqliteOptions, Store};
use waybill_testkit::postgres::{Database, Postgres};
use waybill_testkit::server::{self, Options, Server};

/// The revision whose requests stand alone without further headers.
const MCP_REVISION: &str = "2025-11-25";

/// Before a test gives up on something that must happen. A name that nobody has may take half a minute to be unknown.
const PATIENCE: Duration = Duration::from_secs(90);
/// Other tests have transactions open in the same cluster, and lists show what is below the oldest of all of them.
const SETTLES: &str = "\n[postgres]\nsettle_ms = 10000\n";
const POLL: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, Debug)]
pub enum Engine {
    Sqlite,
    Postgres,
}

pub struct World {
    pub server: Server,
    pub http: reqwest::Client,
    pub database: Option<Database>,
    /// The server reads it again when it is restarted.
    _config: NamedTempFile,
}

impl World {
    /// A server with default settings on SQLite.
    pub async fn start() -> Self {
        Self::with(Engine::Sqlite, "", &[]).await
    }

    /// `settings` is the text of the TOML file, `args` are further flags of `waybill serve`.
    pub async fn with(engine: Engine, settings: &str, args: &[&str]) -> Self {
        match engine {
            Engine::Sqlite => Self::on(None, settings, args),
            Engine::Postgres => {
                let database = Postgres::shared().await.unwrap().migrated().await.unwrap();
                Self::on(Some(database), &format!("{settings}{SETTLES}"), args)
            }
        }
    }

    pub fn on(database: Option<Database>, settings: &str, args: &[&str]) -> Self {
        let config = config(settings);
        let mut flags = vec!["--config".to_owned(), config.path().to_str().unwrap().to_owned()];
        flags.extend(args.iter().map(|flag| (*flag).to_owned()));
        let store = database.as_ref().map(|database| database.url.clone());
        let server = Server::start(Options { store, args: flags, ..Options::default() }).unwrap();
        let http = waybill_guard::client().no_proxy().build().unwrap();
        Self { server, http, database, _config: config }
    }

    pub fn url(&self, path: &str) -> String {
        format!("{}{path}", self.server.base_url)
    }

    /// `127.0.0.1:PORT`
    pub fn address(&self) -> &str {
        self.server.base_url.strip_prefix("http://").unwrap()
    }

    pub async fn get(&self, key: &str, path: &str) -> Reply {
        Reply::of(self.http.get(self.url(path)).bearer_auth(key)).await
    }

    pub async fn post(&self, key: &str, path: &str, body: &Json) -> Reply {
        Reply::of(self.http.post(self.url(path)).bearer_auth(key).json(body)).await
    }

    /// As the admin of the default tenant.
    pub async fn admin_post(&self, path: &str, body: &Json) -> Json {
        let reply = self.post(&self.server.admin_key, path, body).await;
        assert!(reply.status < 300, "{path}: {}", reply.text);
        reply.json()
    }

    /// The text of a new key, made by the admin.
    pub async fn key(&self, input: Json) -> String {
        self.admin_post("/admin/keys", &input).await["key"].as_str().unwrap().to_owned()
    }

    /// The id of a new task of this key's principal.
    pub async fn task(&self, key: &str) -> String {
        let reply = self.post(key, "/v1/tasks", &json!({ "type": "echo" })).await;
        reply.json()["task_id"].as_str().expect(&reply.text).to_owned()
    }

    pub fn mcp_request(&self, path: &str, method: &str, params: &Json) -> reqwest::RequestBuilder {
        let message = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        self.http
            .post(self.url(path))
            .header("Accept", "application/json, text/event-stream")
            .header("MCP-Protocol-Version", MCP_REVISION)
            .json(&message)
    }

    pub async fn mcp(&self, key: &str, path: &str, method: &str, params: &Json) -> Reply {
        Reply::of(self.mcp_request(path, method, params).bearer_auth(key)).await
    }

    /// The names in `tools/list`, without the prefix of the protocol.
    pub async fn tools(&self, key: &str, path: &str) -> Vec<String> {
        let listed = self.mcp(key, path, "tools/list", &json!({})).await.json();
        let tools = listed["result"]["tools"].as_array().unwrap();
        let name = |tool: &Json| {
            let name = tool["name"].as_str().unwrap();
            name.strip_prefix("asyncgate.").unwrap_or(name).to_owned()
        };
        tools.iter().map(name).collect()
    }

    /// The database of a server that has been stopped.
    pub async fn open_store(&self, clock: Clock) -> Store {
        let backend = match &self.database {
            Some(database) => Backend::Postgres(PostgresOptions::at(&database.url)),
            None => Backend::Sqlite(SqliteOptions::at(self.server.data_dir.join("waybill.db"))),
        };
        let (clock, entropy) = (Arc::new(clock), Arc::new(OsEntropy));
        Store::open(backend, &waybill_domains::migrations(), Settings::default(), clock, entropy).await.unwrap()
    }

    /// The sum of a counter over its labels.
    pub async fn counter(&self, name: &str) -> u64 {
        let figures = self.get(&self.server.admin_key, "/metrics").await;
        assert_eq!(figures.status, 200, "{}", figures.text);
        let of_counter = |line: &&str| line.split([' ', '{']).next() == Some(name);
        let value = |line: &str| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap() as u64;
        figures.text.lines().filter(of_counter).map(value).sum()
    }
}

/// What an operation is called at `/mcp` by default.
pub fn tool_name(spec: &OperationSpec) -> String {
    let id = waybill_domains::registry().id(spec);
    if id.contains('.') { id.into_owned() } else { format!("asyncgate.{id}") }
}

/// A settings file that lives as long as the value.
pub fn config(text: &str) -> NamedTempFile {
    let mut file = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

pub struct Reply {
    pub status: u16,
    pub headers: HeaderMap,
    pub text: String,
}

impl Reply {
    pub async fn of(request: reqwest::RequestBuilder) -> Self {
        Self::read(request.send().await.unwrap()).await
    }

    pub async fn read(response: reqwest::Response) -> Self {
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        Self { status, headers, text: response.text().await.unwrap() }
    }

    pub fn json(&self) -> Json {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    /// An error as the catalogue has it, with everything that every error carries.
    pub fn must_be(&self, code: Code, what: &str) {
        self.must_be_cured(code, code.entry().cure, what);
    }

    /// As `must_be`, with advice of its own.
    pub fn must_be_cured(&self, code: Code, cure: &str, what: &str) {
        let entry = code.entry();
        let body = self.json();
        assert_eq!((self.status, body["error"].as_str()), (entry.http, Some(entry.code)), "{what}: {}", self.text);
        assert_eq!(body["help"], cure, "{what}");
        assert!(body["message"].as_str().is_some_and(|message| message.ends_with('.')), "{what}: {}", self.text);
        assert!(self.header("x-request-id").is_some(), "{what}: no x-request-id");
        assert_eq!(self.header("content-type"), Some("application/json"), "{what}");
        assert_eq!(self.header("www-authenticate").is_some(), code == Code::Unauthorized, "{what}");
    }
}

/// One exchange without a client library: what is sent and what comes back, to the end of the connection.
pub fn raw(address: &str, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // A server that has heard enough closes while we still write; what it said is what matters.
    let _ = stream.write_all(request);
    read_to_end(&mut stream)
}

pub fn read_to_end(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

/// The first line's status in such an answer.
pub fn status_of(answer: &str) -> u16 {
    answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("no status: {answer:?}"))
}

/// What a run of the program came to.
pub struct Ended {
    pub exit: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Ended {
    /// A refusal as the catalogue has it: exit code, code, and what to do.
    pub fn must_be(&self, code: Code, what: &str) {
        self.must_be_cured(code, code.entry().cure, what);
    }

    /// As `must_be`, with advice of its own.
    pub fn must_be_cured(&self, code: Code, cure: &str, what: &str) {
        let entry = code.entry();
        assert_eq!(self.exit, i32::from(entry.exit), "{what}: {}", self.stderr);
        assert!(self.stderr.contains(&format!("[{}]", entry.code)), "{what}: {}", self.stderr);
        assert!(self.stderr.contains(cure), "{what}: {}", self.stderr);
    }

    pub fn json(&self) -> Json {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {} {}", self.stdout, self.stderr))
    }
}

/// Runs the program to its end, with no settings of ours in its environment.
///
/// A server that starts although it should have refused would never end, so it is ended here.
pub fn program(args: &[&str]) -> Ended {
    let mut command = Command::new(server::binary());
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if name.starts_with("WAYBILL_") || ["ALLOW_INSECURE_DEV", "ASYNCGATE_API_KEY"].contains(&name.as_str()) {
            command.env_remove(name);
        }
    }
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let (mut out, mut err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    // Read beside each other, so that neither pipe fills up.
    let reader = std::thread::spawn(move || read_text(&mut err));
    let watch = std::thread::spawn(move || {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = child.try_wait().unwrap() {
                return status;
            }
            if Instant::now() > deadline {
                child.kill().unwrap();
                return child.wait().unwrap();
            }
            std::thread::sleep(POLL);
        }
    });
    let stdout = read_text(&mut out);
    let (stderr, status) = (reader.join().unwrap(), watch.join().unwrap());
    let exit = status.code().unwrap_or_else(|| panic!("{args:?} did not end by itself: {stdout}{stderr}"));
    Ended { exit, stdout, stderr }
}

fn read_text(stream: &mut impl Read) -> String {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    String::from_utf8(bytes).unwrap()
}

/// Waits until the condition holds. Tests wait for what they are about, never for a time.
pub async fn until<F: Future<Output = bool>>(what: &str, mut condition: impl FnMut() -> F) {
    let deadline = Instant::now() + PATIENCE;
    while !condition().await {
        assert!(Instant::now() < deadline, "never: {what}");
        tokio::time::sleep(POLL).await;
    }
}
