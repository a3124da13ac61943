//! The one list of domains. The program and the test kit both read it, so that what one knows the other cannot forget.

use waybill_access::Boxes;
use waybill_store::effects::{self, Runner};
use waybill_store::{Domain, Migration, Registry, Settings};

/// In the order in which their operations are shown.
pub const ALL: &[Domain] =
    &[waybill_tasks::DOMAIN, waybill_queues::DOMAIN, waybill_access::DOMAIN, waybill_webhooks::DOMAIN];

pub fn migrations() -> Vec<Migration> {
    ALL.iter().flat_map(|domain| domain.migrations).copied().collect()
}

/// Every operation that all doors share.
pub fn registry() -> Registry {
    effects::register(ALL.iter().fold(Registry::default(), |registry, domain| (domain.register)(registry)))
}

/// What is kept under the server's own key, and moves with it.
pub fn boxes() -> Vec<Boxes> {
    vec![waybill_access::SIGNING_KEYS, waybill_webhooks::SECRETS]
}

/// Everything that recurs, started.
pub fn sweeps(runner: Runner, settings: &Settings) -> Runner {
    ALL.iter().fold(runner, |runner, domain| (domain.sweeps)(runner, settings))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_domain_has_a_name_of_its_own() {
        let mut names: Vec<_> = ALL.iter().map(|domain| domain.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ALL.len());
    }
}
