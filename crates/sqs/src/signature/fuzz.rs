//! Fuzz targets of the readers of claims. Whatever they accept is verified too, which must not panic either.

use http::{HeaderValue, Request};
use waybill_fuzz::{Target, feed};
use waybill_kernel::Time;

use super::{Claim, Secret, SigningKeys};

const NOW: Time = Time::from_micros(1_440_938_160_000_000);

fn read(request: Request<()>) -> bool {
    let (parts, ()) = request.into_parts();
    let Ok(Some(claim)) = Claim::of(&parts) else { return false };
    assert!(!claim.access_key_id().is_empty());
    drop(format!("{claim:?}"));
    let region = if claim.in_region("us-east-1").is_ok() { "us-east-1" } else { "eu-west-1" };
    let outcome = claim.verify(&parts, b"{}", &Secret::new("secret"), NOW, region, &SigningKeys::default());
    assert!(outcome.is_err(), "nobody has signed this");
    true
}

#[test]
fn fuzz_authorization() {
    const SEEDS: &[&str] = &[
        "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/sqs/aws4_request, SignedHeaders=host;x-amz-date, \
         Signature=5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31",
        "AWS4-HMAC-SHA256 Credential=A/20150830/eu-west-1/sqs/aws4_request,SignedHeaders=content-type;host;x-amz-target,\
         Signature=0000000000000000000000000000000000000000000000000000000000000000",
    ];
    let read = |input: &[u8]| {
        let Ok(value) = HeaderValue::from_bytes(input) else { return false };
        let request = Request::post("/q?b=2&a=%2B").header("authorization", value);
        read(request.header("host", "localhost").header("x-amz-date", "20150830T123600Z").body(()).unwrap())
    };
    feed(Target { name: "sqs_authorization", seeds: SEEDS, read });
}

#[test]
fn fuzz_presigned() {
    const SEEDS: &[&str] = &[
        "/?Action=X&X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKID%2F20150830%2Fus-east-1%2Fsqs%2Faws4_request\
         &X-Amz-Date=20150830T123600Z&X-Amz-Expires=60&X-Amz-SignedHeaders=host\
         &X-Amz-Signature=5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31",
        "/a%20b/../c//d?a=%2B+%zz&&=&X-Amz-Credential=A/20150830/eu-west-1/sqs/aws4_request&X-Amz-Date=0&X-Amz-Expires=1\
         &X-Amz-SignedHeaders=host%3Bx&X-Amz-Algorithm=AWS4-HMAC-SHA256\
         &X-Amz-Signature=0000000000000000000000000000000000000000000000000000000000000000",
    ];
    let read = |input: &[u8]| {
        let Ok(request) = Request::get(input).header("host", "localhost").body(()) else { return false };
        read(request)
    };
    feed(Target { name: "sqs_presigned", seeds: SEEDS, read });
}
