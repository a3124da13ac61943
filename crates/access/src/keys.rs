//! The rows of `api_keys`: what a key grants, to whom, until when.

use std::str::FromStr;

use waybill_kernel::id::Uuid;
use waybill_kernel::{Caller, Code, Error, KeyId, Mode, Principal, Result, Roles, Scope, Scopes, Tenant, Time};
use waybill_store::{Ctx, Row, Tx, Value, Work};

use crate::digest::{Digests, StoredDigest};
use crate::hash::Minted;
use crate::server_key::ServerKey;
use crate::tenant::TenantId;

/// What a key allows its bearer.
#[derive(Clone, Debug)]
pub(crate) struct Grant {
    pub(crate) principal: Principal,
    pub(crate) roles: Roles,
    pub(crate) scopes: Scopes,
}

impl Grant {
    /// Nobody gives more than they have: a key that was narrowed would widen itself by making another.
    pub(crate) fn must_be_within(&self, caller: &Caller) -> Result<()> {
        let missing: Vec<_> = self.scopes.iter().filter(|scope| !caller.scopes.contains(*scope)).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let missing = missing.iter().map(|scope| scope.as_str()).collect::<Vec<_>>().join("|");
        Err(Error::new(Code::Forbidden, "A key cannot be given scopes that yours does not have.")
            .with("required_scope", missing)
            .with("your_scopes", caller.scopes.to_string()))
    }

    /// For scopes that nobody named: whoever's own key is older than one of them gives the others.
    pub(crate) fn without_later_ones_than(mut self, caller: &Caller) -> Self {
        let has = |scope: &Scope| !Scope::LATER.contains(scope) || caller.scopes.contains(*scope);
        self.scopes = Scopes::new(self.scopes.iter().filter(has));
        self
    }

    /// From three columns, the first of them at `from`.
    pub(crate) fn read(row: &Row, from: usize) -> Result<Self> {
        Ok(Self {
            principal: stored_principal(row.text(from)?)?,
            roles: stored(row.text(from + 1)?)?,
            scopes: stored(row.text(from + 2)?)?,
        })
    }
}

pub(crate) fn stored<T: FromStr<Err = Error>>(text: &str) -> Result<T> {
    text.parse().map_err(|error| Error::internal(format!("a stored key cannot be read: {error}")))
}

pub(crate) fn stored_principal(text: &str) -> Result<Principal> {
    Principal::from_stored(text).map_err(|error| Error::internal(format!("a stored key cannot be read: {error}")))
}

/// A row about to be written.
pub(crate) struct NewKey<'a> {
    pub(crate) minted: &'a Minted,
    pub(crate) grant: &'a Grant,
    pub(crate) created_at: Time,
    pub(crate) created_by: &'a Principal,
    pub(crate) expires_at: Option<Time>,
}

impl NewKey<'_> {
    /// Where the transaction has no tenant of its own, `tenant` says whose key it is.
    pub(crate) async fn insert(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, tenant: Option<Tenant>) -> Result<()> {
        const INSERT: &str = "INSERT INTO api_keys (tenant, key_id, principal, roles, scopes, hash, created_at, \
            created_by, expires_at, digest, digest_under, secret) \
            VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)";
        let server = ctx.settings_if_given::<ServerKey>();
        let (hash, digest, secret) = match self.minted {
            // A command that has no server key leaves the digest to the first use of the key.
            Minted::Bearer { key, hash } => (hash.as_str(), server.map(|server| Digests::new(server).of(key)), None),
            Minted::Signer(signer) => ("", None, Some(signer.boxed(server, tenant.unwrap_or(ctx.caller.tenant))?)),
        };
        let id = self.minted.id();
        let Grant { principal, roles, scopes } = self.grant;
        let [principal, created_by] = [principal, self.created_by].map(Principal::to_string);
        let (roles, scopes) = (roles.to_string(), scopes.to_string());
        let mut values: Vec<Value<'_>> = tenant.map(|tenant| Value::from(tenant.0)).into_iter().collect();
        values.extend([
            Value::from(id.as_str()),
            Value::from(&principal),
            Value::from(&roles),
            Value::from(&scopes),
            Value::from(hash),
            Value::from(self.created_at),
            Value::from(&created_by),
            Value::from(self.expires_at),
            Value::from(digest.as_ref().map(|stored| stored.digest.as_slice())),
            Value::from(digest.as_ref().map(|stored| stored.under.as_str())),
            Value::from(secret.as_deref()),
        ]);
        tx.execute(INSERT, &values).await.map(drop)
    }
}

/// The row of a key that somebody presents; the tenant is not known before it is found.
pub(crate) struct FindKey(pub(crate) KeyId);

pub(crate) struct FoundKey {
    pub(crate) caller: Caller,
    pub(crate) hash: String,
    pub(crate) digest: Option<StoredDigest>,
    /// In its box, for a key that signs.
    pub(crate) secret: Option<Vec<u8>>,
    pub(crate) expires_at: Option<Time>,
    pub(crate) revoked_at: Option<Time>,
}

impl Work for FindKey {
    type Output = Option<FoundKey>;

    fn mode(&self) -> Mode {
        Mode::Read
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Option<FoundKey>> {
        const SELECT: &str = "SELECT k.tenant, t.tenant_id, k.principal, k.roles, k.scopes, k.hash, k.expires_at, \
                              k.revoked_at, k.digest, k.digest_under, k.secret \
                              FROM api_keys k JOIN tenants t ON t.tenant = k.tenant WHERE k.key_id = $1";
        let row = tx.query_opt(SELECT, &[Value::from(self.0.as_str())]).await?;
        row.as_ref().map(|row| FoundKey::read(self.0, row)).transpose()
    }
}

impl FoundKey {
    fn read(id: KeyId, row: &Row) -> Result<Self> {
        let TenantId(tenant_id) = TenantId::from_slice(row.bytes(1)?)?;
        Ok(Self {
            caller: caller(Tenant(row.int(0)?), tenant_id, Grant::read(row, 2)?, Some(id)),
            hash: row.text(5)?.to_owned(),
            expires_at: row.time_opt(6)?,
            revoked_at: row.time_opt(7)?,
            digest: match (row.bytes_opt(8)?, row.text_opt(9)?) {
                // Of another length it is none of ours, and the hash decides.
                (Some(digest), Some(under)) => {
                    digest.try_into().ok().map(|digest| StoredDigest { digest, under: under.to_owned() })
                }
                _ => None,
            },
            secret: row.bytes_opt(10)?.map(<[u8]>::to_vec),
        })
    }

    /// Why it opens nothing any more, for the log.
    pub(crate) fn ended(&self, now: Time) -> Option<&'static str> {
        if self.revoked_at.is_some() {
            return Some("revoked");
        }
        is_past(self.expires_at, now).then_some("expired")
    }
}

/// Gives a key the digest that it was made without, or that another server key has made useless.
pub(crate) struct GiveDigest {
    pub(crate) id: KeyId,
    pub(crate) digest: StoredDigest,
}

impl Work for GiveDigest {
    type Output = ();

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<()> {
        const UPDATE: &str = "UPDATE api_keys SET digest = $2, digest_under = $3 WHERE key_id = $1";
        let StoredDigest { digest, under } = &self.digest;
        let values = [Value::from(self.id.as_str()), Value::from(digest.as_slice()), Value::from(under)];
        tx.execute(UPDATE, &values).await.map(drop)
    }
}

pub(crate) fn is_past(expires_at: Option<Time>, now: Time) -> bool {
    expires_at.is_some_and(|expires_at| expires_at <= now)
}

pub(crate) fn caller(tenant: Tenant, tenant_id: Uuid, grant: Grant, key: Option<KeyId>) -> Caller {
    let Grant { principal, roles, scopes } = grant;
    Caller { tenant, tenant_id, principal, roles, scopes, key }
}
