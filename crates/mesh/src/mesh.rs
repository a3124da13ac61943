//! A mesh as it is stored and shown.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Error, Principal, Result, Time};
use waybill_mesh_protocol::{MemberId, MeshId, PublicKey, Slug};
use waybill_store::{Row, Tx, Value};

use crate::rows;

/// What becomes of two live connections with one key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum Policy {
    /// The older connection is closed.
    #[default]
    PreferNewest,
    /// The newer connection is closed.
    PreferOldest,
    /// Both stay.
    AllowConcurrent,
}

impl Policy {
    pub const ALL: [Policy; 3] = [Policy::PreferNewest, Policy::PreferOldest, Policy::AllowConcurrent];

    pub const fn as_str(self) -> &'static str {
        match self {
            Policy::PreferNewest => "prefer_newest",
            Policy::PreferOldest => "prefer_oldest",
            Policy::AllowConcurrent => "allow_concurrent",
        }
    }

    pub(crate) fn read(stored: &str) -> Result<Self> {
        let known = Self::ALL.into_iter().find(|policy| policy.as_str() == stored);
        known.ok_or_else(|| Error::internal(format!("a mesh has the policy {stored}")))
    }
}

/// The columns that [`MeshView::read`] reads, in its order, of `meshes h` joined with the owner's row as `o`.
macro_rules! columns {
    () => {
        "h.mesh_id, h.slug, h.plaintext, h.policy, h.owner, o.ed25519, o.name, h.created_at, h.created_by, \
         (SELECT count(*) FROM mesh_members c WHERE c.tenant = $1 AND c.mesh_id = h.mesh_id AND c.state = 'live'), \
         (SELECT count(*) FROM mesh_topics t WHERE t.tenant = $1 AND t.mesh_id = h.mesh_id) \
         FROM meshes h JOIN mesh_members o ON o.tenant = $1 AND o.mesh_id = h.mesh_id AND o.member_id = h.owner"
    };
}
pub(crate) use columns;

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct MeshView {
    pub mesh_id: MeshId,
    pub slug: String,
    /// Can the broker read what is sent?
    pub plaintext: bool,
    pub connection_policy: Policy,
    pub owner: MemberId,
    /// The owner's present key.
    pub owner_key: PublicKey,
    pub owner_name: String,
    pub created_at: Time,
    pub created_by: Principal,
    /// Those who have left not counted.
    pub members: i64,
    pub topics: i64,
}

impl MeshView {
    pub(crate) fn read(row: &Row) -> Result<Self> {
        Ok(Self {
            mesh_id: MeshId::from_slice(row.bytes(0)?)?,
            slug: row.text(1)?.to_owned(),
            plaintext: row.bool(2)?,
            connection_policy: Policy::read(row.text(3)?)?,
            owner: MemberId::from_slice(row.bytes(4)?)?,
            owner_key: rows::key(row, 5)?,
            owner_name: row.text(6)?.to_owned(),
            created_at: row.time(7)?,
            created_by: Principal::from_stored(row.text(8)?).map_err(Error::internal)?,
            members: row.int(9)?,
            topics: row.int(10)?,
        })
    }
}

/// A mesh of the caller's tenant by its slug.
pub(crate) async fn find(tx: &mut Tx<'_>, slug: &Slug) -> Result<MeshView> {
    const FIND: &str = concat!("SELECT ", columns!(), " WHERE h.tenant = $1 AND h.slug = $2");
    let row = tx.query_opt(FIND, &[Value::from(slug.as_str())]).await?;
    row.as_ref().map(MeshView::read).transpose()?.ok_or_else(|| Error::not_found("mesh"))
}
