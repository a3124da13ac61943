//! Do tasks, results, receipts and their links agree? The rules are those of the domains; both engines are asked the same.

use waybill_kernel::id::Uuid;
use waybill_kernel::{Result, hex};
use waybill_store::{Rule, StoreRole};

use super::{Check, work};

pub(super) const NAME: &str = "ledger";
/// More of a kind are not counted.
const COUNTED_MAX: usize = 1_000;
/// What is asked for at most: one more says that there are more.
pub(super) const ASKED_MAX: usize = COUNTED_MAX + 1;
/// As many as a report needs.
const SHOWN_MAX: usize = 3;

/// What a rule has found.
pub(super) struct Broken {
    rule: &'static Rule,
    ids: Vec<Vec<u8>>,
}

impl Broken {
    pub(super) fn new(rule: &'static Rule, ids: Vec<Vec<u8>>) -> Self {
        Self { rule, ids }
    }

    fn text(&self) -> String {
        let (what, found) = (self.rule.what, self.ids.len());
        let shown: Vec<_> = self.ids.iter().take(SHOWN_MAX).map(|id| id_text(id)).collect();
        let more = if found > SHOWN_MAX { ", …" } else { "" };
        let count = if found > COUNTED_MAX { format!("more than {COUNTED_MAX}") } else { found.to_string() };
        format!("{count} {what} ({}{more})", shown.join(", "))
    }
}

/// None for tables of another version, which the rules would not know, and for stores that have no ledger.
pub(super) fn rules(role: StoreRole, schema: &Result<Option<i64>>) -> Vec<&'static Rule> {
    let is_known = schema.as_ref().is_ok_and(|schema| *schema == Some(work::schema_known(role)));
    if is_known { waybill_domains::audit(role) } else { Vec::new() }
}

pub(super) fn verdict(rules: &[&Rule], broken: &[Broken]) -> Check {
    if rules.is_empty() {
        return Check::skipped(NAME, "the tables are of another version than this program");
    }
    let broken: Vec<_> = broken.iter().filter(|broken| !broken.ids.is_empty()).map(Broken::text).collect();
    if broken.is_empty() {
        return Check::ok(NAME, "tasks, results, receipts and their links agree");
    }
    let cure =
        "The program never leaves such rows. Keep the database as it is, restore a backup, and report this text.";
    Check::failed(NAME, broken.join("; "), cure)
}

fn id_text(id: &[u8]) -> String {
    Uuid::from_slice(id).map_or_else(|_| hex::encode(id), |id| id.to_string())
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    #[test]
    fn a_few_are_named_and_many_are_counted() {
        let rules = waybill_domains::audit(StoreRole::Home);
        let found = |count: usize| {
            let broken = [Broken::new(rules[0], vec![vec![7; 16]; count])];
            let check = verdict(&rules, &broken);
            assert_eq!(check.verdict == Verdict::Failed, count > 0);
            check.found
        };
        let (id, what) = ("07070707-0707-0707-0707-070707070707", rules[0].what);
        assert_eq!(found(1), format!("1 {what} ({id})"));
        assert_eq!(found(3), format!("3 {what} ({id}, {id}, {id})"));
        assert_eq!(found(4), format!("4 {what} ({id}, {id}, {id}, …)"));
        assert_eq!(found(COUNTED_MAX), format!("1000 {what} ({id}, {id}, {id}, …)"));
        assert_eq!(found(ASKED_MAX), format!("more than 1000 {what} ({id}, {id}, {id}, …)"));
        assert!(found(0).contains("agree"));
        assert_eq!(id_text(&[0xab, 1]), "ab01");
    }

    #[test]
    fn tables_of_another_version_are_left_alone() {
        let known = work::schema_known(StoreRole::Home);
        for (schema, asks) in [(Some(known), true), (Some(known - 1), false), (Some(known + 1), false), (None, false)] {
            assert_eq!(!rules(StoreRole::Home, &Ok(schema)).is_empty(), asks, "{schema:?}");
            assert!(rules(StoreRole::Shard, &Ok(schema)).is_empty(), "a shard has no ledger");
        }
        assert_eq!(verdict(&[], &[]).verdict, Verdict::Skipped);
    }
}
