//! HTTP/1.1 over one kept connection, by hand: a client library retries, pools and reconnects on its own, and each of
//! those would blur what was sent, what was answered, and when.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

/// Longer than a server waits for its database before it answers 503.
const CALL_MAX: Duration = Duration::from_secs(10);
const HEADERS_MAX: usize = 100;
/// The 503s whose text says that nothing was done.
const UNDONE: [&str; 3] = ["store_unavailable", "overloaded", "shutting_down"];
const BODY_BYTES_MAX: usize = 16 << 20;

/// What is settled fact is asked for again, where there is no usable answer: a 503 only delays it.
pub const ATTEMPTS_MAX: u32 = 20;
pub const ATTEMPT_PAUSE: Duration = Duration::from_millis(200);

#[derive(Clone, Debug)]
pub struct Endpoint {
    pub addr: SocketAddr,
    pub key: String,
}

/// A complete answer. Everything short of one is an error, and means that the outcome is unknown.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    /// `X-Idempotent-Replay: true`
    pub replay: bool,
    pub body: Value,
}

impl Answer {
    pub fn success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// Refused, and nothing was written. 408 is the server's own timeout and says nothing; 507: there was no room.
    pub fn refused(&self) -> bool {
        ((400..500).contains(&self.status) && self.status != 408) || self.status == 507
    }

    /// Not served, and nothing was written: the server says so itself.
    pub fn undone(&self) -> bool {
        self.status == 503 && self.code().is_some_and(|code| UNDONE.contains(&code))
    }

    pub fn text(&self, field: &str) -> Option<&str> {
        self.body.get(field)?.as_str()
    }

    /// The stable name of an error.
    pub fn code(&self) -> Option<&str> {
        self.text("error")
    }

    /// For journals and reports: the status and the beginning of the body.
    pub fn brief(&self) -> String {
        let body: String = self.body.to_string().chars().take(200).collect();
        format!("{} {body}", self.status)
    }
}

/// Asks for something settled until a server says something about it: it may be busy, or have closed an idle connection.
pub async fn patiently(mut ask: impl AsyncFnMut() -> Result<Answer>) -> Result<Answer> {
    let mut answer = ask().await;
    for _ in 1..ATTEMPTS_MAX {
        if answer.as_ref().is_ok_and(|answer| answer.status < 500) {
            break;
        }
        sleep(ATTEMPT_PAUSE).await;
        answer = ask().await;
    }
    answer
}

/// One connection, made when it is needed.
pub struct Wire {
    addr: SocketAddr,
    stream: Option<BufReader<TcpStream>>,
}

impl Wire {
    pub fn new(addr: SocketAddr) -> Self {
        Wire { addr, stream: None }
    }

    /// One request, one answer. After an error the connection is dropped: what it still holds belongs to nobody.
    pub async fn exchange(&mut self, request: &[u8]) -> Result<Answer> {
        let stream = self.stream.take();
        let exchange = async {
            let mut stream = match stream {
                Some(stream) => stream,
                None => BufReader::new(connect(self.addr).await?),
            };
            stream.get_mut().write_all(request).await?;
            let (answer, kept) = read_answer(&mut stream).await?;
            anyhow::Ok((answer, kept.then_some(stream)))
        };
        let (answer, stream) = timeout(CALL_MAX, exchange).await.context("no answer in time")??;
        self.stream = stream;
        Ok(answer)
    }
}

pub struct Client {
    endpoint: Endpoint,
    wire: Wire,
}

impl Client {
    pub fn new(endpoint: Endpoint) -> Self {
        let wire = Wire::new(endpoint.addr);
        Client { endpoint, wire }
    }

    pub async fn create(&mut self, request: &Value) -> Result<Answer> {
        self.call("POST", "/v1/tasks", Some(request)).await
    }

    pub async fn fetch(&mut self, task_id: &str) -> Result<Answer> {
        self.call("GET", &format!("/v1/tasks/{}", escape(task_id)), None).await
    }

    pub async fn cancel(&mut self, task_id: &str) -> Result<Answer> {
        self.call("POST", &format!("/v1/tasks/{}/cancel", escape(task_id)), Some(&json!({}))).await
    }

    pub async fn list(&mut self, limit: u32, cursor: Option<&str>) -> Result<Answer> {
        let cursor = cursor.map(|cursor| format!("&cursor={}", escape(cursor))).unwrap_or_default();
        self.call("GET", &format!("/v1/tasks?limit={limit}{cursor}"), None).await
    }

    /// A read, with its query.
    pub async fn get(&mut self, path: &str) -> Result<Answer> {
        self.call("GET", path, None).await
    }

    /// Another operation, as in `/admin/keys`.
    pub async fn post(&mut self, path: &str, body: &Value) -> Result<Answer> {
        self.call("POST", path, Some(body)).await
    }

    /// One of the server's own figures; zero while it has none of that name.
    pub async fn figure(&mut self, name: &str) -> Result<u64> {
        let answer = self.call("GET", "/metrics", None).await?;
        ensure!(answer.success(), "the server's figures: {}", answer.brief());
        let text = answer.body.as_str().context("figures that are not text")?;
        let of_figure = |line: &&str| line.split([' ', '{']).next() == Some(name);
        let value = |line: &str| line.rsplit_once(' ')?.1.parse::<f64>().ok();
        Ok(text.lines().filter(of_figure).filter_map(value).sum::<f64>() as u64)
    }

    pub async fn ready(&mut self) -> Result<bool> {
        Ok(self.call("GET", "/readyz", None).await?.status == 200)
    }

    /// The server takes no writes until it is started again, and says so.
    pub async fn wants_restart(&mut self) -> bool {
        let answer = self.call("GET", "/readyz", None).await;
        answer.is_ok_and(|answer| answer.text("message").is_some_and(|why| why.contains("restart the program")))
    }

    async fn call(&mut self, method: &str, path: &str, body: Option<&Value>) -> Result<Answer> {
        let request = self.request(method, path, body);
        self.wire.exchange(request.as_bytes()).await
    }

    fn request(&self, method: &str, path: &str, body: Option<&Value>) -> String {
        let Endpoint { addr, key } = &self.endpoint;
        let head = format!("{method} {path} HTTP/1.1\r\nHost: {addr}\r\nAuthorization: Bearer {key}\r\n");
        match body.map(Value::to_string) {
            Some(body) => {
                format!("{head}Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}", body.len())
            }
            None => format!("{head}\r\n"),
        }
    }
}

async fn connect(addr: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect(addr).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// The answer, and whether the connection may carry another request.
pub async fn read_answer(stream: &mut BufReader<impl AsyncRead + Unpin>) -> Result<(Answer, bool)> {
    let first = read_line(stream).await?;
    let status = first.split(' ').nth(1).and_then(|code| code.parse().ok()).context("no HTTP status")?;
    let (mut length, mut replay, mut kept, mut ended) = (None, false, true, false);
    for _ in 0..HEADERS_MAX {
        let line = read_line(stream).await?;
        if line.is_empty() {
            ended = true;
            break;
        }
        let Some((name, value)) = line.split_once(':') else { bail!("not a header: {line}") };
        let value = value.trim();
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = Some(value.parse::<usize>()?),
            "x-idempotent-replay" => replay = value.eq_ignore_ascii_case("true"),
            "connection" => kept = !value.eq_ignore_ascii_case("close"),
            "transfer-encoding" => bail!("unexpected transfer encoding {value}"),
            _ => {}
        }
    }
    ensure!(ended, "more than {HEADERS_MAX} headers");
    let length = length.unwrap_or(0);
    ensure!(length <= BODY_BYTES_MAX, "a body of {length} bytes");
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).await?;
    // Health answers and errors of a proxy may be plain text; a task never is, and its absence is judged elsewhere.
    let body =
        serde_json::from_slice(&bytes).unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&bytes).into_owned()));
    Ok((Answer { status, replay, body }, kept))
}

async fn read_line(stream: &mut BufReader<impl AsyncRead + Unpin>) -> Result<String> {
    let mut line = String::new();
    stream.read_line(&mut line).await?;
    ensure!(line.ends_with('\n'), "the connection ended early");
    Ok(line.trim_end().to_owned())
}

fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => escaped.push(char::from(byte)),
            _ => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_server_that_says_so_has_done_nothing() {
        let answer = |status, code: &str| Answer { status, replay: false, body: json!({ "error": code }) };
        assert!(UNDONE.iter().all(|code| answer(503, code).undone()));
        assert!(!answer(503, "unavailable").undone() && !answer(500, "overloaded").undone());
    }

    #[test]
    fn cursors_survive_a_query() {
        assert_eq!(escape("aZ0-_.~"), "aZ0-_.~");
        assert_eq!(escape("a=b&c/+"), "a%3Db%26c%2F%2B");
    }
}
