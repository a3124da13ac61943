//! Acknowledge deliveries: the messages are in the inbox, and are not pushed again.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Caller, Error, OperationSpec, Result};
use waybill_mesh_protocol::{DeliveryId, MemberId, MeshId};
use waybill_store::{Ctx, Operation, Reply, STATEMENTS_MAX, Statement, Tx, Value};

use super::next_deliveries::seq_of;
use crate::{metrics, spec};

/// Deliveries in one call.
pub const DELIVERIES_MAX: usize = 256;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AcknowledgeDeliveries {
    pub mesh: MeshId,
    pub member: MemberId,
    pub deliveries: Vec<DeliveryId>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Acknowledged {
    /// How many were still open. Those that were not are none the worse for it.
    pub acknowledged: u64,
}

impl Operation for AcknowledgeDeliveries {
    const SPEC: OperationSpec =
        OperationSpec { repeatable: true, relieves: true, ..spec::write("acknowledge_deliveries") };
    type Output = Acknowledged;

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Acknowledged>> {
        const DELETE: &str =
            "DELETE FROM mesh_deliveries WHERE tenant = $1 AND mesh_id = $2 AND member_id = $3 AND seq = $4";
        if self.deliveries.len() > DELIVERIES_MAX {
            return Err(Error::invalid(format!("`deliveries` has at most {DELIVERIES_MAX} entries.")));
        }
        let seqs: Vec<i64> = self.deliveries.iter().filter_map(|id| seq_of(*id, self.member)).collect();
        let ids = [Value::from(self.mesh.as_bytes()), Value::from(self.member.as_bytes())];
        let mut acknowledged = 0;
        for some in seqs.chunks(STATEMENTS_MAX) {
            let statement = |seq: &i64| (DELETE, vec![ids[0], ids[1], Value::from(*seq)]);
            let statements: Vec<Statement<'_>> = some.iter().map(statement).collect();
            acknowledged += tx.execute_all(&statements).await?.iter().sum::<u64>();
        }
        Ok(Reply::Done(Acknowledged { acknowledged }))
    }

    fn committed(&self, _: &Caller, _: &waybill_store::Settings, output: &Acknowledged) {
        ::metrics::counter!(metrics::ACKNOWLEDGED).increment(output.acknowledged);
    }
}
