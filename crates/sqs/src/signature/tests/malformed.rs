//! Claims that cannot be read.

use super::signer::{Signed, Signer};
use crate::signature::{AUTHORIZATION_BYTES_MAX, Claim};

const INCOMPLETE: &str = "IncompleteSignature";
const NO_MATCH: &str = "SignatureDoesNotMatch";

fn sent() -> Signed {
    Signer::default().sign("POST", "/", &[("content-type", "application/x-amz-json-1.0")], b"{}")
}

#[test]
fn without_a_claim_there_is_none() {
    let mut sent = sent();
    sent.parts.headers.remove("authorization");
    assert_eq!(Claim::of(&sent.parts), Ok(None));
    assert_eq!(sent.outcome(), "MissingAuthenticationToken");
    // The date alone claims nothing.
    assert_eq!(Claim::of(&sent.with_target("/?Action=X&X-Amz-Date=20150830T123600Z").parts), Ok(None));
}

#[test]
fn headers_that_are_no_claim() {
    let sent = sent();
    let scope = "AKIDEXAMPLE/20150830/us-east-1/sqs/aws4_request";
    let digits = "0".repeat(64);
    let whole = |credential: &str, names: &str, signature: &str| {
        format!("AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders={names}, Signature={signature}")
    };
    let good = whole(scope, "host;x-amz-date", &digits);
    let many = |count: usize| (0..count).map(|nth| format!("h{nth}")).collect::<Vec<_>>().join(";");
    for (text, expected) in [
        (good.clone(), NO_MATCH),
        (String::new(), INCOMPLETE),
        ("AWS4-HMAC-SHA256".into(), INCOMPLETE),
        ("AWS4-HMAC-SHA256 ".into(), INCOMPLETE),
        ("Bearer aga_0123".into(), INCOMPLETE),
        ("AWS AKIDEXAMPLE:c2lnbmF0dXJl".into(), INCOMPLETE),
        (good.replace("HMAC-SHA256", "HMAC-SHA512"), INCOMPLETE),
        (good.replace("HMAC-SHA256", "ECDSA-P256-SHA256"), INCOMPLETE),
        (good.replace("AWS4-HMAC", "aws4-hmac"), INCOMPLETE),
        (good.replace("Credential", "credential"), INCOMPLETE),
        (good.replace("Credential=", "Credential:"), INCOMPLETE),
        (good.replace(", SignedHeaders=host;x-amz-date", ""), INCOMPLETE),
        (good.replace(&format!("Credential={scope}, "), ""), INCOMPLETE),
        (good.replace(&format!(", Signature={digits}"), ""), INCOMPLETE),
        (good.replace(", ", " "), INCOMPLETE),
        (good.replace(", ", ";"), INCOMPLETE),
        (format!("{good}, Signature={digits}"), INCOMPLETE),
        (format!("{good}, Other=1"), INCOMPLETE),
        (format!("{good},"), INCOMPLETE),
        (whole("", "host", &digits), INCOMPLETE),
        (whole("AKIDEXAMPLE", "host", &digits), INCOMPLETE),
        (whole(&format!("{scope}/x"), "host", &digits), INCOMPLETE),
        (whole(&scope.replace("sqs", "sns"), "host", &digits), NO_MATCH),
        (whole(&scope.replace("aws4_request", "aws4"), "host", &digits), NO_MATCH),
        (whole(&scope.replace("us-east-1", "eu-west-1"), "host", &digits), NO_MATCH),
        (whole(&scope.replace("AKIDEXAMPLE", "AKIDOTHER"), "host", &digits), "InvalidClientTokenId"),
        (whole(scope, "", &digits), INCOMPLETE),
        (whole(scope, "Host", &digits), INCOMPLETE),
        (whole(scope, "host;", &digits), INCOMPLETE),
        (whole(scope, "host;;x-amz-date", &digits), INCOMPLETE),
        (whole(scope, "host;x amz", &digits), INCOMPLETE),
        (whole(scope, "host:x-amz-date", &digits), INCOMPLETE),
        (whole(scope, &many(64), &digits), NO_MATCH),
        (whole(scope, &many(65), &digits), INCOMPLETE),
        (whole(scope, "x-amz-date", &digits), NO_MATCH),
        (whole(scope, "host;x-absent", &digits), NO_MATCH),
        (whole(scope, "host", ""), INCOMPLETE),
        (whole(scope, "host", &digits[1..]), INCOMPLETE),
        (whole(scope, "host", &format!("{digits}0")), INCOMPLETE),
        (whole(scope, "host", &"F".repeat(64)), INCOMPLETE),
        (whole(scope, "host", &"g".repeat(64)), INCOMPLETE),
        (whole(scope, &"h".repeat(AUTHORIZATION_BYTES_MAX), &digits), INCOMPLETE),
    ] {
        let changed = sent.with_header("authorization", &text);
        assert_eq!(changed.outcome(), expected, "{text:.200}");
    }
}

#[test]
fn a_request_is_signed_once() {
    let sent = sent();
    let mut twice = sent.clone();
    twice.parts.headers.append("authorization", sent.header("authorization").parse().unwrap());
    assert_eq!(twice.outcome(), INCOMPLETE);
    let presigned = Signer::presigning(60).sign("GET", "/?Action=X", &[], b"");
    let both = presigned.with_header("authorization", sent.header("authorization"));
    assert_eq!(both.outcome(), INCOMPLETE);
    let mut bytes = sent.clone();
    bytes.parts.headers.insert("authorization", http::HeaderValue::from_bytes(b"AWS4-HMAC-SHA256 \xff").unwrap());
    assert_eq!(bytes.outcome(), INCOMPLETE);
}

#[test]
fn queries_that_are_no_claim() {
    let sent = Signer::presigning(60).sign("GET", "/?Action=X", &[], b"");
    let target = sent.parts.uri.to_string();
    assert!(target.contains("X-Amz-Credential=AKIDEXAMPLE%2F20150830%2F"), "{target}");
    let without = |name: &str| {
        let (path, query) = target.split_once('?').unwrap();
        let kept: Vec<_> = query.split('&').filter(|pair| !pair.starts_with(&format!("{name}="))).collect();
        format!("{path}?{}", kept.join("&"))
    };
    for name in ["Algorithm", "Credential", "Date", "Expires", "SignedHeaders", "Signature"] {
        let name = format!("X-Amz-{name}");
        assert_eq!(sent.with_target(&without(&name)).outcome(), INCOMPLETE, "{name}");
        let (_, twice) = target.split_once(&format!("{name}=")).unwrap();
        let twice = twice.split('&').next().unwrap();
        assert_eq!(sent.with_target(&format!("{target}&{name}={twice}")).outcome(), INCOMPLETE, "{name} twice");
    }
    for (value, expected) in [
        ("60", ""),
        ("%360", ""),
        ("", INCOMPLETE),
        ("0", INCOMPLETE),
        ("-1", INCOMPLETE),
        ("%2B60", INCOMPLETE),
        ("60.0", INCOMPLETE),
        ("604800", NO_MATCH),
        ("604801", INCOMPLETE),
        ("99999999999999999999", INCOMPLETE),
    ] {
        let changed = target.replace("X-Amz-Expires=60", &format!("X-Amz-Expires={value}"));
        assert_eq!(sent.with_target(&changed).outcome(), expected, "{value}");
    }
    for (from, to, expected) in [
        ("AWS4-HMAC-SHA256", "AWS4-HMAC-SHA1", INCOMPLETE),
        ("%2F20150830", "%FF20150830", INCOMPLETE),
        ("%2Fsqs%2F", "%2Fsns%2F", NO_MATCH),
        ("SignedHeaders=host", "SignedHeaders=Host", INCOMPLETE),
        ("AKIDEXAMPLE", "AKIDOTHER", "InvalidClientTokenId"),
        ("X-Amz-Date=20150830T123600Z", "X-Amz-Date=2015", INCOMPLETE),
        // Names and values may be encoded more than is needed.
        ("X-Amz-Credential", "X%2dAmz%2DCredential", ""),
        ("SignedHeaders=host", "SignedHeaders=%68ost", ""),
    ] {
        assert!(target.contains(from));
        assert_eq!(sent.with_target(&target.replacen(from, to, 1)).outcome(), expected, "{to}");
    }
}
