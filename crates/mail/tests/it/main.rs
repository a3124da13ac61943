//! What mail promises, kept by both engines.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod checkouts;
mod contacts;
mod contract;
mod identities;
mod inboxes;
mod limits;
mod messages;
mod products;
mod recurring;
mod reservations;
mod search;
mod support;
mod threads;
mod tooling;

#[test]
fn every_case_runs_on_both_engines() {
    let cases = [
        checkouts::CASES,
        contacts::CASES,
        contract::CASES,
        identities::CASES,
        inboxes::CASES,
        limits::CASES,
        messages::CASES,
        products::CASES,
        recurring::CASES,
        reservations::CASES,
        search::CASES,
        threads::CASES,
        tooling::CASES,
    ];
    assert!(cases.iter().all(|cases| !cases.is_empty()));
}
