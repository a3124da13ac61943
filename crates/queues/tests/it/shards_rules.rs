//! The rules of partitioned queues, with the partitions in several stores: the same cases as in one.

use waybill_queues::{PartitionMap, Settings};
use waybill_testkit::both;

use crate::partitions::{
    a_receive_from_many_partitions_can_be_made_again, rule_01_the_three_attributes_are_shown_where_they_were_set,
    rule_04_what_messages_are_found_by_stays, rule_05_a_group_has_its_partition, rule_06_partitions_share_no_rows,
    rule_07_duplicates_are_of_their_group, rule_09_a_queue_limited_as_one_uses_one_partition,
    rule_09_each_receive_begins_with_another_partition, rule_09_one_receive_covers_all_partitions,
    rule_09_queues_that_are_received_from_in_turn_do_not_miss_partitions, rule_10_a_delay_in_any_partition_ends_a_wait,
    rule_10_a_send_to_any_partition_ends_a_wait, rule_10_an_empty_queue_is_waited_for_once,
};
use crate::partitions_kept::{
    counters_are_those_of_all_partitions, groups_of_all_partitions_keep_their_order_under_load,
    rule_11_a_handle_leads_to_its_partition, rule_11_batches_of_handles_reach_their_partitions,
    rule_12_a_deleted_queue_leaves_nothing, rule_12_a_purge_is_one_step_for_all_partitions,
    rule_15_what_is_advertised_is_there, rule_17_what_is_needed_is_noted_with_the_first_queue_that_needs_it,
    rule_18_only_partitioned_queues_are_counted_by_partition,
};

pub const SHARDS: &[&str] = &["a", "b", "c"];

/// Each partition in another store than the one before, in home as well.
pub fn spread_over_four(queues: &[&str]) -> Settings {
    let stores = ["a", "b", "c", "home"].repeat(8).join(",");
    let entries: Vec<String> = queues.iter().map(|queue| format!("{queue}:32={stores}")).collect();
    Settings { partition_map: PartitionMap::parse(&entries).unwrap(), ..Settings::default() }
}

fn everywhere() -> Settings {
    spread_over_four(&[
        "orders.fifo",
        "count.fifo",
        "limit.fifo",
        "all.fifo",
        "one.fifo",
        "two.fifo",
        "a.fifo",
        "b.fifo",
        "of-2.fifo",
        "of-4.fifo",
        "of-8.fifo",
        "of-16.fifo",
        "of-32.fifo",
    ])
}

both! {
    super::everywhere(), shards super::SHARDS =>
    rule_01_the_three_attributes_are_shown_where_they_were_set,
    rule_04_what_messages_are_found_by_stays,
    rule_05_a_group_has_its_partition,
    rule_06_partitions_share_no_rows,
    rule_07_duplicates_are_of_their_group,
    rule_09_one_receive_covers_all_partitions,
    rule_09_each_receive_begins_with_another_partition,
    rule_09_queues_that_are_received_from_in_turn_do_not_miss_partitions,
    rule_09_a_queue_limited_as_one_uses_one_partition,
    rule_10_an_empty_queue_is_waited_for_once,
    rule_10_a_send_to_any_partition_ends_a_wait,
    rule_10_a_delay_in_any_partition_ends_a_wait,
    a_receive_from_many_partitions_can_be_made_again,
    rule_11_a_handle_leads_to_its_partition,
    rule_11_batches_of_handles_reach_their_partitions,
    rule_12_a_purge_is_one_step_for_all_partitions,
    rule_12_a_deleted_queue_leaves_nothing,
    counters_are_those_of_all_partitions,
    rule_15_what_is_advertised_is_there,
    rule_17_what_is_needed_is_noted_with_the_first_queue_that_needs_it,
    rule_18_only_partitioned_queues_are_counted_by_partition,
    groups_of_all_partitions_keep_their_order_under_load,
}

/// Dead letters that go from each store to each.
pub mod dead_letters {
    use waybill_testkit::both;

    use crate::partitions_kept::rule_19_dead_letters_go_where_their_queue_has_their_group;

    both! {
        crate::shards_rules::spread_over_four(&["orders.fifo", "dead.fifo"]), shards crate::shards_rules::SHARDS =>
        rule_19_dead_letters_go_where_their_queue_has_their_group,
    }
}

/// Dead letters of several stores in home, and back.
pub mod moves {
    use waybill_testkit::both;

    use crate::partitions_kept::rule_20_moves_keep_to_partitions;

    both! {
        crate::shards_rules::spread_over_four(&["orders.fifo", "other.fifo"]), shards crate::shards_rules::SHARDS =>
        rule_20_moves_keep_to_partitions,
    }
}
