//! Who may ask: rules over the head of a request, before anything of it is looked at.
//!
//! A web page of any site can make its reader's browser send requests to loopback addresses. It cannot set `Authorization`, and its
//! requests bear a foreign `Host` (when a name was pointed at 127.0.0.1) or an `Origin`. The socket is out of its reach.

use http::header::{AUTHORIZATION, HOST, ORIGIN};
use http::{HeaderMap, Method, Uri};
use waybill_kernel::{Code, Error};

/// How the request came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// File permissions and the peer's user have let it in.
    Socket,
    Tcp,
}

/// Names under which people put tokens into addresses, where logs and histories keep them.
const TOKEN_NAMES: &[&str] =
    &["token", "local_token", "access_token", "auth_token", "authorization", "bearer", "api_key"];
const HOSTS: &[&str] = &["localhost", "127.0.0.1", "[::1]"];

/// What is wrong with a request, and the word by which it is counted.
#[derive(Debug)]
pub struct Refusal {
    pub kind: &'static str,
    pub error: Error,
}

/// What `Authorization` has brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Credential<'a> {
    None,
    Bearer(&'a str),
}

pub fn judge(via: Via, method: &Method, uri: &Uri, headers: &HeaderMap, origins: &[String]) -> Result<(), Refusal> {
    let refuse = |kind, code, message: &str| Err(Refusal { kind, error: Error::new(code, message) });
    if uri.query().is_some_and(has_token) {
        return refuse(
            "token_in_query",
            Code::InvalidRequest,
            "A token does not belong into an address. Send it as Authorization: Bearer.",
        );
    }
    if via == Via::Tcp && !headers.get_all(HOST).iter().all(|host| is_local(host.to_str().unwrap_or("?"))) {
        return refuse("foreign_host", Code::Forbidden, "Host must be localhost, 127.0.0.1 or [::1].");
    }
    if !headers.get_all(ORIGIN).iter().all(|origin| origins.iter().any(|known| known.as_bytes() == origin.as_bytes())) {
        return refuse(
            "foreign_origin",
            Code::Forbidden,
            "Web pages may not call this daemon. Name the page in ipc.origins.",
        );
    }
    if method == Method::OPTIONS {
        return refuse("preflight", Code::Forbidden, "This daemon answers no preflight requests.");
    }
    Ok(())
}

fn has_token(query: &str) -> bool {
    let name = |pair: &str| {
        let name = pair.split('=').next().unwrap_or_default();
        percent_encoding::percent_decode_str(name).decode_utf8_lossy().to_ascii_lowercase()
    };
    query.split('&').any(|pair| TOKEN_NAMES.contains(&name(pair).as_str()) || pair.contains("wbl_"))
}

/// An empty one is what clients without a name for us send.
fn is_local(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    host.is_empty() || HOSTS.iter().any(|known| known.eq_ignore_ascii_case(name))
}

pub fn credential(headers: &HeaderMap) -> Credential<'_> {
    let text = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    match text.and_then(|text| text.split_once(' ')) {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => Credential::Bearer(token.trim()),
        _ => Credential::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(via: Via, method: &str, uri: &str, headers: &[(&'static str, &str)]) -> Option<&'static str> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, value.parse().unwrap());
        }
        let origins = ["https://known.example".to_owned()];
        let judged = judge(via, &method.parse().unwrap(), &uri.parse().unwrap(), &map, &origins);
        judged.err().map(|refusal| refusal.kind)
    }

    #[test]
    fn hosts_of_this_machine_and_no_others() {
        for (host, allowed) in [
            ("localhost", true),
            ("LOCALHOST:80", true),
            ("127.0.0.1", true),
            ("127.0.0.1:7777", true),
            ("[::1]", true),
            ("[::1]:7777", true),
            ("", true),
            ("example.com", false),
            ("localhost.example.com", false),
            ("127.0.0.1.example.com:80", false),
            ("127.0.0.2", false),
            ("::1", false),
            ("localhost:x", false),
            ("localhost:", false),
        ] {
            let expected = (!allowed).then_some("foreign_host");
            assert_eq!(kind(Via::Tcp, "GET", "/v1/health", &[("host", host)]), expected, "{host}");
            assert_eq!(kind(Via::Socket, "GET", "/v1/health", &[("host", host)]), None, "{host}");
        }
        let two = [("host", "localhost"), ("host", "example.com")];
        assert_eq!(kind(Via::Tcp, "GET", "/v1/health", &two), Some("foreign_host"));
    }

    #[test]
    fn pages_that_are_not_named_are_refused_and_so_is_every_preflight() {
        for via in [Via::Socket, Via::Tcp] {
            for (origin, expected) in [
                ("https://known.example", None),
                ("https://known.example.evil", Some("foreign_origin")),
                ("http://localhost", Some("foreign_origin")),
                ("null", Some("foreign_origin")),
            ] {
                assert_eq!(kind(via, "POST", "/v1/send", &[("origin", origin)]), expected, "{origin}");
            }
            assert_eq!(kind(via, "OPTIONS", "/v1/send", &[]), Some("preflight"));
            let known = [("origin", "https://known.example")];
            assert_eq!(kind(via, "OPTIONS", "/v1/send", &known), Some("preflight"));
        }
    }

    #[test]
    fn a_token_in_an_address_is_refused_however_it_is_spelt() {
        for query in ["token=x", "a=1&TOKEN=x", "access_token=", "%74oken=x", "local_token=x", "x=wbl_abc", "bearer"] {
            let uri = format!("/v1/events?{query}");
            assert_eq!(kind(Via::Tcp, "GET", &uri, &[]), Some("token_in_query"), "{query}");
            assert_eq!(kind(Via::Socket, "GET", &uri, &[]), Some("token_in_query"), "{query}");
        }
        assert_eq!(kind(Via::Tcp, "GET", "/v1/inbox?since=5&topic=tokens", &[]), None);
    }

    #[test]
    fn a_credential_is_a_bearer_token() {
        for (value, expected) in [
            ("Bearer abc", Credential::Bearer("abc")),
            ("bearer  abc ", Credential::Bearer("abc")),
            ("Basic abc", Credential::None),
            ("abc", Credential::None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, value.parse().unwrap());
            assert_eq!(credential(&headers), expected, "{value}");
        }
    }
}
