//! `http_get`: one GET, no redirects followed, no proxy, capped in time and bytes.

use std::error::Error as StdError;
use std::time::Duration;

use reqwest::header::HeaderMap;
use serde::Deserialize;
use serde_json::{Map, Value as Json, json};
use waybill_client::Lease;
use waybill_guard::{Admitted, Guard, Judged, Refused, Resolver};
use waybill_keeper::text;

use super::handlers::payload;
use super::held::Refusal;

/// Of names and values together; further headers are left out, and the result says so.
const HEADER_BYTES_MAX: usize = 16 << 10;

pub struct HttpGet<R> {
    guard: Guard<R>,
    timeout: Duration,
    body_bytes_max: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Get {
    url: String,
}

impl<R: Resolver> HttpGet<R> {
    pub fn new(guard: Guard<R>, timeout: Duration, body_bytes_max: usize) -> Self {
        Self { guard, timeout, body_bytes_max }
    }

    pub async fn run(&self, lease: &Lease) -> Result<Json, Refusal> {
        let Get { url } = payload(lease)?;
        let fetched = tokio::time::timeout(self.timeout, async {
            let admitted = self.guard.admit(&url).await.map_err(refusal)?;
            self.fetch(admitted).await
        });
        fetched.await.unwrap_or_else(|_| {
            Err(Refusal::transport(format!("The request was not over after {} s.", self.timeout.as_secs())))
        })
    }

    async fn fetch(&self, admitted: Admitted) -> Result<Json, Refusal> {
        let http = waybill_guard::client()
            .user_agent(concat!("waybill-worker/", env!("CARGO_PKG_VERSION")))
            .dns_resolver(Judged(admitted.addresses))
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .build()
            .map_err(|error| transport(&error))?;
        let mut response = http.get(admitted.url).send().await.map_err(|error| transport(&error))?;
        let (headers, headers_truncated) = headers(response.headers());
        let mut body = Vec::new();
        let mut truncated = false;
        while let Some(chunk) = response.chunk().await.map_err(|error| transport(&error))? {
            let room = self.body_bytes_max - body.len();
            body.extend_from_slice(&chunk[..chunk.len().min(room)]);
            if chunk.len() > room {
                truncated = true;
                break;
            }
        }
        let (body, exact) = text(&body);
        Ok(json!({
            "status": response.status().as_u16(),
            "headers": headers,
            "headers_truncated": headers_truncated,
            "body": body,
            "body_truncated": truncated,
            "body_is_exact": exact && !truncated,
        }))
    }
}

fn headers(all: &HeaderMap) -> (Map<String, Json>, bool) {
    let mut kept: Map<String, Json> = Map::new();
    let mut bytes = 0;
    for (name, value) in all {
        bytes += name.as_str().len() + value.len();
        if bytes > HEADER_BYTES_MAX {
            return (kept, true);
        }
        let (value, _) = text(value.as_bytes());
        let joined = match kept.get(name.as_str()).and_then(Json::as_str) {
            Some(earlier) => format!("{earlier}, {value}"),
            None => value,
        };
        kept.insert(name.as_str().to_owned(), joined.into());
    }
    (kept, false)
}

/// For the owner of the task, with what the operator of the worker may do about it.
fn refusal(refused: Refused) -> Refusal {
    match &refused {
        Refused::Invalid(_) => Refusal::payload(format!("{refused}.")),
        Refused::Unresolved { host, .. } => Refusal::transport(format!("{refused}.")).with("host", host.as_str()),
        Refused::Port(_) => address_refused(format!("{refused}; allow it with --allow-port.")),
        Refused::Inner { .. } => address_refused(format!("{refused}; allow it with --allow-host.")),
        Refused::OtherHost(_) => address_refused(format!("{refused}; --only-host names them.")),
        Refused::TooLong | Refused::Scheme(_) | Refused::HasUser => address_refused(format!("{refused}.")),
    }
}

fn address_refused(message: String) -> Refusal {
    Refusal::new("address_refused", message)
}

/// What went wrong between here and there. The URL is the owner's and stands in the task.
fn transport(error: &(dyn StdError + 'static)) -> Refusal {
    let root = std::iter::successors(Some(error), |error| (*error).source()).last().unwrap_or(error);
    Refusal::transport(format!("The request failed: {root}."))
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::net::IpAddr;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use waybill_kernel::Time;
    use waybill_kernel::id::Uuid;

    use super::*;

    /// Loopback once, and nothing after that: a second lookup would show.
    #[derive(Default)]
    struct Once(AtomicUsize);

    impl Resolver for Once {
        async fn resolve(&self, _: &str) -> io::Result<Vec<IpAddr>> {
            assert_eq!(self.0.fetch_add(1, Ordering::Relaxed), 0, "the name was resolved twice");
            Ok(vec![IpAddr::from([127, 0, 0, 1])])
        }
    }

    fn lease(url: &str) -> Lease {
        Lease {
            task_id: Uuid::nil(),
            lease_id: Uuid::nil(),
            kind: "http_get".to_owned(),
            payload: json!({ "url": url }),
            attempt: 0,
            expires_at: Time::EPOCH,
        }
    }

    /// A listener that answers every connection with `answer` and says how many bytes it was sent.
    async fn listener(answer: String) -> (u16, tokio::task::JoinHandle<usize>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = vec![0; 4096];
            let read = stream.read(&mut request).await.unwrap();
            let _ = stream.write_all(answer.as_bytes()).await;
            read
        });
        (port, seen)
    }

    async fn get(answer: &str, host: &str, allowed: &[&str]) -> Result<Json, Refusal> {
        let (port, _) = listener(answer.to_owned()).await;
        let allowed: Vec<_> = allowed.iter().map(|host| (*host).to_owned()).collect();
        let guard = Guard::new(&allowed, &[port], Once::default());
        let http_get = HttpGet::new(guard, Duration::from_secs(20), 10);
        http_get.run(&lease(&format!("http://{host}:{port}/x"))).await
    }

    #[tokio::test]
    async fn the_answer_is_reported_with_its_body_cut() {
        let answer = "HTTP/1.1 404 No\r\na: 1\r\na: 2\r\ncontent-length: 12\r\n\r\n0123456789ab";
        let result = get(answer, "inner.test", &["inner.test"]).await.unwrap();
        assert_eq!((&result["status"], &result["headers"]["a"]), (&json!(404), &json!("1, 2")));
        assert_eq!((&result["body"], &result["body_truncated"]), (&json!("0123456789"), &json!(true)));
        let exact = get("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n0123456789", "inner.test", &["inner.test"]).await;
        assert_eq!(exact.unwrap()["body_is_exact"], true);
        let binary =
            get("HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\na\0b", "inner.test", &["inner.test"]).await.unwrap();
        assert_eq!((&binary["body"], &binary["body_is_exact"]), (&json!("a\u{fffd}b"), &json!(false)));
    }

    #[tokio::test]
    async fn a_redirect_is_reported_and_not_followed() {
        // Nobody listens on the second: following it would fail.
        for location in ["file:///etc/passwd", "http://127.0.0.1:9/"] {
            let answer = format!("HTTP/1.1 302 Found\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n");
            let result = get(&answer, "inner.test", &["inner.test"]).await.unwrap();
            assert_eq!((&result["status"], &result["headers"]["location"]), (&json!(302), &json!(location)));
        }
    }

    #[tokio::test]
    async fn a_loopback_listener_sees_nothing_of_a_refused_request() {
        for host in ["127.0.0.1", "127.1", "2130706433", "[::ffff:127.0.0.1]", "localhost.", "name.test"] {
            let (port, seen) = listener("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".to_owned()).await;
            let http_get = HttpGet::new(Guard::new(&[], &[port], Once::default()), Duration::from_secs(20), 10);
            let refusal = http_get.run(&lease(&format!("http://{host}:{port}/"))).await.unwrap_err();
            assert_eq!((refusal.code, refusal.retryable), ("address_refused", false), "{host}");
            // Whatever connects now is the first to do so.
            let mut probe = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            probe.write_all(b"probe").await.unwrap();
            assert_eq!(seen.await.unwrap(), 5, "{host}: the listener was reached");
        }
    }

    #[tokio::test]
    async fn what_fails_on_the_way_may_be_tried_again() {
        let refusal = get("", "inner.test", &["inner.test"]).await.unwrap_err();
        assert_eq!((refusal.code, refusal.retryable), ("transport_error", true), "{}", refusal.message);
        let http_get = HttpGet::new(Guard::new(&[], &[], Once::default()), Duration::from_secs(20), 10);
        let mut odd = lease("http://x");
        odd.payload = json!({ "url": "http://x", "method": "POST" });
        assert_eq!(http_get.run(&odd).await.unwrap_err().code, "invalid_payload");
    }
}
