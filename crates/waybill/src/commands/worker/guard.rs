//! Which addresses a task may make this worker connect to.
//!
//! A URL in a payload is written by whoever may create tasks, and this worker may stand where they do not: beside a
//! metadata service, a database, an admin page. So a name is resolved once, every address it has is judged, and the
//! connection goes to the judged addresses and to nothing else; a second lookup could answer differently.

use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use reqwest::Url;

use super::held::Refusal;

const PORTS: [u16; 2] = [80, 443];
const URL_CHARS_MAX: usize = 8_192;

pub trait Resolver: Send + Sync {
    fn resolve(&self, host: &str) -> impl Future<Output = io::Result<Vec<IpAddr>>> + Send;
}

pub struct SystemResolver;

impl Resolver for SystemResolver {
    async fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>> {
        Ok(tokio::net::lookup_host((host, 0)).await?.map(|address| address.ip()).collect())
    }
}

pub struct Guard<R> {
    hosts: Vec<String>,
    /// None to fetch from any host.
    only: Option<Vec<String>>,
    ports: Vec<u16>,
    resolver: R,
}

/// A URL that may be fetched, at these addresses only.
#[derive(Debug, PartialEq)]
pub struct Admitted {
    pub url: Url,
    pub addresses: Vec<SocketAddr>,
}

impl<R: Resolver> Guard<R> {
    /// `hosts` may have any address; `ports` are allowed beside the usual two.
    pub fn new(hosts: &[String], ports: &[u16], resolver: R) -> Self {
        let hosts = hosts.iter().map(|host| plain(host)).collect();
        Self { hosts, only: None, ports: [&PORTS[..], ports].concat(), resolver }
    }

    /// From these hosts and no others, unless there are none.
    #[must_use]
    pub fn only(mut self, hosts: &[String]) -> Self {
        self.only = (!hosts.is_empty()).then(|| hosts.iter().map(|host| plain(host)).collect());
        self
    }

    pub async fn admit(&self, url: &str) -> Result<Admitted, Refusal> {
        if url.len() > URL_CHARS_MAX {
            return Err(refused(format!("The URL is longer than {URL_CHARS_MAX} characters.")));
        }
        let url = Url::parse(url).map_err(|error| Refusal::payload(format!("The URL is not valid: {error}.")))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(refused(format!("Only http and https are fetched, not {}.", url.scheme())));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(refused("A URL with a user name or password in it is not fetched."));
        }
        let port = url.port_or_known_default().unwrap_or(0);
        if !self.ports.contains(&port) {
            return Err(refused(format!("Port {port} is not fetched from; allow it with --allow-port.")));
        }
        let host = plain(url.host_str().unwrap_or_default());
        if self.only.as_ref().is_some_and(|only| !only.contains(&host)) {
            return Err(refused(format!("{host} is none of the hosts that --only-host names.")));
        }
        let addresses = self.addresses(&host).await?;
        Ok(Admitted { url, addresses: addresses.into_iter().map(|ip| SocketAddr::new(ip, port)).collect() })
    }

    async fn addresses(&self, host: &str) -> Result<Vec<IpAddr>, Refusal> {
        // The parser has already turned 127.1, 0x7f.1 and 2130706433 into an address.
        let literal = host.parse::<IpAddr>();
        let addresses = match literal {
            Ok(ip) => vec![ip],
            Err(_) => self.resolver.resolve(host).await.map_err(|error| {
                Refusal::transport(format!("The name {host} cannot be resolved: {error}.")).with("host", host)
            })?,
        };
        if addresses.is_empty() {
            return Err(Refusal::transport(format!("The name {host} has no address.")).with("host", host));
        }
        if self.hosts.iter().any(|allowed| allowed == host) {
            return Ok(addresses);
        }
        // One bad address among good ones spoils the name: nobody publishes such a mixture in good faith.
        match addresses.iter().find(|ip| !is_global(**ip)) {
            Some(ip) => {
                let what = if literal.is_ok() { host.to_owned() } else { format!("{host} ({ip})") };
                Err(refused(format!("{what} is no address of the public internet; allow it with --allow-host.")))
            }
            None => Ok(addresses),
        }
    }
}

fn refused(message: impl Into<String>) -> Refusal {
    Refusal::new("address_refused", message)
}

/// A host as it is compared: no brackets, no final dot, small letters.
fn plain(host: &str) -> String {
    host.trim_start_matches('[').trim_end_matches(']').trim_end_matches('.').to_ascii_lowercase()
}

/// Reachable from anywhere, and meant to be: everything the registries call special is not.
pub fn is_global(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => is_global_v4(ip),
        IpAddr::V6(ip) => is_global_v6(ip),
    }
}

fn is_global_v4(ip: Ipv4Addr) -> bool {
    let special = matches!(
        ip.octets(),
        [0 | 10 | 127 | 224..=255, ..]      // this network, private, loopback, multicast, reserved, broadcast
            | [100, 64..=127, ..]           // carrier-grade NAT
            | [169, 254, ..]                // link-local, with the clouds' metadata services
            | [172, 16..=31, ..]            // private
            | [192, 0, 0 | 2, _]            // protocol assignments, documentation
            | [192, 31, 196, _]             // AS112
            | [192, 52, 193, _]             // AMT
            | [192, 88, 99, _]              // 6to4 relays
            | [192, 168, ..]                // private
            | [192, 175, 48, _]             // AS112
            | [198, 18 | 19, ..]            // benchmarks
            | [198, 51, 100, _]             // documentation
            | [203, 0, 113, _] // documentation
    );
    !special && !is_clouds_own(ip)
}

/// Addresses that look public, and lead to a service of the cloud the machine stands in, which trusts whoever reaches it.
fn is_clouds_own(ip: Ipv4Addr) -> bool {
    matches!(
        ip.octets(),
        [168, 63, 129, 16]                  // Azure: the host's own agent, with certificates and settings
            | [161, 26, ..]                 // IBM Cloud: services of the private network
            | [166, 8..=11, ..]             // IBM Cloud: private endpoints
            | [199, 36, 153, 4..=11] // Google Cloud: APIs for machines without a public address
    )
}

/// What the registry has given out of 2000::/3, less what it calls special. That leaves out by itself ::, ::1,
/// ::ffff:0:0/96 and ::/96 (IPv4 in disguise), 64:ff9b::/96 and 64:ff9b:1::/48 (NAT64), 100::/64, 5f00::/16, fc00::/7,
/// fe80::/10 and ff00::/8.
fn is_global_v6(ip: Ipv6Addr) -> bool {
    let special = matches!(
        ip.segments(),
        [0x2001, 0x0000..=0x01ff, ..]       // protocol assignments: Teredo, benchmarks, ORCHID
            | [0x2001, 0x0db8, ..]          // documentation
            | [0x2002, ..]                  // 6to4: an IPv4 address inside
            | [0x2620, 0x004f, 0x8000, ..] // AS112
    );
    matches!(ip.segments()[0], 0x2001..=0x2cff) && !special && !leads_to_inner_v4(ip)
}

/// Below a prefix of anybody's own, an address may stand for one of IPv4: behind ISATAP, or behind a NAT64 that does not use
/// the prefix made for it. Small numbers are left alone: they are how people number their hosts.
fn leads_to_inner_v4(ip: Ipv6Addr) -> bool {
    let [.., fifth, sixth, high, low] = ip.segments();
    let [a, b] = high.to_be_bytes();
    let [c, d] = low.to_be_bytes();
    match (fifth, sixth) {
        (0x0000 | 0x0200, 0x5efe) => true,
        (0, 0) => matches!(a, 1..=223) && !is_global_v4(Ipv4Addr::new(a, b, c, d)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
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
        assert_eq!(code(&guard, "http://elsewhere.com/").await, "address_refused");
        assert_eq!(code(&guard, "http://93.184.215.14/").await, "address_refused");
        assert_eq!(guard.resolver.asked.load(Ordering::Relaxed), 0);
        assert_eq!(code(&guard, "http://example.com/").await, "admitted");
    }

    async fn code(guard: &Guard<Script>, url: &str) -> &'static str {
        guard.admit(url).await.map_or_else(|refusal| refusal.code, |_| "admitted")
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
            assert_eq!(code(&guard, &format!("http://{host}/")).await, "address_refused", "{host}");
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
            assert_eq!(code(&guard(&[answer]), "http://name.test/").await, "address_refused", "{answer:?}");
        }
        assert_eq!(code(&guard(&[&["8.8.8.8"]]), "http://name.test./").await, "admitted");
        assert_eq!(code(&guard(&[&[]]), "http://name.test/").await, "transport_error");
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
            ("http://inner.test:22/", "address_refused"),
            ("http://inner.test:0/", "address_refused"),
            ("http://other.test/", "address_refused"),
            ("http://inner.test@other.test/", "address_refused"),
            ("http://user@inner.test/", "address_refused"),
            ("http://:secret@inner.test/", "address_refused"),
            ("ftp://inner.test/", "address_refused"),
            ("file:///etc/passwd", "address_refused"),
            ("gopher://inner.test:80/", "address_refused"),
            ("javascript:alert(1)", "address_refused"),
            ("http://", "invalid_payload"),
            ("inner.test", "invalid_payload"),
            ("http://[::1", "invalid_payload"),
        ] {
            assert_eq!(code(&guard, url).await, expected, "{url}");
        }
        let long = format!("http://inner.test/{}", "a".repeat(URL_CHARS_MAX));
        assert_eq!(code(&guard, &long).await, "address_refused");
    }
}
