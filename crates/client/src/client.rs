//! One call: request, answer, and whether it may be sent again.

use std::time::Duration;

use reqwest::header::{HeaderMap, RETRY_AFTER};
use reqwest::{Response, Url};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value as Json};
use waybill_kernel::rest::target;
use waybill_kernel::{Code, Error, Method, Result};

use crate::Backoff;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Beside the time a call asks the server to wait.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// A page of the largest records is far below; only a stranger sends more.
const ANSWER_BYTES_MAX: usize = 256 << 20;
/// Sendings of one repeatable call, the first counted.
const SENDINGS_MAX: u32 = 4;
const RETRY_FIRST: Duration = Duration::from_millis(200);
const RETRY_MOST: Duration = Duration::from_secs(5);
/// A server that asks for a longer pause is believed only up to here; the caller has a loop of its own.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(10);

pub struct Options {
    /// As in `http://127.0.0.1:7700`; a path before `/v1` is kept.
    pub url: String,
    pub key: Option<String>,
    pub user_agent: String,
}

#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    base: String,
    key: Option<String>,
}

/// May the call be sent again when nobody knows whether it was done?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// Reads, and writes that the server recognises: by an idempotency key or by the lease that was used.
    Safe,
    Never,
}

/// An operation's route with its `{name}` parts still in it, and its input.
pub struct Request<'a> {
    pub method: Method,
    pub path: &'a str,
    pub input: Json,
    pub repeat: Repeat,
    /// How long the server was asked to hold the answer back.
    pub wait: Duration,
}

#[derive(Debug)]
pub struct Answer {
    pub json: Json,
    /// The server had done this before and says so.
    pub replay: bool,
}

impl Client {
    pub fn new(options: Options) -> Result<Self> {
        let base = base(&options.url)?;
        let http = waybill_guard::client()
            .user_agent(options.user_agent)
            .connect_timeout(CONNECT_TIMEOUT)
            // The key is for the server that was named and for no other.
            .redirect(reqwest::redirect::Policy::none())
            // A proxy set for the web has no business between us and it.
            .no_proxy()
            .build()
            .map_err(Error::internal)?;
        // Keys are often read from a file, and files end with a newline.
        let key = options.key.map(|key| key.trim().to_owned()).filter(|key| !key.is_empty());
        if key.as_deref().is_some_and(|key| !key.bytes().all(|byte| byte.is_ascii_graphic())) {
            return Err(Error::new(Code::Unauthorized, "The key holds characters no key has."));
        }
        Ok(Self { http, base, key })
    }

    /// `http://host:port`, as errors name the server.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// Sends the call, and sends it again where that is safe and the server was away or asked for patience.
    pub async fn call(&self, request: Request<'_>) -> Result<Answer> {
        let mut backoff = Backoff::new(RETRY_FIRST, RETRY_MOST);
        let Json::Object(mut fields) = request.input else { return Err(Error::internal("the input is no object")) };
        let address = format!("{}{}", self.base, target(request.method, request.path, &mut fields));
        for sending in 1.. {
            let (error, asked) = match self.send(request.method, &address, &fields, request.wait).await {
                Ok(answer) => return Ok(answer),
                Err(failed) => failed,
            };
            if sending == SENDINGS_MAX || request.repeat == Repeat::Never || !may_pass(error.code()) {
                return Err(error);
            }
            let wait = backoff.pause();
            tokio::time::sleep(asked.map_or(wait, |asked| wait.max(asked.min(RETRY_AFTER_MAX)))).await;
        }
        Err(Error::internal("a call ended without an answer"))
    }

    pub(crate) async fn read<T: DeserializeOwned>(&self, request: Request<'_>) -> Result<T> {
        let answer = self.call(request).await?;
        serde_json::from_value(answer.json).map_err(|error| self.stranger().because(error))
    }

    async fn send(
        &self,
        method: Method,
        address: &str,
        fields: &Map<String, Json>,
        wait: Duration,
    ) -> std::result::Result<Answer, (Error, Option<Duration>)> {
        let request = match method {
            Method::Get => self.http.get(address),
            Method::Post => self.http.post(address).json(fields),
            Method::Put => self.http.put(address).json(fields),
            Method::Delete => self.http.delete(address),
        };
        let request = match &self.key {
            Some(key) => request.bearer_auth(key),
            None => request,
        };
        let response = request.timeout(ANSWER_TIMEOUT + wait).send().await.map_err(|error| (self.lost(error), None))?;
        let (status, asked) = (response.status(), retry_after(response.headers()));
        let replay = response.headers().get("x-idempotent-replay").is_some_and(|value| value == "true");
        let body = self.body(response).await.map_err(|error| (error, None))?;
        match serde_json::from_slice::<Json>(&body) {
            Ok(json) if status.is_success() => Ok(Answer { json, replay }),
            Ok(json) if json["error"].is_string() => Err((told(status.as_u16(), &json), asked)),
            // A gateway in between speaks for a server that is away.
            _ if matches!(status.as_u16(), 502..=504) => {
                let message = format!("The server at {} is away (HTTP {status}).", self.base);
                Err((Error::new(Code::Unavailable, message), asked))
            }
            _ => Err((self.stranger().because(format!("HTTP {status}")), None)),
        }
    }

    async fn body(&self, mut response: Response) -> Result<Vec<u8>> {
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| self.lost(error))? {
            if body.len() + chunk.len() > ANSWER_BYTES_MAX {
                return Err(self.stranger().because(format!("its answer has more than {ANSWER_BYTES_MAX} bytes")));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body)
    }

    /// Nothing was sent, or nobody knows.
    fn lost(&self, error: reqwest::Error) -> Error {
        // The address is said once, and without what may be in it.
        let error = error.without_url();
        if error.is_connect() {
            return Error::new(Code::ServerUnreachable, format!("No server answers at {}.", self.base))
                .because(root(&error));
        }
        Error::new(Code::Unavailable, format!("The connection to {} was lost before an answer came.", self.base))
            .because(root(&error))
    }

    fn stranger(&self) -> Error {
        Error::new(Code::ServerUnreachable, format!("What answers at {} is no Waybill server.", self.base))
    }
}

/// Gone by itself, perhaps, when the same is sent a little later.
fn may_pass(code: Code) -> bool {
    matches!(
        code,
        Code::ServerUnreachable | Code::Unavailable | Code::Overloaded | Code::StoreUnavailable | Code::ShuttingDown
    )
}

fn base(url: &str) -> Result<String> {
    let invalid = || Error::invalid(format!("{url:?} is not a server's URL: write it as http://127.0.0.1:7700."));
    let parsed = Url::parse(url.trim()).map_err(|_| invalid())?;
    let plain = parsed.query().is_none() && parsed.fragment().is_none() && parsed.username().is_empty();
    if !matches!(parsed.scheme(), "http" | "https") || !plain || parsed.password().is_some() {
        return Err(invalid());
    }
    Ok(parsed.as_str().trim_end_matches('/').to_owned())
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    headers.get(RETRY_AFTER)?.to_str().ok()?.parse().ok().map(Duration::from_secs)
}

/// The server's error object, as ours. A code that this version does not know is taken by its HTTP status, and its own
/// name stays in `server_code`.
pub fn told(status: u16, body: &Json) -> Error {
    let name = body["error"].as_str().unwrap_or_default();
    let known = Code::ALL.iter().copied().find(|code| code.entry().code == name);
    let near = || Code::ALL.iter().copied().find(|code| code.entry().http == status).unwrap_or(Code::Internal);
    let mut error =
        Error::new(known.unwrap_or_else(near), body["message"].as_str().unwrap_or("The server gave no reason."));
    if known.is_none() {
        error = error.with("server_code", name);
    }
    if let Some(help) = body["help"].as_str() {
        error = error.with_cure(help);
    }
    for (field, value) in body.as_object().into_iter().flatten() {
        if !matches!(field.as_str(), "error" | "message" | "help") {
            error = error.with(field, value.clone());
        }
    }
    error
}

fn root(error: &(dyn std::error::Error + 'static)) -> String {
    std::iter::successors(Some(error), |error| (*error).source()).last().unwrap_or(error).to_string()
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use serde_json::json;

    use super::*;

    #[test]
    fn the_base_is_a_servers_url_and_nothing_else() {
        for url in ["http://127.0.0.1:7700", "http://127.0.0.1:7700/", " http://127.0.0.1:7700\n"] {
            assert_eq!(base(url).unwrap(), "http://127.0.0.1:7700", "{url:?}");
        }
        assert_eq!(base("https://host/waybill/").unwrap(), "https://host/waybill");
        for url in ["", "127.0.0.1:7700", "file:///tmp", "http://", "http://u:p@h", "http://h/?a=b", "http://h/#x"] {
            assert_eq!(base(url).unwrap_err().code(), Code::InvalidRequest, "{url:?}");
        }
    }

    #[test]
    fn the_servers_errors_keep_their_code_and_fields() {
        let error = told(409, &json!({"error": "LEASE_INVALID_OR_EXPIRED", "message": "Gone.", "task_id": "t"}));
        assert_eq!((error.code(), error.message()), (Code::LeaseInvalidOrExpired, "Gone."));
        assert_eq!(error.detail("task_id"), Some(&json!("t")));
        let newer = told(429, &json!({"error": "from_the_future", "message": "Later."}));
        assert_eq!(newer.code(), Code::RateLimitExceeded);
        assert_eq!(newer.detail("server_code"), Some(&json!("from_the_future")));
    }

    /// A server that gives the answers in turn, one per connection, and counts them.
    fn scripted(answers: Vec<String>) -> (String, std::thread::JoinHandle<usize>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let served = std::thread::spawn(move || {
            let mut served = 0;
            for answer in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = [0; 4096];
                let _ = stream.read(&mut request).unwrap();
                stream.write_all(answer.as_bytes()).unwrap();
                served += 1;
            }
            served
        });
        (url, served)
    }

    fn client(url: String) -> Client {
        Client::new(Options { url, key: None, user_agent: "test".to_owned() }).unwrap()
    }

    fn request(repeat: Repeat) -> Request<'static> {
        Request { method: Method::Get, path: "/v1/x", input: json!({}), repeat, wait: Duration::ZERO }
    }

    fn answer(status: u16, body: &str) -> String {
        let length = body.len();
        format!("HTTP/1.1 {status} x\r\nretry-after: 0\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}")
    }

    fn busy() -> String {
        answer(503, r#"{"error":"overloaded","message":"No."}"#)
    }

    #[tokio::test]
    async fn a_repeatable_call_outlives_a_busy_server_and_another_is_sent_once() {
        let (url, served) = scripted(vec![busy(), answer(200, r#"{"a":12}"#)]);
        let answer = client(url).call(request(Repeat::Safe)).await.unwrap();
        assert_eq!((answer.json, answer.replay, served.join().unwrap()), (json!({"a": 12}), false, 2));

        let (url, served) = scripted(vec![busy()]);
        let error = client(url).call(request(Repeat::Never)).await.unwrap_err();
        assert_eq!((error.code(), served.join().unwrap()), (Code::Overloaded, 1));
    }

    #[tokio::test]
    async fn patience_has_an_end() {
        let (url, served) = scripted(vec![busy(); SENDINGS_MAX as usize]);
        let error = client(url).call(request(Repeat::Safe)).await.unwrap_err();
        assert_eq!((error.code(), served.join().unwrap()), (Code::Overloaded, SENDINGS_MAX as usize));
    }

    #[tokio::test]
    async fn a_refusal_is_not_asked_for_again_and_a_lost_answer_is_unknown() {
        let (url, served) = scripted(vec![answer(403, r#"{"error":"forbidden","message":"No."}"#)]);
        assert_eq!(client(url).call(request(Repeat::Safe)).await.unwrap_err().code(), Code::Forbidden);
        assert_eq!(served.join().unwrap(), 1);
        let (url, served) = scripted(vec![String::new()]);
        assert_eq!(client(url).call(request(Repeat::Never)).await.unwrap_err().code(), Code::Unavailable);
        assert_eq!(served.join().unwrap(), 1);
        let (url, _) = scripted(vec![answer(200, "<html>")]);
        assert_eq!(client(url).call(request(Repeat::Never)).await.unwrap_err().code(), Code::ServerUnreachable);
    }

    #[test]
    fn a_key_with_a_newline_inside_is_refused_and_not_shown() {
        let options =
            Options { url: "http://h".to_owned(), key: Some("aga_a\nb".to_owned()), user_agent: String::new() };
        let error = Client::new(options).err().unwrap();
        assert!(error.code() == Code::Unauthorized && !error.to_string().contains("aga_a"));
    }
}
