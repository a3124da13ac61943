//! GetQueueUrl: whether there is a queue by that name. The protocol makes the URL.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{OperationSpec, Result, Scope};
use waybill_store::{Ctx, Operation, Reply, Tx, Value};

use super::read;
use crate::rules::missing;
use crate::rules::names::{account_of, is_name, unknown_queue};

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase")]
pub struct GetQueueUrl {
    #[serde(default)]
    pub queue_name: String,
    #[serde(default, rename = "QueueOwnerAWSAccountId")]
    pub queue_owner_aws_account_id: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "PascalCase")]
pub struct Found {
    pub queue_name: String,
}

impl Operation for GetQueueUrl {
    const SPEC: OperationSpec = read("GetQueueUrl", &[Scope::QueuesSend, Scope::QueuesReceive, Scope::QueuesManage]);
    type Output = Found;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Found>> {
        const FIND: &str = "SELECT 1 FROM queues WHERE tenant = $1 AND name = $2";
        let name = self.queue_name.as_str();
        if name.is_empty() {
            return Err(missing("QueueName"));
        }
        // A queue of another account is none that this caller can see.
        let is_ours = self.queue_owner_aws_account_id.as_ref().is_none_or(|account| *account == account_of(ctx.caller));
        if !is_ours || !is_name(name) || tx.query_opt(FIND, &[Value::from(name)]).await?.is_none() {
            return Err(unknown_queue(name));
        }
        Ok(Reply::Done(Found { queue_name: name.to_owned() }))
    }
}
