//! Rotate a key: a successor that grants the same, and a while in which both are good, so that nobody stands outside.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use waybill_kernel::{Code, Entropy, Error, Example, KeyId, OperationSpec, Result, Role, Route, Scope, Time};
use waybill_store::{Ctx, Operation, Reply, Row, Tx, Value};

use super::CreatedKey;
use crate::hash::Minted;
use crate::key::{self, Key};
use crate::keys::{Grant, NewKey, is_past};

const OVERLAP_SECONDS_DEFAULT: u64 = 24 * 60 * 60;
const OVERLAP_SECONDS_MAX: u64 = 30 * 24 * 60 * 60;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RotateKey {
    /// The key to replace.
    pub key_id: KeyId,
    /// For how long the old key stays good beside the new one: a day when left out, at most 30 days, 0 to end it now.
    /// It never outlives the expiry it already has.
    #[serde(default)]
    #[schemars(range(max = OVERLAP_SECONDS_MAX))]
    pub overlap_seconds: Option<u64>,

    /// One of either kind: which is wanted is known when the old key has been read.
    #[serde(skip)]
    minted: Option<[Minted; 2]>,
}

struct Old {
    grant: Grant,
    signs: bool,
    created_at: Time,
    expires_at: Option<Time>,
    revoked_at: Option<Time>,
    replaced_by: Option<String>,
}

impl Old {
    fn read(row: &Row) -> Result<Self> {
        Ok(Self {
            grant: Grant::read(row, 0)?,
            created_at: row.time(3)?,
            expires_at: row.time_opt(4)?,
            revoked_at: row.time_opt(5)?,
            replaced_by: row.text_opt(6)?.map(str::to_owned),
            signs: row.bool(7)?,
        })
    }

    fn must_be_live(&self, now: Time) -> Result<()> {
        if self.revoked_at.is_some() || is_past(self.expires_at, now) {
            return Err(conflict("The key has ended and cannot be rotated; create another."));
        }
        match &self.replaced_by {
            Some(successor) => {
                Err(conflict("The key was rotated already; rotate its successor.")
                    .with("replaced_by", successor.as_str()))
            }
            None => Ok(()),
        }
    }

    /// The successor is made for as long as the old key was.
    fn lifetime(&self) -> Option<Duration> {
        self.expires_at.map(|expires_at| expires_at.since(self.created_at))
    }
}

fn conflict(message: &str) -> Error {
    Error::new(Code::InvalidStateTransition, message)
}

impl RotateKey {
    fn overlap(&self) -> Result<Duration> {
        match self.overlap_seconds.unwrap_or(OVERLAP_SECONDS_DEFAULT) {
            seconds @ 0..=OVERLAP_SECONDS_MAX => Ok(Duration::from_secs(seconds)),
            _ => Err(Error::invalid(format!("`overlap_seconds` is at most {OVERLAP_SECONDS_MAX}."))),
        }
    }

    async fn old(&self, tx: &mut Tx<'_>) -> Result<Old> {
        const SELECT: &str = "SELECT principal, roles, scopes, created_at, expires_at, revoked_at, replaced_by, \
                              secret IS NOT NULL FROM api_keys WHERE tenant = $1 AND key_id = $2";
        let row = tx.query_opt(SELECT, &[Value::from(self.key_id.as_str())]).await?;
        Old::read(&row.ok_or_else(|| Error::not_found("key"))?)
    }

    /// Guarded by what `must_be_live` saw: of two rotations, or a rotation and a revocation, one finds no row.
    async fn retire(&self, tx: &mut Tx<'_>, successor: KeyId, expires_at: Time) -> Result<()> {
        const UPDATE: &str = "UPDATE api_keys SET expires_at = $3, replaced_by = $4 \
                              WHERE tenant = $1 AND key_id = $2 AND revoked_at IS NULL AND replaced_by IS NULL";
        let values = [Value::from(self.key_id.as_str()), Value::from(expires_at), Value::from(successor.as_str())];
        match tx.execute(UPDATE, &values).await? {
            1 => {
                tx.wake(key::end_of(self.key_id), u32::MAX);
                Ok(())
            }
            _ => Err(conflict("The key was rotated or revoked at this moment by another request.")),
        }
    }
}

impl Operation for RotateKey {
    const SPEC: OperationSpec = OperationSpec {
        name: "rotate_key",
        domain: "admin",
        route: Route::post("/admin/keys/{key_id}/rotate"),
        tool: false,
        destructive: true,
        roles: &[Role::Admin],
        scopes: &[Scope::AdminWrite],
        status: 201,
        title: "Rotate an API key",
        description: "Makes a key with the same principal, roles and scopes and lets the old one end after the overlap. \
                      The answer is the only place where the new key can be read: keep it.",
        example: Example {
            arguments: r#"{"key_id": "7hQ2mZ4kP9xA", "overlap_seconds": 3600}"#,
            answer: r#"{"key_id": "9xA7hQ2mZ4kP", "key": "aga_9xA7hQ2mZ4kP_…", "principal": "agent:alice",
                "roles": ["agent"], "scopes": ["tasks:read", "tasks:write", "receipts:read", "receipts:ack"]}"#,
        },
        ..OperationSpec::WRITE
    };
    const PREPARES: bool = true;
    type Output = CreatedKey;

    fn prepare(&mut self, entropy: &dyn Entropy) -> Result<()> {
        self.overlap()?;
        self.minted = Some([Minted::bearer(Key::generate(entropy), entropy)?, Minted::signer(entropy)]);
        Ok(())
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<CreatedKey>> {
        let [bearer, signer] = self.minted.as_ref().ok_or_else(|| Error::internal("a key was not prepared"))?;
        let old = self.old(tx).await?;
        let minted = if old.signs { signer } else { bearer };
        old.must_be_live(ctx.now)?;
        old.grant.must_be_within(ctx.caller)?;
        let overlap_end = ctx.now.after(self.overlap()?);
        let old_end = old.expires_at.map_or(overlap_end, |expires_at| expires_at.min(overlap_end));
        self.retire(tx, minted.id(), old_end).await?;

        let expires_at = old.lifetime().map(|lifetime| ctx.now.after(lifetime));
        let key =
            NewKey { minted, grant: &old.grant, created_at: ctx.now, created_by: &ctx.caller.principal, expires_at };
        key.insert(ctx, tx, None).await?;
        Ok(Reply::Done(CreatedKey::new(minted, old.grant, expires_at)))
    }
}
