//! Write an invite down. The owner signs what this answers; the broker has no key to sign with.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use waybill_kernel::{Code, Error, OperationSpec, Result, Time};
use waybill_mesh_protocol::{InviteId, MemberId, MemberKeys, MeshId, PublicKey, Slug};
use waybill_store::{Ctx, Operation, Reply, Topic, Tx, Value};

use crate::events::{self, EventKind, NewEvent};
use crate::{Settings, members, metrics, spec};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct IssueInvite {
    pub mesh: MeshId,
    pub member: MemberId,
    /// How often it may be used; once when left out.
    #[serde(default)]
    pub uses: Option<u32>,
    /// How many seconds it is good for; a day when left out.
    #[serde(default)]
    pub expires_in_s: Option<u64>,
}

/// What the owner puts into the invite and signs.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct IssuedInvite {
    pub invite_id: InviteId,
    pub mesh: MeshId,
    pub slug: Slug,
    pub owner: MemberKeys,
    pub issuer: PublicKey,
    pub uses: u32,
    pub expires_at: Time,
    pub plaintext: bool,
}

impl IssueInvite {
    fn checked(&self, settings: &Settings) -> Result<(u32, Duration)> {
        let (uses, seconds) = (self.uses.unwrap_or(1), self.expires_in_s.unwrap_or(settings.invite_s));
        if uses == 0 || i64::from(uses) > settings.invite_uses_max {
            return Err(Error::invalid(format!("`uses` is from 1 to {}.", settings.invite_uses_max)));
        }
        if seconds == 0 || seconds > settings.invite_s_max {
            return Err(Error::invalid(format!("`expires_in_s` is from 1 to {}.", settings.invite_s_max)));
        }
        Ok((uses, Duration::from_secs(seconds)))
    }
}

impl Operation for IssueInvite {
    const SPEC: OperationSpec = OperationSpec { status: 201, ..spec::write("issue_invite") };
    type Output = IssuedInvite;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<IssuedInvite>> {
        const INSERT: &str = "INSERT INTO mesh_invites (tenant, mesh_id, invite_id, issuer, issuer_key, uses, used, expires_at, \
            created_at) SELECT $1, $2, $3, $4, $5, $6, 0, $7, $8 WHERE (SELECT count(*) FROM mesh_invites \
            WHERE tenant = $1 AND mesh_id = $2 AND expires_at > $8 AND used < uses) < $9";
        const SLUG: &str = "SELECT slug FROM meshes WHERE tenant = $1 AND mesh_id = $2";
        let settings = ctx.settings::<Settings>();
        let (uses, time) = self.checked(settings)?;
        let owner = members::owner(tx, self.mesh, self.member, "invite others").await?;
        let row = tx.query_opt(SLUG, &[Value::from(self.mesh.as_bytes())]).await?;
        let slug = row.ok_or_else(|| Error::not_found("mesh"))?.text(0)?.parse()?;
        let (id, expires_at) = (InviteId(ctx.ids.next()), ctx.now.after(time));
        tx.in_turn(Topic::new("mesh.invites", ctx.caller.tenant, self.mesh.as_bytes())).await?;
        let params = [
            Value::from(self.mesh.as_bytes()),
            Value::from(id.as_bytes()),
            Value::from(self.member.as_bytes()),
            Value::from(&owner.keys.ed25519.as_bytes()[..]),
            Value::from(i64::from(uses)),
            Value::from(expires_at),
            Value::from(ctx.now),
            Value::from(settings.invites_max),
        ];
        if tx.execute(INSERT, &params).await? == 0 {
            metrics::capped("invites");
            let message =
                format!("The mesh has {} open invites, which is as many as it may have.", settings.invites_max);
            return Err(Error::new(Code::TooManyInvites, message).with("limit", settings.invites_max));
        }
        let data = json!({ "invite_id": id, "uses": uses, "expires_at": expires_at });
        events::record(ctx, tx, self.mesh, &[NewEvent::of(EventKind::InviteIssued, self.member, data)]).await?;
        Ok(Reply::Done(IssuedInvite {
            invite_id: id,
            mesh: self.mesh,
            slug,
            issuer: owner.keys.ed25519,
            owner: owner.keys,
            uses,
            expires_at,
            plaintext: owner.plaintext,
        }))
    }
}
