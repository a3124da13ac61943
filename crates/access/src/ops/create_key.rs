//! Create a key. Its text is in the answer and nowhere else, so a lost answer is a lost key: revoke it, make another.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{
    Entropy, Error, Example, KeyId, OperationSpec, Principal, PrincipalKind, Result, Role, Roles, Route, Scope, Scopes,
    Tenant, Time,
};
use waybill_store::{Ctx, Operation, Reach, Reply, Tx};

use crate::hash::Minted;
use crate::key::{Key, KeyText};
use crate::keys::{Grant, NewKey};
use crate::signing::{self, MintedSigner, SecretText};
use crate::tenant;

/// Ten years; a key for longer is one without an end.
const LIFETIME_SECONDS_MAX: u64 = 10 * 365 * 24 * 60 * 60;

/// What an SQS client usually does.
const SQS_SCOPES: [Scope; 3] = [Scope::QueuesSend, Scope::QueuesReceive, Scope::QueuesManage];

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateKey {
    /// Who the bearer acts as: `kind:id`, as in `agent:alice` or `worker:builder-1`.
    pub principal: Principal,
    /// What the bearer may do. Left out, it follows from the principal's kind: worker for workers, system for systems,
    /// agent for the others; admin is never given unless named.
    #[serde(default)]
    pub role: Option<Role>,
    /// Several roles at once, instead of `role`.
    #[serde(default)]
    pub roles: Option<Vec<Role>>,
    /// Narrows what the roles allow. Left out, the key gets the scopes its roles usually need. `admin:write` stands for
    /// any of them, `admin:read` for any where nothing is written.
    #[serde(default)]
    pub scopes: Option<Vec<Scope>>,
    /// After this many seconds the key opens nothing. Left out, it is good until it is revoked.
    #[serde(default)]
    #[schemars(range(min = 1, max = LIFETIME_SECONDS_MAX))]
    pub expires_in_seconds: Option<u64>,
    /// The tenant the key is for, by name or id. Left out, it is your own; only admins of the default tenant may name one.
    #[serde(default)]
    pub tenant: Option<String>,
    /// True for a key of SQS clients: an access key id and a secret access key, which sign requests instead of coming with
    /// them. Its scopes, if you name none, are `queues:send`, `queues:receive` and `queues:manage`.
    #[serde(default)]
    pub sqs: bool,

    #[serde(skip)]
    minted: Option<Minted>,
}

/// A new key. Its secret is shown this once and cannot be had again.
#[derive(Debug, Serialize, JsonSchema)]
pub struct CreatedKey {
    /// Names the key in lists and logs; not a secret.
    pub key_id: KeyId,
    /// The key itself, for `Authorization: Bearer`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<KeyText>,
    /// What an SQS client calls the key; not a secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access_key_id: Option<String>,
    /// What an SQS client signs with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_access_key: Option<SecretText>,
    pub principal: Principal,
    pub roles: Vec<Role>,
    pub scopes: Vec<Scope>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
}

impl CreatedKey {
    /// What comes after `Bearer `; nothing for a key that signs.
    pub fn bearer(&self) -> &str {
        self.key.as_ref().map_or("", KeyText::expose)
    }

    pub(super) fn new(minted: &Minted, grant: Grant, expires_at: Option<Time>) -> Self {
        let (key, signer) = match minted {
            Minted::Bearer { key, .. } => (Some(key.reveal()), None),
            Minted::Signer(signer) => (None, Some(signer)),
        };
        Self {
            key_id: minted.id(),
            key,
            access_key_id: signer.map(|signer| signing::access_key_id(signer.id)),
            secret_access_key: signer.map(MintedSigner::reveal),
            principal: grant.principal,
            roles: grant.roles.iter().collect(),
            scopes: grant.scopes.iter().collect(),
            expires_at,
        }
    }
}

impl CreateKey {
    fn grant(&self) -> Result<Grant> {
        let roles = match (&self.role, &self.roles) {
            (Some(_), Some(_)) => return Err(Error::invalid("Name `role` or `roles`, not both.")),
            (Some(role), None) => Roles::new([*role]),
            (None, Some(roles)) => Roles::new(roles.iter().copied()),
            (None, None) => Roles::new([Role::default_for(self.principal.kind)]),
        };
        let scopes = match &self.scopes {
            Some(scopes) => Scopes::new(scopes.iter().copied()),
            None if self.sqs => Scopes::new(SQS_SCOPES),
            None => Scopes::new(roles.iter().flat_map(|role| role.default_scopes().iter().copied())),
        };
        if roles.is_empty() || scopes.is_empty() {
            return Err(Error::invalid("A key without a role or without a scope could do nothing."));
        }
        Ok(Grant { principal: self.principal.clone(), roles, scopes })
    }

    fn lifetime(&self) -> Result<Option<Duration>> {
        match self.expires_in_seconds {
            Some(seconds) if !(1..=LIFETIME_SECONDS_MAX).contains(&seconds) => {
                Err(Error::invalid(format!("`expires_in_seconds` is between 1 and {LIFETIME_SECONDS_MAX}.")))
            }
            seconds => Ok(seconds.map(Duration::from_secs)),
        }
    }

    async fn tenant(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Tenant> {
        let Some(named) = &self.tenant else { return Ok(ctx.caller.tenant) };
        ctx.caller.require_operator("make keys for a named tenant")?;
        tenant::find(tx, named).await
    }
}

impl Operation for CreateKey {
    const SPEC: OperationSpec = OperationSpec {
        name: "create_key",
        domain: "admin",
        route: Route::post("/admin/keys"),
        tool: false,
        roles: &[Role::Admin],
        scopes: &[Scope::AdminWrite],
        status: 201,
        title: "Create an API key",
        description: "Makes a key for a principal. The answer is the only place where the key can be read: keep it.",
        example: Example {
            arguments: r#"{"principal": "agent:alice", "expires_in_seconds": 2592000}"#,
            answer: r#"{"key_id": "7hQ2mZ4kP9xA", "key": "aga_7hQ2mZ4kP9xA_…", "principal": "agent:alice",
                "roles": ["agent"], "scopes": ["tasks:read", "tasks:write", "receipts:read", "receipts:ack"],
                "expires_at": "2026-02-04T12:30:00.000000Z"}"#,
        },
        ..OperationSpec::WRITE
    };
    /// An operator makes the first key of another tenant.
    const REACH: Reach = Reach::System;
    const PREPARES: bool = true;
    type Output = CreatedKey;

    fn prepare(&mut self, entropy: &dyn Entropy) -> Result<()> {
        self.grant()?;
        self.lifetime()?;
        self.minted = Some(match self.sqs {
            true => Minted::signer(entropy),
            false => Minted::bearer(Key::generate(entropy), entropy)?,
        });
        Ok(())
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<CreatedKey>> {
        let minted = self.minted.as_ref().ok_or_else(|| Error::internal("a key was not prepared"))?;
        let mut grant = self.grant()?;
        if self.scopes.is_none() && !self.sqs {
            grant = grant.without_later_ones_than(ctx.caller);
        }
        grant.must_be_within(ctx.caller)?;
        if grant.principal.kind == PrincipalKind::System {
            // The server's own kind: what it says in a tenant must not be said by anybody of that tenant.
            ctx.caller.require_operator("make keys of system principals")?;
        }
        let expires_at = self.lifetime()?.map(|lifetime| ctx.now.after(lifetime));
        let tenant = self.tenant(ctx, tx).await?;
        let key = NewKey { minted, grant: &grant, created_at: ctx.now, created_by: &ctx.caller.principal, expires_at };
        key.insert(ctx, tx, Some(tenant)).await?;
        Ok(Reply::Done(CreatedKey::new(minted, grant, expires_at)))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn grant(request: Value) -> Result<(String, String)> {
        let request: CreateKey = serde_json::from_value(request).map_err(|error| Error::invalid(error.to_string()))?;
        request.lifetime()?;
        request.grant().map(|grant| (grant.roles.to_string(), grant.scopes.to_string()))
    }

    #[test]
    fn roles_follow_the_kind_and_scopes_follow_the_roles() {
        for (request, roles, scopes) in [
            (json!({"principal": "agent:a"}), "agent", "tasks:read,tasks:write,receipts:read,receipts:ack"),
            (json!({"principal": "worker:w"}), "worker", "tasks:lease,receipts:read"),
            (json!({"principal": "human:h", "role": "worker"}), "worker", "tasks:lease,receipts:read"),
            (json!({"principal": "agent:a", "sqs": true}), "agent", "queues:send,queues:receive,queues:manage"),
            (json!({"principal": "agent:a", "sqs": true, "scopes": ["queues:send"]}), "agent", "queues:send"),
            (
                json!({"principal": "agent:a", "roles": ["worker", "agent"], "scopes": ["tasks:lease"]}),
                "agent,worker",
                "tasks:lease",
            ),
        ] {
            assert_eq!(grant(request.clone()).unwrap(), (roles.to_owned(), scopes.to_owned()), "{request}");
        }
    }

    #[test]
    fn what_makes_no_key_is_refused() {
        for request in [
            json!({}),
            json!({"principal": "alice"}),
            json!({"principal": "agent:a", "role": "agent", "roles": ["agent"]}),
            json!({"principal": "agent:a", "roles": []}),
            json!({"principal": "agent:a", "scopes": []}),
            json!({"principal": "agent:a", "role": "king"}),
            json!({"principal": "agent:a", "scopes": ["tasks:fly"]}),
            json!({"principal": "agent:a", "expires_in_seconds": 0}),
            json!({"principal": "agent:a", "expires_in_seconds": -1}),
            json!({"principal": "agent:a", "expires_in_seconds": LIFETIME_SECONDS_MAX + 1}),
            json!({"principal": "agent:a", "minted": null}),
        ] {
            assert!(grant(request.clone()).is_err(), "{request}");
        }
    }
}
