//! AddPermission: a further statement in the queue's Policy, which is kept and shown.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{OperationSpec, Result, Scope};
use waybill_store::{Ctx, Operation, Reply, Tx};

use super::write;
use crate::Settings;
use crate::catalog::change_attributes;
use crate::rules::attributes::{Attributes, POLICY};
use crate::rules::policy::{self, Permission};

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase")]
pub struct AddPermission {
    #[serde(default)]
    pub queue_url: String,
    #[serde(default)]
    pub label: String,
    #[serde(default, rename = "AWSAccountIds")]
    pub aws_account_ids: Vec<String>,
    #[serde(default)]
    pub actions: Vec<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct PermissionAdded {}

impl Operation for AddPermission {
    const SPEC: OperationSpec = write("AddPermission", &[Scope::QueuesManage]);
    type Output = PermissionAdded;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<PermissionAdded>> {
        let permission = Permission { label: &self.label, accounts: &self.aws_account_ids, actions: &self.actions };
        permission.check()?;
        let arns = Settings::arns(ctx);
        change_attributes(ctx, tx, &self.queue_url, |entry| {
            let policy = policy::with(entry.attributes.text(POLICY), &permission, &arns.arn(&entry.name))?;
            Attributes::checked(&entry.name, &BTreeMap::from([(POLICY.to_owned(), policy)]))
        })
        .await?;
        Ok(Reply::Done(PermissionAdded {}))
    }
}
