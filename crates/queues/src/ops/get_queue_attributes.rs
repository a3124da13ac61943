//! GetQueueAttributes: what was asked for by name, or all there is.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{OperationSpec, Result, Scope, Time};
use waybill_store::{Ctx, Operation, Reply, Tx};

use super::read;
use crate::Settings;
use crate::catalog::Entry;
use crate::counts::Counts;
use crate::rules::attributes::{
    self, ARN, CREATED, MESSAGES, MESSAGES_DELAYED, MESSAGES_NOT_VISIBLE, MODIFIED, is_known, unknown,
};
use crate::rules::contents::check_names;
use crate::rules::throttle::is_throttle;
use crate::settings::{hides_throttles, refuse_hidden};

const ALL: &str = "All";

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase")]
pub struct GetQueueAttributes {
    #[serde(default)]
    pub queue_url: String,
    #[serde(default)]
    pub attribute_names: Vec<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "PascalCase")]
pub struct QueueAttributes {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub attributes: BTreeMap<String, String>,
}

impl Operation for GetQueueAttributes {
    const SPEC: OperationSpec =
        read("GetQueueAttributes", &[Scope::QueuesSend, Scope::QueuesReceive, Scope::QueuesManage]);
    type Output = QueueAttributes;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<QueueAttributes>> {
        check_names("AttributeNames", &self.attribute_names)?;
        let mut asked = self.asked()?;
        refuse_hidden(ctx, self.attribute_names.iter())?;
        if hides_throttles(ctx) {
            asked.retain(|name| !is_throttle(name));
        }
        let entry = Entry::load(tx, &self.queue_url).await?;
        let counts = match [MESSAGES, MESSAGES_NOT_VISIBLE, MESSAGES_DELAYED].iter().any(|name| asked.contains(name)) {
            false => None,
            true => Some(Counts::of(tx, &entry.name, entry.generation, ctx.now).await?),
        };
        let value = |name: &str| match name {
            MESSAGES => counts.map(|counts| counts.visible.to_string()),
            MESSAGES_NOT_VISIBLE => counts.map(|counts| counts.not_visible.to_string()),
            MESSAGES_DELAYED => counts.map(|counts| counts.delayed.to_string()),
            ARN => Some(Settings::arns(ctx).arn(&entry.name)),
            CREATED => Some(seconds(entry.created_at)),
            MODIFIED => Some(seconds(entry.modified_at)),
            name => entry.attributes.shown(&entry.name, name),
        };
        let attributes = asked.into_iter().filter_map(|name| Some((name.to_owned(), value(name)?))).collect();
        Ok(Reply::Done(QueueAttributes { attributes }))
    }
}

impl GetQueueAttributes {
    fn asked(&self) -> Result<BTreeSet<&str>> {
        let mut asked = BTreeSet::new();
        for name in &self.attribute_names {
            match name.as_str() {
                ALL => asked.extend(attributes::all().map(|name| -> &str { name })),
                name if is_known(name) => {
                    asked.insert(name);
                }
                name => return Err(unknown(name)),
            }
        }
        Ok(asked)
    }
}

fn seconds(time: Time) -> String {
    (time.micros() / 1_000_000).to_string()
}
