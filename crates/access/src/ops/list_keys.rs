//! List keys: newest first, ended ones included, secrets and hashes never.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Caller, Example, KeyId, OperationSpec, Principal, Result, Role, Route, Scope, Time, cursor};
use waybill_store::{Ctx, Operation, Reply, Row, Tx, Value};

use crate::keys::{Grant, stored, stored_principal};
use crate::page;
use crate::signing::access_key_id;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListKeys {
    /// How many keys at most; 50 when left out, 200 when more is asked for.
    #[serde(default)]
    #[schemars(range(min = 1))]
    pub limit: Option<u32>,
    /// `next_cursor` of the page before.
    #[serde(default)]
    pub cursor: Option<String>,
}

/// The tenant's keys, newest first.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Keys {
    pub keys: Vec<KeyView>,
    /// Where the next page begins; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct KeyView {
    pub key_id: KeyId,
    /// What an SQS client calls it, if it is one's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access_key_id: Option<String>,
    pub principal: Principal,
    pub roles: Vec<Role>,
    pub scopes: Vec<Scope>,
    pub created_at: Time,
    /// The principal that made it.
    pub created_by: Principal,
    /// When it ends or ended by itself.
    pub expires_at: Option<Time>,
    /// When somebody ended it.
    pub revoked_at: Option<Time>,
    /// The key that took its place by rotation.
    pub replaced_by: Option<KeyId>,
}

impl KeyView {
    fn read(row: &Row) -> Result<Self> {
        let grant = Grant::read(row, 1)?;
        let key_id = stored(row.text(0)?)?;
        Ok(Self {
            key_id,
            access_key_id: row.bool(9)?.then(|| access_key_id(key_id)),
            principal: grant.principal,
            roles: grant.roles.iter().collect(),
            scopes: grant.scopes.iter().collect(),
            created_at: row.time(4)?,
            created_by: stored_principal(row.text(5)?)?,
            expires_at: row.time_opt(6)?,
            revoked_at: row.time_opt(7)?,
            replaced_by: row.text_opt(8)?.map(stored).transpose()?,
        })
    }

    fn cursor(&self, caller: &Caller) -> String {
        let position = [&self.created_at.micros().to_be_bytes()[..], self.key_id.as_str().as_bytes()].concat();
        cursor::encode(&scope(caller), &position)
    }
}

fn scope(caller: &Caller) -> [&[u8]; 2] {
    [b"list_keys", caller.tenant_id.as_bytes()]
}

/// The last row of the page before: neither of its two columns ever changes.
fn position(cursor: Option<&str>, caller: &Caller) -> Result<(i64, String)> {
    let Some(cursor) = cursor else { return Ok((i64::MAX, String::new())) };
    let position = cursor::decode(&scope(caller), cursor)?;
    let (time, id) = position.split_first_chunk().ok_or_else(cursor::refused)?;
    Ok((i64::from_be_bytes(*time), String::from_utf8_lossy(id).into_owned()))
}

impl Operation for ListKeys {
    const SPEC: OperationSpec = OperationSpec {
        name: "list_keys",
        domain: "admin",
        route: Route::get("/admin/keys"),
        tool: false,
        roles: &[Role::Admin],
        scopes: &[Scope::AdminRead],
        title: "List API keys",
        description: "Shows the keys of your tenant, newest first, with expired and revoked ones. Never shows a secret.",
        example: Example {
            arguments: r#"{"limit": 1}"#,
            answer: r#"{"keys": [{"key_id": "7hQ2mZ4kP9xA", "principal": "agent:alice", "roles": ["agent"],
                "scopes": ["tasks:read", "tasks:write", "receipts:read", "receipts:ack"],
                "created_at": "2026-01-05T12:30:00.000000Z", "created_by": "human:admin",
                "expires_at": "2026-02-04T12:30:00.000000Z", "revoked_at": null, "replaced_by": null}],
                "next_cursor": "AAZDSm7jAAA3aFEybVo0a1A5eEE"}"#,
        },
        ..OperationSpec::READ
    };
    type Output = Keys;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Keys>> {
        const SELECT: &str = "SELECT key_id, principal, roles, scopes, created_at, created_by, expires_at, revoked_at, \
                              replaced_by, secret IS NOT NULL FROM api_keys WHERE tenant = $1 AND (created_at, key_id) < ($2, $3) \
                              ORDER BY created_at DESC, key_id DESC LIMIT $4";
        let size = page::size(self.limit)?;
        let (time, id) = position(self.cursor.as_deref(), ctx.caller)?;
        let values = [Value::from(time), Value::from(&id), Value::from(page::rows_to_read(size))];
        let rows = tx.query(SELECT, &values).await?;
        let mut keys = rows.iter().map(KeyView::read).collect::<Result<Vec<_>>>()?;
        let next_cursor = page::cut(&mut keys, size, |key| key.cursor(ctx.caller));
        Ok(Reply::Done(Keys { keys, next_cursor }))
    }
}
