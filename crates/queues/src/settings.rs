//! What an operator may set about queues.

use std::sync::LazyLock;

use waybill_store::Ctx;

use crate::rules::arn::Arns;
use crate::rules::names::account_of;

#[derive(Clone, Debug)]
pub struct Settings {
    /// The region in ARNs, and the one that requests must be signed for.
    pub region: String,
    /// Queues that one tenant may have.
    pub queues_per_tenant_max: i64,
    /// How often expired messages are looked for, totals are brought up to date and dead parts are drained.
    pub sweep_interval_s: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self { region: "us-east-1".to_owned(), queues_per_tenant_max: 10_000, sweep_interval_s: 10 }
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
    pub fn check(&self) -> Result<(), String> {
        let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if self.region.is_empty() || !self.region.bytes().all(allowed) {
            return Err("sqs.region must be of lower case letters, digits and hyphens".to_owned());
        }
        if self.queues_per_tenant_max < 1 {
            return Err("sqs.queues_per_tenant_max must be at least 1".to_owned());
        }
        if !(1..=3_600).contains(&self.sweep_interval_s) {
            return Err("sqs.sweep_interval_s must be from 1 to 3600".to_owned());
        }
        Ok(())
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
            (Settings { queues_per_tenant_max: 0, ..Settings::default() }, "queues_per_tenant_max"),
            (Settings { sweep_interval_s: 0, ..Settings::default() }, "sweep_interval_s"),
        ] {
            assert!(bad.check().is_err_and(|text| text.contains(named)), "{named}");
        }
    }
}
