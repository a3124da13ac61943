//! The operations on keys and tenants: for admins, over REST and from the command line, never as tools of an agent; and
//! what a key may know of itself.

mod create_key;
mod create_tenant;
mod list_keys;
mod list_tenants;
mod revoke_key;
mod rotate_key;
mod whoami;

pub use create_key::{CreateKey, CreatedKey};
pub use create_tenant::CreateTenant;
pub use list_keys::{KeyView, Keys, ListKeys};
pub use list_tenants::{ListTenants, Tenants};
pub use revoke_key::{RevokeKey, Revoked};
pub use rotate_key::RotateKey;
pub use whoami::{Identity, Whoami};

pub use crate::tenant::TenantView as Tenant;
