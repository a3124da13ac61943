//! What a verification costs. Run by hand, optimised:
//! `cargo test --release -p waybill-sqs -- --ignored --nocapture cost`

use std::time::Instant;

use super::signer::{NOW, REGION, SECRET, Signer};
use crate::signature::{Claim, Secret, SigningKeys};

#[test]
#[ignore = "measures, asserts nothing"]
fn cost_of_a_verification() {
    const TURNS: u32 = 200_000;
    let headers = [
        ("content-type", "application/x-amz-json-1.0"),
        ("x-amz-target", "AmazonSQS.SendMessage"),
        ("content-length", "256"),
        ("user-agent", "aws-sdk-rust/1.3.1 os/linux lang/rust/1.95"),
    ];
    let sent = Signer::default().sign("POST", "/", &headers, &[b'x'; 256]);
    let secret = Secret::new(SECRET);
    let keys = SigningKeys::default();
    let turn = |keys: &SigningKeys| {
        let claim = Claim::of(&sent.parts).unwrap().unwrap();
        claim.verify(&sent.parts, &sent.body, &secret, NOW, REGION, keys).unwrap();
    };
    for (name, hot) in [("signing key kept", true), ("signing key derived", false)] {
        let began = Instant::now();
        for _ in 0..TURNS {
            if hot { turn(&keys) } else { turn(&SigningKeys::default()) }
        }
        println!("{name}: {:.2} µs", began.elapsed().as_secs_f64() * 1e6 / f64::from(TURNS));
    }
}
