//! List tenants, for those who run the server.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Door, Method, Mode, OperationSpec, Result, Role, Scope};
use waybill_store::{Ctx, Operation, Reach, Reply, Tx, Value};

use crate::page;
use crate::tenant::{self, TenantView};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListTenants {
    /// How many tenants at most; 50 when left out, 200 when more is asked for.
    #[serde(default)]
    #[schemars(range(min = 1))]
    pub limit: Option<u32>,
    /// `next_cursor` of the page before.
    #[serde(default)]
    pub cursor: Option<String>,
}

/// All tenants, by name.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Tenants {
    pub tenants: Vec<TenantView>,
    /// Where the next page begins; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

impl Operation for ListTenants {
    const SPEC: OperationSpec = OperationSpec {
        name: "list_tenants",
        door: Door::Admin,
        method: Method::Get,
        path: "/admin/tenants",
        tool: false,
        mode: Mode::Read,
        roles: &[Role::Admin],
        scopes: &[Scope::AdminRead],
        status: 200,
        title: "List tenants",
        description: "Shows all tenants by name. For admins of the default tenant.",
    };
    const REACH: Reach = Reach::System;
    type Output = Tenants;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Tenants>> {
        const SELECT: &str =
            "SELECT tenant_id, name, tier, created_at FROM tenants WHERE name > $1 ORDER BY name LIMIT $2";
        tenant::require_operator(ctx.caller, "see tenants")?;
        let size = page::size(self.limit)?;
        // Names are unique and never change, so the last one shown is the place itself; no name is empty.
        let after = self.cursor.as_deref().unwrap_or_default();
        let rows = tx.query(SELECT, &[Value::from(after), Value::from(page::rows_to_read(size))]).await?;
        let mut tenants = rows.iter().map(TenantView::read).collect::<Result<Vec<_>>>()?;
        let next_cursor = page::cut(&mut tenants, size, |tenant| tenant.name.clone());
        Ok(Reply::Done(Tenants { tenants, next_cursor }))
    }
}
