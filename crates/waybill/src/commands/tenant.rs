//! `waybill tenant …`

use serde_json::json;
use waybill_kernel::Result;

use super::session::Session;
use crate::cli::Tenant;
use crate::output;

pub async fn run(command: Tenant) -> Result<()> {
    match command {
        Tenant::Create { name, tier, reach } => {
            let mut input = json!({ "name": name });
            if let Some(tier) = tier {
                input["tier"] = json!(tier);
            }
            let session = Session::open(&reach).await?;
            let answer = session.call("create_tenant", input).await;
            session.close().await;
            let answer = answer?;
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
            let session = Session::open(&reach).await?;
            let tenants = session.call_all("list_tenants", "tenants").await;
            session.close().await;
            let tenants = tenants?;
            if reach.json {
                return output::json(&json!({ "tenants": tenants }));
            }
            output::table(&["tenant_id", "name", "tier", "created_at"], &tenants)
        }
    }
}
