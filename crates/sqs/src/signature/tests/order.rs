//! Time, region and service, and which refusal comes first where a request breaks several rules.

use std::time::Duration;

use waybill_kernel::Time;

use super::signer::{KEY, NOW, REGION, SECRET, Signed, Signer};
use crate::signature::{Claim, EXPIRES_SECONDS_MAX, Refused, SKEW_MAX, Secret, SigningKeys};

fn sent_at(time: Time) -> Signed {
    Signer { time, ..Signer::default() }.sign("POST", "/", &[], b"{}")
}

fn before(time: Time, distance: Duration) -> Time {
    Time::from_micros(time.micros() - i64::try_from(distance.as_micros()).unwrap())
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn clocks_may_be_fifteen_minutes_apart() {
    for (time, expected) in [
        (NOW, ""),
        (before(NOW, SKEW_MAX), ""),
        (NOW.after(SKEW_MAX), ""),
        (before(NOW, SKEW_MAX + SECOND), "RequestTimeTooSkewed"),
        (NOW.after(SKEW_MAX + SECOND), "RequestTimeTooSkewed"),
        (before(NOW, Duration::from_secs(86_400)), "RequestTimeTooSkewed"),
        (Time::EPOCH, "RequestTimeTooSkewed"),
    ] {
        assert_eq!(sent_at(time).outcome(), expected, "{time}");
    }
}

#[test]
fn midnight_between_signer_and_server_changes_nothing() {
    let midnight = Time::from_micros(1_440_979_200_000_000);
    let sent = sent_at(before(midnight, SECOND));
    assert!(sent.header("authorization").contains("/20150830/"));
    assert_eq!(sent.check_at(midnight.after(SECOND)), Ok(()));
    let early = sent_at(midnight.after(SECOND));
    assert!(early.header("authorization").contains("/20150831/"));
    assert_eq!(early.check_at(before(midnight, SECOND)), Ok(()));
}

#[test]
fn a_presigned_address_lives_as_long_as_it_says() {
    let week = Duration::from_secs(EXPIRES_SECONDS_MAX);
    for (seconds, later, expected) in [
        (60, Duration::ZERO, Ok(())),
        (60, 60 * SECOND, Ok(())),
        (60, 61 * SECOND, Err(Refused::RequestExpired)),
        (1, 2 * SECOND, Err(Refused::RequestExpired)),
        // Longer than clocks may be apart: its own time counts.
        (3600, 3600 * SECOND, Ok(())),
        (EXPIRES_SECONDS_MAX, week, Ok(())),
        (EXPIRES_SECONDS_MAX, week + SECOND, Err(Refused::RequestExpired)),
    ] {
        let sent = Signer::presigning(seconds).sign("GET", "/?Action=X", &[], b"");
        assert_eq!(sent.check_at(NOW.after(later)), expected, "{seconds} s, {later:?} later");
    }
    let sent = Signer::presigning(60).sign("GET", "/?Action=X", &[], b"");
    assert_eq!(sent.check_at(before(NOW, SKEW_MAX)), Ok(()), "a signer whose clock is ahead");
    assert_eq!(sent.check_at(before(NOW, SKEW_MAX + SECOND)), Err(Refused::RequestTimeTooSkewed));
}

#[test]
fn region_and_service_are_the_servers() {
    for (region, service) in [("eu-west-1", "sqs"), ("us-east-1", "sns"), ("us-east-1", "SQS")] {
        let signer = Signer { region, service, ..Signer::default() };
        assert_eq!(signer.sign("POST", "/", &[], b"").outcome(), "SignatureDoesNotMatch", "{region} {service}");
        let signer = Signer { region, service, ..Signer::presigning(60) };
        assert_eq!(
            signer.sign("GET", "/", &[], b"").outcome(),
            "SignatureDoesNotMatch",
            "{region} {service}, presigned"
        );
    }
    let elsewhere = Signer { region: "eu-west-1", ..Signer::default() }.sign("POST", "/", &[], b"");
    let claim = Claim::of(&elsewhere.parts).unwrap().unwrap();
    let verify =
        |region| claim.verify(&elsewhere.parts, b"", &Secret::new(SECRET), NOW, region, &SigningKeys::default());
    assert_eq!(verify("eu-west-1"), Ok(()));
    assert!(verify(REGION).is_err_and(|refused| refused.message().contains("region")));
}

#[test]
fn the_date_must_be_there_once_and_be_that_of_the_scope() {
    let sent = sent_at(NOW);
    for (value, expected) in [
        ("", "IncompleteSignature"),
        ("20150830", "IncompleteSignature"),
        ("Sun, 30 Aug 2015 12:36:00 GMT", "IncompleteSignature"),
        ("20150831T000000Z", "SignatureDoesNotMatch"),
        ("20150829T123600Z", "SignatureDoesNotMatch"),
    ] {
        assert_eq!(sent.with_header("x-amz-date", value).outcome(), expected, "{value}");
    }
    let mut changed = sent.clone();
    changed.parts.headers.append("x-amz-date", "20150830T123600Z".parse().unwrap());
    assert_eq!(changed.outcome(), "IncompleteSignature", "twice");
    changed.parts.headers.remove("x-amz-date");
    assert_eq!(changed.outcome(), "IncompleteSignature", "none");
    // A scope of another day with its own, right, signing key.
    let scope = sent.header("authorization").replace("/20150830/", "/20150829/");
    assert_eq!(sent.with_header("authorization", &scope).outcome(), "SignatureDoesNotMatch");
}

/// Each row mends the first fault of the row before.
#[test]
fn of_several_faults_the_first_is_told() {
    let digits = "0".repeat(64);
    let header = |algorithm: &str, key: &str, day: &str, region: &str, service: &str| {
        format!(
            "{algorithm} Credential={key}/{day}/{region}/{service}/aws4_request, SignedHeaders=host, Signature={digits}"
        )
    };
    let old = sent_at(before(NOW, Duration::from_secs(3600)));
    let right = "AWS4-HMAC-SHA256";
    for (text, expected, about) in [
        (header("AWS5", "AKIDOTHER", "20150101", "eu-west-1", "sns"), "IncompleteSignature", "algorithm"),
        (header(right, "AKIDOTHER", "20150101", "eu-west-1", "sns"), "SignatureDoesNotMatch", "service"),
        (header(right, "AKIDOTHER", "20150101", "eu-west-1", "sqs"), "SignatureDoesNotMatch", "region"),
        (header(right, "AKIDOTHER", "20150101", REGION, "sqs"), "InvalidClientTokenId", "access key"),
        (header(right, KEY, "20150101", REGION, "sqs"), "SignatureDoesNotMatch", "day"),
        (header(right, KEY, "20150830", REGION, "sqs"), "RequestTimeTooSkewed", "15 minutes"),
    ] {
        let refused = old.with_header("authorization", &text).check().unwrap_err();
        assert_eq!(refused.shape(), expected, "{text}");
        assert!(refused.message().contains(about), "{refused}");
    }
    let now = sent_at(NOW).with_header("authorization", &header(right, KEY, "20150830", REGION, "sqs"));
    assert_eq!(now.outcome(), "SignatureDoesNotMatch");
}

#[test]
fn a_good_signature_that_leaves_out_the_host_is_refused() {
    for mut signer in [Signer::default(), Signer::presigning(60)] {
        signer.settings.excluded_headers = Some(vec!["host".into()]);
        let sent = signer.sign("POST", "/", &[("x-amz-target", "AmazonSQS.ListQueues")], b"{}");
        let refused = sent.check().unwrap_err();
        assert_eq!(refused.shape(), "SignatureDoesNotMatch");
        assert!(refused.message().contains("host"), "{refused}");
    }
}
