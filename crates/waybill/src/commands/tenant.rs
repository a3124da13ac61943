//! `waybill tenant …`

use serde_json::json;
use waybill_kernel::Result;

use super::session::{call, call_all};
use crate::cli::Tenant;
use crate::output;

const TENANTS: &[&str] = &["tenant_id", "name", "tier", "created_at"];

pub async fn run(command: Tenant) -> Result<()> {
    match command {
        Tenant::Create { name, tier, reach } => {
            let mut input = json!({ "name": name });
            if let Some(tier) = tier {
                input["tier"] = json!(tier);
            }
            let answer = call(&reach, "create_tenant", input).await?;
            if reach.json {
                return output::json(&answer);
            }
            output::line(&output::cell(&answer["tenant_id"]))?;
            output::note(&format!(
                "Its first key: waybill key create --tenant {} --principal human:admin --role admin",
                output::cell(&answer["name"])
            ))
        }
        Tenant::List { reach } => {
            let tenants = call_all(&reach, "list_tenants", "tenants").await?;
            output::list(reach.json, &json!({ "tenants": tenants }), "tenants", TENANTS)
        }
    }
}
