//! Who a member is, and whether it is one now.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{
    Caller, Code, Error, Mode, Principal, PrincipalKind, Result, Role, Roles, Scope, Scopes, Tenant, id::Uuid,
};
use waybill_mesh_protocol::rotation::Rotation;
use waybill_mesh_protocol::{MemberId, MemberKeys, MemberName, MeshId, PublicKey};
use waybill_store::{Ctx, Row, Sql, Store, Topic, Tx, Value, Work};

use crate::mesh::Policy;
use crate::{Settings, metrics, rows};

/// Steps from key to key that are named of one member: as many as a daemon keeps old keys.
const ROTATIONS_MAX: i64 = 8;

/// How a key stands with its mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum Standing {
    Live,
    Revoked,
    Left,
    /// The member has another key by now.
    RotatedOut,
}

impl Standing {
    fn of(member_state: &str, key_state: &str) -> Result<Self> {
        match (member_state, key_state) {
            ("live", "current") => Ok(Self::Live),
            ("live", "rotated_out") => Ok(Self::RotatedOut),
            ("revoked", _) => Ok(Self::Revoked),
            ("left", _) => Ok(Self::Left),
            other => Err(Error::internal(format!("a member's state is {other:?}"))),
        }
    }
}

/// Whose key it is, and the caller that its operations are run for. The key itself proves nothing: whoever uses this has checked
/// a signature with it.
#[derive(Clone, Debug)]
pub struct Membership {
    pub caller: Caller,
    pub mesh: MeshId,
    pub slug: String,
    pub member: MemberId,
    pub name: String,
    pub key: PublicKey,
    pub is_owner: bool,
    pub plaintext: bool,
    pub policy: Policy,
    pub standing: Standing,
}

/// Finds the member of a mesh by a key that it has or had. None where the mesh knows no such key.
pub async fn authenticate(store: &Store, mesh: MeshId, key: PublicKey) -> Result<Option<Membership>> {
    store.system().run(Authenticate { mesh, key }).await
}

/// Who may ask to join a mesh: somebody of its tenant who is no member yet. None where there is no such mesh.
pub async fn guest(store: &Store, mesh: MeshId) -> Result<Option<Caller>> {
    store.system().run(FindTenant { mesh }).await
}

struct Authenticate {
    mesh: MeshId,
    key: PublicKey,
}

impl Work for Authenticate {
    type Output = Option<Membership>;

    fn mode(&self) -> Mode {
        Mode::Read
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Self::Output> {
        const FIND: &str = "SELECT h.tenant, t.tenant_id, m.member_id, m.name, m.state, k.state, h.owner, h.plaintext, \
            h.policy, h.slug FROM meshes h JOIN tenants t ON t.tenant = h.tenant \
            JOIN mesh_keys k ON k.tenant = h.tenant AND k.mesh_id = h.mesh_id AND k.ed25519 = $2 \
            JOIN mesh_members m ON m.tenant = h.tenant AND m.mesh_id = h.mesh_id AND m.member_id = k.member_id \
            WHERE h.mesh_id = $1";
        let params = [Value::from(self.mesh.as_bytes()), Value::from(&self.key.as_bytes()[..])];
        let row = tx.query_opt(FIND, &params).await?;
        row.as_ref().map(|row| self.membership(row)).transpose()
    }
}

impl Authenticate {
    fn membership(&self, row: &Row) -> Result<Membership> {
        let member = MemberId::from_slice(row.bytes(2)?)?;
        Ok(Membership {
            caller: caller(row, &member.to_string())?,
            mesh: self.mesh,
            slug: row.text(9)?.to_owned(),
            member,
            name: row.text(3)?.to_owned(),
            key: self.key,
            is_owner: row.bytes(6)? == member.as_bytes(),
            plaintext: row.bool(7)?,
            policy: Policy::read(row.text(8)?)?,
            standing: Standing::of(row.text(4)?, row.text(5)?)?,
        })
    }
}

struct FindTenant {
    mesh: MeshId,
}

impl Work for FindTenant {
    type Output = Option<Caller>;

    fn mode(&self) -> Mode {
        Mode::Read
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Self::Output> {
        const FIND: &str =
            "SELECT h.tenant, t.tenant_id FROM meshes h JOIN tenants t ON t.tenant = h.tenant WHERE h.mesh_id = $1";
        let row = tx.query_opt(FIND, &[Value::from(self.mesh.as_bytes())]).await?;
        row.as_ref().map(|row| caller(row, &format!("guest/{}", self.mesh))).transpose()
    }
}

/// The tenant is in the first two columns. Nothing but the operations of meshes is open to this caller.
fn caller(row: &Row, id: &str) -> Result<Caller> {
    Ok(Caller {
        tenant: Tenant(row.int(0)?),
        tenant_id: Uuid::from_slice(row.bytes(1)?).map_err(Error::internal)?,
        principal: Principal::new(PrincipalKind::Agent, &format!("mesh/{id}"))?,
        roles: Roles::new([Role::Agent]),
        scopes: Scopes::new([Scope::MeshMember]),
        key: None,
    })
}

/// A member as its transaction sees it: one that may act, where it comes from [`live`].
pub(crate) struct Live {
    pub name: String,
    pub keys: MemberKeys,
    pub is_owner: bool,
    pub plaintext: bool,
    pub policy: Policy,
    /// Whether others see that it is connected.
    pub visible: bool,
}

/// # Errors
/// `member_revoked` for one that is none any more, `member_unknown` for one that never was.
pub(crate) async fn live(tx: &mut Tx<'_>, mesh: MeshId, member: MemberId) -> Result<Live> {
    let (found, is_live) = find(tx, mesh, member).await?;
    if is_live { Ok(found) } else { Err(revoked()) }
}

/// Also one that is none any more, and whether it is one.
///
/// # Errors
/// `member_unknown` for one that never was.
pub(crate) async fn find(tx: &mut Tx<'_>, mesh: MeshId, member: MemberId) -> Result<(Live, bool)> {
    const FIND: &str = "SELECT m.state, m.name, h.owner, h.plaintext, h.policy, k.ed25519, k.x25519, k.x25519_signature, m.visible \
        FROM mesh_members m JOIN meshes h ON h.tenant = $1 AND h.mesh_id = m.mesh_id \
        JOIN mesh_keys k ON k.tenant = $1 AND k.mesh_id = m.mesh_id AND k.ed25519 = m.ed25519 \
        WHERE m.tenant = $1 AND m.mesh_id = $2 AND m.member_id = $3";
    let row = tx.query_opt(FIND, &[Value::from(mesh.as_bytes()), Value::from(member.as_bytes())]).await?;
    let row = row.ok_or_else(unknown)?;
    let found = Live {
        name: row.text(1)?.to_owned(),
        is_owner: row.bytes(2)? == member.as_bytes(),
        plaintext: row.bool(3)?,
        policy: Policy::read(row.text(4)?)?,
        keys: rows::keys(&row, 5)?,
        visible: row.bool(8)?,
    };
    Ok((found, row.text(0)? == "live"))
}

/// The steps from key to key, each signed by both, of the members from the first id to the last: by member, the oldest step first.
/// Only the last few of each: whoever was away for longer joins anew.
pub(crate) async fn rotations(
    tx: &mut Tx<'_>,
    mesh: MeshId,
    first: MemberId,
    last: MemberId,
) -> Result<Vec<(MemberId, Rotation)>> {
    // Each key is read once, however many a member has had.
    const FIND: &str = "SELECT r.member_id, r.rotation FROM (SELECT k.member_id, k.rotation, k.added_at, row_number() \
        OVER (PARTITION BY k.member_id ORDER BY k.added_at DESC) AS place FROM mesh_keys k WHERE k.tenant = $1 \
        AND k.mesh_id = $2 AND k.member_id >= $3 AND k.member_id <= $4 AND k.rotation IS NOT NULL) AS r \
        WHERE r.place <= $5 ORDER BY r.member_id, r.added_at";
    let params = [
        Value::from(mesh.as_bytes()),
        Value::from(first.as_bytes()),
        Value::from(last.as_bytes()),
        Value::from(ROTATIONS_MAX),
    ];
    let read = |row: &Row| -> Result<(MemberId, Rotation)> {
        let rotation = serde_json::from_str(row.text(1)?).map_err(Error::internal)?;
        Ok((MemberId::from_slice(row.bytes(0)?)?, rotation))
    };
    tx.query(FIND, &params).await?.iter().map(read).collect()
}

/// As [`live`], for what only the owner may do.
pub(crate) async fn owner(tx: &mut Tx<'_>, mesh: MeshId, member: MemberId, what: &str) -> Result<Live> {
    let live = live(tx, mesh, member).await?;
    if live.is_owner {
        return Ok(live);
    }
    Err(Error::new(Code::Forbidden, format!("Only the owner of the mesh may {what}."))
        .with_cure("Ask the owner, whom `waybill mesh members` shows."))
}

/// Holds the member's row until the end of the transaction, so that two about the same member come one after the other.
pub(crate) async fn lock(tx: &mut Tx<'_>, mesh: MeshId, member: MemberId) -> Result<()> {
    const LOCK: Sql = Sql {
        sqlite: "SELECT 1 FROM mesh_members WHERE tenant = $1 AND mesh_id = $2 AND member_id = $3",
        postgres: "SELECT 1 FROM mesh_members WHERE tenant = $1 AND mesh_id = $2 AND member_id = $3 FOR UPDATE",
    };
    let sql = tx.text(LOCK);
    tx.query_opt(sql, &[Value::from(mesh.as_bytes()), Value::from(member.as_bytes())]).await.map(drop)
}

/// Whose key this is or was.
pub(crate) async fn by_key(tx: &mut Tx<'_>, mesh: MeshId, key: &PublicKey) -> Result<MemberId> {
    const FIND: &str = "SELECT member_id FROM mesh_keys WHERE tenant = $1 AND mesh_id = $2 AND ed25519 = $3";
    let params = [Value::from(mesh.as_bytes()), Value::from(&key.as_bytes()[..])];
    let row = tx.query_opt(FIND, &params).await?;
    MemberId::from_slice(row.ok_or_else(unknown)?.bytes(0)?)
}

pub(crate) async fn insert_keys(
    ctx: &Ctx<'_>,
    tx: &mut Tx<'_>,
    mesh: MeshId,
    member: MemberId,
    keys: &MemberKeys,
    rotation: Option<&Rotation>,
) -> Result<()> {
    const INSERT: &str = "INSERT INTO mesh_keys (tenant, mesh_id, ed25519, member_id, x25519, x25519_signature, rotation, state, \
        added_at) VALUES ($1, $2, $3, $4, $5, $6, $7, 'current', $8) ON CONFLICT DO NOTHING";
    let rotation = rotation.map(serde_json::to_string).transpose().map_err(Error::internal)?;
    let params = [
        Value::from(mesh.as_bytes()),
        Value::from(&keys.ed25519.as_bytes()[..]),
        Value::from(member.as_bytes()),
        Value::from(&keys.x25519.as_bytes()[..]),
        Value::from(&keys.x25519_signature.as_bytes()[..]),
        Value::from(rotation.as_deref()),
        Value::from(ctx.now),
    ];
    match tx.execute(INSERT, &params).await? {
        1 => Ok(()),
        _ => Err(Error::new(Code::AlreadyExists, "The key belongs to a member of the mesh already.")
            .with_cure("Make new keys; a key is used once in a mesh.")),
    }
}

pub(crate) fn unknown() -> Error {
    Error::new(Code::MemberUnknown, Code::MemberUnknown.entry().title)
}

pub(crate) fn revoked() -> Error {
    Error::new(Code::MemberRevoked, Code::MemberRevoked.entry().title)
}

/// Names and places of members are given out one by one.
pub(crate) async fn in_turn(ctx: &Ctx<'_>, tx: &mut Tx<'_>, mesh: MeshId) -> Result<()> {
    tx.in_turn(Topic::new("mesh.members", ctx.caller.tenant, mesh.as_bytes())).await
}

/// Until the transaction ends the owner stays what it is now: whoever revokes it waits, and finds who has joined meanwhile.
pub(crate) async fn keep_owner(tx: &mut Tx<'_>, mesh: MeshId) -> Result<()> {
    const KEEP: Sql = Sql {
        sqlite: "SELECT 1 FROM meshes h JOIN mesh_members o ON o.tenant = $1 AND o.mesh_id = h.mesh_id AND o.member_id = h.owner \
                 WHERE h.tenant = $1 AND h.mesh_id = $2",
        postgres: "SELECT 1 FROM meshes h JOIN mesh_members o ON o.tenant = $1 AND o.mesh_id = h.mesh_id AND o.member_id = h.owner \
                   WHERE h.tenant = $1 AND h.mesh_id = $2 FOR SHARE OF o",
    };
    let sql = tx.text(KEEP);
    tx.query_opt(sql, &[Value::from(mesh.as_bytes())]).await.map(drop)
}

pub(crate) struct NewMember<'a> {
    pub id: MemberId,
    pub name: &'a MemberName,
    pub keys: &'a MemberKeys,
    /// How long it stays a member, where it does not stay for good.
    pub ttl: Option<Duration>,
}

/// # Errors
/// `already_exists` for a name or a key that is taken, `too_many_members`.
pub(crate) async fn insert(ctx: &Ctx<'_>, tx: &mut Tx<'_>, mesh: MeshId, new: &NewMember<'_>) -> Result<()> {
    const INSERT: &str = "INSERT INTO mesh_members (tenant, mesh_id, member_id, name, state, ed25519, visible, joined_at, \
        expires_at) SELECT $1, $2, $3, $4, 'live', $5, 1, $6, $7 \
        WHERE (SELECT count(*) FROM mesh_members WHERE tenant = $1 AND mesh_id = $2 AND state = 'live') < $8";
    const TAKEN: &str =
        "SELECT 1 FROM mesh_members WHERE tenant = $1 AND mesh_id = $2 AND name = $3 AND state = 'live'";
    let max = ctx.settings::<Settings>().members_max;
    in_turn(ctx, tx, mesh).await?;
    if tx.query_opt(TAKEN, &[Value::from(mesh.as_bytes()), Value::from(new.name.as_str())]).await?.is_some() {
        return Err(name_taken(new.name));
    }
    insert_keys(ctx, tx, mesh, new.id, new.keys, None).await?;
    let params = [
        Value::from(mesh.as_bytes()),
        Value::from(new.id.as_bytes()),
        Value::from(new.name.as_str()),
        Value::from(&new.keys.ed25519.as_bytes()[..]),
        Value::from(ctx.now),
        Value::from(new.ttl.map(|ttl| ctx.now.after(ttl))),
        Value::from(max),
    ];
    if tx.execute(INSERT, &params).await? == 1 {
        return Ok(());
    }
    metrics::capped("members");
    let message = format!("The mesh has {max} members, which is as many as it may have.");
    Err(Error::new(Code::TooManyMembers, message).with("limit", max))
}

pub(crate) fn name_taken(name: &MemberName) -> Error {
    Error::new(Code::AlreadyExists, format!("A member of the mesh is called {name} already."))
        .with_cure("Choose another name.")
}
