//! The one list of domains. The program and the test kit both read it, so that what one knows the other cannot forget.

mod stored;

pub use stored::{CompareStored, Miscounted};
use waybill_access::Boxes;
use waybill_store::effects::{self, Runner};
use waybill_store::{Domain, Migration, Registry, Settings, StoreRole};

/// In the order in which their operations are shown.
pub const ALL: &[Domain] = &[
    waybill_tasks::DOMAIN,
    waybill_queues::DOMAIN,
    waybill_mail::DOMAIN,
    waybill_mesh::DOMAIN,
    waybill_access::DOMAIN,
    waybill_webhooks::DOMAIN,
];

/// Those that keep rows in other stores than home as well.
const ON_SHARDS: &[Domain] = &[waybill_queues::DOMAIN];

pub fn migrations() -> Vec<Migration> {
    migrations_of(StoreRole::Home)
}

/// Which tables a store has.
pub fn migrations_of(role: StoreRole) -> Vec<Migration> {
    let of_domains = domains_of(role).iter().flat_map(|domain| domain.migrations);
    let of_all: &[Migration] = match role {
        StoreRole::Home => &[waybill_store::STORED_BYTES, stored::AT_HOME],
        StoreRole::Shard => &[waybill_store::STORED_BYTES],
    };
    of_domains.chain(of_all).copied().collect()
}

fn domains_of(role: StoreRole) -> &'static [Domain] {
    match role {
        StoreRole::Home => ALL,
        StoreRole::Shard => ON_SHARDS,
    }
}

/// Every operation that all doors share.
pub fn registry() -> Registry {
    effects::register(ALL.iter().fold(Registry::default(), Registry::with_domain))
}

/// What is kept under the server's own key, and moves with it.
pub fn boxes() -> Vec<Boxes> {
    vec![waybill_access::SIGNING_KEYS, waybill_webhooks::SECRETS]
}

/// Everything that recurs in a store, started.
pub fn sweeps(role: StoreRole, runner: Runner, settings: &Settings) -> Runner {
    domains_of(role).iter().fold(runner, |runner, domain| (domain.sweeps)(runner, settings))
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
