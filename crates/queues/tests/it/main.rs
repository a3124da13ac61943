//! What queues promise, kept by both engines.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod at_once;
mod attempts;
mod attributes;
mod batches;
mod catalog;
mod counts;
mod dead_letters;
mod deletes;
mod expiry;
mod fifo;
mod fifo_duplicates;
mod figures;
mod head;
mod held;
mod lists;
mod move_tasks;
mod operators;
mod partitions;
mod partitions_kept;
mod peeks;
mod purges;
mod receives;
mod refusals;
mod sends;
mod shards;
mod shards_down;
mod shards_moves;
mod shards_order;
mod shards_rules;
mod support;
mod throttle;
mod throttle_hidden;
mod throttle_nodes;
mod throttle_prices;
mod visibility;
mod waits;
mod waits_due;

#[test]
fn every_case_runs_on_both_engines() {
    let cases = [
        at_once::CASES,
        attempts::CASES,
        attempts::shards::CASES,
        attributes::CASES,
        batches::CASES,
        catalog::CASES,
        catalog::bound::CASES,
        counts::CASES,
        dead_letters::CASES,
        deletes::CASES,
        expiry::CASES,
        fifo::CASES,
        fifo_duplicates::CASES,
        figures::CASES,
        head::CASES,
        lists::CASES,
        move_tasks::CASES,
        operators::CASES,
        partitions::CASES,
        partitions_kept::CASES,
        peeks::CASES,
        purges::CASES,
        receives::CASES,
        refusals::CASES,
        sends::CASES,
        shards::CASES,
        shards_down::CASES,
        shards_moves::CASES,
        shards_order::CASES,
        shards_rules::CASES,
        shards_rules::dead_letters::CASES,
        shards_rules::moves::CASES,
        throttle::CASES,
        throttle_hidden::CASES,
        throttle_prices::CASES,
        visibility::CASES,
        waits::CASES,
        waits_due::CASES,
        waits_due::shards::CASES,
    ];
    assert!(cases.iter().all(|cases| !cases.is_empty()));
}
