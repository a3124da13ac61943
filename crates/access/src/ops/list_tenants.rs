//! List tenants, for those who run the server.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Example, OperationSpec, Result, Role, Route, Scope, cursor};
use waybill_store::{Ctx, Operation, Reach, Reply, Tx, Value};

use crate::page;
use crate::tenant::TenantView;

/// Operators see all tenants, so a cursor is good for each of them.
const SCOPE: &[&[u8]] = &[b"list_tenants"];

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

/// All tenants, oldest first.
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
        domain: "admin",
        route: Route::get("/admin/tenants"),
        tool: false,
        roles: &[Role::Admin],
        scopes: &[Scope::AdminRead],
        title: "List tenants",
        description: "Shows all tenants, oldest first. For admins of the default tenant.",
        example: Example {
            arguments: r#"{"limit": 1}"#,
            answer: r#"{"tenants": [{"tenant_id": "0198c0de-1a2b-7c3d-8e4f-5a6b7c8d9e10", "name": "acme", "tier": "paid",
                "created_at": "2026-01-05T12:30:00.000000Z"}], "next_cursor": "AAAAAAAAAAI"}"#,
        },
        ..OperationSpec::READ
    };
    const REACH: Reach = Reach::System;
    type Output = Tenants;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Tenants>> {
        const SELECT: &str =
            "SELECT tenant_id, name, tier, created_at FROM tenants WHERE tenant_id > $1 ORDER BY tenant_id LIMIT $2";
        ctx.caller.require_operator("see tenants")?;
        let size = page::size(self.limit)?;
        // Ids sort by creation, and the empty one before all.
        let after = self.cursor.as_deref().map_or_else(|| Ok(Vec::new()), |cursor| cursor::decode(SCOPE, cursor))?;
        let rows = tx.query(SELECT, &[Value::from(after.as_slice()), Value::from(page::rows_to_read(size))]).await?;
        let mut tenants = rows.iter().map(TenantView::read).collect::<Result<Vec<_>>>()?;
        let next_cursor = page::cut(&mut tenants, size, |tenant| cursor::encode(SCOPE, tenant.tenant_id.as_bytes()));
        Ok(Reply::Done(Tenants { tenants, next_cursor }))
    }
}
