//! What an honest client sends is believed.

use aws_sigv4::http_request::{PayloadChecksumKind, PercentEncodingMode, UriPathNormalizationMode};
use http::Uri;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use proptest::prelude::*;

use super::signer::{HOST, Signed, Signer};

const JSON: (&str, &str) = ("content-type", "application/x-amz-json-1.0");
const FORM: (&str, &str) = ("content-type", "application/x-www-form-urlencoded");
const FORM_UTF8: (&str, &str) = ("content-type", "application/x-www-form-urlencoded; charset=utf-8");

#[test]
fn the_requests_of_real_clients() {
    let target = ("x-amz-target", "AmazonSQS.SendMessage");
    let agent = ("user-agent", "aws-sdk-rust/1.3 os/linux");
    for (method, path, headers, body) in [
        ("POST", "/", &[JSON, target, agent, ("content-length", "15")][..], r#"{"QueueUrl":""}"#),
        ("POST", "/", &[JSON, target], ""),
        ("POST", "/", &[FORM], "Action=ListQueues&Version=2012-11-05"),
        ("POST", "/000000000000/orders", &[FORM_UTF8], "Action=SendMessage&MessageBody=a%2Bb+c"),
        ("POST", "/000000000000/orders.fifo", &[FORM], "Action=PurgeQueue"),
        ("GET", "/?Action=ListQueues&QueueNamePrefix=a%2Bb", &[], ""),
        ("GET", "/q?Action=X&AttributeName=b&AttributeName=a&AttributeName=b&Empty=&Bare", &[], ""),
        ("GET", "/q?Action=X&a=1+2&b=%7e%2f%c3%a9", &[], ""),
        ("POST", "/", &[JSON, ("x-custom", "  a   b  c "), ("x-twice", "2"), ("x-twice", " 1  1 ")], "{}"),
        ("GET", "/a/../b//c/./d?Action=X", &[], ""),
        ("GET", "/a%20b?Action=X", &[], ""),
    ] {
        let expected = Ok(());
        let mut signer = Signer::default();
        assert_eq!(signer.sign(method, path, headers, body.as_bytes()).check(), expected, "{method} {path}");
        signer.token = Some("FwoGZXIvYXdzE+/token==".into());
        let with_token = signer.sign(method, path, headers, body.as_bytes());
        assert!(with_token.header("authorization").contains("x-amz-security-token"));
        assert_eq!(with_token.check(), expected, "{method} {path}, with a session");
        signer.settings.payload_checksum_kind = PayloadChecksumKind::XAmzSha256;
        assert_eq!(
            signer.sign(method, path, headers, body.as_bytes()).check(),
            expected,
            "{method} {path}, with a hash"
        );
        let mut signer = Signer::presigning(60);
        assert_eq!(signer.sign(method, path, headers, body.as_bytes()).check(), expected, "{method} {path}, presigned");
        signer.token = Some("FwoGZXIvYXdzE+/token==".into());
        assert_eq!(signer.sign(method, path, headers, body.as_bytes()).check(), expected, "{method} {path}, both");
    }
}

#[test]
fn every_way_to_sign_an_odd_path() {
    for path in ["/a%20b", "//a", "/a/../b", "/a/./b%2Fc/", "/a:b@c"] {
        for normalization in [UriPathNormalizationMode::Enabled, UriPathNormalizationMode::Disabled] {
            for encoding in [PercentEncodingMode::Double, PercentEncodingMode::Single] {
                // Normalised and not encoded again is how nobody signs.
                let odd = normalization == UriPathNormalizationMode::Enabled && encoding == PercentEncodingMode::Single;
                if odd {
                    continue;
                }
                let mut signer = Signer::default();
                signer.settings.uri_path_normalization_mode = normalization;
                signer.settings.percent_encoding_mode = encoding;
                assert_eq!(
                    signer.sign("POST", path, &[JSON], b"{}").check(),
                    Ok(()),
                    "{path} {normalization:?} {encoding:?}"
                );
            }
        }
    }
}

#[test]
fn http2_has_its_host_in_the_address() {
    let mut signed = Signer::default().sign("POST", "/q", &[JSON], b"{}");
    signed.parts.headers.remove("host");
    assert_eq!(signed.outcome(), "SignatureDoesNotMatch");
    signed.parts.uri = format!("http://{HOST}/q").parse::<Uri>().unwrap();
    assert_eq!(signed.check(), Ok(()));
}

#[test]
fn headers_that_are_not_signed_may_change() {
    let signed = Signer::default().sign("POST", "/", &[JSON], b"{}");
    assert_eq!(signed.with_header("x-forwarded-for", "10.0.0.1").check(), Ok(()));
    assert_eq!(signed.with_header("user-agent", "proxy").check(), Ok(()));
}

#[test]
fn commas_need_no_space_behind_them() {
    let signed = Signer::default().sign("POST", "/", &[JSON], b"{}");
    let dense = signed.header("authorization").replace(", ", ",");
    assert_eq!(signed.with_header("authorization", &dense).check(), Ok(()));
    let wide = signed.header("authorization").replace(", ", " ,  ");
    assert_eq!(signed.with_header("authorization", &wide).check(), Ok(()));
}

/// Anything that a client could send, and in which place it is signed.
pub(super) fn requests() -> impl Strategy<Value = Signed> {
    let text = "[a-zA-Z0-9 +/=&%~._é\u{1F4E6}-]{0,12}";
    let segment = "[a-zA-Z0-9._~%-]{0,9}";
    let value = "[a-zA-Z0-9 ,;=\"\t-]{0,20}";
    let pairs = prop::collection::vec((text, text), 0..8);
    let paths = prop::collection::vec(segment, 0..4);
    let headers = prop::collection::vec((0..4_usize, value), 0..6);
    let body = prop::collection::vec(any::<u8>(), 0..300);
    let ways = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    (pairs, paths, headers, body, ways).prop_map(|(pairs, path, headers, body, (post, presigned, token, hash))| {
        let mut target = format!("/{}", path.join("/").replace('%', "%25"));
        for (nth, (name, value)) in pairs.iter().enumerate() {
            let encoded = |text| utf8_percent_encode(text, NON_ALPHANUMERIC);
            let mark = if nth == 0 { '?' } else { '&' };
            target.push_str(&format!("{mark}n{}={}", encoded(name), encoded(value)));
        }
        let names = ["x-a", "x-b", "content-type", "x-amz-target"];
        let headers: Vec<_> = headers.iter().map(|(nth, value)| (names[*nth], value.trim())).collect();
        let mut signer = if presigned { Signer::presigning(900) } else { Signer::default() };
        signer.token = token.then(|| "a/token+with==".to_owned());
        if hash {
            signer.settings.payload_checksum_kind = PayloadChecksumKind::XAmzSha256;
        }
        signer.sign(if post { "POST" } else { "GET" }, &target, &headers, &body)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn whatever_is_signed_is_believed(signed in requests()) {
        prop_assert_eq!(signed.check(), Ok(()), "{:?}", signed.parts);
    }
}
