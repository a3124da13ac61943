//! The vectors that AWS publishes for signers. Their service is called `service`, so that they enter below
//! [`Claim::verify`], at the canonical request. Between them stand all three forms of a path.

use http::Request;
use http::request::Parts;

use super::signer::{NOW, REGION, SECRET};
use crate::signature::canonical::Canonical;
use crate::signature::credential::Credential;
use crate::signature::keys::{Secret, SigningKey};
use crate::signature::{Claim, hex};

const CREDENTIAL: &str = "AKIDEXAMPLE/20150830/us-east-1/service/aws4_request";
const TOKEN: &str = "6e86291e8372ff2a2260956d9b8aae1d763fbf315fa00fa31553b73ebf194267";
const FORM_HASH: &str = "9095672bbd1f56dfc5b65f3e153adc8731a4a654192329106275f4c7b24d0b6e";
const UNRESERVED: &str = "-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

struct Vector {
    name: &'static str,
    method: &'static str,
    target: String,
    headers: Vec<(&'static str, &'static str)>,
    body: &'static str,
    signature: &'static str,
}

fn vector(name: &'static str, method: &'static str, target: &str, signature: &'static str) -> Vector {
    Vector { name, method, target: target.to_owned(), headers: Vec::new(), body: "", signature }
}

impl Vector {
    fn with(mut self, headers: &[(&'static str, &'static str)]) -> Self {
        self.headers.extend_from_slice(headers);
        self
    }

    fn parts(&self, target: &str, authorization: Option<&str>) -> Parts {
        let mut builder = Request::builder().method(self.method).uri(target).header("host", "example.amazonaws.com");
        if let Some(authorization) = authorization {
            builder = builder.header("authorization", authorization).header("x-amz-date", "20150830T123600Z");
        }
        for (name, value) in &self.headers {
            builder = builder.header(*name, *value);
        }
        builder.body(()).unwrap().into_parts().0
    }
}

/// The claim of a request that names our service, believed for `parts` under the vectors' service.
fn holds(ours: &Parts, parts: &Parts, body: &str, name: &str) {
    let mut claim = Claim::of(ours).unwrap().unwrap();
    claim.credential = Credential::for_service(CREDENTIAL, "service").unwrap();
    let canonical = Canonical::of(&claim, parts, &hex::of(body.as_bytes())).unwrap();
    let key = SigningKey::derive(&Secret::new(SECRET), NOW, REGION, "service");
    let signed = claim.is_signed_by(&key, &canonical, &claim.stamp.unwrap(), parts.uri.path());
    assert!(signed, "{name}: {}", canonical.text(parts.uri.path()));
}

fn in_headers() -> Vec<Vector> {
    let vanilla = "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31";
    let post = "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b";
    let get = |name, target: &str, signature| vector(name, "GET", target, signature);
    let form = |content_type, signature| Vector {
        body: "Param1=value1",
        ..vector("form", "POST", "/", signature).with(&[
            ("content-length", "13"),
            ("content-type", content_type),
            ("x-amz-content-sha256", FORM_HASH),
        ])
    };
    vec![
        get("vanilla", "/", vanilla),
        get("relative, removed", "/example/..", vanilla),
        get("relative twice, removed", "/example1/example2/../..", vanilla),
        get("dot, removed", "/./", vanilla),
        get("slashes, removed", "//", vanilla),
        get("relative", "/example/..", "eca7ead57bb5aa5c8e28007acd4ff04e1ff9a0ff3b237ec1554a184887ff9282"),
        get("dot", "/./", "68714168e6557f8f2de0ef956fc24dc2593a4bd2961f8df51898d8a134695145"),
        get("slash", "//", "c88bcd3d312d75078c0cd961d6deae3f4c754924b01669efcfcb439fd5e5b76e"),
        get("pointless dot, removed", "/./example", "ef75d96142cf21edca26f06005da7988e4f8dc83a165a80865db7089db637ec5"),
        get("pointless dot", "/./example", "beb03f223f7deae4146464f06e29eebbee9c8afbe15c290cf07aa8b119e14cff"),
        get("slashes, removed", "//example//", "9a624bd73a37c9a373b5312afbebe7a714a789de108f0bdfe846570885f57e84"),
        get("slashes", "//example//", "87cca117541a147f6df867677d98a7d80dff226d2bfca9e4ffa899665623c7e5"),
        get("space", "/example%20space/", "652487583200325589f1fba4c7e578f72c47cb61beeca81406b39ddec1366741"),
        get(
            "unreserved",
            &format!("/{UNRESERVED}"),
            "07ef7494c76fa4850883e2b006601f940f8a34d404d0cfa977f52a65bbf5f24f",
        ),
        get("utf-8", "/%E1%88%B4", "8318018e0b0f223aa2bbf98705b62bb787dc9c0e678f255a891fd03141be5d85"),
        get("query", "/?Param1=value1", "a67d582fa61cc504c4bae71f336f98b97f1ea3c7a6bfe1b6e45aec72011b9aeb"),
        get(
            "query, order of encoded names",
            "/?Param-3=Value3&Param=Value2&%E1%88%B4=Value1",
            "371d3713e185cc334048618a97f809c9ffe339c62934c032af5a0e595648fcac",
        ),
        get(
            "query, order of names",
            "/?Param2=value2&Param1=value1",
            "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500",
        ),
        get(
            "query, unreserved",
            &format!("/?{UNRESERVED}={UNRESERVED}"),
            "9c3e54bfcdf0b19771a7f523ee5669cdf59bc7cc0884027167c21bb143a40197",
        ),
        get("query, utf-8", "/?%E1%88%B4=bar", "2cdec8eed098649ff3a119c94853b13c643bcf08f8b0a1d91e12c9027818dd04"),
        get("duplicate headers", "/", "c9d5ea9f3f72853aea855b47ea873832890dbdd183b4468f858259531a5138ea").with(&[
            ("my-header1", "value2"),
            ("my-header1", "value2"),
            ("my-header1", "value1"),
        ]),
        get("folded headers", "/", "acc3ed3afb60bb290fc8d2dd0098b9911fcaa05412b367055dee359757a9c736")
            .with(&[("my-header1", " value1"), ("my-header2", " \"a   b   c\"")]),
        get("session", "/", "07ec1639c89043aa0e3e2de82b96708f198cceab042d4a97044c66dd9f74e7f8")
            .with(&[("x-amz-security-token", TOKEN)]),
        vector("post", "POST", "/", post),
        vector("case of values", "POST", "/", "cdbc9802e29d2942e5e10b5bccfdd67c5f22c7c4e8ae67b53629efa58b974b7d")
            .with(&[("my-header1", "VALUE1")]),
        vector(
            "post, query",
            "POST",
            "/?Param1=value1",
            "28038455d6de14eafc1f9222cf5aa6f1a96197d7deb8263271d420d138af7f11",
        ),
        form("application/x-www-form-urlencoded", "d3875051da38690788ef43de4db0d8f280229d82040bfac253562e56c3f20e0b"),
        form(
            "application/x-www-form-urlencoded; charset=utf-8",
            "328d1b9eaadca9f5818ef05e8392801e091653bafec24fcab71e7344e7f51422",
        ),
    ]
}

#[test]
fn published_vectors_with_the_signature_in_the_header() {
    for vector in in_headers() {
        let mut names: Vec<_> = vector.headers.iter().map(|(name, _)| *name).chain(["host", "x-amz-date"]).collect();
        names.sort_unstable();
        names.dedup();
        let authorization = format!(
            "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/sqs/aws4_request, SignedHeaders={}, Signature={}",
            names.join(";"),
            vector.signature
        );
        let parts = vector.parts(&vector.target, Some(&authorization));
        holds(&parts, &parts, vector.body, vector.name);
    }
}

#[test]
fn published_vectors_with_the_signature_in_the_query() {
    for vector in [
        vector("vanilla", "GET", "/?", "e93c787ed7f371d5c6b165c1b38ede9550f4dce4144713e844b25b7192d3865d"),
        vector(
            "space",
            "GET",
            "/example%20space/?",
            "7a1f416954786484c9824d93c1f26ef64acb9b1b6c9154d08c9f07d0e394abf6",
        ),
        vector("slashes", "GET", "//example//?", "822a5a9ba28072c5ab2bb4a6307d0c88276d40e49fec6b724c03fb4d4ba60fc2"),
        vector(
            "query, order of encoded names",
            "GET",
            "/?Param-3=Value3&Param=Value2&%E1%88%B4=Value1&",
            "c5f1848ceec943ac2ca68ee720460c23aaae30a2300586597ada94c4a65e4787",
        ),
        vector("post", "POST", "/?", "2ce6e6d2e0cf2f9d1b55fafec88cd20574c31dc2e7631979f71ba2310083e95b"),
        vector(
            "post, query",
            "POST",
            "/?Param1=value1&",
            "a9ef26247f293bffe40eeff86a0480ba8c14d31503b2e0c3399e3a16bf1a3682",
        ),
    ] {
        let target = |service: &str| {
            format!(
                "{}X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIDEXAMPLE%2F20150830%2Fus-east-1%2F{service}\
                 %2Faws4_request&X-Amz-Date=20150830T123600Z&X-Amz-SignedHeaders=host&X-Amz-Expires=3600\
                 &X-Amz-Signature={}",
                vector.target, vector.signature
            )
        };
        let (ours, theirs) = (vector.parts(&target("sqs"), None), vector.parts(&target("service"), None));
        holds(&ours, &theirs, "", vector.name);
    }
}
