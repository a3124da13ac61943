//! Tenants: whose rows are whose.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::id::Uuid;
use waybill_kernel::{Error, Mode, Result, Tenant, Time};
use waybill_store::{Ctx, Row, Store, Tx, Value, Work};

pub const DEFAULT_TENANT: Tenant = Tenant::DEFAULT;
pub(crate) const DEFAULT_TENANT_NAME: &str = "default";

waybill_kernel::id_type!(
    /// A tenant at the edge.
    TenantId
);

/// What a tenant may use; the numbers belong to the limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Tier {
    Free,
    Paid,
    Enterprise,
    Unlimited,
}

impl Tier {
    pub const ALL: &'static [Tier] = &[Tier::Free, Tier::Paid, Tier::Enterprise, Tier::Unlimited];

    pub const fn as_str(self) -> &'static str {
        match self {
            Tier::Free => "free",
            Tier::Paid => "paid",
            Tier::Enterprise => "enterprise",
            Tier::Unlimited => "unlimited",
        }
    }

    fn stored(text: &str) -> Result<Self> {
        let found = Tier::ALL.iter().copied().find(|tier| tier.as_str() == text);
        found.ok_or_else(|| Error::internal(format!("{text:?} is stored as a tier")))
    }
}

/// A tenant as the API shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct TenantView {
    pub tenant_id: TenantId,
    pub name: String,
    pub tier: Tier,
    pub created_at: Time,
}

impl TenantView {
    /// Columns: tenant_id, name, tier, created_at.
    pub(crate) fn read(row: &Row) -> Result<Self> {
        Ok(Self {
            tenant_id: TenantId::from_slice(row.bytes(0)?)?,
            name: row.text(1)?.to_owned(),
            tier: Tier::stored(row.text(2)?)?,
            created_at: row.time(3)?,
        })
    }
}

/// Adds the default tenant; false when it is there already. Of several nodes that start at once exactly one adds it: the
/// others wait here for its commit.
pub(crate) async fn add_default(tx: &mut Tx<'_>, id: TenantId, now: Time) -> Result<bool> {
    const INSERT: &str = "INSERT INTO tenants (tenant, tenant_id, name, tier, created_at) \
                          VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING";
    let written = tx
        .execute(
            INSERT,
            &[
                Value::from(DEFAULT_TENANT.0),
                Value::from(id.as_bytes()),
                Value::from(DEFAULT_TENANT_NAME),
                Value::from(Tier::Unlimited.as_str()),
                Value::from(now),
            ],
        )
        .await?;
    Ok(written == 1)
}

/// Adds a tenant under the next number; false when the name is taken.
pub(crate) async fn add(tx: &mut Tx<'_>, tenant: &TenantView) -> Result<bool> {
    // Tenants are made one at a time: without this lock two would read the same highest number.
    const TAKE_TURN: &str = "UPDATE tenants SET name = name WHERE tenant = $1";
    // The WHERE keeps SQLite from reading ON as the beginning of a join.
    const INSERT: &str = "INSERT INTO tenants (tenant, tenant_id, name, tier, created_at) \
                          SELECT MAX(tenant) + 1, $1, $2, $3, $4 FROM tenants WHERE tenant > 0 \
                          ON CONFLICT (name) DO NOTHING";
    if tx.execute(TAKE_TURN, &[Value::from(DEFAULT_TENANT.0)]).await? != 1 {
        return Err(Error::internal("there is no default tenant"));
    }
    let values = [
        Value::from(tenant.tenant_id.as_bytes()),
        Value::from(&tenant.name),
        Value::from(tenant.tier.as_str()),
        Value::from(tenant.created_at),
    ];
    Ok(tx.execute(INSERT, &values).await? == 1)
}

pub(crate) async fn id_of(tx: &mut Tx<'_>, tenant: Tenant) -> Result<Option<TenantId>> {
    const SELECT: &str = "SELECT tenant_id FROM tenants WHERE tenant = $1";
    let row = tx.query_opt(SELECT, &[Value::from(tenant.0)]).await?;
    row.map(|row| TenantId::from_slice(row.bytes(0)?)).transpose()
}

/// The tenant of this name or id, for the program's own work.
pub async fn find_tenant(store: &Store, name_or_id: &str) -> Result<Tenant> {
    store.system().run(Find(name_or_id.to_owned())).await
}

struct Find(String);

impl Work for Find {
    type Output = Tenant;

    fn mode(&self) -> Mode {
        Mode::Read
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Tenant> {
        find(tx, &self.0).await
    }
}

/// By name or id; no name has the form of an id.
pub(crate) async fn find(tx: &mut Tx<'_>, name_or_id: &str) -> Result<Tenant> {
    let row = match Uuid::try_parse(name_or_id) {
        Ok(id) => {
            const BY_ID: &str = "SELECT tenant FROM tenants WHERE tenant_id = $1";
            tx.query_opt(BY_ID, &[Value::from(id.as_bytes().as_slice())]).await?
        }
        Err(_) => {
            const BY_NAME: &str = "SELECT tenant FROM tenants WHERE name = $1";
            tx.query_opt(BY_NAME, &[Value::from(name_or_id)]).await?
        }
    };
    row.ok_or_else(|| Error::not_found("tenant"))?.int(0).map(Tenant)
}
