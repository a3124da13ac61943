//! What webhooks promise, kept by both engines and shown by real requests.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod deliver;
mod ends;
mod fan_out;
mod lines;
mod meshes;
mod receiver;
mod support;

#[test]
fn every_case_runs_on_both_engines() {
    let cases = [deliver::CASES, ends::CASES, fan_out::CASES, lines::CASES, meshes::CASES];
    assert!(cases.iter().all(|cases| !cases.is_empty()));
}
