//! The directory of a mesh: who is a member, under which keys, and who is connected.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{OperationSpec, Result, Time};
use waybill_mesh_protocol::rotation::Rotation;
use waybill_mesh_protocol::{MemberId, MemberKeys, MeshId};
use waybill_store::{Ctx, Operation, Reply, Row, Tx, Value};

use crate::{members, rows, spec};

const PAGE_DEFAULT: u32 = 200;
pub const PAGE_MAX: u32 = 1_000;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListMembers {
    pub mesh: MeshId,
    pub member: MemberId,
    /// How many at most; 200 when left out, 1,000 when more is asked for.
    #[serde(default)]
    pub limit: Option<u32>,
    /// `next_after` of the page before.
    #[serde(default)]
    pub after: Option<MemberId>,
}

/// The live members, by id, which is the order in which they have joined.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Members {
    pub members: Vec<MemberView>,
    /// Absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_after: Option<MemberId>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct MemberView {
    pub member_id: MemberId,
    pub name: String,
    pub is_owner: bool,
    pub keys: MemberKeys,
    /// From key to key, oldest first, each step signed by both. Only the last few: whoever was away for longer joins anew.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rotations: Vec<Rotation>,
    /// Connected, and willing to be seen.
    pub online: bool,
    /// How many connections it has, if it is willing to be seen. More than one where the mesh allows that.
    pub connections: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    pub joined_at: Time,
}

impl MemberView {
    fn read(row: &Row) -> Result<Self> {
        let text =
            |column: usize| row.text_opt(column).map(|text| text.filter(|text| !text.is_empty()).map(str::to_owned));
        let connections = if row.bool(9)? { row.int(10)? } else { 0 };
        Ok(Self {
            member_id: MemberId::from_slice(row.bytes(0)?)?,
            name: row.text(1)?.to_owned(),
            is_owner: row.bytes(0)? == row.bytes(2)?,
            keys: rows::keys(row, 3)?,
            rotations: Vec::new(),
            summary: text(6)?,
            status: text(7)?,
            joined_at: row.time(8)?,
            online: connections > 0,
            connections,
        })
    }
}

impl Operation for ListMembers {
    const SPEC: OperationSpec = spec::read("list_members");
    type Output = Members;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Members>> {
        const LIST: &str = "SELECT m.member_id, m.name, h.owner, k.ed25519, k.x25519, k.x25519_signature, m.summary, m.status, \
            m.joined_at, m.visible, (SELECT count(*) FROM mesh_connections c WHERE c.tenant = $1 AND c.mesh_id = m.mesh_id \
            AND c.member_id = m.member_id AND c.lease_until > $3) FROM mesh_members m \
            JOIN meshes h ON h.tenant = $1 AND h.mesh_id = m.mesh_id \
            JOIN mesh_keys k ON k.tenant = $1 AND k.mesh_id = m.mesh_id AND k.ed25519 = m.ed25519 \
            WHERE m.tenant = $1 AND m.mesh_id = $2 AND m.member_id > $4 AND m.state = 'live' ORDER BY m.member_id LIMIT $5";
        members::live(tx, self.mesh, self.member).await?;
        let limit = self.limit.unwrap_or(PAGE_DEFAULT).clamp(1, PAGE_MAX);
        let after = self.after.as_ref().map_or(&[][..], MemberId::as_bytes);
        let params = [
            Value::from(self.mesh.as_bytes()),
            Value::from(ctx.now),
            Value::from(after),
            Value::from(i64::from(limit) + 1),
        ];
        let rows = tx.query(LIST, &params).await?;
        let is_more = rows.len() > limit as usize;
        let mut members = rows.iter().take(limit as usize).map(MemberView::read).collect::<Result<Vec<_>>>()?;
        self.add_rotations(tx, &mut members).await?;
        let next_after = members.last().filter(|_| is_more).map(|member| member.member_id);
        Ok(Reply::Done(Members { members, next_after }))
    }
}

impl ListMembers {
    async fn add_rotations(&self, tx: &mut Tx<'_>, page: &mut [MemberView]) -> Result<()> {
        let ends = page.first().zip(page.last()).map(|(first, last)| (first.member_id, last.member_id));
        let Some((first, last)) = ends else { return Ok(()) };
        for (id, rotation) in members::rotations(tx, self.mesh, first, last).await? {
            // Of a member that has left there is nothing to be shown.
            if let Some(member) = page.iter_mut().find(|member| member.member_id == id) {
                member.rotations.push(rotation);
            }
        }
        Ok(())
    }
}
