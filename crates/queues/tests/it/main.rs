//! What queues promise, kept by both engines.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod attributes;
mod batches;
mod catalog;
mod counts;
mod dead_letters;
mod deletes;
mod expiry;
mod head;
mod lists;
mod move_tasks;
mod purges;
mod receives;
mod refusals;
mod sends;
mod support;
mod visibility;
mod waits;

#[test]
fn every_case_runs_on_both_engines() {
    let cases = [
        attributes::CASES,
        batches::CASES,
        catalog::CASES,
        counts::CASES,
        dead_letters::CASES,
        deletes::CASES,
        expiry::CASES,
        head::CASES,
        lists::CASES,
        move_tasks::CASES,
        purges::CASES,
        receives::CASES,
        refusals::CASES,
        sends::CASES,
        visibility::CASES,
        waits::CASES,
    ];
    assert!(cases.iter().all(|cases| !cases.is_empty()));
}
