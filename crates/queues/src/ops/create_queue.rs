//! CreateQueue: makes a queue, or agrees that there is one with the attributes that were named.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Code, Error, OperationSpec, Result, Scope};
use waybill_store::{Ctx, Operation, Reply, Tx, Value};

use super::write;
use crate::queue::ONLY_PARTITION;
use crate::rules::attributes::Attributes;
use crate::rules::{check_tags, names};

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase")]
pub struct CreateQueue {
    #[serde(default)]
    pub queue_name: String,
    #[serde(default)]
    pub attributes: BTreeMap<String, String>,
    /// SQS writes this one in lower case.
    #[serde(default, rename = "tags")]
    pub tags: BTreeMap<String, String>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "PascalCase")]
pub struct Created {
    pub queue_name: String,
}

impl Operation for CreateQueue {
    const SPEC: OperationSpec = OperationSpec { repeatable: true, ..write("CreateQueue", &[Scope::QueuesManage]) };
    type Output = Created;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Created>> {
        names::check_new(&self.queue_name)?;
        let named = Attributes::checked(&self.attributes)?;
        check_tags(self.tags.iter())?;
        if !self.insert(ctx, tx, &named).await? {
            self.compare(tx, &named).await?;
        }
        Ok(Reply::Done(Created { queue_name: self.queue_name.clone() }))
    }
}

impl CreateQueue {
    /// False when there is a queue by that name.
    async fn insert(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, attributes: &Attributes) -> Result<bool> {
        const QUEUE: &str = "INSERT INTO queues (tenant, name, generation, attributes, tags, created_at, modified_at) \
                             VALUES ($1, $2, $3, $4, $5, $3, $3) ON CONFLICT (tenant, name) DO NOTHING";
        const PART: &str = "INSERT INTO parts (tenant, queue, generation, partition) VALUES ($1, $2, $3, $4)";
        let tags = serde_json::to_string(&self.tags).map_err(Error::internal)?;
        let attributes = attributes.to_stored()?;
        // The clock never stands still, so a queue that is made again has a higher generation than it had before.
        let generation = Value::from(ctx.now);
        let name = Value::from(&self.queue_name);
        let inserted = tx.execute(QUEUE, &[name, generation, Value::from(&attributes), Value::from(&tags)]).await?;
        if inserted == 1 {
            tx.execute(PART, &[name, generation, ONLY_PARTITION.into()]).await?;
        }
        Ok(inserted == 1)
    }

    async fn compare(&self, tx: &mut Tx<'_>, named: &Attributes) -> Result<()> {
        const STORED: &str = "SELECT attributes FROM queues WHERE tenant = $1 AND name = $2";
        let row = tx.query_opt(STORED, &[Value::from(&self.queue_name)]).await?;
        let row = row.ok_or_else(|| Error::internal("a queue was refused for a name that no queue has"))?;
        match Attributes::from_stored(row.text(0)?)?.first_difference(named) {
            None => Ok(()),
            Some(attribute) => {
                let message = format!("The queue {} exists with another {attribute}.", self.queue_name);
                Err(Error::new(Code::QueueNameExists, message))
            }
        }
    }
}
