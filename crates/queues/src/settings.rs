//! What an operator may set about queues.

use std::sync::LazyLock;

use waybill_kernel::Result;
use waybill_kernel::ranges::{Setting, at_least, check, setting};
use waybill_store::Ctx;

use crate::rules::arn::Arns;
use crate::rules::attributes::unknown;
use crate::rules::names::account_of;
use crate::rules::placement::PartitionMap;
use crate::rules::throttle::is_throttle;

#[derive(Clone, Debug)]
pub struct Settings {
    /// The region in ARNs, and the one that requests must be signed for.
    pub region: String,
    /// Queues that one tenant may have.
    pub queues_per_tenant_max: i64,
    /// How often expired messages are looked for, totals are brought up to date and dead parts are drained.
    pub sweep_interval_s: u64,
    /// Only admins see and set how queues are throttled. Everybody is held to it.
    pub throttle_attributes_admin_only: bool,
    /// Which store each partition of a FIFO queue is placed in when the queue is made.
    pub partition_map: PartitionMap,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            region: "us-east-1".to_owned(),
            queues_per_tenant_max: 10_000,
            sweep_interval_s: 10,
            throttle_attributes_admin_only: false,
            partition_map: PartitionMap::default(),
        }
    }
}

impl Settings {
    /// The usual ones where the store was opened without.
    pub(crate) fn of<'a>(ctx: &'a Ctx<'_>) -> &'a Self {
        static USUAL: LazyLock<Settings> = LazyLock::new(Settings::default);
        ctx.settings_if_given().unwrap_or(&*USUAL)
    }

    /// What ARNs of the caller's queues look like.
    pub(crate) fn arns(ctx: &Ctx<'_>) -> Arns {
        Arns::new(&Self::of(ctx).region, account_of(ctx.caller))
    }

    /// The setting that cannot be used, in words for whoever has set it.
    pub fn check(&self) -> std::result::Result<(), String> {
        let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if !(1..=64).contains(&self.region.len()) || !self.region.bytes().all(allowed) {
            return Err(format!("sqs.region is {:?}; a region is like us-east-1.", self.region));
        }
        check("sqs", &self.ranges())
    }

    pub fn ranges(&self) -> Vec<Setting> {
        vec![
            setting("queues_per_tenant_max", self.queues_per_tenant_max, at_least(1)),
            setting("sweep_interval_s", self.sweep_interval_s, 1..=3_600),
        ]
    }
}

/// Are there no throttle attributes for this caller?
pub(crate) fn hides_throttles(ctx: &Ctx<'_>) -> bool {
    Settings::of(ctx).throttle_attributes_admin_only && !ctx.caller.sees_all_owners()
}

/// Refuses names that are hidden from the caller, as if there were no such attributes.
pub(crate) fn refuse_hidden<'a>(ctx: &Ctx<'_>, mut names: impl Iterator<Item = &'a String>) -> Result<()> {
    match names.find(|name| is_throttle(name)) {
        Some(name) if hides_throttles(ctx) => Err(unknown(name)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_settings_can_be_used_and_others_are_named() {
        assert_eq!(Settings::default().check(), Ok(()));
        for (bad, named) in [
            (Settings { region: String::new(), ..Settings::default() }, "region"),
            (Settings { region: "eu:west".to_owned(), ..Settings::default() }, "region"),
            (Settings { region: "US East".to_owned(), ..Settings::default() }, "region"),
            (Settings { region: "x".repeat(65), ..Settings::default() }, "region"),
            (Settings { queues_per_tenant_max: 0, ..Settings::default() }, "queues_per_tenant_max"),
            (Settings { sweep_interval_s: 0, ..Settings::default() }, "sweep_interval_s"),
        ] {
            assert!(bad.check().is_err_and(|text| text.contains(named)), "{named}");
        }
    }
}
