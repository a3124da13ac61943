//! RemovePermission: takes a statement out of the queue's Policy, by its label.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{OperationSpec, Result, Scope};
use waybill_store::{Ctx, Operation, Reply, Tx};

use super::write;
use crate::Settings;
use crate::catalog::change_attributes;
use crate::rules::attributes::{Attributes, POLICY};
use crate::rules::policy;

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase")]
pub struct RemovePermission {
    #[serde(default)]
    pub queue_url: String,
    #[serde(default)]
    pub label: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct PermissionRemoved {}

impl Operation for RemovePermission {
    const SPEC: OperationSpec = write("RemovePermission", &[Scope::QueuesManage]);
    type Output = PermissionRemoved;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<PermissionRemoved>> {
        policy::check_label(&self.label)?;
        let arns = Settings::arns(ctx);
        change_attributes(ctx, tx, &self.queue_url, |entry| {
            let policy = policy::without(entry.attributes.text(POLICY), &self.label, &arns.arn(&entry.name))?;
            Attributes::checked(&entry.name, &BTreeMap::from([(POLICY.to_owned(), policy)]))
        })
        .await?;
        Ok(Reply::Done(PermissionRemoved {}))
    }
}
