//! `waybill key …`

use serde_json::{Value as Json, json};
use waybill_kernel::Result;

use super::session::{call, call_all};
use crate::cli::{Key, Reach};
use crate::output;

const KEYS: &[&str] = &["key_id", "principal", "roles", "scopes", "created_at", "expires_at", "revoked_at"];

pub async fn run(command: Key) -> Result<()> {
    match command {
        Key::Create { principal, role, scope, expires_in, tenant, sqs, reach } => {
            let mut input = json!({ "principal": principal });
            if !role.is_empty() {
                input["roles"] = json!(role);
            }
            if !scope.is_empty() {
                input["scopes"] = json!(scope);
            }
            if let Some(seconds) = expires_in {
                input["expires_in_seconds"] = json!(seconds);
            }
            if let Some(tenant) = tenant {
                input["tenant"] = json!(tenant);
            }
            if sqs {
                input["sqs"] = json!(true);
            }
            show_key(&reach, &call(&reach, "create_key", input).await?)
        }
        Key::List { reach } => {
            let keys = call_all(&reach, "list_keys", "keys").await?;
            output::list(reach.json, &json!({ "keys": keys }), "keys", KEYS)
        }
        Key::Rotate { key_id, overlap, reach } => {
            let mut input = json!({ "key_id": key_id });
            if let Some(seconds) = overlap {
                input["overlap_seconds"] = json!(seconds);
            }
            show_key(&reach, &call(&reach, "rotate_key", input).await?)
        }
        Key::Revoke { key_id, reach } => {
            let answer = call(&reach, "revoke_key", json!({ "key_id": key_id })).await?;
            let done = if answer["ok"] == true { "Revoked" } else { "Had been revoked already" };
            let text = format!("{done}, at {}.", output::cell(&answer["revoked_at"]));
            output::answer(reach.json, &answer, &text)
        }
    }
}

fn show_key(reach: &Reach, answer: &Json) -> Result<()> {
    if reach.json {
        return output::json(answer);
    }
    match &answer["access_key_id"] {
        Json::Null => output::line(&output::cell(&answer["key"]))?,
        id => {
            output::line(&format!("aws_access_key_id = {}", output::cell(id)))?;
            output::line(&format!("aws_secret_access_key = {}", output::cell(&answer["secret_access_key"])))?;
        }
    }
    let note = format!(
        "Key {} of {}, roles {}. It is shown only this once.",
        output::cell(&answer["key_id"]),
        output::cell(&answer["principal"]),
        output::cell(&answer["roles"])
    );
    output::note(&note)
}
