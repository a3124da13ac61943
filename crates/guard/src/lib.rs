//! Which addresses somebody else may make this program connect to.
//!
//! A URL in a task's payload or in a webhook is written by whoever may create those, and this program may stand where they do
//! not: beside a metadata service, a database, an admin page. So a name is resolved once, every address it has is judged, and
//! the connection goes to the judged addresses and to nothing else; a second lookup could answer differently.

mod address;
mod resolve;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

pub use address::is_global;
use reqwest::Url;
pub use resolve::{Judged, Judging, Resolver, SystemResolver};

/// Where every client of HTTP begins. TLS has one provider of cryptography for the whole process; ring, because the other one
/// takes longer to build than all of ours.
pub fn client() -> reqwest::ClientBuilder {
    // Whoever came second finds it there.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder()
}

const PORTS: [u16; 2] = [80, 443];
pub const URL_CHARS_MAX: usize = 8_192;

pub struct Guard<R> {
    hosts: Vec<String>,
    /// None to reach any host.
    only: Option<Vec<String>>,
    ports: Vec<RangeInclusive<u16>>,
    /// Whatever address a host has, on whatever port.
    anywhere: bool,
    resolver: R,
}

/// A URL that may be reached, at these addresses only.
#[derive(Debug, PartialEq)]
pub struct Admitted {
    pub url: Url,
    pub addresses: Vec<SocketAddr>,
}

/// Why a URL is not reached. Prints as a sentence without its end, so that whoever knows a cure can add it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// No URL at all.
    Invalid(String),
    TooLong,
    Scheme(String),
    HasUser,
    Port(u16),
    /// None of the hosts that alone may be reached.
    OtherHost(String),
    /// Of the host itself, or of its name.
    Inner {
        host: String,
        address: IpAddr,
    },
    /// It may have an address another time.
    Unresolved {
        host: String,
        why: String,
    },
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Invalid(why) => write!(f, "The URL is not valid: {why}"),
            Refused::TooLong => write!(f, "The URL is longer than {URL_CHARS_MAX} characters"),
            Refused::Scheme(scheme) => write!(f, "Only http and https are allowed, not {scheme}"),
            Refused::HasUser => f.write_str("A URL with a user name or password in it is not allowed"),
            Refused::Port(port) => write!(f, "Port {port} is not allowed"),
            Refused::OtherHost(host) => write!(f, "{host} is none of the hosts that are allowed"),
            Refused::Inner { host, address } if host.parse() == Ok(*address) => {
                write!(f, "{host} is no address of the public internet")
            }
            Refused::Inner { host, address } => write!(f, "{host} ({address}) is no address of the public internet"),
            Refused::Unresolved { host, why } => write!(f, "The name {host} {why}"),
        }
    }
}

impl std::error::Error for Refused {}

impl<R> Guard<R> {
    /// `hosts` may have any address; `ports` are allowed beside the usual two.
    pub fn new(hosts: &[String], ports: &[u16], resolver: R) -> Self {
        let hosts = hosts.iter().map(|host| plain(host)).collect();
        let ports = PORTS.iter().chain(ports).map(|port| *port..=*port).collect();
        Self { hosts, only: None, ports, anywhere: false, resolver }
    }

    /// These hosts and no others, unless there are none.
    #[must_use]
    pub fn only(mut self, hosts: &[String]) -> Self {
        self.only = (!hosts.is_empty()).then(|| hosts.iter().map(|host| plain(host)).collect());
        self
    }

    #[must_use]
    pub fn with_ports(mut self, ports: RangeInclusive<u16>) -> Self {
        self.ports.push(ports);
        self
    }

    /// Inner addresses as well, and every port: for those who have said that they want that.
    #[must_use]
    pub fn anywhere(mut self, anywhere: bool) -> Self {
        self.anywhere = anywhere;
        self
    }

    /// What can be said of a URL without asking anybody: a name is judged when it is resolved.
    pub fn check(&self, url: &str) -> Result<Url, Refused> {
        if url.len() > URL_CHARS_MAX {
            return Err(Refused::TooLong);
        }
        let url = Url::parse(url).map_err(|error| Refused::Invalid(error.to_string()))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(Refused::Scheme(url.scheme().to_owned()));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(Refused::HasUser);
        }
        let port = url.port_or_known_default().unwrap_or(0);
        if !self.anywhere && !self.ports.iter().any(|ports| ports.contains(&port)) {
            return Err(Refused::Port(port));
        }
        let host = host(&url);
        if self.only.as_ref().is_some_and(|only| !only.contains(&host)) {
            return Err(Refused::OtherHost(host));
        }
        // The parser has already turned 127.1, 0x7f.1 and 2130706433 into an address.
        if let Ok(address) = host.parse() {
            self.judge(&host, &[address])?;
        }
        Ok(url)
    }

    /// One bad address among good ones spoils the name: nobody publishes such a mixture in good faith.
    fn judge(&self, host: &str, addresses: &[IpAddr]) -> Result<(), Refused> {
        if self.anywhere || self.hosts.iter().any(|allowed| allowed == host) {
            return Ok(());
        }
        match addresses.iter().find(|address| !is_global(**address)) {
            Some(address) => Err(Refused::Inner { host: host.to_owned(), address: *address }),
            None => Ok(()),
        }
    }
}

impl<R: Resolver> Guard<R> {
    pub async fn admit(&self, url: &str) -> Result<Admitted, Refused> {
        let url = self.check(url)?;
        let (host, port) = (host(&url), url.port_or_known_default().unwrap_or(0));
        let addresses = match host.parse::<IpAddr>() {
            Ok(address) => vec![address],
            Err(_) => self.resolve(&host).await?,
        };
        Ok(Admitted { url, addresses: addresses.into_iter().map(|ip| SocketAddr::new(ip, port)).collect() })
    }

    /// The addresses of a name, if every one of them may be reached.
    pub async fn resolve(&self, name: &str) -> Result<Vec<IpAddr>, Refused> {
        let host = plain(name);
        let unresolved = |why: String| Refused::Unresolved { host: host.clone(), why };
        let resolved = self.resolver.resolve(&host).await;
        let addresses = resolved.map_err(|error| unresolved(format!("cannot be resolved: {error}")))?;
        if addresses.is_empty() {
            return Err(unresolved("has no address".to_owned()));
        }
        self.judge(&host, &addresses)?;
        Ok(addresses)
    }
}

fn host(url: &Url) -> String {
    plain(url.host_str().unwrap_or_default())
}

/// A host as it is compared: no brackets, no final dot, small letters.
fn plain(host: &str) -> String {
    host.trim_start_matches('[').trim_end_matches(']').trim_end_matches('.').to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Answers the first lookup with the first list, and so on; the last stays.
    struct Script {
        answers: Vec<Vec<&'static str>>,
        asked: AtomicUsize,
    }

    impl Script {
        fn new(answers: &[&[&'static str]]) -> Self {
            Self { answers: answers.iter().map(|answer| answer.to_vec()).collect(), asked: AtomicUsize::new(0) }
        }
    }

    impl Resolver for Script {
        async fn resolve(&self, _: &str) -> io::Result<Vec<IpAddr>> {
            let turn = self.asked.fetch_add(1, Ordering::Relaxed).min(self.answers.len() - 1);
            Ok(self.answers[turn].iter().map(|ip| ip.parse().unwrap()).collect())
        }
    }

    fn guard(answers: &[&[&'static str]]) -> Guard<Script> {
        Guard::new(&["Inner.test.".to_owned()], &[8080], Script::new(answers))
    }

    #[tokio::test]
    async fn with_a_list_of_hosts_no_other_is_even_resolved() {
        let guard = guard(&[&["93.184.215.14"]]).only(&["Example.COM.".to_owned()]);
        assert_eq!(code(&guard, "http://elsewhere.com/").await, "refused");
        assert_eq!(code(&guard, "http://93.184.215.14/").await, "refused");
        assert_eq!(guard.resolver.asked.load(Ordering::Relaxed), 0);
        assert_eq!(code(&guard, "http://example.com/").await, "admitted");
    }

    async fn code(guard: &Guard<Script>, url: &str) -> &'static str {
        match guard.admit(url).await {
            Ok(_) => "admitted",
            Err(Refused::Invalid(_)) => "invalid",
            Err(Refused::Unresolved { .. }) => "unresolved",
            Err(_) => "refused",
        }
    }

    #[tokio::test]
    async fn every_spelling_of_an_inner_address_is_refused() {
        let guard = guard(&[&["8.8.8.8"]]);
        for host in [
            "127.0.0.1",
            "127.1",
            "127.0.1",
            "0x7f.1",
            "0177.0.0.1",
            "2130706433",
            "0x7f000001",
            "127.0.0.1.",
            "0",
            "0.0.0.0",
            "10.0.0.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "100.64.0.1",
            "169.254.169.254",
            "2852039166",
            "192.0.0.8",
            "192.0.2.1",
            "192.88.99.1",
            "198.18.0.1",
            "198.51.100.1",
            "203.0.113.1",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "[::1]",
            "[::]",
            "[::ffff:10.0.0.1]",
            "[::ffff:7f00:1]",
            "[::ffff:8.8.8.8]",
            "[::127.0.0.1]",
            "[64:ff9b::7f00:1]",
            "[64:ff9b::808:808]",
            "[64:ff9b:1::1]",
            "[2002:7f00:1::]",
            "[2002:808:808::1]",
            "[2001::1]",
            "[2001:db8::1]",
            "[3fff::1]",
            "[fc00::1]",
            "[fd00:ec2::254]",
            "[fe80::1]",
            "[fec0::1]",
            "[ff02::1]",
            "[100::1]",
            "[5f00::1]",
            "168.63.129.16",
            "2822734096",
            "161.26.0.10",
            "166.9.14.1",
            "199.36.153.8",
            "100.100.100.200",
            "192.0.0.192",
            "[::ffff:168.63.129.16]",
            "[::168.63.129.16]",
            "[64:ff9b::a83f:8110]",
            "[2002:a83f:8110::1]",
            "[2001:0:4136:e378:8000:63bf:57c0:7eef]",
            "[fd20:ce::254]",
            "[2a00:1450::5efe:a00:1]",
            "[2a00:1450::200:5efe:808:808]",
            "[2a00:1450:1:2::a9fe:a9fe]",
            "[2a00:1450:1:2::a83f:8110]",
            "[2000::1]",
            "[2d00::1]",
            "[3ffe::1]",
        ] {
            assert_eq!(code(&guard, &format!("http://{host}/")).await, "refused", "{host}");
        }
        assert_eq!(guard.resolver.asked.load(Ordering::Relaxed), 0, "an address was looked up as a name");
        for host in [
            "8.8.8.8",
            "1.1.1.1",
            "100.63.255.255",
            "168.63.129.15",
            "172.32.0.1",
            "[2606:4700::1111]",
            "[2a00:1450::1]",
            "[2a00:1450:1:2::808:808]",
            "[2a00:1450:4001:81c::200e]",
            "[2c0f:fb50::1]",
        ] {
            assert_eq!(code(&guard, &format!("https://{host}/")).await, "admitted", "{host}");
        }
    }

    #[tokio::test]
    async fn a_name_is_judged_by_every_address_it_has() {
        for answer in [&["127.0.0.1"][..], &["8.8.8.8", "10.0.0.1"], &["2606:4700::1111", "::1"]] {
            assert_eq!(code(&guard(&[answer]), "http://name.test/").await, "refused", "{answer:?}");
        }
        assert_eq!(code(&guard(&[&["8.8.8.8"]]), "http://name.test./").await, "admitted");
        assert_eq!(code(&guard(&[&[]]), "http://name.test/").await, "unresolved");
    }

    #[tokio::test]
    async fn a_name_that_changes_its_address_is_asked_once_and_held_to_its_answer() {
        let guard = guard(&[&["8.8.8.8"], &["127.0.0.1"]]);
        let admitted = guard.admit("http://flip.test:8080/x").await.unwrap();
        assert_eq!(admitted.addresses, ["8.8.8.8:8080".parse().unwrap()]);
        assert_eq!(guard.resolver.asked.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn schemes_ports_and_users_are_refused_and_a_named_host_is_let_in() {
        let guard = guard(&[&["10.1.2.3"]]);
        for (url, expected) in [
            ("http://inner.test/", "admitted"),
            ("http://INNER.test.:8080/", "admitted"),
            ("http://inner.test:22/", "refused"),
            ("http://inner.test:0/", "refused"),
            ("http://other.test/", "refused"),
            ("http://inner.test@other.test/", "refused"),
            ("http://user@inner.test/", "refused"),
            ("http://:secret@inner.test/", "refused"),
            ("ftp://inner.test/", "refused"),
            ("file:///etc/passwd", "refused"),
            ("gopher://inner.test:80/", "refused"),
            ("javascript:alert(1)", "refused"),
            ("http://", "invalid"),
            ("inner.test", "invalid"),
            ("http://[::1", "invalid"),
        ] {
            assert_eq!(code(&guard, url).await, expected, "{url}");
        }
        let long = format!("http://inner.test/{}", "a".repeat(URL_CHARS_MAX));
        assert_eq!(code(&guard, &long).await, "refused");
    }

    #[tokio::test]
    async fn who_may_go_anywhere_still_speaks_http_and_names_no_user() {
        let guard = guard(&[&["10.1.2.3"]]).anywhere(true);
        for url in ["http://127.0.0.1:9/", "http://[::1]/", "https://169.254.169.254/", "http://name.test:25/"] {
            assert_eq!(code(&guard, url).await, "admitted", "{url}");
        }
        for url in ["ftp://name.test/", "http://user@name.test/", "file:///etc/passwd"] {
            assert_eq!(code(&guard, url).await, "refused", "{url}");
        }
        let ranged = self::guard(&[&["8.8.8.8"]]).with_ports(1024..=u16::MAX);
        for (port, expected) in [(25, "refused"), (443, "admitted"), (1023, "refused"), (1024, "admitted")] {
            assert_eq!(code(&ranged, &format!("http://name.test:{port}/")).await, expected, "{port}");
        }
    }

    #[test]
    fn what_needs_no_lookup_is_refused_without_one() {
        let guard = guard(&[&[]]);
        assert_eq!(guard.check("http://name.test/x?y").unwrap().as_str(), "http://name.test/x?y");
        let refused = guard.check("http://[::ffff:10.0.0.1]/").unwrap_err();
        assert_eq!(refused.to_string(), "::ffff:a00:1 is no address of the public internet");
        assert_eq!(guard.check("https://x:1/").unwrap_err().to_string(), "Port 1 is not allowed");
        assert_eq!(guard.resolver.asked.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn a_client_that_asks_for_names_itself_gets_judged_addresses_or_none() {
        use reqwest::dns::Resolve;

        let lookup = |answer: &[&'static str]| Judging::new(guard(&[answer])).resolve("name.test".parse().unwrap());
        let addresses: Vec<_> = lookup(&["8.8.8.8", "1.1.1.1"]).await.unwrap().map(|address| address.ip()).collect();
        assert_eq!(addresses, [IpAddr::from([8, 8, 8, 8]), IpAddr::from([1, 1, 1, 1])]);
        let error = lookup(&["8.8.8.8", "127.0.0.1"]).await.err().unwrap();
        assert_eq!(error.to_string(), "name.test (127.0.0.1) is no address of the public internet");
    }
}
