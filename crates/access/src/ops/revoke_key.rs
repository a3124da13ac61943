//! Revoke a key, at once and for good. The server that carries it out tells the others; who does not hear of it finds out
//! within `key_recheck`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Error, Example, KeyId, OperationSpec, Result, Role, Route, Scope, Time};
use waybill_store::{Ctx, Operation, Reply, Tx, Value};

use crate::key;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RevokeKey {
    /// The key to end.
    pub key_id: KeyId,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Revoked {
    /// False when it had been revoked before.
    pub ok: bool,
    /// When it was first revoked.
    pub revoked_at: Time,
}

impl Operation for RevokeKey {
    const SPEC: OperationSpec = OperationSpec {
        name: "revoke_key",
        domain: "admin",
        route: Route::post("/admin/keys/{key_id}/revoke"),
        tool: false,
        destructive: true,
        repeatable: true,
        relieves: true,
        roles: &[Role::Admin],
        scopes: &[Scope::AdminWrite],
        title: "Revoke an API key",
        description: "Ends a key for good: at once on this server, calls that wait and streams included, and within a minute on every other. Repeating it changes nothing.",
        example: Example {
            arguments: r#"{"key_id": "7hQ2mZ4kP9xA"}"#,
            answer: r#"{"ok": true, "revoked_at": "2026-01-05T12:30:04.250000Z"}"#,
        },
        ..OperationSpec::WRITE
    };
    type Output = Revoked;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Revoked>> {
        const UPDATE: &str =
            "UPDATE api_keys SET revoked_at = $3 WHERE tenant = $1 AND key_id = $2 AND revoked_at IS NULL";
        const SELECT: &str = "SELECT revoked_at FROM api_keys WHERE tenant = $1 AND key_id = $2";
        let key_id = Value::from(self.key_id.as_str());
        // Also when it was revoked before, by somebody of whom this process may not have heard.
        tx.wake(key::end_of(self.key_id), u32::MAX);
        if tx.execute(UPDATE, &[key_id, Value::from(ctx.now)]).await? == 1 {
            return Ok(Reply::Done(Revoked { ok: true, revoked_at: ctx.now }));
        }
        let row = tx.query_opt(SELECT, &[key_id]).await?.ok_or_else(|| Error::not_found("key"))?;
        Ok(Reply::Done(Revoked { ok: false, revoked_at: row.time(0)? }))
    }
}
