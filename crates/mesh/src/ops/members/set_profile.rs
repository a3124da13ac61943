//! What a member shows of itself.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Error, OperationSpec, Result};
use waybill_mesh_protocol::{MemberId, MeshId};
use waybill_store::{Ctx, Operation, Reply, Tx, Value};

use crate::{members, spec};

pub const SUMMARY_CHARS_MAX: usize = 1_000;
pub const STATUS_CHARS_MAX: usize = 200;

/// What is left out stays as it is; an empty text removes it.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SetProfile {
    pub mesh: MeshId,
    pub member: MemberId,
    #[serde(default)]
    pub summary: Option<String>,
    #[serde(default)]
    pub status: Option<String>,
    /// Whether others see that the member is connected.
    #[serde(default)]
    pub visible: Option<bool>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct ProfileSet {
    pub ok: bool,
}

fn check(field: &str, text: Option<&String>, chars_max: usize) -> Result<()> {
    let is_wrong = |text: &String| text.chars().count() > chars_max || text.contains('\0');
    if text.is_some_and(is_wrong) {
        return Err(Error::invalid(format!("`{field}` has at most {chars_max} characters and no NUL.")));
    }
    Ok(())
}

impl Operation for SetProfile {
    const SPEC: OperationSpec = OperationSpec { repeatable: true, ..spec::write("set_profile") };
    type Output = ProfileSet;

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<ProfileSet>> {
        const SET: &str = "UPDATE mesh_members SET summary = coalesce($4, summary), status = coalesce($5, status), \
                           visible = coalesce($6, visible) WHERE tenant = $1 AND mesh_id = $2 AND member_id = $3 \
                           AND state = 'live'";
        check("summary", self.summary.as_ref(), SUMMARY_CHARS_MAX)?;
        check("status", self.status.as_ref(), STATUS_CHARS_MAX)?;
        let params = [
            Value::from(self.mesh.as_bytes()),
            Value::from(self.member.as_bytes()),
            Value::from(self.summary.as_deref()),
            Value::from(self.status.as_deref()),
            Value::from(self.visible.map(i64::from)),
        ];
        match tx.execute(SET, &params).await? {
            0 => Err(members::revoked()),
            _ => Ok(Reply::Done(ProfileSet { ok: true })),
        }
    }
}
