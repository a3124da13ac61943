//! What queues promise, kept by both engines.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod catalog;
mod deletes;
mod expiry;
mod head;
mod receives;
mod refusals;
mod sends;
mod support;
mod waits;

#[test]
fn every_case_runs_on_both_engines() {
    let cases = [
        catalog::CASES,
        deletes::CASES,
        expiry::CASES,
        head::CASES,
        receives::CASES,
        refusals::CASES,
        sends::CASES,
        waits::CASES,
    ];
    assert!(cases.iter().all(|cases| !cases.is_empty()));
}
