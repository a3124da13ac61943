//! The first start: a default tenant, and one key to it.

use waybill_kernel::{Caller, Code, Error, KeyId, Mode, Principal, PrincipalKind, Result, Role, Roles, Scope, Scopes};
use waybill_store::{Ctx, Store, Tx, Work};

use crate::hash::Minted;
use crate::key::{Key, KeyText};
use crate::keys::{self, FindKey, Grant, NewKey};
use crate::tenant::{self, DEFAULT_TENANT, TenantId};

const ADMIN: &str = "admin";
const DEVELOPER: &str = "dev";
const SHARED: &str = "shared";

/// The admin's key of a new database: whoever gets this is the only one who ever does.
#[derive(Clone, Debug)]
pub struct NewAdminKey {
    pub key_id: KeyId,
    pub key: KeyText,
}

/// Makes the default tenant and its admin key in one transaction. None when the tenant is there already, made at an
/// earlier start or at this moment by another node: exactly one caller gets the key.
pub async fn ensure_default_tenant(store: &Store) -> Result<Option<NewAdminKey>> {
    ensure_default_tenant_keeping(store, |_| Ok(())).await
}

/// As [`ensure_default_tenant`], with the key given to `keep` before the transaction begins, so that no crash after the
/// commit costs the only key. Whether what was kept came to be the tenant's, [`is_key_of_default_tenant`] tells.
pub async fn ensure_default_tenant_keeping(
    store: &Store,
    keep: impl FnOnce(&NewAdminKey) -> Result<()>,
) -> Result<Option<NewAdminKey>> {
    // Asked first, because minting a key for nothing would make every start slower.
    if store.system().run(FindDefault).await?.is_some() {
        return Ok(None);
    }
    let entropy = std::sync::Arc::clone(store.entropy());
    let key = Key::generate(entropy.as_ref());
    let shown = NewAdminKey { key_id: key.id, key: key.reveal() };
    let mint = move || Minted::bearer(key, entropy.as_ref());
    let minted = tokio::task::spawn_blocking(mint).await.map_err(Error::internal)??;
    keep(&shown)?;
    let made = store.system().run(MakeDefault(minted)).await?;
    Ok(made.then_some(shown))
}

pub async fn is_key_of_default_tenant(store: &Store, id: KeyId) -> Result<bool> {
    let found = store.system().run(FindKey(id)).await?;
    Ok(found.is_some_and(|found| found.caller.tenant == DEFAULT_TENANT))
}

/// The caller of a command that opens the data folder itself: whoever can do that needs no key.
pub async fn admin_caller(store: &Store) -> Result<Caller> {
    default_caller(store, admin_grant()).await
}

/// The caller of every request under `--insecure-dev`.
pub async fn dev_caller(store: &Store) -> Result<Caller> {
    default_caller(store, grant(DEVELOPER, Role::ALL)).await
}

/// The caller of every request that comes with the server's shared token. It acts as whomever it names, in the default tenant
/// and in no other, and administers nothing.
pub async fn shared_caller(store: &Store) -> Result<Caller> {
    let roles = [Role::Agent, Role::Worker, Role::System];
    let scopes = Scope::ALL.iter().copied().filter(|scope| !matches!(scope, Scope::AdminRead | Scope::AdminWrite));
    let principal = Principal { kind: PrincipalKind::Agent, id: SHARED.to_owned() };
    default_caller(store, Grant { principal, roles: Roles::new(roles), scopes: Scopes::new(scopes) }).await
}

async fn default_caller(store: &Store, grant: Grant) -> Result<Caller> {
    let Some(TenantId(tenant_id)) = store.system().run(FindDefault).await? else {
        let message = "The database has no default tenant yet; the first start of the server makes it.";
        return Err(Error::new(Code::DatabaseUnusable, message));
    };
    Ok(keys::caller(DEFAULT_TENANT, tenant_id, grant, None))
}

fn admin_grant() -> Grant {
    grant(ADMIN, &[Role::Admin])
}

fn grant(id: &str, roles: &[Role]) -> Grant {
    Grant {
        principal: Principal { kind: PrincipalKind::Human, id: id.to_owned() },
        roles: Roles::new(roles.iter().copied()),
        scopes: Scopes::new(Scope::ALL.iter().copied()),
    }
}

struct FindDefault;

impl Work for FindDefault {
    type Output = Option<TenantId>;

    fn mode(&self) -> Mode {
        Mode::Read
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Option<TenantId>> {
        tenant::id_of(tx, DEFAULT_TENANT).await
    }
}

struct MakeDefault(Minted);

impl Work for MakeDefault {
    type Output = bool;

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<bool> {
        if !tenant::add_default(tx, TenantId(ctx.ids.next()), ctx.now).await? {
            return Ok(false);
        }
        let key = NewKey {
            minted: &self.0,
            grant: &admin_grant(),
            created_at: ctx.now,
            created_by: &ctx.caller.principal,
            expires_at: None,
        };
        key.insert(ctx, tx, Some(DEFAULT_TENANT)).await?;
        Ok(true)
    }
}
