//! Addresses of the public internet, and all the others.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

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
