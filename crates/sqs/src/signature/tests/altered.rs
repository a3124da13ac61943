//! One byte changed anywhere in what is signed: the request is refused, and as what.

use proptest::prelude::*;

use super::accepted::requests;
use super::signer::{SECRET, Signed, Signer};
use crate::signature::{Claim, Secret, SigningKeys};

const JSON: (&str, &str) = ("content-type", "application/x-amz-json-1.0");
const NO_MATCH: &str = "SignatureDoesNotMatch";

fn sent() -> Signed {
    let headers = [JSON, ("x-amz-target", "AmazonSQS.SendMessage")];
    Signer::default().sign("POST", "/000000000000/orders?a=1&b=2", &headers, br#"{"MessageBody":"hello"}"#)
}

#[test]
fn every_byte_of_the_body_counts() {
    let sent = sent();
    assert_eq!(sent.check(), Ok(()));
    for position in 0..sent.body.len() {
        let mut changed = sent.clone();
        changed.body[position] ^= 1;
        assert_eq!(changed.outcome(), NO_MATCH, "at {position}");
    }
    for body in [&sent.body[1..], &[&sent.body[..], b" "].concat(), b""] {
        assert_eq!(Signed { body: body.to_vec(), ..sent.clone() }.outcome(), NO_MATCH);
    }
}

#[test]
fn every_digit_of_the_signature_counts() {
    let sent = sent();
    let text = sent.header("authorization").to_owned();
    let start = text.len() - 64;
    for position in start..text.len() {
        let mut changed = text.clone().into_bytes();
        changed[position] = if changed[position] == b'0' { b'1' } else { b'0' };
        let changed = String::from_utf8(changed).unwrap();
        assert_eq!(sent.with_header("authorization", &changed).outcome(), NO_MATCH, "at {position}");
    }
}

#[test]
fn method_path_query_and_signed_headers_count() {
    let sent = sent();
    let mut get = sent.clone();
    get.parts.method = http::Method::GET;
    assert_eq!(get.outcome(), NO_MATCH);
    for target in [
        "/000000000000/Orders?a=1&b=2",
        "/000000000001/orders?a=1&b=2",
        "/orders?a=1&b=2",
        "/000000000000/orders/?a=1&b=2",
        "/000000000000/orders?a=1&b=3",
        "/000000000000/orders?a=1",
        "/000000000000/orders?a=1&a=1&b=2",
        "/000000000000/orders?a=1&b=2&c",
        "/000000000000/orders?a=1%26b=2",
        "/000000000000/orders",
    ] {
        assert_eq!(sent.with_target(target).outcome(), NO_MATCH, "{target}");
    }
    // The same pairs in another order or encoding are the same query.
    assert_eq!(sent.with_target("/000000000000/orders?b=%32&&a=1").check(), Ok(()));
    for (name, value) in [
        ("host", "localhost:9325"),
        ("host", "localhost"),
        ("content-type", "application/x-amz-json-1.1"),
        ("x-amz-target", "AmazonSQS.DeleteQueue"),
        ("x-amz-date", "20150830T123601Z"),
    ] {
        assert_eq!(sent.with_header(name, value).outcome(), NO_MATCH, "{name}");
    }
    let mut twice = sent.clone();
    twice.parts.headers.append("x-amz-target", "AmazonSQS.DeleteQueue".parse().unwrap());
    assert_eq!(twice.outcome(), NO_MATCH);
    let mut without = sent.clone();
    without.parts.headers.remove("x-amz-target");
    assert_eq!(without.outcome(), NO_MATCH);
}

/// Whoever comes by a signed request without one could have another thing done with the same body.
#[test]
fn a_target_that_is_not_signed_is_none() {
    let form = [("content-type", "application/x-www-form-urlencoded")];
    let mut unaware = Signer::default();
    unaware.settings.excluded_headers = Some(vec!["x-amz-target".into()]);
    let target = ("x-amz-target", "AmazonSQS.DeleteQueue");
    for sent in [
        Signer::default().sign("POST", "/", &form, b"Action=ListQueues"),
        Signer::presigning(60).sign("GET", "/?Action=ListQueues", &[], b""),
        unaware.sign("POST", "/", &[JSON], b"{}"),
    ] {
        assert_eq!(sent.check(), Ok(()));
        let refused = sent.with_header(target.0, target.1).check().unwrap_err();
        assert!(refused.shape() == NO_MATCH && refused.message().contains("x-amz-target"), "{refused}");
    }
    assert_eq!(unaware.sign("POST", "/", &[JSON, target], b"{}").outcome(), NO_MATCH);
}

#[test]
fn a_presigned_query_is_signed_as_a_whole() {
    let sent = Signer::presigning(60).sign("GET", "/q?Action=ReceiveMessage&WaitTimeSeconds=1", &[], b"");
    assert_eq!(sent.check(), Ok(()));
    let target = sent.parts.uri.to_string();
    for (from, to) in [
        ("WaitTimeSeconds=1", "WaitTimeSeconds=2"),
        ("Action=ReceiveMessage", "Action=PurgeQueue"),
        ("X-Amz-Expires=60", "X-Amz-Expires=61"),
        ("X-Amz-Date=20150830T123600Z", "X-Amz-Date=20150830T123601Z"),
        ("/q?", "/q2?"),
        ("?Action", "?More=1&Action"),
    ] {
        assert!(target.contains(from), "{target}");
        assert_eq!(sent.with_target(&target.replace(from, to)).outcome(), NO_MATCH, "{to}");
    }
    assert_eq!(Signed { body: b"x".to_vec(), ..sent.clone() }.outcome(), NO_MATCH);
    assert_eq!(sent.with_header("host", "elsewhere").outcome(), NO_MATCH);
}

#[test]
fn the_signed_hash_of_the_body_must_be_the_bodys() {
    use aws_sigv4::http_request::PayloadChecksumKind;
    let mut signer = Signer::default();
    signer.settings.payload_checksum_kind = PayloadChecksumKind::XAmzSha256;
    let sent = signer.sign("POST", "/", &[JSON], b"{}");
    assert!(sent.header("authorization").contains("x-amz-content-sha256"));
    assert_eq!(sent.check(), Ok(()));
    for value in ["UNSIGNED-PAYLOAD", "", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"] {
        let refused = sent.with_header("x-amz-content-sha256", value).check().unwrap_err();
        assert!(refused.shape() == NO_MATCH && refused.message().contains("x-amz-content-sha256"), "{refused}");
    }
    // Not signed, it is a remark like any other: the body's own hash is what counts.
    let unsigned = Signer::default().sign("POST", "/", &[JSON], b"{}");
    assert_eq!(unsigned.with_header("x-amz-content-sha256", "UNSIGNED-PAYLOAD").check(), Ok(()));
}

#[test]
fn a_secret_that_was_replaced_no_longer_opens() {
    let (sent, keys) = (sent(), SigningKeys::default());
    let claim = Claim::of(&sent.parts).unwrap().unwrap();
    let verify = |secret: &str| {
        let secret = Secret::new(secret);
        claim.verify(&sent.parts, &sent.body, &secret, super::signer::NOW, super::signer::REGION, &keys)
    };
    assert_eq!(verify(SECRET), Ok(()));
    assert_eq!(format!("{keys:?}"), "SigningKeys(1 of 1024)");
    assert_eq!(verify("another").unwrap_err().shape(), NO_MATCH);
    assert_eq!(format!("{keys:?}"), "SigningKeys(1 of 1024)", "a key that proved nothing is not kept");
    assert_eq!(verify(SECRET), Ok(()));
    assert!(!format!("{claim:?}").contains(&sent.header("authorization")[sent.header("authorization").len() - 64..]));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Flips one bit of the body, or changes one digit of the signature, of a request of any kind.
    #[test]
    fn any_request_with_one_bit_changed_is_refused(
        signed in requests(), position in any::<prop::sample::Index>(), bit in 0..8_u8, digit in 1..16_u32,
    ) {
        if !signed.body.is_empty() {
            let mut changed = signed.clone();
            let position = position.index(changed.body.len());
            changed.body[position] ^= 1 << bit;
            prop_assert_eq!(changed.outcome(), NO_MATCH);
        }
        let another = |text: &str, start: usize| {
            let at = start + position.index(64);
            let value = u32::from_str_radix(&text[at..=at], 16).unwrap();
            format!("{}{:x}{}", &text[..at], (value + digit) % 16, &text[at + 1..])
        };
        let changed = match signed.parts.headers.get("authorization") {
            Some(value) => {
                let text = value.to_str().unwrap();
                signed.with_header("authorization", &another(text, text.len() - 64))
            }
            None => {
                let text = signed.parts.uri.to_string();
                let name = "X-Amz-Signature=";
                signed.with_target(&another(&text, text.find(name).unwrap() + name.len()))
            }
        };
        prop_assert_eq!(changed.outcome(), NO_MATCH);
    }
}
