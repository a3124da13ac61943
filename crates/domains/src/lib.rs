//! The one list of domains. The program and the test kit both read it, so that what one knows the other cannot forget.

mod stored;

pub use stored::{CompareStored, Miscounted};
use waybill_access::Boxes;
use waybill_store::effects::{self, Runner};
use waybill_store::{Domain, Migration, Registry, Rule, Settings, StoreRole};

/// In the order in which their operations are shown.
pub const ALL: &[Domain] = &[
    waybill_tasks::DOMAIN,
    waybill_queues::DOMAIN,
    waybill_mail::DOMAIN,
    waybill_mesh::DOMAIN,
    waybill_access::DOMAIN,
    waybill_webhooks::DOMAIN,
];

pub fn migrations() -> Vec<Migration> {
    migrations_of(StoreRole::Home)
}

/// Which tables a store has.
pub fn migrations_of(role: StoreRole) -> Vec<Migration> {
    let of_domains = domains_of(role).flat_map(|domain| domain.migrations);
    let of_all: &[Migration] = match role {
        StoreRole::Home => &[waybill_store::STORED_BYTES, stored::AT_HOME],
        StoreRole::Shard => &[waybill_store::STORED_BYTES],
    };
    of_domains.chain(of_all).copied().collect()
}

fn domains_of(role: StoreRole) -> impl Iterator<Item = &'static Domain> {
    ALL.iter().filter(move |domain| role == StoreRole::Home || domain.on_shards)
}

/// What must hold in a store that is whole.
pub fn audit(role: StoreRole) -> Vec<&'static Rule> {
    match role {
        StoreRole::Home => ALL.iter().flat_map(|domain| domain.audit).collect(),
        // Rules may be about tables that are at home alone.
        StoreRole::Shard => Vec::new(),
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
    domains_of(role).fold(runner, |runner, domain| (domain.sweeps)(runner, settings))
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
