//! Who may come in: tenants, API keys, and the question every request asks first.
//!
//! [`Access::authenticate`] turns the key a request carries into a [`waybill_kernel::Caller`]; the operations make, list,
//! rotate and revoke keys and make tenants. The text of a key exists in the answer that hands it out and nowhere else:
//! the database has an Argon2id hash of its secret and a digest under the server's key, a running process a digest under a
//! key of its own.

mod authenticate;
mod bootstrap;
mod boxed;
mod digest;
#[cfg(test)]
mod fuzz;
mod hash;
mod key;
mod keys;
mod memory;
pub mod ops;
pub mod page;
mod rebox;
mod server_key;
mod signing;
mod stored;
pub mod sweeps;
mod tenant;
mod verifier;

use std::time::Duration;

use waybill_kernel::ranges::{KEEP_SECONDS, Setting, at_least, check, setting};
use waybill_store::effects::Runner;
use waybill_store::{Domain, Migration, Registry, StoredCaps};

pub use authenticate::{Access, Signer};
pub use bootstrap::{
    NewAdminKey, admin_caller, dev_caller, ensure_default_tenant, ensure_default_tenant_keeping,
    is_key_of_default_tenant, shared_caller,
};
pub use boxed::{Nonce, Opened};
pub use key::{Key, KeyText, Secret};
pub use rebox::{Boxes, IdKind, Moved, move_to_server_key};
pub use server_key::{Agreement, SERVER_KEY_ID, ServerKey, adopt_server_key, agree_on_server_key};
pub use signing::{SIGNING_KEYS, SigningSecret, access_key_id};
pub use stored::measure_stored;
pub use tenant::{DEFAULT_TENANT, TenantId, Tier, find_tenant};
pub use waybill_kernel::KeyId;

pub const DOMAIN: Domain = Domain {
    name: "admin",
    title: "Administration",
    mcp: None,
    migrations: MIGRATIONS,
    register,
    sweeps: start_sweeps,
    audit: &[],
    on_shards: false,
};

pub const MIGRATIONS: &[Migration] = &[
    Migration { version: 2, name: "access", sql: include_str!("../schema/V0002__access.sql") },
    Migration { version: 5, name: "ended_keys", sql: include_str!("../schema/V0005__ended_keys.sql") },
    Migration { version: 14, name: "key_digests", sql: include_str!("../schema/V0014__key_digests.sql") },
    Migration { version: 19, name: "signing_keys", sql: include_str!("../schema/V0019__signing_keys.sql") },
];

#[derive(Clone, Debug)]
pub struct Settings {
    /// So soon a revocation holds everywhere, for calls that wait as well.
    pub key_recheck: Duration,
    /// Keys a process remembers, at about half a kilobyte each; beyond it the ones not used lately are verified anew.
    pub remembered_keys_max: usize,
    /// Requests with a key that its digest has accepted and that may wait for its one verification in this process, which
    /// takes a core some 50 ms; one more is refused with 503.
    pub verifications_waiting_max: usize,
    /// How often keys that ended long ago are looked for.
    pub ended_keys_interval: Duration,
    /// How long the row of a revoked or expired key is kept, so that lists still show what it was.
    pub ended_keys_retention: Duration,
    /// Bytes that a tenant may have in rows: payloads, results, receipts, messages, mail. 0 for no bound.
    pub stored_bytes_max: i64,
    /// Bytes that a tenant may have in files: those of meshes, and what comes with mail. 0 for no bound.
    pub blob_bytes_max: i64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            key_recheck: Duration::from_secs(60),
            remembered_keys_max: 10_000,
            verifications_waiting_max: 256,
            ended_keys_interval: Duration::from_secs(3600),
            ended_keys_retention: Duration::from_secs(90 * 24 * 3600),
            stored_bytes_max: 0,
            blob_bytes_max: 0,
        }
    }
}

impl Settings {
    /// As the file has them.
    pub fn ranges(&self) -> Vec<Setting> {
        vec![
            setting("key_recheck_ms", self.key_recheck.as_millis(), 0..=3_600_000),
            setting("remembered_keys_max", self.remembered_keys_max, at_least(1)),
            setting("verifications_waiting_max", self.verifications_waiting_max, at_least(1)),
            setting("ended_keys_interval_s", self.ended_keys_interval.as_secs(), at_least(1)),
            setting("ended_keys_retention_s", self.ended_keys_retention.as_secs(), KEEP_SECONDS),
            setting("stored_bytes_max", self.stored_bytes_max, at_least(0)),
            setting("blob_bytes_max", self.blob_bytes_max, at_least(0)),
        ]
    }

    /// For the store, whose transactions keep to them.
    pub const fn stored_caps(&self) -> StoredCaps {
        StoredCaps { rows: self.stored_bytes_max, blobs: self.blob_bytes_max }
    }

    /// What could not work, in words for whoever wrote the file.
    pub fn check(&self) -> Result<(), String> {
        check("access", &self.ranges())
    }
}

fn start_sweeps(runner: Runner, settings: &waybill_store::Settings) -> Runner {
    runner.with(sweeps::EndedKeys::new(settings.get()))
}

/// Adds the operations on keys and tenants.
#[must_use]
pub fn register(registry: Registry) -> Registry {
    registry
        .with::<ops::CreateKey>()
        .with::<ops::ListKeys>()
        .with::<ops::RotateKey>()
        .with::<ops::RevokeKey>()
        .with::<ops::CreateTenant>()
        .with::<ops::ListTenants>()
        .with::<ops::Whoami>()
}
