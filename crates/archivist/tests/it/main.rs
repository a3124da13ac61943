//! What the archive promises, on both engines, with the real git as the judge.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod faults;
mod files;
mod reconcile;
mod running;
mod support;

#[test]
fn every_case_runs_on_both_engines() {
    let cases = [faults::CASES, files::CASES, running::CASES, reconcile::CASES];
    assert!(cases.iter().all(|cases| !cases.is_empty()));
}
