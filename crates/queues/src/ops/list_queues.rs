//! ListQueues: names in their order, page by page where a page's size was named. The protocol makes URLs of them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{OperationSpec, Result, Scope, cursor};
use waybill_store::{Ctx, Operation, Reply, Row, Tx, Value};

use super::read;
use crate::rules::check_range;

/// Names in one answer, named or not.
pub(super) const RESULTS_MAX: i64 = 1_000;

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase")]
pub struct ListQueues {
    #[serde(default)]
    pub queue_name_prefix: String,
    pub max_results: Option<i64>,
    pub next_token: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "PascalCase")]
pub struct QueueNames {
    pub queue_names: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_token: Option<String>,
}

impl Operation for ListQueues {
    const SPEC: OperationSpec = read("ListQueues", &[Scope::QueuesSend, Scope::QueuesReceive, Scope::QueuesManage]);
    type Output = QueueNames;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<QueueNames>> {
        const LIST: &str = "SELECT name FROM queues WHERE tenant = $1 AND name > $2 AND name >= $3 AND name < $4 \
                            ORDER BY name LIMIT $5";
        let tenant = ctx.caller.tenant.0.to_be_bytes();
        let page = Page {
            scope: &[b"ListQueues", &tenant, self.queue_name_prefix.as_bytes()],
            max_results: self.max_results,
            next_token: self.next_token.as_deref(),
        };
        let after = page.after()?;
        // No character of a name is above it.
        let end = format!("{}~", self.queue_name_prefix);
        let params = [
            Value::from(&after),
            Value::from(&self.queue_name_prefix),
            Value::from(&end),
            Value::from(page.limit()? + 1),
        ];
        page.answer(&tx.query(LIST, &params).await?).map(Reply::Done)
    }
}

/// One page of a list of names.
pub(super) struct Page<'a> {
    /// What a token is only good with.
    pub scope: &'a [&'a [u8]],
    pub max_results: Option<i64>,
    pub next_token: Option<&'a str>,
}

impl Page<'_> {
    pub(super) fn limit(&self) -> Result<i64> {
        check_range("MaxResults", self.max_results.unwrap_or(RESULTS_MAX), 1, RESULTS_MAX)
    }

    /// The name that the page before has ended with.
    pub(super) fn after(&self) -> Result<String> {
        match self.next_token {
            None => Ok(String::new()),
            Some(token) => String::from_utf8(cursor::decode(self.scope, token)?).map_err(|_| cursor::refused()),
        }
    }

    /// `rows` has one more than fits when there is a further page. Without a size that was named there is none.
    pub(super) fn answer(&self, rows: &[Row]) -> Result<QueueNames> {
        let limit = usize::try_from(self.limit()?).unwrap_or(0);
        let names = rows.iter().take(limit).map(|row| row.text(0).map(str::to_owned)).collect::<Result<Vec<_>>>()?;
        let is_more = rows.len() > limit && self.max_results.is_some();
        let last = names.last().filter(|_| is_more);
        let next_token = last.map(|name| cursor::encode(self.scope, name.as_bytes()));
        Ok(QueueNames { queue_names: names, next_token })
    }
}
