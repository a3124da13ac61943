//! From files to rows, on both engines.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![expect(clippy::print_stderr, reason = "who reads the run is told what was skipped")]

mod hostile;
mod ours;
mod sample;
mod support;

#[test]
fn every_case_runs_on_both_engines() {
    let cases = [hostile::CASES, ours::CASES, sample::CASES];
    assert!(cases.iter().all(|cases| !cases.is_empty()));
}
