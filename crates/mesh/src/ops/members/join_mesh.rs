//! Join a mesh. What the joiner has to prove is checked before the transaction, which then uses the invite up and makes the member in
//! one step: an invite is never used without a member, nor a member made without an invite.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use waybill_kernel::{Code, Error, OperationSpec, Result, Time};
use waybill_mesh_protocol::challenge::ChallengeNonce;
use waybill_mesh_protocol::join::{JoinProof, Joining};
use waybill_mesh_protocol::{Invite, MemberId, MemberKeys, MemberName, MeshId};
use waybill_store::{Answered, Ctx, Flow, Operation, Procedure, Reply, Tx, Value};

use super::ask_to_join::secret;
use crate::events::{self, EventKind, NewEvent};
use crate::{Settings, join_secret, members, rows, spec};

/// A member that joins for some time stays at most a year.
const TTL_S_MAX: u64 = 31_536_000;

/// For a guest of the tenant of the invite's mesh ([`crate::guest`]).
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JoinMesh {
    /// As the owner has signed it.
    pub invite: String,
    pub name: MemberName,
    pub keys: MemberKeys,
    /// The nonce of the challenge.
    pub nonce: ChallengeNonce,
    /// The answer to the challenge.
    pub proof: JoinProof,
    /// Leave the mesh after so many seconds.
    #[serde(default)]
    pub ttl_s: Option<u64>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Joined {
    pub mesh_id: MeshId,
    pub slug: String,
    pub member_id: MemberId,
    pub name: String,
    pub plaintext: bool,
    /// Of the mesh's owner, as the broker knows them now.
    pub owner: MemberKeys,
    pub joined_at: Time,
}

impl Procedure for JoinMesh {
    const SPEC: OperationSpec = OperationSpec { status: 201, ..spec::write("join_mesh") };
    const REPLAYS: bool = true;
    type Output = Joined;

    async fn call(self, flow: &Flow<'_>) -> Answered<Joined> {
        let store = flow.home();
        let now = store.now();
        let invite = Invite::parse_and_verify(&self.invite, now)?;
        join_secret::check_age(&self.nonce, now, store.settings().get::<Settings>().join_challenge_s)?;
        if self.ttl_s.is_some_and(|ttl| ttl == 0 || ttl > TTL_S_MAX) {
            return Err(Error::invalid(format!("`ttl_s` is from 1 to {TTL_S_MAX}.")));
        }
        let terms = flow.run(store, JoinTerms { mesh: invite.mesh }).await?;
        let Reply::Done(Terms { secret }) = terms else { return Err(Error::internal("terms neither wait nor replay")) };
        let (challenge, boxes) = join_secret::challenge(&secret, self.nonce)?;
        let joining = Joining { mesh: invite.mesh, invite: invite.invite_id, name: &self.name };
        self.proof.verify(&self.keys, &challenge, joining, &boxes)?;
        let ttl = self.ttl_s.map(Duration::from_secs);
        let admit = Admit { invite, name: self.name, keys: self.keys, ttl };
        flow.run(store, admit).await.map(|reply| (reply, None))
    }
}

/// What the proof is checked with.
#[derive(Deserialize, JsonSchema)]
struct JoinTerms {
    mesh: MeshId,
}

#[derive(Serialize, JsonSchema)]
struct Terms {
    #[serde(skip)]
    #[schemars(skip)]
    secret: Vec<u8>,
}

impl Operation for JoinTerms {
    const SPEC: OperationSpec = spec::read("join_terms");
    type Output = Terms;

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Terms>> {
        Ok(Reply::Done(Terms { secret: secret(tx, self.mesh).await? }))
    }
}

/// The invite and the keys are proven.
#[derive(Deserialize, JsonSchema)]
struct Admit {
    invite: Invite,
    name: MemberName,
    keys: MemberKeys,
    ttl: Option<Duration>,
}

impl Operation for Admit {
    const SPEC: OperationSpec = spec::write("admit_member");
    const REPLAYS: bool = true;
    type Output = Joined;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Joined>> {
        let mesh = self.invite.mesh;
        // Before anything is looked at: of two that ask at the same moment with the same keys the second is to find the first. Before
        // the owner's row, too: whoever renames the owner has the turn, and then waits for that row.
        members::in_turn(ctx, tx, mesh).await?;
        if let Some(joined) = self.joined_before(tx).await? {
            return Ok(Reply::Replay(joined));
        }
        members::keep_owner(tx, mesh).await?;
        self.use_invite(ctx, tx).await?;
        let id = MemberId(ctx.ids.next());
        let new = members::NewMember { id, name: &self.name, keys: &self.keys, ttl: self.ttl };
        members::insert(ctx, tx, mesh, &new).await?;
        let data = json!({ "name": self.name, "keys": self.keys, "invite_id": self.invite.invite_id });
        events::record(ctx, tx, mesh, &[NewEvent::of(EventKind::MemberJoined, id, data)]).await?;
        self.joined(tx).await?.map(Reply::Done).ok_or_else(|| Error::internal("a member that has joined is not there"))
    }
}

impl Admit {
    /// Whoever did not get the answer joins again. Its keys are proven, so it learns nothing that it may not know.
    async fn joined_before(&self, tx: &mut Tx<'_>) -> Result<Option<Joined>> {
        match self.joined(tx).await? {
            Some(joined) if joined.name == self.name.as_str() => Ok(Some(joined)),
            _ => Ok(None),
        }
    }

    async fn joined(&self, tx: &mut Tx<'_>) -> Result<Option<Joined>> {
        const FIND: &str = "SELECT h.slug, m.member_id, m.name, h.plaintext, m.joined_at, k.ed25519, k.x25519, \
            k.x25519_signature FROM meshes h \
            JOIN mesh_members o ON o.tenant = $1 AND o.mesh_id = h.mesh_id AND o.member_id = h.owner \
            JOIN mesh_keys k ON k.tenant = $1 AND k.mesh_id = h.mesh_id AND k.ed25519 = o.ed25519 \
            JOIN mesh_members m ON m.tenant = $1 AND m.mesh_id = h.mesh_id AND m.ed25519 = $3 AND m.state = 'live' \
            JOIN mesh_keys own ON own.tenant = $1 AND own.mesh_id = h.mesh_id AND own.ed25519 = $3 \
            AND own.member_id = m.member_id WHERE h.tenant = $1 AND h.mesh_id = $2";
        let mesh = self.invite.mesh;
        let params = [Value::from(mesh.as_bytes()), Value::from(&self.keys.ed25519.as_bytes()[..])];
        let Some(row) = tx.query_opt(FIND, &params).await? else { return Ok(None) };
        Ok(Some(Joined {
            mesh_id: mesh,
            slug: row.text(0)?.to_owned(),
            member_id: MemberId::from_slice(row.bytes(1)?)?,
            name: row.text(2)?.to_owned(),
            plaintext: row.bool(3)?,
            joined_at: row.time(4)?,
            owner: rows::keys(&row, 5)?,
        }))
    }

    async fn use_invite(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<()> {
        // Whoever signed it is still the owner, with the same key.
        const USE: &str = "UPDATE mesh_invites SET used = used + 1 WHERE tenant = $1 AND mesh_id = $2 AND invite_id = $3 \
            AND issuer_key = $4 AND used < uses AND uses = $5 AND expires_at = $6 AND expires_at > $7 AND EXISTS \
            (SELECT 1 FROM meshes h JOIN mesh_members o ON o.tenant = $1 AND o.mesh_id = h.mesh_id AND o.member_id = h.owner \
            WHERE h.tenant = $1 AND h.mesh_id = mesh_invites.mesh_id AND h.owner = mesh_invites.issuer \
            AND o.state = 'live' AND o.ed25519 = mesh_invites.issuer_key)";
        let Invite { mesh, invite_id, issuer, uses, expires_at, .. } = &self.invite;
        let params = [
            Value::from(mesh.as_bytes()),
            Value::from(invite_id.as_bytes()),
            Value::from(&issuer.as_bytes()[..]),
            Value::from(i64::from(*uses)),
            Value::from(*expires_at),
            Value::from(ctx.now),
        ];
        if tx.execute(USE, &params).await? == 1 {
            return Ok(());
        }
        Err(self.refusal(ctx, tx).await?)
    }

    async fn refusal(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Error> {
        const FIND: &str = "SELECT issuer_key, uses, used, expires_at FROM mesh_invites WHERE tenant = $1 AND mesh_id = $2 \
                            AND invite_id = $3";
        let Invite { mesh, invite_id, issuer, uses, expires_at, .. } = &self.invite;
        let row = tx.query_opt(FIND, &[Value::from(mesh.as_bytes()), Value::from(invite_id.as_bytes())]).await?;
        let unknown = || Error::new(Code::InviteInvalid, "The mesh has not issued this invite.");
        let Some(row) = row else { return Ok(unknown()) };
        let is_the_same =
            rows::key(&row, 0)? == *issuer && row.int(1)? == i64::from(*uses) && row.time(3)? == *expires_at;
        if !is_the_same {
            return Ok(unknown());
        }
        let code = if row.int(2)? >= row.int(1)? {
            Code::InviteUsedUp
        } else if row.time(3)? <= ctx.now {
            Code::InviteExpired
        } else {
            Code::InviteVoid
        };
        Ok(Error::new(code, code.entry().title))
    }
}
