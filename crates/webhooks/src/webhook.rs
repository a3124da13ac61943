//! A webhook as it is stored and shown, and the line of its deliveries.

use schemars::JsonSchema;
use serde::Serialize;
use waybill_kernel::{Error, Principal, Result, Tenant, Time, id_type};
use waybill_mesh::{EventKind, audit};
use waybill_store::{Row, Topic, Value};
use waybill_tasks::receipts::ReceiptType;

id_type!(
    /// Identifies a webhook within its tenant.
    WebhookId
);

id_type!(
    /// Identifies a delivery, whichever attempt it is: receivers get it as `webhook-id`.
    DeliveryId
);

/// Woken when a line may be due.
pub(crate) fn topic() -> Topic {
    Topic::new("webhooks", Tenant(0), b"due")
}

/// Something is due at `$3` in the line of a webhook that is not disabled. A line in hand keeps the end of its claim, and one
/// that rests its rest. The write also locks the row, so that whoever gives the line back sees what came with it, and a webhook
/// that is deleted is gone before or after.
pub(crate) const TOUCH: &str = "UPDATE webhooks SET due_at = CASE \
    WHEN due_at IS NOT NULL AND (held = 1 OR ailing = 1 OR due_at < $3) THEN due_at ELSE $3 END \
    WHERE tenant = $1 AND webhook_id = $2 AND disabled_at IS NULL";

/// What a webhook wants to be told of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kinds {
    /// Of receipts. Events of meshes are wanted by those who name them: webhooks that were made before there were any know only
    /// receipts.
    All,
    /// In the order in which they are declared, each once.
    Some(Vec<&'static str>),
}

/// All there are: of receipts, and of what happens to meshes.
fn known() -> impl Iterator<Item = &'static str> {
    let meshes = EventKind::ALL.iter().filter_map(|kind| kind.audit_name());
    ReceiptType::ALL.iter().map(|kind| kind.as_str()).chain(meshes)
}

impl Kinds {
    /// None and an empty list stand for all of them.
    pub(crate) fn new(names: &[String]) -> Result<Self> {
        if let Some(unknown) = names.iter().find(|name| kind(name).is_none()) {
            let known: Vec<_> = known().collect();
            return Err(Error::invalid(format!("There are no receipts {unknown}; there are {}.", known.join(", "))));
        }
        let kinds: Vec<_> = known().filter(|kind| names.iter().any(|name| name == kind)).collect();
        Ok(if kinds.is_empty() { Kinds::All } else { Kinds::Some(kinds) })
    }

    pub(crate) fn stored(&self) -> Option<String> {
        match self {
            Kinds::All => None,
            Kinds::Some(_) => Some(self.names().join(",")),
        }
    }

    /// What a later version may have added is unknown here and wanted by nobody here.
    pub(crate) fn read(stored: Option<&str>) -> Self {
        match stored {
            None => Kinds::All,
            Some(names) => Kinds::Some(names.split(',').filter_map(kind).collect()),
        }
    }

    pub(crate) fn names(&self) -> Vec<&'static str> {
        match self {
            Kinds::All => Vec::new(),
            Kinds::Some(kinds) => kinds.clone(),
        }
    }

    pub(crate) fn has(&self, kind: &str) -> bool {
        match self {
            Kinds::All => !kind.starts_with(audit::PREFIX),
            Kinds::Some(kinds) => kinds.contains(&kind),
        }
    }
}

fn kind(name: &str) -> Option<&'static str> {
    known().find(|kind| *kind == name)
}

/// The columns that [`WebhookView::read`] reads, in its order.
macro_rules! columns {
    () => {
        "webhook_id, url, kinds, description, created_at, created_by, disabled_at, disabled_reason, failing_since, \
         last_delivered_at"
    };
}
pub(crate) use columns;

/// A webhook without its secret.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct WebhookView {
    pub webhook_id: WebhookId,
    pub url: String,
    /// The types of receipts, and of events of meshes, that it is told of; empty for all receipts.
    pub kinds: Vec<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    pub created_at: Time,
    pub created_by: Principal,
    /// Since when it gets nothing more; absent while it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disabled_at: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disabled_reason: Option<String>,
    /// The first failure since the latest success; absent when that was the latest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failing_since: Option<Time>,
    /// The latest success.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_delivered_at: Option<Time>,
}

impl WebhookView {
    pub(crate) fn read(row: &Row) -> Result<Self> {
        Ok(Self {
            webhook_id: WebhookId::from_slice(row.bytes(0)?)?,
            url: row.text(1)?.to_owned(),
            kinds: Kinds::read(row.text_opt(2)?).names(),
            description: row.text_opt(3)?.map(str::to_owned),
            created_at: row.time(4)?,
            created_by: Principal::from_stored(row.text(5)?).map_err(Error::internal)?,
            disabled_at: row.time_opt(6)?,
            disabled_reason: row.text_opt(7)?.map(str::to_owned),
            failing_since: row.time_opt(8)?,
            last_delivered_at: row.time_opt(9)?,
        })
    }
}

/// `$2`, as every statement about one webhook has it.
pub(crate) fn value(id: &WebhookId) -> Value<'_> {
    Value::from(id.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_read_back_in_one_order_and_unknown_ones_are_refused() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let all = Kinds::new(&[]).unwrap();
        assert_eq!((all.stored(), all.names().len(), all.has("task.completed")), (None, 0, true));
        let some = Kinds::new(&names(&["task.failed", "task.completed", "task.failed"])).unwrap();
        assert_eq!(some.stored().as_deref(), Some("task.completed,task.failed"));
        assert_eq!(Kinds::read(some.stored().as_deref()), some);
        assert!(some.has("task.failed") && !some.has("task.assigned"));
        assert!(!Kinds::read(Some("task.painted")).has("task.completed"), "none that is known is not all");
        let meshes = Kinds::new(&names(&["mesh.member_joined", "task.failed"])).unwrap();
        assert_eq!(meshes.stored().as_deref(), Some("task.failed,mesh.member_joined"));
        assert!(meshes.has("mesh.member_joined") && !meshes.has("mesh.member_left") && !all.has("mesh.member_joined"));
        assert!(Kinds::new(&names(&["mesh.peer_join"])).is_err(), "what only those need who are connected");
        let error = Kinds::new(&names(&["task.completed", "task.painted"])).unwrap_err();
        assert!(error.message().contains("task.painted") && error.message().contains("task.assigned"), "{error}");
    }
}
