//! One request to an endpoint: where it may go, how long it may take, and what came of it.

use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use reqwest::header::RETRY_AFTER;
use reqwest::{Client, Response};
use tokio::sync::OnceCell;
use waybill_guard::{Guard, Judging, Resolver};

use crate::Settings;
use crate::rules::Answer;

const USER_AGENT: &str = concat!("waybill-webhooks/", env!("CARGO_PKG_VERSION"));
/// Read of an answer, so that its connection can be used again; nothing of it is kept.
const ANSWER_BYTES_MAX: usize = 4 << 10;
const IDLE_MAX: Duration = Duration::from_secs(30);
const IDLE_CONNECTIONS_MAX: usize = 2;

/// What is sent, headers apart.
pub(crate) struct Message<'a> {
    pub(crate) url: &'a str,
    pub(crate) id: &'a str,
    pub(crate) timestamp_s: i64,
    pub(crate) signature: &'a str,
    pub(crate) body: String,
}

pub(crate) struct Post<R> {
    guard: Arc<Guard<R>>,
    connect: Duration,
    whole: Duration,
    /// Made when there is first something to send: it reads the machine's certificates.
    client: OnceCell<Result<Client, String>>,
}

impl<R: Resolver + 'static> Post<R> {
    pub(crate) fn new(settings: &Settings, resolver: R) -> Self {
        Self {
            guard: Arc::new(settings.guard(resolver)),
            connect: Duration::from_millis(settings.connect_ms),
            whole: settings.request(),
            client: OnceCell::new(),
        }
    }

    pub(crate) async fn send(&self, message: Message<'_>) -> Answer {
        // What is no name is never looked up, so it is judged here; names are judged as they are resolved.
        let url = match self.guard.check(message.url) {
            Ok(url) => url,
            Err(refused) => return silent(format!("{refused}.")),
        };
        let client = match self.client().await {
            Ok(client) => client,
            Err(why) => return silent(format!("The server cannot send requests: {why}.")),
        };
        let request = client
            .post(url)
            .timeout(self.whole)
            .header("content-type", "application/json")
            .header("webhook-id", message.id)
            .header("webhook-timestamp", message.timestamp_s)
            .header("webhook-signature", message.signature)
            .body(message.body);
        match request.send().await {
            Ok(response) => {
                let answer = Answer::of_status(response.status().as_u16(), retry_after_s(&response));
                drain(response).await;
                answer
            }
            Err(error) if error.is_timeout() && !error.is_connect() => {
                silent(format!("It did not answer within {} ms.", self.whole.as_millis()))
            }
            Err(error) => silent(format!("It cannot be reached: {}.", root(&error))),
        }
    }

    async fn client(&self) -> Result<&Client, &String> {
        let make = || async {
            let (guard, connect) = (Arc::clone(&self.guard), self.connect);
            let build = move || {
                waybill_guard::client()
                    .user_agent(USER_AGENT)
                    .dns_resolver(Judging::new(guard))
                    .redirect(reqwest::redirect::Policy::none())
                    .no_proxy()
                    .referer(false)
                    .connect_timeout(connect)
                    .pool_idle_timeout(IDLE_MAX)
                    .pool_max_idle_per_host(IDLE_CONNECTIONS_MAX)
                    .build()
                    .map_err(|error| root(&error))
            };
            tokio::task::spawn_blocking(build).await.unwrap_or_else(|error| Err(error.to_string()))
        };
        self.client.get_or_init(make).await.as_ref()
    }
}

/// By the request's own timeout; what is longer costs the connection.
async fn drain(mut response: Response) {
    let mut read = 0;
    while let Ok(Some(chunk)) = response.chunk().await {
        read += chunk.len();
        if read > ANSWER_BYTES_MAX {
            return;
        }
    }
}

fn silent(why: String) -> Answer {
    Answer::Silent { status: None, why, retry_after: None }
}

/// The header's first form; the second, a date, would need the endpoint's clock to be right.
fn retry_after_s(response: &Response) -> Option<u64> {
    response.headers().get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()
}

/// What went wrong, without the URL: it is shown beside.
fn root(error: &(dyn StdError + 'static)) -> String {
    std::iter::successors(Some(error), |error| (*error).source()).last().unwrap_or(error).to_string()
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::net::IpAddr;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    /// Whatever is asked for.
    struct Always(&'static [&'static str]);

    impl Resolver for Always {
        async fn resolve(&self, _: &str) -> io::Result<Vec<IpAddr>> {
            Ok(self.0.iter().map(|address| address.parse().unwrap()).collect())
        }
    }

    fn post(addresses: &'static [&'static str], allow_private: bool) -> Post<Always> {
        let settings = Settings { allow_private, connect_ms: 2_000, request_ms: 500, ..Settings::default() };
        Post::new(&settings, Always(addresses))
    }

    fn message(url: &str) -> Message<'_> {
        Message { url, id: "m", timestamp_s: 1, signature: "v1,x", body: "{}".to_owned() }
    }

    /// Answers its first connection and gives back what it was sent.
    async fn listener(answer: &'static str) -> (u16, tokio::task::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = vec![0; 4096];
            let read = stream.read(&mut request).await.unwrap();
            let _ = stream.write_all(answer.as_bytes()).await;
            if answer.is_empty() {
                tokio::time::sleep(Duration::from_secs(2)).await;
            }
            String::from_utf8_lossy(&request[..read]).into_owned()
        });
        (port, seen)
    }

    #[tokio::test]
    async fn a_message_has_its_headers_and_a_redirect_is_not_followed() {
        let (port, seen) =
            listener("HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:9/\r\ncontent-length: 0\r\n\r\n").await;
        let url = format!("http://name.test:{port}/hook?a=b");
        let answer = post(&["127.0.0.1"], true).send(message(&url)).await;
        assert_eq!(answer, Answer::Refused { status: 302 });
        let request = seen.await.unwrap().to_ascii_lowercase();
        for line in [
            "post /hook?a=b http/1.1\r\n",
            "\r\nwebhook-id: m\r\n",
            "\r\nwebhook-timestamp: 1\r\n",
            "\r\nwebhook-signature: v1,x\r\n",
            "\r\ncontent-type: application/json\r\n",
            "\r\n\r\n{}",
        ] {
            assert!(request.contains(line), "{line:?} is not in {request}");
        }
    }

    #[tokio::test]
    async fn silence_ends_by_the_clock() {
        let (port, _seen) = listener("").await;
        let answer = post(&["127.0.0.1"], true).send(message(&format!("http://name.test:{port}/"))).await;
        assert_eq!(answer, silent("It did not answer within 500 ms.".to_owned()));
        let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
        let answer = post(&["127.0.0.1"], true).send(message(&format!("http://name.test:{nobody}/"))).await;
        assert!(matches!(answer, Answer::Silent { status: None, .. }), "{answer:?}");
    }

    /// Every way to say "loopback", by address and by name: the listener there sees nothing.
    #[tokio::test]
    async fn nothing_reaches_an_inner_address_unless_that_is_allowed() {
        for (host, addresses) in [
            ("127.0.0.1", &["8.8.8.8"][..]),
            ("127.1", &["8.8.8.8"]),
            ("0x7f.1", &["8.8.8.8"]),
            ("2130706433", &["8.8.8.8"]),
            ("0.0.0.0", &["8.8.8.8"]),
            ("[::1]", &["8.8.8.8"]),
            ("[::ffff:127.0.0.1]", &["8.8.8.8"]),
            ("[::ffff:10.0.0.1]", &["8.8.8.8"]),
            ("[64:ff9b::7f00:1]", &["8.8.8.8"]),
            ("[2002:7f00:1::]", &["8.8.8.8"]),
            ("169.254.169.254", &["8.8.8.8"]),
            ("168.63.129.16", &["8.8.8.8"]),
            ("100.64.0.1", &["8.8.8.8"]),
            ("user@127.0.0.1", &["8.8.8.8"]),
            ("8.8.8.8@127.0.0.1", &["8.8.8.8"]),
            ("name.test", &["127.0.0.1"]),
            ("name.test.", &["127.0.0.1"]),
            ("name.test", &["8.8.8.8", "127.0.0.1"]),
            ("name.test", &["::ffff:127.0.0.1"]),
            ("localhost", &["127.0.0.1"]),
        ] {
            let (port, seen) = listener("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
            let answer = post(addresses, false).send(message(&format!("http://{host}:{port}/"))).await;
            let Answer::Silent { status: None, why, .. } = &answer else { panic!("{host} {addresses:?}: {answer:?}") };
            let told = ["no address of the public internet", "user name"].iter().any(|part| why.contains(part));
            assert!(told, "{host}: {why}");
            // Whatever connects now is the first to do so.
            let mut probe = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            probe.write_all(b"probe").await.unwrap();
            assert_eq!(seen.await.unwrap(), "probe", "{host}: the listener was reached");
        }
        for url in ["file:///etc/passwd", "gopher://name.test:70/", "http://8.8.8.8:25/"] {
            assert!(matches!(post(&["8.8.8.8"], false).send(message(url)).await, Answer::Silent { .. }), "{url}");
        }
    }
}
