//! What must hold between tasks, results, receipts and their links, looked up in the rows themselves: for whoever asks
//! whether a database is whole. A transition writes all of its rows in one transaction and the archive moves a receipt in
//! one, so no crash leaves anything that a rule finds.

use waybill_store::Rule;

/// A link from the receipt `r` to one that ends it. The archive takes links away together with the child.
macro_rules! has_end {
    () => {
        "EXISTS (SELECT 1 FROM receipt_parents p WHERE p.tenant = r.tenant AND p.parent_id = r.receipt_id \
         AND p.child_type IN ('task.completed', 'task.failed', 'task.canceled', 'schedule.deleted'))"
    };
}

/// What the obligation `r` is about is over, whether or not the receipt that says so is archived. A success that does not
/// say where its work is ends nothing; a schedule is watched until it is deleted.
macro_rules! is_over {
    () => {
        "CASE r.receipt_type \
         WHEN 'task.assigned' THEN EXISTS (SELECT 1 FROM results s \
         WHERE s.tenant = r.tenant AND s.task_id = r.task_id AND s.located = 1) \
         WHEN 'schedule.created' THEN NOT EXISTS (SELECT 1 FROM schedule_watch w \
         WHERE w.tenant = r.tenant AND w.schedule_id = r.schedule_id AND w.receipt_id = r.receipt_id) END"
    };
}

/// The receipt that a row names is in neither the ledger nor the archive.
macro_rules! is_nowhere {
    ($row:literal, $id:literal) => {
        concat!(
            "NOT EXISTS (SELECT 1 FROM receipts r WHERE r.tenant = ",
            $row,
            ".tenant AND r.receipt_id = ",
            $row,
            ".",
            $id,
            ") AND NOT EXISTS (SELECT 1 FROM receipt_archive a WHERE a.tenant = ",
            $row,
            ".tenant AND a.receipt_id = ",
            $row,
            ".",
            $id,
            ")"
        )
    };
}

pub const RULES: &[Rule] = &[
    Rule {
        what: "obligations that are open although they have ended",
        sql: concat!("SELECT r.receipt_id FROM receipts r WHERE r.open = 1 AND (", has_end!(), " OR ", is_over!(), ")"),
    },
    Rule {
        what: "obligations that are not open although nothing has ended them",
        sql: concat!(
            "SELECT r.receipt_id FROM receipts r WHERE r.receipt_type IN ('task.assigned', 'schedule.created') \
             AND r.open = 0 AND NOT ",
            has_end!(),
            " AND NOT ",
            is_over!()
        ),
    },
    Rule {
        what: "receipts without the link to their parent",
        // No operation writes one with several.
        sql: "SELECT r.receipt_id FROM receipts r WHERE length(r.parents) = 16 AND NOT EXISTS \
              (SELECT 1 FROM receipt_parents p \
              WHERE p.tenant = r.tenant AND p.parent_id = r.parents AND p.child_id = r.receipt_id)",
    },
    Rule {
        what: "ended tasks without their result",
        sql: "SELECT t.task_id FROM tasks t WHERE t.status IN ('succeeded', 'failed', 'canceled') AND NOT EXISTS \
              (SELECT 1 FROM results s WHERE s.tenant = t.tenant AND s.task_id = t.task_id AND s.outcome = t.status)",
    },
    Rule {
        what: "ended tasks without the receipt of their end",
        sql: concat!("SELECT s.task_id FROM results s WHERE ", is_nowhere!("s", "receipt_id")),
    },
    Rule {
        what: "links whose parent is nowhere",
        sql: concat!("SELECT p.parent_id FROM receipt_parents p WHERE ", is_nowhere!("p", "parent_id")),
    },
    Rule {
        what: "links whose child is nowhere",
        sql: concat!("SELECT p.child_id FROM receipt_parents p WHERE ", is_nowhere!("p", "child_id")),
    },
];

#[cfg(test)]
mod tests {
    use crate::receipts::ReceiptType;
    use crate::rules::Status;

    use super::*;

    #[test]
    fn the_rules_know_whatever_begins_or_ends_something() {
        let is_named = |rule: &str, word: &str| rule.contains(&format!("'{word}'"));
        for kind in ReceiptType::ALL {
            assert_eq!(is_named(has_end!(), kind.as_str()), kind.ends().is_some(), "{}", kind.as_str());
            assert_eq!(is_named(is_over!(), kind.as_str()), kind.is_obligation(), "{}", kind.as_str());
        }
        let results = RULES.iter().find(|rule| rule.what.ends_with("their result")).unwrap();
        for status in Status::ALL {
            assert_eq!(is_named(results.sql, status.as_str()), status.is_terminal(), "{status}");
        }
    }
}
