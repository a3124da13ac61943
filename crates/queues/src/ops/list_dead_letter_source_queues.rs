//! ListDeadLetterSourceQueues: the queues whose RedrivePolicy points to this one.

use schemars::JsonSchema;
use serde::Deserialize;
use waybill_kernel::{OperationSpec, Result, Scope};
use waybill_store::{Ctx, Operation, Reply, Tx, Value};

use super::list_queues::{Page, QueueNames};
use super::read;
use crate::catalog::Entry;

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase")]
pub struct ListDeadLetterSourceQueues {
    #[serde(default)]
    pub queue_url: String,
    pub max_results: Option<i64>,
    pub next_token: Option<String>,
}

impl Operation for ListDeadLetterSourceQueues {
    const SPEC: OperationSpec =
        read("ListDeadLetterSourceQueues", &[Scope::QueuesSend, Scope::QueuesReceive, Scope::QueuesManage]);
    type Output = QueueNames;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<QueueNames>> {
        const LIST: &str = "SELECT name FROM queues WHERE tenant = $1 AND dead_letter = $2 AND name > $3 \
                            ORDER BY name LIMIT $4";
        let entry = Entry::load(tx, &self.queue_url).await?;
        let tenant = ctx.caller.tenant.0.to_be_bytes();
        let page = Page {
            scope: &[b"ListDeadLetterSourceQueues", &tenant, entry.name.as_bytes()],
            max_results: self.max_results,
            next_token: self.next_token.as_deref(),
        };
        let after = page.after()?;
        let params = [Value::from(&entry.name), Value::from(&after), Value::from(page.limit()? + 1)];
        page.answer(&tx.query(LIST, &params).await?).map(Reply::Done)
    }
}
